"""The guard that the user holds: entering, reading, stopping and closing it, and what it says when it is misused."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from nothing_left import collect_until_quiet
from recording import Fault
from spies import on_asyncio, spawned_tasks
from stories import Log, cancel_when_blocked, noted_numbers, numbers, read_all, waiting
from streamguard import CleanupTimeoutError, EndReason, GuardedStream, StreamEnd, _guard, guarded_chain, guarded_stream

pytestmark = pytest.mark.anyio


# -- entering


async def test_not_entered() -> None:
    """Reading a guard that was not entered raises and says what to write; its source is untouched."""
    log = Log()
    guard = guarded_stream(numbers(log))
    with pytest.raises(RuntimeError, match='use "async with"'):
        async for _ in guard:
            pass
    with pytest.raises(RuntimeError, match=r"GuardedStream of async generator 'numbers'.* use .async with."):
        await anext(guard)
    async with guard as stream:
        assert await anext(stream) == 1
    assert log == ["closed"]


async def test_entered_twice() -> None:
    """A guard can be entered once: RuntimeError, and the block that is open goes on."""
    log = Log()
    guard = guarded_stream(numbers(log))
    async with guard as stream:
        assert await anext(stream) == 1
        with pytest.raises(RuntimeError, match="was entered before; make a new one for each block"):
            await guard.__aenter__()
        assert await anext(stream) == 2
    assert log == ["closed"]


async def test_entered_again_after_its_end() -> None:
    """A guard that was left is not entered again."""
    guard = guarded_stream(numbers(Log()))
    async with guard:
        pass
    with pytest.raises(RuntimeError, match="was entered before"):
        async with guard:
            pass
    assert guard.end.reason is EndReason.LEFT


async def test_the_block_gives_the_guard() -> None:
    """``as`` gives the guard itself, which is its own iterator."""
    guard = guarded_stream(numbers(Log()))
    async with guard as stream:
        assert stream is guard
        assert aiter(stream) is stream


async def test_works_without_as() -> None:
    """The guard may be read by its own name inside the block."""
    log = Log()
    guard = guarded_stream(numbers(log))
    async with guard:
        assert [item async for item in guard] == [1, 2, 3]
    assert log == ["closed"]


# -- reading


async def test_read_after_the_source_has_ended() -> None:
    """After the end, every read gives StopAsyncIteration, in the block and after it."""
    async with guarded_stream(numbers(Log(), 1)) as stream:
        assert [item async for item in stream] == [1]
        for _ in range(2):
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    assert await anext(stream, None) is None


async def test_read_after_the_block() -> None:
    """A stream that was left early gives StopAsyncIteration after its block, not an item."""
    async with guarded_stream(numbers(Log())) as stream:
        await anext(stream)
    assert [item async for item in stream] == []
    assert stream.end.items == 1


async def test_read_after_an_error() -> None:
    """After the source's error every read gives StopAsyncIteration: the error arrives once."""

    async def failing() -> AsyncGenerator[int, None]:
        yield 1
        raise OSError("source")

    async with guarded_stream(failing()) as stream:
        await anext(stream)
        with pytest.raises(OSError, match="source"):
            await anext(stream)
        assert [item async for item in stream] == []
    assert isinstance(stream.end.error, OSError)


async def test_second_reader() -> None:
    """A second reader gets a RuntimeError that names the stream and the fix; the first one gets its item."""
    go_on = anyio.Event()
    got: list[int] = []

    async def slow() -> AsyncGenerator[int, None]:
        await go_on.wait()
        yield 1

    async with guarded_stream(slow()) as stream, anyio.create_task_group() as group:
        group.start_soon(read_all, stream, got)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(RuntimeError, match=r"slow' is being read by another task; let one task read it, or open"):
            await anext(stream)
        assert got == []
        go_on.set()
    assert got == [1]


async def test_second_reader_after_the_first_was_woken() -> None:
    """Also between the arrival of an item and the first reader's turn, a second one is refused."""
    got: list[int] = []
    refused: list[str] = []

    async def source() -> AsyncGenerator[int, None]:
        group.start_soon(second)
        await anyio.lowlevel.checkpoint()
        yield 1
        yield 2

    async def second() -> None:
        try:
            await anext(stream)
        except RuntimeError as error:
            refused.append(str(error))

    async with guarded_stream(source()) as stream, anyio.create_task_group() as group:
        got.append(await anext(stream))
    assert got == [1]
    assert len(refused) == 1


