"""What a test left behind: tasks, open async generators, hooks, and what was reported meanwhile.

A `Watch` looks when it is started and again when it is asked; what is there then and was not there
before is left. It never waits and never turns the loop: what the code under test promised to close
is closed by then, or it is left.
"""

import asyncio
import gc
import logging
import re
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from types import AsyncGeneratorType
from typing import Any

import trio

LOGGERS = ("streamguard", "asyncio", "trio")


@dataclass(frozen=True, slots=True)
class Report:
    """Something that was said while the test ran: a log record, or a call of the loop's handler."""

    text: str
    source: logging.LogRecord | dict[str, Any]


class Watch:
    """Compares what exists now with what existed at `start()`."""

    def __init__(self) -> None:
        self._reports: list[Report] = []
        self._handler = _Handler(self._reports)

    def start(self, backend: str) -> None:
        self._backend = backend
        collect_until_quiet()
        self._tasks = weakref.WeakSet(tasks(backend))
        self._generators = weakref.WeakSet(open_generators())
        self._hooks = sys.get_asyncgen_hooks()
        for name in LOGGERS:
            logging.getLogger(name).addHandler(self._handler)
        if backend == "asyncio":
            loop = asyncio.get_running_loop()
            loop.slow_callback_duration = 60  # else asyncio's debug mode tells of a busy machine
            self._loop_handler = loop.get_exception_handler()
            loop.set_exception_handler(self._on_loop_error)

    def stop(self) -> None:
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(self._handler)
        if self._backend == "asyncio":
            asyncio.get_running_loop().set_exception_handler(self._loop_handler)

    def left(self) -> list[str]:
        """One line for each thing that is left; empty if nothing is."""
        collect_until_quiet()
        lines = [f"task: {task!r}" for task in tasks(self._backend) if task not in self._tasks]
        lines += [f"open: {gen!r}" for gen in open_generators() if gen not in self._generators]
        if sys.get_asyncgen_hooks() != self._hooks:
            lines.append(f"hooks: {sys.get_asyncgen_hooks()}, before: {self._hooks}")
        return lines + [f"not claimed: {report.text}" for report in self._reports]

    def claim(self, pattern: str) -> list[Report]:
        """Take out the reports that match: the test expected them. There must be one."""
        claimed = [report for report in self._reports if re.search(pattern, report.text)]
        texts = [report.text for report in self._reports]
        assert claimed, f"no report matches {pattern!r}; there were {texts}"
        self._reports[:] = [report for report in self._reports if report not in claimed]
        return claimed

    def _on_loop_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        text = f"loop: {context['message']} {context.get('exception')!r}"
        self._reports.append(Report(text, context))


class _Handler(logging.Handler):
    def __init__(self, reports: list[Report]) -> None:
        super().__init__(logging.WARNING)
        self._reports = reports

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{record.name}: {record.levelname} {record.getMessage()}"
        self._reports.append(Report(text, record))


def collect_until_quiet() -> None:
    """One collection is not enough: a finaliser may drop what only the next one finds."""
    while gc.collect():
        pass


def tasks(backend: str) -> list[Any]:
    """The tasks of the running loop that have not ended."""
    if backend == "asyncio":
        return [task for task in asyncio.all_tasks() if not _is_of_the_runner(task)]
    root = trio.lowlevel.current_root_task()
    assert root is not None
    return list(_with_children(root))


def open_generators() -> list[AsyncGeneratorType[Any, Any]]:
    """The async generators that are alive and have not ended, started or not."""
    generators = [obj for obj in gc.get_objects() if type(obj) is AsyncGeneratorType]
    return [gen for gen in generators if gen.ag_frame is not None]


def _is_of_the_runner(task: asyncio.Task[Any]) -> bool:
    # anyio's test runner makes a new one for each fixture and test, and waits in it.
    return getattr(task.get_coro(), "__qualname__", "") == "TestRunner._call_in_runner_task"


def _with_children(task: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    yield task
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from _with_children(child)
