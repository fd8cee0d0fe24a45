"""From the owner to the reader: in lockstep or ahead, timed, skipped and matched; nothing is lost."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import pytest

from nothing_left import Watch
from spies import on_asyncio, steps
from stories import Log, noted_numbers, read_in_vain
from streamguard import EndReason, GuardedStream, guarded_stream

pytestmark = pytest.mark.anyio

SHORT = 0.01
"""Seconds until a read is given up; nothing waits for it but by events."""


# -- lockstep


async def test_produced_is_consumed() -> None:
    """The source makes an item when it is asked for one, never ahead."""
    log = Log()
    async with guarded_stream(noted_numbers(log, 10)) as stream:
        async for item in stream:
            await anyio.wait_all_tasks_blocked()
            assert log == [f"made {number}" for number in range(1, item + 1)]
            if item == 4:
                break
    assert log[-2:] == ["made 4", "closed"]
    assert stream.end.items == 4


async def test_prefetch() -> None:
    """With `prefetch` the source runs that many items ahead of the reader, and no further."""
    log = Log()
    async with guarded_stream(noted_numbers(log, 10), prefetch=2) as stream:
        await anyio.wait_all_tasks_blocked()
        assert log == []
        for item in (1, 2, 3):
            assert await anext(stream) == item
            await anyio.wait_all_tasks_blocked()
            assert len(log) == item + 2
    assert log[-1] == "closed"
    assert stream.end.items == 3
    assert stream.end.last == 3


async def test_prefetch_gives_every_item() -> None:
    """With `prefetch` every item comes, in order, then the end."""
    async with guarded_stream(noted_numbers(Log(), 7), prefetch=3) as stream:
        assert [item async for item in stream] == [1, 2, 3, 4, 5, 6, 7]
    assert stream.end.reason is EndReason.EXHAUSTED


async def test_prefetch_and_until() -> None:
    """With `prefetch` the source is not stepped beyond the item that matches."""
    log = Log()
    async with guarded_stream(noted_numbers(log, 9), prefetch=5, until=lambda item: item == 3) as stream:
        assert [item async for item in stream] == [1, 2, 3]
    assert log == ["made 1", "made 2", "made 3", "closed"]
    assert stream.end.reason is EndReason.MATCHED


async def test_prefetch_and_an_error() -> None:
    """With `prefetch` an error of the source comes after the items that were made before it."""

    async def failing() -> AsyncGenerator[int, None]:
        yield 1
        yield 2
        raise OSError("source")

    got: list[int] = []
    with pytest.raises(OSError, match=r"^source$"):
        async with guarded_stream(failing(), prefetch=5) as stream:
            async for item in stream:
                await anyio.wait_all_tasks_blocked()
                got.append(item)
    assert got == [1, 2]


async def test_read_after_an_unread_error_has_left() -> None:
    """After a block that an unread error of the source has left, a read is at the end, like any other."""

    async def failing() -> AsyncGenerator[int, None]:
        yield 1
        raise OSError("source")

    with pytest.raises(OSError, match=r"^source$"):
        async with guarded_stream(failing(), prefetch=5) as stream:
            assert await anext(stream) == 1
            await anyio.wait_all_tasks_blocked()
    with anyio.fail_after(5), pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_error_behind_unread_items(watch: Watch) -> None:
    """An error that stands behind items which nobody read goes to `cleanup_errors` and the log, not to the exit."""

    async def failing() -> AsyncGenerator[int, None]:
        yield 1
        yield 2
        raise OSError("source")

    async with guarded_stream(failing(), prefetch=5) as stream:
        assert await anext(stream) == 1
        await anyio.wait_all_tasks_blocked()
    assert [str(error) for error in stream.end.cleanup_errors] == ["source"]
    assert stream.end.reason is EndReason.LEFT
    assert stream.end.items == 1
    assert len(watch.claim("OSError: source")) == 1


async def test_stop_drops_prefetched_items() -> None:
    """`stop()` drops the items that were made ahead."""
    log = Log()
    async with guarded_stream(noted_numbers(log, 9), prefetch=3) as stream:
        assert await anext(stream) == 1
        await anyio.wait_all_tasks_blocked()
        stream.stop()
        assert [item async for item in stream] == []
    assert stream.end.reason is EndReason.STOPPED
    assert stream.end.items == 1
    assert log[-1] == "closed"


async def test_prefetch_and_predicates() -> None:
    """With `prefetch` skipped items take no place, and `until` sees the others in order."""
    log = Log()
    async with guarded_stream(
        noted_numbers(log, 9), prefetch=2, where=lambda item: item % 2 == 0, until=lambda item: item == 6
    ) as stream:
        assert [item async for item in stream] == [2, 4, 6]
    assert log[-2:] == ["made 6", "closed"]
    assert stream.end.reason is EndReason.MATCHED


async def test_prefetched_match_that_nobody_read() -> None:
    """A match that stands ahead unread is not how the stream ended."""
    async with guarded_stream(noted_numbers(Log(), 9), prefetch=5, until=lambda item: item == 3) as stream:
        assert await anext(stream) == 1
        await anyio.wait_all_tasks_blocked()
    assert (stream.end.reason, stream.end.items, stream.end.last) == (EndReason.LEFT, 1, 1)


async def test_prefetched_end_that_nobody_read() -> None:
    """A source that came to its end ahead of its reader was left, not exhausted, if items were not read."""
    async with guarded_stream(noted_numbers(Log(), 3), prefetch=5) as stream:
        assert await anext(stream) == 1
        await anyio.wait_all_tasks_blocked()
    assert (stream.end.reason, stream.end.items, stream.end.last) == (EndReason.LEFT, 1, 1)


async def test_prefetch_and_cancelled_reads() -> None:
    """With `prefetch` a read that is cancelled loses nothing either."""
    go_on = [anyio.Event() for _ in range(4)]
    async with guarded_stream(_awaited_by_events(go_on, Log()), prefetch=2) as stream:
        await read_in_vain(stream)
        for event in go_on:
            event.set()
        await anyio.wait_all_tasks_blocked()
        assert [item async for item in stream] == [1, 2, 3, 4]


async def test_prefetch_and_a_timeout_inside_the_source() -> None:
    """With `prefetch` what fires inside the source arrives after the items that stand ahead."""
    answered = anyio.Event()

    async def limited() -> AsyncGenerator[int, None]:
        try:
            with anyio.fail_after(SHORT):
                for number in range(1, 9):
                    yield number
        finally:
            answered.set()

    got: list[int] = []
    async with guarded_stream(limited(), prefetch=2) as stream:
        got.append(await anext(stream))
        await answered.wait()
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(TimeoutError):
            async for item in stream:
                got.append(item)
    assert got == [1, 2, 3]
    assert stream.end.reason is EndReason.FAILED


async def test_prefetch_costs_fewer_switches() -> None:
    """A source that runs ahead of its reader is switched to less often than once for each item."""
    with steps() as spy:
        async with guarded_stream(noted_numbers(Log(), 50), prefetch=10) as stream:
            assert len([item async for item in stream]) == 50
        assert spy.total < 50


# -- timed reads


async def _awaited_by_events(may_make: list[anyio.Event], log: Log) -> AsyncGenerator[int, None]:
    try:
        for number, event in enumerate(may_make, 1):
            await event.wait()
            yield number
    finally:
        await anyio.lowlevel.checkpoint()
        log.note("closed")


async def test_cancelled_read_loses_nothing() -> None:
    """A read that is cancelled leaves the source alone: the item comes with the next read."""
    log = Log()
    go_on = [anyio.Event(), anyio.Event()]
    async with guarded_stream(_awaited_by_events(go_on, log)) as stream:
        for number, event in enumerate(go_on, 1):
            await read_in_vain(stream)
            await read_in_vain(stream)
            event.set()
            assert await anext(stream) == number
        assert await anext(stream, None) is None
    assert stream.end.items == 2
    assert log == ["closed"]


async def test_item_that_comes_after_the_reader_has_left() -> None:
    """An item that is made when the reader has left stands for the next read; no second one is made."""
    log = Log()
    go_on = [anyio.Event(), anyio.Event()]
    async with guarded_stream(_awaited_by_events(go_on, log)) as stream:
        await read_in_vain(stream)
        go_on[0].set()
        go_on[1].set()
        await anyio.wait_all_tasks_blocked()
        assert await anext(stream) == 1
        assert await anext(stream) == 2


async def test_item_and_cancellation_at_once() -> None:
    """An item that comes in the very moment in which its reader is cancelled is not lost."""
    scopes: list[anyio.CancelScope] = []

    async def source() -> AsyncGenerator[int, None]:
        for number in range(1, 6):
            scopes[-1].cancel()
            if number % 2:
                await anyio.lowlevel.checkpoint()
            yield number

    got: list[int] = []
    async with guarded_stream(source()) as stream:
        ended = False
        while not ended:
            with anyio.CancelScope() as scope:
                scopes.append(scope)
                try:
                    got.append(await anext(stream))
                except StopAsyncIteration:
                    ended = True
    assert got == [1, 2, 3, 4, 5]


async def heartbeat(stream: GuardedStream[int], go_on: list[anyio.Event], timed: Callable[[], Any]) -> list[int | str]:
    """Reads with a limit for each read; lets an item through at every third tick."""
    got: list[int | str] = []
    ticks = 0
    while True:
        try:
            async with timed():
                got.append(await anext(stream))
                continue
        except StopAsyncIteration:
            return got
        except TimeoutError:
            pass
        got.append("tick")
        ticks += 1
        if ticks % 3 == 0:
            go_on[ticks // 3 - 1].set()


@asynccontextmanager
async def move_on() -> AsyncIterator[None]:
    with anyio.move_on_after(SHORT) as scope:
        yield
    if scope.cancelled_caught:
        raise TimeoutError


async def test_heartbeat() -> None:
    """With a time limit for each read, all items come, with ticks between them; the source lives on."""
    log = Log()
    go_on = [anyio.Event() for _ in range(3)]
    async with guarded_stream(_awaited_by_events(go_on, log)) as stream:
        got = await heartbeat(stream, go_on, move_on)
    assert [item for item in got if item != "tick"] == [1, 2, 3]
    assert got.count("tick") == 9
    assert log == ["closed"]


@on_asyncio
async def test_heartbeat_by_asyncio_timeout() -> None:
    """The same with `asyncio.timeout` (only asyncio has it)."""
    log = Log()
    go_on = [anyio.Event() for _ in range(3)]
    async with guarded_stream(_awaited_by_events(go_on, log)) as stream:
        got = await heartbeat(stream, go_on, lambda: asyncio.timeout(SHORT))
    assert [item for item in got if item != "tick"] == [1, 2, 3]
    assert got.count("tick") == 9
    assert log == ["closed"]


@on_asyncio
async def test_heartbeat_by_wait_for() -> None:
    """The same with `asyncio.wait_for`, which reads in its own way (only asyncio has it)."""
    log = Log()
    go_on = [anyio.Event() for _ in range(2)]
    got: list[int] = []
    async with guarded_stream(_awaited_by_events(go_on, log)) as stream:
        for event in go_on:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(stream), SHORT)
            event.set()
            got.append(await asyncio.wait_for(anext(stream), 60))
    assert got == [1, 2]


async def test_timed_read_of_a_source_that_fails() -> None:
    """An error that comes when the reader has left stands for the next read."""
    go_on = anyio.Event()

    async def source() -> AsyncGenerator[int, None]:
        await go_on.wait()
        raise OSError("source")
        yield 1

    async with guarded_stream(source()) as stream:
        await read_in_vain(stream)
        go_on.set()
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(OSError, match=r"^source$"):
            await anext(stream)


async def test_no_pending_read_is_left() -> None:
    """After a read was given up and the block left, no read is pending: the source's cleanup has run to its end."""
    log = Log()

    async def source() -> AsyncGenerator[int, None]:
        try:
            await anyio.sleep_forever()
            yield 1
        finally:
            await anyio.lowlevel.checkpoint()
            log.note("closed")

    async with guarded_stream(source()) as stream:
        await read_in_vain(stream)
    assert log == ["closed"]
    assert stream.end.reason is EndReason.LEFT