async def test_source_that_reads_itself() -> None:
    """A source that reads its own stream is refused like any second reader, not waited for for ever."""
    refused: list[str] = []

    async def source() -> AsyncGenerator[int, None]:
        with pytest.raises(RuntimeError, match="being read by another task"):
            await anext(stream)
        refused.append("once")
        yield 1

    async with guarded_stream(source()) as stream:
        assert await anext(stream) == 1
    assert refused == ["once"]


async def test_readers_in_turn() -> None:
    """Several tasks may read one after the other; each item goes to one of them."""
    got: list[int] = []

    async def read_one(stream: AsyncIterator[int]) -> None:
        got.append(await anext(stream))

    log = Log()
    async with guarded_stream(numbers(log)) as stream:
        for _ in range(3):
            async with anyio.create_task_group() as group:
                group.start_soon(read_one, stream)
    assert got == [1, 2, 3]
    assert len(log.tasks) == 1


async def test_end_before_the_exit() -> None:
    """`end` in the block is a RuntimeError that says where to read it."""
    guard = guarded_stream(numbers(Log()))
    with pytest.raises(RuntimeError, match="has not ended; read `end` after its block"):
        _ = guard.end
    async with guard as stream:
        async for _ in stream:
            pass
        with pytest.raises(RuntimeError, match="has not ended"):
            _ = stream.end
    assert guard.end.reason is EndReason.EXHAUSTED


async def test_end_in_the_tail() -> None:
    """The tail gets what `end` says after the block."""
    ends: list[StreamEnd[int]] = []
    async with guarded_stream(numbers(Log()), tail=ends.append) as stream:
        assert [await anext(stream), await anext(stream)] == [1, 2]
    assert ends == [stream.end]
    assert (stream.end.items, stream.end.last, stream.end.error) == (2, 2, None)


# -- stop


async def test_stop_in_the_body() -> None:
    """`stop()` ends the loop as if the source were exhausted; the body goes on to its end."""
    log = Log()
    async with guarded_stream(numbers(log)) as stream:
        async for item in stream:
            stream.stop()
            log.note(f"body {item}")
        log.note("after the loop")
    assert log == ["body 1", "after the loop", "closed"]
    assert stream.end.reason is EndReason.STOPPED
    assert stream.end.items == 1


async def test_stop_from_another_task() -> None:
    """`stop()` from any task ends the loop of a waiting reader; the source is closed once, by its owner."""
    log = Log()
    got: list[int] = []
    async with guarded_stream(waiting(log)) as stream:
        async with anyio.create_task_group() as group:
            group.start_soon(read_all, stream, got)
            await anyio.wait_all_tasks_blocked()
            stream.stop()
        assert log == ["waits"]
    assert log == ["waits", "closed"]
    assert len(log.tasks) == 1
    assert got == [1]
    assert stream.end.reason is EndReason.STOPPED


async def test_stop_does_not_interrupt_the_body() -> None:
    """`stop()` while the body works is seen at the next read only."""
    log = Log()
    async with guarded_stream(numbers(log)) as stream, anyio.create_task_group() as group:
        async for _ in stream:
            group.start_soon(_stop_later, stream)
            await anyio.wait_all_tasks_blocked()
            log.note("body undisturbed")
    assert log == ["body undisturbed", "closed"]


async def _stop_later(stream: GuardedStream[int]) -> None:
    stream.stop()


async def test_stop_inside_the_source() -> None:
    """`stop()` from inside the source ends the loop: the item that it then yields is dropped."""
    log = Log()

    async def source() -> AsyncGenerator[int, None]:
        try:
            yield 1
            stream.stop()
            yield 2
        finally:
            await anyio.lowlevel.checkpoint()
            log.note("closed")

    async with guarded_stream(source()) as stream:
        assert [item async for item in stream] == [1]
    assert log == ["closed"]
    assert stream.end.reason is EndReason.STOPPED
    assert stream.end.items == 1


@pytest.mark.parametrize("option", ["where", "until"])
async def test_stop_inside_a_predicate(option: str) -> None:
    """`stop()` from inside a predicate drops the item that it was asked about."""
    log = Log()

    def judge(item: int) -> bool:
        if item == 2:
            stream.stop()
        return option == "where"

    options: dict[str, Any] = {option: judge}
    async with guarded_stream(numbers(log), **options) as stream:
        assert [item async for item in stream] == [1]
    assert log == ["closed"]
    assert stream.end.reason is EndReason.STOPPED
    assert stream.end.items == 1


