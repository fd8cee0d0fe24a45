"""What each test, and each fixture, left suspended; registered by the plugin when somebody asks.

The rule kept here: a generator is the test's, or the fixture's, that first iterated it. The test fails with its own
leaks; those of a fixture, and what is known only after it, are an error of the setup or teardown.
"""

from __future__ import annotations

import gc
import importlib.util
import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import CodeType, FrameType
from typing import Any

import pytest

from ._report import describe
from ._tracker import Leak, Tracker
from .leaks import UnguardedStreamWarning
from .pytest_plugin import MODES, default_mode

_ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@dataclass(eq=False, slots=True)
class Culprit:
    """A test or a fixture: what a generator was first iterated by."""

    name: str
    is_fixture: bool
    mode: str = ""
    """What becomes of what it leaves; of a fixture, that of the test at which it is known."""
    is_over: bool = False
    """Whether what is still open is left: after the test's teardown, or the fixture's own."""


class LeakPlugin:
    """One tracker for the whole session, since fixtures and loops may live longer than a test."""

    def __init__(self, config: pytest.Config) -> None:
        self._packages = _installed(config.getini("streamguard_packages"))
        self._config = config
        self._tracker: Tracker | None = None
        self._current: Culprit | None = None
        self._fixtures: dict[CodeType, Culprit] = {}
        """By the code of their functions: pytest-trio runs fixtures while the test runs."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._test = Culprit(item.nodeid, is_fixture=False, mode=self._mode_of(item))
        if self._test.mode != "off" and self._tracker is None:
            self._tracker = Tracker(self._packages, self._culprit_of)
            self._tracker.start()
        with self._blame(self._test):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        __tracebackhide__ = True
        return (yield from self._phase(item, "setup", lambda culprit: culprit.is_fixture))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        __tracebackhide__ = True
        return (yield from self._phase(item, "call", lambda culprit: culprit is self._test))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        __tracebackhide__ = True
        return (yield from self._phase(item, "teardown", lambda culprit: True))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Iterator[Any]:
        __tracebackhide__ = True
        culprit = Culprit(fixturedef.argname, is_fixture=True)
        code = getattr(inspect.unwrap(fixturedef.func), "__code__", None)
        if code is not None and code.co_flags & _ASYNC:
            self._fixtures[code] = culprit
        # Finalisers run in reverse: the first one when the fixture's own teardown is done, the last one before it.
        fixturedef.addfinalizer(lambda: self._end_teardown(culprit, code))
        try:
            with self._blame(culprit):
                return (yield)
        finally:
            fixturedef.addfinalizer(lambda: self._begin_teardown(culprit))

    def pytest_sessionfinish(self) -> None:
        if self._tracker is not None:
            self._tracker.stop()

    # -- who is to blame

    def _mode_of(self, item: pytest.Item) -> str:
        marker = item.get_closest_marker("streamguard")
        if marker is None:
            return default_mode(self._config)
        if len(marker.args) != 1 or marker.kwargs or marker.args[0] not in MODES:
            raise pytest.UsageError(f"{item.nodeid}: @pytest.mark.streamguard takes one of {', '.join(MODES)}")
        return str(marker.args[0])

    @contextmanager
    def _blame(self, culprit: Culprit) -> Iterator[None]:
        before, self._current = self._current, culprit
        try:
            yield
        finally:
            self._current = before

    def _begin_teardown(self, culprit: Culprit) -> None:
        self._current = culprit

    def _end_teardown(self, culprit: Culprit, code: CodeType | None) -> None:
        culprit.is_over, self._current = True, self._test
        if code is not None and self._fixtures.get(code) is culprit:
            del self._fixtures[code]

    def _culprit_of(self, frame: FrameType) -> object:
        if self._current is None or self._current.is_fixture:
            return self._current
        looked_at: FrameType | None = frame
        while looked_at is not None and self._fixtures:
            fixture = self._fixtures.get(looked_at.f_code)
            if fixture is not None:
                return fixture
            looked_at = looked_at.f_back
        return self._current

    # -- what was left

    def _phase(self, item: pytest.Item, phase: str, which: Callable[[Culprit], bool]) -> Iterator[None]:
        __tracebackhide__ = True
        try:
            result = yield
        except BaseException:
            # Its own failure is what the user has to see first.
            if told := self._tell(item, phase, which):
                item.add_report_section(phase, "streamguard", told)
            raise
        if told := self._tell(item, phase, which):
            _fail(told)
        return result

    def _tell(self, item: pytest.Item, phase: str, which: Callable[[Culprit], bool]) -> str:
        """Warn of what was left; what is not only a warning."""
        if self._tracker is None:
            return ""
        if phase == "teardown":
            self._test.is_over, self._current = True, self._test
            self._tracker.judge(_is_over)
        elif self._test in self._tracker:
            gc.collect()  # a reference cycle may hold what the test has dropped
        found = self._tracker.take(lambda culprit: isinstance(culprit, Culprit) and which(culprit))
        told = [
            _tell_of(culprit, item, replace(leak, count=count), culprit.mode or self._test.mode)
            for (culprit, is_yours, leak), count in found.items()
            if is_yours and isinstance(culprit, Culprit)
        ]
        return "\n\n".join(filter(None, told))


def _installed(packages: list[str]) -> list[str]:
    """The same names; a UsageError if one of them cannot be imported."""
    for package in packages:
        # Of a submodule the top one is enough: to find it would be to import what it is in.
        if importlib.util.find_spec(package.partition(".")[0] or "?") is None:
            raise pytest.UsageError(f"streamguard_packages: there is no package {package!r}; give import names")
    return packages


def _tell_of(culprit: Culprit, item: pytest.Item, leak: Leak, mode: str) -> str:
    if mode == "off":
        return ""
    text = f"{_title(culprit, item, leak)}\n{describe(leak)}"
    if mode == "error":
        return text
    try:
        warnings.warn_explicit(UnguardedStreamWarning(text), None, leak.first_file, leak.first_line)
    except UnguardedStreamWarning:
        return text
    return ""


def _fail(told: str) -> None:
    # Here, since the frames of the hooks are hidden: pytest would say so.
    pytest.fail(told, pytrace=False)


def _is_over(culprit: object) -> bool:
    return isinstance(culprit, Culprit) and culprit.is_over


def _title(culprit: Culprit, item: pytest.Item, leak: Leak) -> str:
    who = f"the fixture {culprit.name!r}, in {item.nodeid}," if culprit.is_fixture else culprit.name
    return f"{who} left {'an async generator' if leak.count == 1 else f'{leak.count:,} async generators'} suspended:"
