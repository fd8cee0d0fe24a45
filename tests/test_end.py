"""The record of how a stream ended: whole, the same for the tail and behind the block, and fixed."""

import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from nothing_left import Watch
from recording import Fault, Recording, go_on, leave
from streamguard import EndReason, StreamEnd, guarded_stream

pytestmark = pytest.mark.anyio


async def numbers() -> AsyncIterator[int]:
    for number in (1, 2, 3):
        yield number


async def test_before_the_exit() -> None:
    """Before the block has been left there is no end: RuntimeError names the stream and says when to ask."""
    stream = guarded_stream(numbers())
    with pytest.raises(RuntimeError, match=r"numbers.*has not ended; read `end` after its block"):
        _ = stream.end
    async with stream:
        with pytest.raises(RuntimeError, match="has not ended"):
            _ = stream.end
        async for _ in stream:
            pass
        with pytest.raises(RuntimeError, match="has not ended"):
            _ = stream.end
    assert stream.end.reason is EndReason.EXHAUSTED


async def test_exhausted() -> None:
    """Read to its end: EXHAUSTED, with all items counted and the last one kept."""
    source = numbers()
    async with guarded_stream(source) as stream:
        async for _ in stream:
            pass
    end = stream.end
    assert (end.reason, end.error, end.cleanup_errors) == (EndReason.EXHAUSTED, None, ())
    assert (end.items, end.last) == (3, 3)
    assert end.source is source
    assert end.members == ()


async def test_exhausted_then_left_by_break() -> None:
    """A break at the last item, before the end was read, is LEFT: nobody knew that it was the last."""
    async with guarded_stream(numbers()) as stream:
        async for number in stream:
            if number == 3:
                break
    assert (stream.end.reason, stream.end.items) == (EndReason.LEFT, 3)


async def test_empty_source() -> None:
    """A source without items: EXHAUSTED, none counted, no last one."""

    async def nothing() -> AsyncIterator[int]:
        return
        yield

    async with guarded_stream(nothing()) as stream:
        async for _ in stream:
            pass
    assert (stream.end.reason, stream.end.items, stream.end.last) == (EndReason.EXHAUSTED, 0, None)


async def test_matched() -> None:
    """`until` matched: MATCHED, and the item that matched is the last one."""
    async with guarded_stream(numbers(), until=lambda number: number == 2) as stream:
        got = [number async for number in stream]
    assert got == [1, 2]
    assert (stream.end.reason, stream.end.items, stream.end.last) == (EndReason.MATCHED, 2, 2)


async def test_matched_and_left_by_break() -> None:
    """A break in the body at the item that matched is MATCHED as well: that ended the stream."""
    async with guarded_stream(numbers(), until=lambda number: number == 2) as stream:
        async for number in stream:
            if number == 2:
                break
    assert stream.end.reason is EndReason.MATCHED


async def test_left_before_the_match() -> None:
    """A break before `until` matched is LEFT."""
    async with guarded_stream(numbers(), until=lambda number: number == 2) as stream:
        async for _ in stream:
            break
    assert stream.end.reason is EndReason.LEFT


async def test_matched_and_an_error_in_the_body() -> None:
    """What leaves the block decides: an error at the item that matched is FAILED."""
    stream = guarded_stream(numbers(), until=lambda number: number == 1)
    with pytest.raises(Fault):
        async with stream:
            async for _ in stream:
                raise Fault
    assert stream.end.reason is EndReason.FAILED


async def test_left() -> None:
    """Left by break: LEFT, with the items that were read."""
    async with guarded_stream(numbers()) as stream:
        async for _ in stream:
            break
    assert (stream.end.reason, stream.end.error, stream.end.items, stream.end.last) == (EndReason.LEFT, None, 1, 1)


async def test_left_unread() -> None:
    """Left with nothing read: LEFT."""
    source = numbers()
    async with guarded_stream(source) as stream:
        pass
    assert (stream.end.reason, stream.end.items, stream.end.last) == (EndReason.LEFT, 0, None)
    assert stream.end.source is source