async def test_stop_in_a_predicate_that_refuses() -> None:
    """`stop()` from inside a ``where`` that skips the item ends the loop all the same."""
    log = Log()

    def judge(item: int) -> bool:
        if item == 2:
            stream.stop()
        return item != 2

    async with guarded_stream(numbers(log), where=judge) as stream:
        assert [item async for item in stream] == [1]
    assert log == ["closed"]


async def test_stop_twice() -> None:
    """Stopping again does nothing, in the block and after it."""
    log = Log()
    async with guarded_stream(numbers(log)) as stream:
        await anext(stream)
        stream.stop()
        stream.stop()
    stream.stop()
    assert log == ["closed"]
    assert stream.end.reason is EndReason.STOPPED


async def test_stop_after_the_end() -> None:
    """Stopping a stream that came to its end does not change how it ended."""
    async with guarded_stream(numbers(Log())) as stream:
        async for _ in stream:
            pass
        stream.stop()
    assert stream.end.reason is EndReason.EXHAUSTED


async def test_stop_before_the_first_read() -> None:
    """A stream that was stopped before it was read gives nothing and starts no task."""
    log = Log()
    with spawned_tasks() as names:
        async with guarded_stream(numbers(log)) as stream:
            stream.stop()
            assert [item async for item in stream] == []
    assert names == []
    assert log == []
    assert stream.end.reason is EndReason.STOPPED


async def test_stop_before_entering() -> None:
    """Stopping a guard that was not entered does nothing, as its docstring says."""
    guard = guarded_stream(numbers(Log()))
    guard.stop()
    async with guard as stream:
        assert [item async for item in stream] == [1, 2, 3]


async def test_stop_drops_an_unread_item() -> None:
    """An item that stands unread when the stream is stopped is dropped, and not counted."""
    log = Log()
    go_on = anyio.Event()

    async def source() -> AsyncGenerator[int, None]:
        await go_on.wait()
        log.note("made")
        yield 1

    async with guarded_stream(source()) as stream:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(cancel_when_blocked, scope)
                await anext(stream)
        go_on.set()
        await anyio.wait_all_tasks_blocked()
        assert log == ["made"]
        stream.stop()
        assert [item async for item in stream] == []
    assert stream.end.items == 0
    assert stream.end.last is None


async def test_stop_with_an_unread_error() -> None:
    """After `stop()` the loop ends as if exhausted although an error stands unread; it leaves from the exit."""
    go_on = anyio.Event()

    async def source() -> AsyncGenerator[int, None]:
        await go_on.wait()
        raise OSError("unread")
        yield 1

    reads: list[int] = []
    with pytest.raises(OSError, match=r"^unread$"):
        async with guarded_stream(source()) as stream:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(cancel_when_blocked, scope)
                    await anext(stream)
            go_on.set()
            await anyio.wait_all_tasks_blocked()
            stream.stop()
            await read_all(stream, reads)
            reads.append(-1)
    assert reads == [-1]


async def test_stop_from_another_thread() -> None:
    """Another thread stops the stream by the loop's own way in."""
    log = Log()
    got: list[int] = []
    async with guarded_stream(waiting(log)) as stream, anyio.create_task_group() as group:
        group.start_soon(read_all, stream, got)
        await anyio.wait_all_tasks_blocked()
        await anyio.to_thread.run_sync(lambda: anyio.from_thread.run_sync(stream.stop))
    assert log == ["waits", "closed"]


# -- aclose


async def test_aclose_in_the_body() -> None:
    """`aclose()` closes the source there and then; the exit has nothing left to do."""
    log = Log()
    async with guarded_stream(numbers(log)) as stream:
        await anext(stream)
        await stream.aclose()
        assert log == ["closed"]
        assert [item async for item in stream] == []
    assert log == ["closed"]


async def test_aclose_from_another_task_ends_the_loop() -> None:
    """`aclose()` from another task ends a waiting reader's loop; the source is closed once, no RuntimeError."""
    log = Log()
    got: list[int] = []
    async with guarded_stream(waiting(log)) as stream:
        async with anyio.create_task_group() as group:
            group.start_soon(read_all, stream, got)
            await anyio.wait_all_tasks_blocked()
            await stream.aclose()
            assert log == ["waits", "closed"]
    assert got == [1]
    assert log == ["waits", "closed"]
    assert len(log.tasks) == 1