async def test_error_of_a_pending_read_is_not_lost() -> None:
    """What a given-up read raises while it is closed leaves from the exit: nothing is left unretrieved."""

    async def source() -> AsyncGenerator[int, None]:
        try:
            await anyio.sleep_forever()
            yield 1
        finally:
            raise OSError("cleanup")

    with pytest.raises(OSError, match=r"^cleanup$"):
        async with guarded_stream(source()) as stream:
            await read_in_vain(stream)


# -- until and where


async def test_where_then_until() -> None:
    """`where` comes first; `until` sees only what is delivered."""
    asked: list[int] = []

    def is_last(item: int) -> bool:
        asked.append(item)
        return item >= 4

    log = Log()
    async with guarded_stream(noted_numbers(log, 9), where=lambda item: item % 2 == 0, until=is_last) as stream:
        assert [item async for item in stream] == [2, 4]
    assert asked == [2, 4]
    assert log[-2:] == ["made 4", "closed"]
    assert (stream.end.reason, stream.end.items, stream.end.last) == (EndReason.MATCHED, 2, 4)


async def test_until_delivers_the_match() -> None:
    """The item that matches `until` is delivered, then the stream ends; the source is not stepped on."""
    log = Log()
    async with guarded_stream(noted_numbers(log), until=lambda item: item == 2) as stream:
        assert [item async for item in stream] == [1, 2]
        assert await anext(stream, None) is None
        assert "made 3" not in log
    assert stream.end.reason is EndReason.MATCHED


