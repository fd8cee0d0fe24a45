"""Options are checked when a guard is made, and predicates must be plain functions."""

import inspect
import math
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from decimal import Decimal
from typing import Any

import pytest

from nothing_left import collect_until_quiet
from stories import Log, numbers
from streamguard import EndReason, guarded_stream

pytestmark = pytest.mark.anyio


SECONDS = "give seconds"


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        pytest.param({"cleanup_timeout": -1}, ValueError, "cleanup_timeout=-1; give seconds from 0", id="negative"),
        pytest.param({"cleanup_timeout": -math.inf}, ValueError, "cleanup_timeout=-inf; give seconds", id="minus inf"),
        pytest.param(
            {"cleanup_timeout": math.nan}, ValueError, "cleanup_timeout=nan; give seconds from 0 up", id="nan"
        ),
        pytest.param({"cleanup_timeout": "1"}, TypeError, "cleanup_timeout='1'; give seconds as a number", id="str"),
        pytest.param({"cleanup_timeout": True}, TypeError, "cleanup_timeout=True; give seconds as a number", id="bool"),
        pytest.param({"cleanup_timeout": Decimal(1)}, TypeError, "give seconds as a number", id="decimal"),
        pytest.param({"cleanup_timeout": 10**400}, ValueError, "give seconds from 0 up", id="too large"),
        pytest.param(
            {"tail": lambda: None}, TypeError, "tail: .*<lambda>.* with one argument, the StreamEnd", id="arity"
        ),
        pytest.param({"cancel": lambda run: run}, TypeError, "cancel: .*<lambda>.* without arguments", id="too many"),
        pytest.param({"cancel": Log().note}, TypeError, "cancel: .*note.* without arguments", id="method"),
        pytest.param({"release_agents": 1}, TypeError, "release_agents=1; give True or False", id="release"),
        pytest.param({"prefetch": -1}, ValueError, "prefetch=-1", id="negative prefetch"),
        pytest.param({"prefetch": 1.5}, TypeError, "prefetch=1.5", id="fractional prefetch"),
        pytest.param({"prefetch": True}, TypeError, "prefetch=True", id="bool prefetch"),
        pytest.param({"prefetch": None}, TypeError, "prefetch=None", id="no prefetch"),
        pytest.param({"until": 1}, TypeError, "until=1 is not callable; give a function, or None", id="until"),
        pytest.param({"where": "x"}, TypeError, "where='x' is not callable", id="where"),
        pytest.param({"cancel": 1}, TypeError, "cancel=1 is not callable", id="cancel"),
        pytest.param({"tail": []}, TypeError, r"tail=\[\] is not callable", id="tail"),
        pytest.param(
            {"on_early_exit": "stop"}, ValueError, 'on_early_exit=\'stop\'; use "close" or "drain"', id="exit"
        ),
        pytest.param({"on_early_exit": None}, ValueError, "on_early_exit=None", id="no exit"),
    ],
)
async def test_option(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    """A bad option is refused when the guard is made; the message says what came and what to give."""
    log = Log()
    source = numbers(log)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(kind, match=message):
            guarded_stream(source, **options)
    assert await anext(source) == 1  # untouched
    await source.aclose()


async def async_predicate(item: int) -> bool:
    return True


class AsyncPredicate:
    async def __call__(self, item: int) -> bool:
        return True


async def generating_predicate(item: int) -> AsyncIterator[bool]:
    yield True


@pytest.mark.parametrize("option", ["until", "where"])
@pytest.mark.parametrize("predicate", [async_predicate, AsyncPredicate()], ids=["function", "object"])
async def test_async_predicate(option: str, predicate: Callable[[int], Any]) -> None:
    """An async predicate is a TypeError: when the guard is made if that can be seen, else at its first answer."""
    options: dict[str, Any] = {option: predicate}
    log = Log()
    with pytest.raises(TypeError, match=r"sync_?[pP]redicate"):
        async with guarded_stream(numbers(log), **options) as stream:
            await anext(stream)
    assert log in ([], ["closed"])


@pytest.mark.parametrize("option", ["until", "where"])
async def test_async_predicate_is_refused_at_once(option: str) -> None:
    """An async function as a predicate is refused when the guard is made."""
    options: dict[str, Any] = {option: async_predicate}
    source = numbers(Log())
    with pytest.raises(TypeError, match=f"{option}.*async_predicate.*plain function"):
        guarded_stream(source, **options)
    await source.aclose()


@pytest.mark.parametrize("option", ["until", "where"])
async def test_predicate_that_returns_an_awaitable(option: str) -> None:
    """A predicate that returns an awaitable gives a TypeError at the read; no coroutine is left unawaited."""
    options: dict[str, Any] = {option: lambda item: async_predicate(item)}
    log = Log()
    with pytest.raises(TypeError, match=r"returned an awaitable; .*plain function"):
        async with guarded_stream(numbers(log), **options) as stream:
            await anext(stream)
    assert log == ["closed"]
    collect_until_quiet()


class Eventually:
    """Awaitable, but no coroutine."""

    def __await__(self) -> Generator[None, None, bool]:
        yield
        return True


@pytest.mark.parametrize("option", ["until", "where"])
async def test_predicate_that_returns_a_future(option: str) -> None:
    """An awaitable that is no coroutine is no answer either."""
    options: dict[str, Any] = {option: lambda item: Eventually()}
    log = Log()
    with pytest.raises(TypeError, match=r"returned an awaitable; .*plain function"):
        async with guarded_stream(numbers(log), **options) as stream:
            await anext(stream)
    assert log == ["closed"]


@pytest.mark.parametrize("option", ["until", "where"])
async def test_predicate_that_raises(option: str) -> None:
    """The error of a predicate arrives at the read, bare, and the source is closed."""
    error = OSError("predicate")

    def judge(item: int) -> bool:
        raise error

    options: dict[str, Any] = {option: judge}
    log = Log()
    with pytest.raises(OSError, match=r"^predicate$") as caught:
        async with guarded_stream(numbers(log), **options) as stream:
            await anext(stream)
    assert caught.value is error
    assert log == ["closed"]
    assert stream.end.reason is EndReason.FAILED
    assert stream.end.items == 0


@pytest.mark.parametrize("option", ["until", "where"])
@pytest.mark.parametrize("kind", [StopAsyncIteration, StopIteration])
async def test_predicate_that_raises_stop(option: str, kind: type[Exception]) -> None:
    """A predicate cannot end the stream by raising StopAsyncIteration: that is an error, as in a generator."""

    def judge(item: int) -> bool:
        raise kind

    options: dict[str, Any] = {option: judge}
    log = Log()
    with pytest.raises(RuntimeError, match=rf"\braised {kind.__name__}$") as caught:
        async with guarded_stream(numbers(log), **options) as stream:
            await anext(stream)
    assert isinstance(caught.value.__cause__, kind)
    if kind is StopAsyncIteration:  # the other one is told by Python
        assert ".judge' raised" in str(caught.value)
    assert log == ["closed"]


@pytest.mark.parametrize("seconds", [0, 0.0, 1, None, math.inf, 1e12])
async def test_timeouts_that_are_fine(seconds: float | None) -> None:
    """Every number of seconds from 0 up is accepted, and none at all; a close that needs no waiting is done."""
    log = Log()

    async def source() -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
        finally:
            log.note("closed")

    async with guarded_stream(source(), cleanup_timeout=seconds) as stream:
        await anext(stream)
    assert log == ["closed"]


def test_default_limit() -> None:
    """A close has ten seconds, if nothing else was said."""
    assert inspect.signature(guarded_stream).parameters["cleanup_timeout"].default == 10


async def test_source_is_positional() -> None:
    """The source has no name, the options have nothing but names."""
    source = numbers(Log())
    with pytest.raises(TypeError):
        guarded_stream(source=source)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        guarded_stream(source, bool)  # type: ignore[call-arg]
    await source.aclose()