async def test_several_closers() -> None:
    """Several closers all wait for the one close, and get None; later calls return at once."""
    log = Log()
    may_close = anyio.Event()

    async def source() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            log.note("closing")
            await may_close.wait()
            log.note("closed")

    async def close() -> None:
        assert await stream.aclose() is None  # type: ignore[func-returns-value]
        log.append("closer done")

    async with guarded_stream(source()) as stream:
        await anext(stream)
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(close)
            await anyio.wait_all_tasks_blocked()
            assert log == ["closing"]
            may_close.set()
        await close()
    await close()
    assert log == ["closing", "closed", *["closer done"] * 5]
    assert len(log.tasks) == 1


async def test_closer_and_exit_at_once() -> None:
    """The exit of the block waits for a close that another task has begun."""
    log = Log()
    may_close = anyio.Event()

    async def source() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            await may_close.wait()
            log.note("closed")

    async def release() -> None:
        await anyio.wait_all_tasks_blocked()
        assert log == []
        may_close.set()

    async with anyio.create_task_group() as group:
        async with guarded_stream(source()) as stream:
            await anext(stream)
            group.start_soon(stream.aclose)
            await anyio.wait_all_tasks_blocked()
            group.start_soon(release)
        assert log == ["closed"]


async def test_cancelled_closer() -> None:
    """A closer that is cancelled waits for the close, and ends cancelled; the other closer is not disturbed."""
    log = Log()
    may_close = anyio.Event()

    async def source() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            await may_close.wait()
            log.note("closed")

    async def first() -> None:
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            await stream.aclose()
            await anyio.lowlevel.checkpoint()
        assert scope.cancelled_caught
        log.append("first")

    async def second() -> None:
        await stream.aclose()
        log.append("second")

    scopes: list[anyio.CancelScope] = []
    async with guarded_stream(source()) as stream:
        await anext(stream)
        async with anyio.create_task_group() as group:
            group.start_soon(first)
            await anyio.wait_all_tasks_blocked()
            group.start_soon(second)
            await anyio.wait_all_tasks_blocked()
            scopes[0].cancel()
            await anyio.wait_all_tasks_blocked()
            assert log == []
            may_close.set()
    assert log[0] == "closed"
    assert sorted(log) == ["closed", "first", "second"]


@on_asyncio
async def test_natively_cancelled_closer() -> None:
    """A closer whose task is cancelled (asyncio's own way) ends cancelled, after the close."""
    log = Log()
    may_close = asyncio.Event()

    async def source() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            await may_close.wait()
            log.note("closed")

    async with guarded_stream(source()) as stream:
        await anext(stream)
        closer = asyncio.create_task(stream.aclose())
        await anyio.wait_all_tasks_blocked()
        closer.cancel()
        await anyio.wait_all_tasks_blocked()
        assert not closer.done()
        may_close.set()
        await asyncio.wait([closer])
        assert closer.cancelled()
        assert log == ["closed"]


async def test_aclose_inside_the_source() -> None:
    """`aclose()` from inside the source is a RuntimeError that names the fix; the stream goes on."""
    log = Log()

    async def source() -> AsyncGenerator[int, None]:
        try:
            with pytest.raises(RuntimeError, match=r"cannot be closed from inside its own source; use stop\(\)"):
                await stream.aclose()
            yield 1
            yield 2
        finally:
            log.note("closed")

    async with guarded_stream(source()) as stream:
        assert [item async for item in stream] == [1, 2]
    assert log == ["closed"]


async def test_aclose_inside_the_cleanup_of_the_source() -> None:
    """`aclose()` from inside the source's own cleanup is refused as well, not waited for for ever."""
    log = Log()

    async def source() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            with pytest.raises(RuntimeError, match="from inside its own source"):
                await stream.aclose()
            log.note("closed")

    async with guarded_stream(source()) as stream:
        await anext(stream)
    assert log == ["closed"]


async def test_aclose_of_a_guard_that_was_never_entered() -> None:
    """`aclose()` closes a guard that was never entered, for good, and its source."""
    log = Log()
    source = numbers(log)
    await anext(source)
    log.tasks.clear()
    guard = guarded_stream(source)
    await guard.aclose()
    assert log == ["closed"]
    assert guard.end.reason is EndReason.LEFT
    with pytest.raises(RuntimeError, match="was entered before"):
        async with guard:
            pass