async def test_unread_match() -> None:
    """A match that nobody read is not how the stream ended."""
    log = Log()
    async with guarded_stream(noted_numbers(log), until=lambda item: item == 2) as stream:
        assert await anext(stream) == 1
    assert stream.end.reason is EndReason.LEFT


async def test_where_skips_all() -> None:
    """A stream of which nothing is picked ends when its source does."""
    async with guarded_stream(noted_numbers(Log()), where=lambda item: False) as stream:
        assert [item async for item in stream] == []
    assert (stream.end.reason, stream.end.items, stream.end.last) == (EndReason.EXHAUSTED, 0, None)


async def test_verdicts_are_truth_values() -> None:
    """A predicate may answer with anything that is true or false."""
    verdicts: dict[int, Any] = {1: [], 2: "yes", 3: None}
    async with guarded_stream(noted_numbers(Log()), where=lambda item: verdicts[item]) as stream:
        assert [item async for item in stream] == [2]


async def _steps_of_the_owner(skipped: int) -> int:
    """How often the owner gets the processor for one read that skips so many items."""

    async def source() -> AsyncGenerator[int, None]:
        yield 0
        for _ in range(skipped):
            yield 1
        yield 2

    with steps() as spy:
        async with guarded_stream(source(), where=lambda item: item != 1) as stream:
            assert await anext(stream) == 0
            before = spy.total
            assert await anext(stream) == 2
            return spy.total - before


