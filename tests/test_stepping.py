"""The loops that step a source: what they do between two items, and who may interrupt them."""

import asyncio
import sys
from collections.abc import AsyncGenerator

import anyio
import anyio.lowlevel
import pytest
import trio

from spies import on_asyncio, on_trio
from stories import Log, numbers
from streamguard import EndReason, guarded_stream
from streamguard._stepping import STEPS_PER_TURN

pytestmark = pytest.mark.anyio


@on_asyncio
async def test_first_step_at_once() -> None:
    """A source that does not wait is read without a turn of the event loop (asyncio alone starts tasks at once)."""
    if sys.version_info < (3, 12):
        pytest.skip("Python 3.12 brought tasks that start at once")
    log = Log()
    asyncio.get_running_loop().call_soon(log.append, "next turn")
    async with guarded_stream(numbers(log)) as stream:
        await anext(stream)
        log.append("read")
    assert log == ["read", "next turn", "closed"]


@pytest.mark.parametrize("prefetch", [0, 3])
async def test_close_in_the_middle_of_a_drain(prefetch: int) -> None:
    """Somebody who closes while the source is drained is not kept waiting for its end."""
    log = Log()
    draining = anyio.Event()

    async def endless() -> AsyncGenerator[int, None]:
        try:
            for number in range(1_000_000):
                yield number
                if number > prefetch:
                    draining.set()
                    await anyio.lowlevel.checkpoint()
            log.note("came to its end")
        finally:
            log.note("closed")

    async with anyio.create_task_group() as group:
        stream = guarded_stream(endless(), on_early_exit="drain", prefetch=prefetch)

        async def close() -> None:
            await draining.wait()
            await stream.aclose()
            log.append("closer is back")

        group.start_soon(close)
        async with stream:
            await anext(stream)
    assert log == ["closed", "closer is back"]
    assert stream.end.reason is EndReason.LEFT


@pytest.mark.parametrize("prefetch", [0, 1000])
async def test_close_in_a_pause(prefetch: int) -> None:
    """A close that comes while the owner lets others have their turn does not wait for what the source does next."""
    log = Log()
    nearly = anyio.Event()

    async def source() -> AsyncGenerator[int, None]:
        try:
            for number in range(STEPS_PER_TURN):
                yield number
            await anyio.sleep_forever()
        finally:
            log.note("closed")

    def where(number: int) -> bool:
        if number == STEPS_PER_TURN - 1:
            nearly.set()
        return False

    began = anyio.current_time()
    async with anyio.create_task_group() as group:
        stream = guarded_stream(source(), where=where, prefetch=prefetch, cleanup_timeout=4)

        async def close() -> None:
            await nearly.wait()
            await stream.aclose()

        async with stream:
            group.start_soon(close)
            await anyio.wait_all_tasks_blocked()
            assert [number async for number in stream] == []
    assert log == ["closed"]
    assert anyio.current_time() - began < 3


@pytest.mark.parametrize("prefetch", [0, 1000])
async def test_stop_in_a_pause(prefetch: int) -> None:
    """A source that is stopped while the owner lets others have their turn is not stepped again."""
    made: list[int] = []
    before: list[int] = []
    nearly = anyio.Event()

    async def source() -> AsyncGenerator[int, None]:
        for number in range(10 * STEPS_PER_TURN):
            made.append(number)
            nearly.set()
            yield number  # it never waits: only a pause lets others run

    async with (
        anyio.create_task_group() as group,
        guarded_stream(source(), where=lambda _: False, prefetch=prefetch) as stream,
    ):

        async def stop() -> None:
            await nearly.wait()
            before.extend(made)
            stream.stop()

        group.start_soon(stop)
        await anyio.wait_all_tasks_blocked()
        assert [number async for number in stream] == []
        await anyio.wait_all_tasks_blocked()
        assert made == before
        assert len(made) % STEPS_PER_TURN == 0
        assert len(made) < 10 * STEPS_PER_TURN


@pytest.mark.parametrize("prefetch", [0, 3])
async def test_stop_while_the_source_opens(prefetch: int) -> None:
    """A stream that is stopped while its source opens is not stepped at all."""
    log = Log()

    class Session:
        async def __aenter__(self) -> AsyncGenerator[int, None]:
            stream.stop()
            await anyio.lowlevel.checkpoint()
            return self.numbers()

        async def __aexit__(self, *details: object) -> None:
            log.append("left")

        async def numbers(self) -> AsyncGenerator[int, None]:
            log.append("stepped")
            yield 1

    async with guarded_stream(Session(), prefetch=prefetch) as stream:
        assert [number async for number in stream] == []
        await anyio.wait_all_tasks_blocked()
    assert log == ["left"]


@pytest.mark.parametrize("prefetch", [0, 1000])
async def test_fires_in_a_pause(prefetch: int) -> None:
    """What fires inside a source while the owner lets others have their turn is the source's, as in any other wait."""
    log = Log()

    async def source() -> AsyncGenerator[int, None]:
        with anyio.CancelScope() as scope:
            for number in range(10 * STEPS_PER_TURN):
                if number == STEPS_PER_TURN // 2:
                    scope.cancel()
                yield number
            log.note("never left")
        yield -1

    async with guarded_stream(source(), where=lambda number: number < 0, prefetch=prefetch) as stream:
        assert [number async for number in stream] == [-1]
    assert log == []


@on_trio
@pytest.mark.parametrize("prefetch", [0, 3])
async def test_predicates_can_be_interrupted(prefetch: int) -> None:
    """Ctrl-C reaches the source and the predicates, not what hands out items (only trio protects tasks from it)."""
    protected: set[tuple[str, bool]] = set()

    def note(who: str) -> bool:
        protected.add((who, trio.lowlevel.currently_ki_protected()))
        return False

    async def source() -> AsyncGenerator[int, None]:
        try:
            for number in range(5):
                note("source")
                yield number
        finally:
            note("cleanup")

    async with guarded_stream(
        source(), where=lambda _: not note("where"), until=lambda _: note("until"), prefetch=prefetch
    ) as stream:
        for _ in range(3):
            await anext(stream)
    assert protected == {("source", False), ("where", False), ("until", False), ("cleanup", False)}


@pytest.mark.parametrize("prefetch", [0, 1, 3, 1000])
async def test_pauses_do_not_lose_an_item(prefetch: int) -> None:
    """However many items are made at a stretch, skipped or not, each that is picked is read, once and in order."""
    async with guarded_stream(numbers(Log(), 1000), where=lambda number: number % 7 != 0, prefetch=prefetch) as stream:
        assert [number async for number in stream] == [number for number in range(1, 1001) if number % 7]