async def test_error_of_the_close_leaves_from_the_exit() -> None:
    """What the close raises leaves from the exit of the block, once, not from `aclose()`."""

    async def source() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            raise OSError("close")

    steps: list[str] = []
    with pytest.raises(OSError, match=r"^close$"):
        async with guarded_stream(source()) as stream:
            await anext(stream)
            await stream.aclose()
            steps.append("closed")
    assert steps == ["closed"]
    assert len(stream.end.cleanup_errors) == 1


# -- repr


async def test_repr() -> None:
    """The repr names the source, and whether the guard is open."""
    guard = guarded_stream(numbers(Log()))
    assert repr(guard) == "<GuardedStream of async generator 'numbers', not entered>"
    async with guard as stream:
        assert repr(stream) == "<GuardedStream of async generator 'numbers', open>"
    assert repr(guard) == "<GuardedStream of async generator 'numbers', closed>"


# -- another event loop


@pytest.mark.parametrize("other", ["asyncio", "trio"])
@pytest.mark.parametrize("exit_of_the_block", [False, True], ids=["aclose", "exit"])
async def test_entered_in_another_loop(other: str, exit_of_the_block: bool) -> None:
    """A stream is read in the loop in which it was entered; elsewhere it cannot be closed or left: RuntimeError."""
    guard = guarded_stream(numbers(Log()))
    async with guard as stream:
        assert await anext(stream) == 1

        def elsewhere() -> None:
            if exit_of_the_block:
                anyio.run(guard.__aexit__, None, None, None, backend=other)
            else:
                anyio.run(guard.aclose, backend=other)

        with pytest.raises(RuntimeError, match="belongs to another event loop; use it where it was entered"):
            await anyio.to_thread.run_sync(elsewhere)
        assert await anext(stream) == 2


def test_made_without_a_loop() -> None:
    """A guard may be made where no loop runs, and entered in one (no backend runs the test itself)."""
    log = Log()
    guard = guarded_stream(numbers(log))

    async def main() -> None:
        async with guard as stream:
            assert await anext(stream) == 1

    asyncio.run(main())
    assert log == ["closed"]


def test_entered_without_a_loop() -> None:
    """Entered where no loop runs it says so as asyncio does, also if it is the first of its process."""
    _guard._asyncio_owner.cache_clear()
    guard = guarded_stream(numbers(Log()))
    with pytest.raises(RuntimeError, match=r"^no running event loop$"):
        guard.__aenter__().send(None)
    with pytest.warns(ResourceWarning, match="never entered"):
        del guard
        collect_until_quiet()


# -- cancel, and what is misused


@pytest.mark.parametrize("awaits", [False, True], ids=["plain", "async"])
async def test_aclose_calls_cancel_first(awaits: bool) -> None:
    """`aclose()` inside the block calls `cancel` before it closes, and the exit does not call it again."""
    log = Log()

    async def cancel_later() -> None:
        await anyio.lowlevel.checkpoint()
        log.append("cancelled")

    cancel = cancel_later if awaits else lambda: log.append("cancelled")
    async with guarded_stream(numbers(log), cancel=cancel) as stream:
        assert await anext(stream) == 1
        await stream.aclose()
        assert log == ["cancelled", "closed"]
    assert log == ["cancelled", "closed"]


async def test_closed_twice_without_a_read() -> None:
    """A stream that was never read may be closed in its block, more than once: only the first does anything."""
    async with guarded_stream(numbers(Log())) as stream:
        await stream.aclose()
        await stream.aclose()
        assert await anext(stream, None) is None
    assert stream.end.reason is EndReason.STOPPED


async def test_exit_waits_for_the_cancel_that_another_task_called() -> None:
    """A block that is left while another task closes, and waits for `cancel`, is left with the error of that."""
    log = Log()
    called, may_end = anyio.Event(), anyio.Event()

    async def cancel() -> None:
        called.set()
        await may_end.wait()
        raise Fault

    async def let_end() -> None:
        await anyio.wait_all_tasks_blocked()
        may_end.set()

    async with anyio.create_task_group() as group:
        with pytest.raises(Fault):
            async with guarded_stream(numbers(log), cancel=cancel, tail=lambda _: log.append("tail")) as stream:
                assert await anext(stream) == 1
                group.start_soon(stream.aclose)
                await called.wait()
                group.start_soon(let_end)
    assert log == ["closed", "tail"]


