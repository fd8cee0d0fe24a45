"""trio's own tests of `as_safe_channel`, with `@guarded` in its place: on trio, and on asyncio with anyio's names."""

import functools
import inspect
import types
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio
import trio.testing

from installed import installed
from nothing_left import Watch
from streamguard import GuardedStream, guarded
from trio_names import names

SUITE = installed("trio._tests.test_channel")
PREFIX = "test_as_safe_channel_"
TESTS = {name.removeprefix(PREFIX): test for name, test in vars(SUITE).items() if name.startswith(PREFIX)}

# They say the opposite of what we promise; a test of ours below shows the difference.
CONTRADICTING = ["genexit_finally", "multi_cancel", "multiple_receiver", "swallowing_extra_exceptions"]
REACHABLE = sorted(TESTS.keys() - CONTRADICTING)


class Channel:
    """A guarded stream that answers like the channel that `as_safe_channel` gives."""

    def __init__(self, stream: GuardedStream[Any], errors: Any) -> None:
        self._stream = stream
        self._errors = errors
        self._closed = False

    async def __aenter__(self) -> "Channel":
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *details: Any) -> None:
        await self._stream.__aexit__(*details)

    def __aiter__(self) -> "Channel":
        return self

    async def __anext__(self) -> Any:
        try:
            return await anext(self._stream)
        except StopAsyncIteration:
            if self._closed:
                raise self._errors.ClosedResourceError from None
            raise

    receive = __anext__

    async def aclose(self) -> None:
        self._closed = True
        try:
            await self._stream.aclose()
        except RuntimeError:  # from inside the source it is stop(), as the error says
            self._stream.stop()


def with_guarded(name: str, errors: Any) -> Callable[[], Awaitable[None]]:
    """One of trio's tests, with `guarded` for `as_safe_channel`, and other names for `trio`."""

    def as_safe_channel(function: Any) -> Any:
        return lambda *args: Channel(guarded(function)(*args), errors)

    test = TESTS[name]
    replaced = {**vars(SUITE), "as_safe_channel": as_safe_channel, "trio": errors}
    function = types.FunctionType(test.__code__, replaced, name)
    # The one fixture that they ask for is the clock.
    return functools.partial(function, *(None for _ in inspect.signature(test).parameters))


def run_with_trio(test: Callable[[], Awaitable[None]]) -> None:
    trio.run(test, clock=trio.testing.MockClock(autojump_threshold=0))


def test_nearly_all_are_reachable() -> None:
    assert TESTS.keys() >= set(CONTRADICTING)
    assert len(REACHABLE) >= 15


@pytest.mark.parametrize("name", REACHABLE)
def test_on_trio(name: str) -> None:
    async def watched() -> None:
        watch = Watch()
        watch.start("trio")
        try:
            await with_guarded(name, trio)()
            left = watch.left()
        finally:
            watch.stop()
        assert not left

    run_with_trio(watched)


@pytest.mark.anyio
@pytest.mark.parametrize("name", REACHABLE)
async def test_with_the_names_of_anyio(name: str) -> None:
    await with_guarded(name, names())()


@pytest.mark.parametrize("name", CONTRADICTING)
def test_these_fail(name: str) -> None:
    """If one of them passes, it contradicts us no longer."""
    with pytest.raises((AssertionError, ExceptionGroup, pytest.fail.Exception)):
        run_with_trio(with_guarded(name, trio))


@pytest.mark.anyio
async def test_genexit_finally(watch: Watch) -> None:
    """There the body's error leaves in a group with the cleanup's. Here it leaves bare; the other is a note on it."""

    @guarded
    async def numbers() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            raise ValueError("cleanup")

    with pytest.raises(TypeError, match="body") as raised:
        async with numbers() as stream:
            async for _ in stream:
                raise TypeError("body")
    assert any("ValueError: cleanup" in note for note in raised.value.__notes__)
    watch.claim("ValueError: cleanup")


@pytest.mark.anyio
async def test_multi_cancel() -> None:
    """There a cancellation of the body cuts the cleanup. Here the cleanup runs to its end."""
    log: list[str] = []

    @guarded
    async def numbers() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            await anyio.lowlevel.checkpoint()
            log.append("cleanup done")

    with anyio.CancelScope() as scope:
        async with numbers() as stream:
            async for _ in stream:
                scope.cancel()
                try:
                    await anyio.lowlevel.checkpoint()
                finally:
                    log.append("body cancelled")
    assert scope.cancelled_caught
    assert log == ["body cancelled", "cleanup done"]


@pytest.mark.anyio
async def test_multiple_receiver() -> None:
    """There two tasks may read. Here the second is told, and the first is not disturbed."""
    go = anyio.Event()
    read: list[int] = []

    @guarded
    async def numbers() -> AsyncGenerator[int, None]:
        await go.wait()
        yield 1

    async def first_reader(stream: GuardedStream[int]) -> None:
        read.append(await anext(stream))

    async with numbers() as stream, anyio.create_task_group() as readers:
        readers.start_soon(first_reader, stream)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(RuntimeError, match="being read by another task"):
            await anext(stream)
        go.set()
    assert read == [1]


@pytest.mark.anyio
async def test_swallowing_extra_exceptions() -> None:
    """There a second `GeneratorExit` in the group is an error. Here nothing but `GeneratorExit` is a clean close."""

    async def raise_when_cancelled() -> None:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            raise GeneratorExit from None

    @guarded
    async def numbers() -> AsyncGenerator[int, None]:
        async with anyio.create_task_group() as children:
            children.start_soon(raise_when_cancelled)
            await anyio.wait_all_tasks_blocked()
            yield 1

    async with numbers() as stream:
        async for _ in stream:
            break
    assert stream.end.error is None
    assert stream.end.cleanup_errors == ()