async def test_stopped() -> None:
    """Ended by `stop()`: STOPPED, also when the body then breaks."""
    for breaks in (False, True):
        async with guarded_stream(numbers()) as stream:
            async for _ in stream:
                stream.stop()
                if breaks:
                    break
        assert (stream.end.reason, stream.end.items) == (EndReason.STOPPED, 1)


async def test_stopped_before_the_first_read() -> None:
    """Stopped before anything was read: STOPPED, nothing is delivered."""
    async with guarded_stream(numbers()) as stream:
        stream.stop()
        assert [number async for number in stream] == []
    assert (stream.end.reason, stream.end.items) == (EndReason.STOPPED, 0)


async def test_stopped_after_the_end() -> None:
    """A `stop()` after the source came to its end changes nothing."""
    async with guarded_stream(numbers()) as stream:
        async for _ in stream:
            pass
        stream.stop()
    assert stream.end.reason is EndReason.EXHAUSTED


async def test_stopped_and_an_error_in_the_body() -> None:
    """What leaves the block decides: an error after `stop()` is FAILED."""
    stream = guarded_stream(numbers())
    with pytest.raises(Fault):
        async with stream:
            stream.stop()
            raise Fault
    assert stream.end.reason is EndReason.FAILED


async def test_cancelled() -> None:
    """A cancellation leaves: CANCELLED, with the cancellation as its error."""
    stream = guarded_stream(numbers())
    with anyio.CancelScope() as scope:
        async with stream:
            async for _ in stream:
                scope.cancel()
                await anyio.sleep_forever()
    end = stream.end
    assert end.reason is EndReason.CANCELLED
    assert isinstance(end.error, anyio.get_cancelled_exc_class())
    assert end.items == 1


async def test_failed() -> None:
    """An error leaves: FAILED, with that error."""
    error = Fault()
    stream = guarded_stream(numbers())
    with pytest.raises(Fault):
        async with stream:
            async for _ in stream:
                raise error
    assert (stream.end.reason, stream.end.error) == (EndReason.FAILED, error)


async def test_handled_cancellation_in_the_body() -> None:
    """A cancellation that the body handles does not leave: the read goes on, and the reason is that of the source."""
    async with guarded_stream(numbers()) as stream:
        with anyio.CancelScope() as scope:
            async for _ in stream:
                scope.cancel()
                await anyio.sleep_forever()
        rest = [number async for number in stream]
    assert rest == [2, 3]
    assert (stream.end.reason, stream.end.error) == (EndReason.EXHAUSTED, None)


async def test_generator_exit() -> None:
    """GeneratorExit in the body is LEFT, with no error."""
    ends: list[StreamEnd[int]] = []

    async def relay() -> AsyncIterator[int]:
        async with guarded_stream(numbers(), tail=ends.append) as stream:
            async for number in stream:
                yield number

    source = relay()
    await anext(source)
    await source.aclose()  # type: ignore[attr-defined]
    (end,) = ends
    assert (end.reason, end.error) == (EndReason.LEFT, None)


async def test_where_counts_what_is_delivered() -> None:
    """Items that `where` skipped are neither counted nor the last one."""
    async with guarded_stream(numbers(), where=lambda number: number == 2) as stream:
        async for _ in stream:
            pass
    assert (stream.end.items, stream.end.last) == (1, 2)


async def test_last_item_none() -> None:
    """`None` is an item like any other."""

    async def source() -> AsyncIterator[None]:
        yield None
        yield None

    async with guarded_stream(source()) as stream:
        assert [item async for item in stream] == [None, None]
    assert (stream.end.reason, stream.end.items, stream.end.last) == (EndReason.EXHAUSTED, 2, None)


async def test_an_unread_item_is_not_counted() -> None:
    """An item that a cancelled reader left unread was not given to anybody."""
    release = anyio.Event()

    async def source() -> AsyncIterator[int]:
        yield 1
        await release.wait()
        yield 2

    async with guarded_stream(source()) as stream:
        assert await anext(stream) == 1
        with anyio.CancelScope() as scope:
            scope.cancel()
            await anext(stream)
        release.set()
        await anyio.wait_all_tasks_blocked()
    assert (stream.end.reason, stream.end.items, stream.end.last) == (EndReason.LEFT, 1, 1)