@pytest.mark.parametrize("guard", [guarded_stream, guarded_chain])
async def test_closers_wait_for_the_cancel(guard: Callable[..., Any]) -> None:
    """Whoever closes while `cancel` runs waits for that: the source is not closed before its end, no error is lost."""
    log = Log()
    may_end = anyio.Event()

    async def cancel(*_: object) -> None:
        log.append("cancel begins")
        await may_end.wait()
        log.append("cancel ends")
        raise Fault

    with pytest.raises(Fault):
        async with guard(numbers(log), cancel=cancel) as stream:
            assert await anext(stream) == 1
            async with anyio.create_task_group() as group:
                group.start_soon(stream.aclose)
                await anyio.wait_all_tasks_blocked()
                group.start_soon(stream.aclose)
                await anyio.wait_all_tasks_blocked()
                may_end.set()
    assert log == ["cancel begins", "cancel ends", "closed"]


@on_asyncio
@pytest.mark.parametrize("guard", [guarded_stream, guarded_chain])
async def test_natively_cancelled_closers_in_the_cancel(guard: Callable[..., Any]) -> None:
    """Closers whose tasks are cancelled while `cancel` runs cut neither that nor the close, and end cancelled."""
    log = Log()
    may_end = anyio.Event()

    async def cancel(*_: object) -> None:
        await may_end.wait()
        log.append("cancel ends")

    async with guard(numbers(log), cancel=cancel) as stream:
        assert await anext(stream) == 1
        closers = [asyncio.create_task(stream.aclose()) for _ in range(2)]
        await anyio.wait_all_tasks_blocked()
        for closer in closers:
            closer.cancel()
        await anyio.wait_all_tasks_blocked()
        assert [closer.done() for closer in closers] == [False, False]
        may_end.set()
        await asyncio.wait(closers)
        assert [closer.cancelled() for closer in closers] == [True, True]
        assert log == ["cancel ends", "closed"]


@pytest.mark.parametrize("guard", [guarded_stream, guarded_chain])
async def test_no_item_once_the_block_is_left(guard: Callable[..., Any]) -> None:
    """While the exit of the block waits for `cancel`, whoever reads on gets the end, and the source is not stepped."""
    log = Log()
    read: list[object] = []

    async def cancel(*_: object) -> None:
        read.append(await anext(stream, "end"))

    async with guard(noted_numbers(log), cancel=cancel) as stream:
        assert await anext(stream) == 1
    assert read == ["end"]
    assert log == ["made 1", "closed"]


@pytest.mark.parametrize("guard", [guarded_stream, guarded_chain])
async def test_cancel_comes_before_a_close_in_the_drain(guard: Callable[..., Any]) -> None:
    """If another task closes what is being drained, `cancel` is called first, as ever."""
    log = Log()

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
            await anyio.sleep_forever()
        finally:
            log.append("closed")

    async with anyio.create_task_group() as group:

        async def close_in_the_drain(stream: Any) -> None:
            await anyio.wait_all_tasks_blocked()
            await stream.aclose()

        async with guard(source(), on_early_exit="drain", cancel=lambda *_: log.append("cancel")) as stream:
            assert await anext(stream) == 1
            group.start_soon(close_in_the_drain, stream)
    assert log == ["cancel", "closed"]


async def test_cancel_that_waits_for_the_exit() -> None:
    """A `cancel` that waits for the block to be left, which waits for it, is cut at the limit, whoever called it."""
    log = Log()
    left = anyio.Event()
    async with anyio.create_task_group() as group:
        with pytest.raises(CleanupTimeoutError, match=r"the cancel of .*numbers"):
            async with guarded_stream(numbers(log), cancel=left.wait, cleanup_timeout=0.05) as stream:
                assert await anext(stream) == 1
                group.start_soon(stream.aclose)
                await anyio.wait_all_tasks_blocked()
        left.set()
    assert log == ["closed"]


async def test_cancel_that_closes_the_stream() -> None:
    """A `cancel` that calls `aclose()` neither hangs nor is called again; a break stays a break."""
    log = Log()
    async with guarded_stream(numbers(log), cancel=lambda: stream.aclose()) as stream:
        async for _ in stream:
            break
    assert log == ["closed"]
    assert stream.end.reason is EndReason.LEFT


async def test_left_without_having_been_entered() -> None:
    """Leaving a guard that was not entered raises and says what to write."""
    guard = guarded_stream(numbers(Log()))
    with pytest.raises(RuntimeError, match='left without having been entered; use "async with"'):
        await guard.__aexit__(None, None, None)
    await guard.aclose()