async def test_skipped_items_cost_no_hand_off() -> None:
    """A read that skips 99 items switches tasks as often as one that skips none."""
    assert await _steps_of_the_owner(99) == await _steps_of_the_owner(0) == 1


async def test_other_tasks_get_their_turn() -> None:
    """Every 100 skipped items the owner lets the others run."""
    none = await _steps_of_the_owner(0)
    assert await _steps_of_the_owner(250) == none + 2
    assert await _steps_of_the_owner(1000) == none + 10


@pytest.mark.parametrize("prefetch", [0, 3, 1000])
async def test_endless_skipping_can_be_stopped(prefetch: int) -> None:
    """A source that never waits and of which nothing is picked does not keep the others from stopping it."""
    log = Log()

    async def endless() -> AsyncGenerator[int, None]:
        try:
            for number in range(100_000):
                begun.set()
                yield number
            log.note("nobody stopped it")
        finally:
            log.note("closed")

    async def stop() -> None:
        await begun.wait()
        stream.stop()

    begun = anyio.Event()
    async with guarded_stream(endless(), where=lambda item: False, prefetch=prefetch) as stream:
        async with anyio.create_task_group() as group:
            group.start_soon(stop)
            assert [item async for item in stream] == []
    assert log == ["closed"]


async def test_one_switch_to_the_owner_for_each_item() -> None:
    """Each item costs one switch to the owner."""
    with steps() as spy:
        async with guarded_stream(noted_numbers(Log(), 50)) as stream:
            await anext(stream)
            before = spy.total
            for _ in range(40):
                await anext(stream)
            assert spy.total - before == 40