async def test_tail_is_given_the_end() -> None:
    """The tail is given the end, once, and `stream.end` behind the block equals it."""
    recording = Recording()
    await recording.consume(leave)
    assert recording.ends == [recording.end]


async def test_end_is_there_in_the_tail() -> None:
    """In the tail the stream tells its end as well."""
    seen: list[Any] = []
    stream = guarded_stream(numbers(), tail=lambda end: seen.append((end, stream.end)))
    async with stream:
        async for _ in stream:
            break
    ((given, read),) = seen
    assert given == read


async def test_tail_that_fails_stands_in_the_end() -> None:
    """The error of a tail stands in the end behind the block, and decides its reason."""
    error = Fault()
    given: list[StreamEnd[int]] = []

    def tail(end: StreamEnd[int]) -> None:
        given.append(end)
        raise error

    stream = guarded_stream(numbers(), tail=tail)
    with pytest.raises(Fault):
        async with stream:
            async for _ in stream:
                pass
    assert (given[0].reason, given[0].cleanup_errors) == (EndReason.EXHAUSTED, ())
    assert (stream.end.reason, stream.end.error, stream.end.cleanup_errors) == (EndReason.FAILED, error, (error,))


async def test_source_that_a_callable_made() -> None:
    """For a callable, `source` is what it made; for one that was never called, the callable."""
    made: list[object] = []

    def make() -> AsyncIterator[int]:
        made.append(numbers())
        return made[-1]  # type: ignore[return-value]

    async with guarded_stream(make) as stream:
        async for _ in stream:
            break
    assert stream.end.source is made[0]

    async with guarded_stream(make) as unread:
        pass
    assert unread.end.source is make
    assert len(made) == 1


async def test_end_stays() -> None:
    """The end does not change any more: not by `stop()`, `aclose()` or another read."""
    async with guarded_stream(numbers()) as stream:
        async for _ in stream:
            break
    end = stream.end
    stream.stop()
    await stream.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    assert stream.end is end


async def test_closed_without_being_entered() -> None:
    """`aclose()` of a stream that was never entered ends it: LEFT, and the tail runs."""
    ends: list[StreamEnd[int]] = []
    source = numbers()
    stream = guarded_stream(source, tail=ends.append)
    await stream.aclose()
    assert ends == [stream.end]
    assert stream.end.reason is EndReason.LEFT
    assert source.ag_frame is None  # type: ignore[attr-defined]


async def test_error_in_the_source_after_stop(watch: Watch) -> None:
    """An error that the source raises on its way after `stop()` is an error of the close; the reason is what leaves."""
    error = Fault()
    holding = anyio.Event()

    async def source() -> AsyncIterator[int]:
        yield 1
        holding.set()
        try:
            await anyio.sleep_forever()
        finally:
            raise error

    stream = guarded_stream(source())

    async def stop() -> None:
        await holding.wait()
        stream.stop()

    async with anyio.create_task_group() as group:
        group.start_soon(stop)
        with pytest.raises(Fault):
            async with stream:
                async for _ in stream:
                    pass
    assert (stream.end.reason, stream.end.error, stream.end.cleanup_errors) == (EndReason.FAILED, error, (error,))


def test_reasons() -> None:
    """The reasons are these, and each says its name in lower case."""
    names = ["EXHAUSTED", "MATCHED", "LEFT", "STOPPED", "CANCELLED", "FAILED", "UNSTARTED"]
    assert [reason.name for reason in EndReason] == names
    assert [reason.value for reason in EndReason] == [name.lower() for name in names]


def test_a_record() -> None:
    """The end is a record with slots and these fields."""
    fields = {"reason", "error", "cleanup_errors", "items", "last", "source", "members"}
    assert fields <= {field.name for field in dataclasses.fields(StreamEnd)}
    assert fields <= set(StreamEnd.__slots__)


async def test_frozen() -> None:
    """Nobody can change it."""
    recording = Recording()
    await recording.consume(go_on)
    with pytest.raises(dataclasses.FrozenInstanceError):
        recording.end.items = 7  # type: ignore[misc,union-attr]
