"""Very many streams: one after the other, and open at once. Nothing of them adds up.

`stress/sequential.py` does the same for longer, and measures bytes.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio

from nothing_left import tasks
from recording import Fault, only_asyncio
from spies import DEBUG, on_trio
from streamguard import GuardedStream, guarded_chain, guarded_stream
from stress.sequential import DEADLINES, KINDS, MOST_OBJECTS, MOST_TIMERS, break_out, source, state

pytestmark = pytest.mark.anyio

MOST_BLOCKS = 2**20 // 512
"""Blocks of memory by which a test may grow: less than 1 MiB, since none is larger than 512 bytes."""


class Growth:
    """What has grown since it was made."""

    def __init__(self) -> None:
        self._state = state()
        self._blocks = sys.getallocatedblocks()

    def check(self, backend: str) -> None:
        """That nothing has."""
        grown = state().since(self._state)
        blocks = sys.getallocatedblocks() - self._blocks
        assert grown.tasks == 0
        assert grown.timers <= MOST_TIMERS
        assert grown.objects <= MOST_OBJECTS
        assert blocks <= MOST_BLOCKS + (5 * DEADLINES if backend == "trio" else 0)


# -- one after the other


async def test_sequential_streams(anyio_backend_name: str) -> None:
    """After very many streams that were left by break there is less than 1 MiB more, and no object, task or timer."""
    await break_out(KINDS["plain"], 1000)
    growth = Growth()
    # asyncio's debug mode takes ten times as long.
    await break_out(KINDS["plain"], 2_000 if DEBUG else 5_000 if anyio_backend_name == "trio" else 20_000)
    growth.check(anyio_backend_name)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"plain"}))
async def test_sequential_streams_of_a_kind(kind: str, anyio_backend_name: str) -> None:
    """Nor is there after streams with inner generators, with tasks, with prefetch, and after chains."""
    await break_out(KINDS[kind], 100)
    growth = Growth()
    await break_out(KINDS[kind], 500)
    growth.check(anyio_backend_name)


async def _fail_in_the_body() -> None:
    with suppress(Fault):
        async with guarded_stream(source()) as stream:
            async for _ in stream:
                raise Fault


async def _be_cancelled() -> None:
    with anyio.CancelScope() as scope:
        async with guarded_stream(source()) as stream:
            async for _ in stream:
                scope.cancel()
                await anyio.lowlevel.checkpoint()


async def _cancel_a_read() -> None:
    async def waits() -> AsyncIterator[int]:
        yield 1
        await anyio.sleep_forever()

    async with guarded_stream(waits()) as stream:
        await anext(stream)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await anext(stream)


async def _leave_unread() -> None:
    async with guarded_stream(source()):
        pass


async def _have_a_tail() -> None:
    async def tail(_: object) -> None:
        await anyio.lowlevel.checkpoint()

    async with guarded_stream(source(), tail=tail, cancel=anyio.lowlevel.checkpoint) as stream:
        await anext(stream)


@pytest.mark.parametrize(
    "use",
    [_fail_in_the_body, _be_cancelled, _cancel_a_read, _leave_unread, _have_a_tail],
    ids=lambda use: use.__name__.strip("_"),
)
async def test_sequential_streams_by_a_way_out(use: Any, anyio_backend_name: str) -> None:
    """Nor is there after streams that were left by an error or a cancellation, while they waited, or unread."""

    async def many(number: int) -> None:
        for _ in range(number):
            await use()

    await many(100)
    growth = Growth()
    await many(500)
    growth.check(anyio_backend_name)


@only_asyncio  # trio has deadlines, which `Growth` asks for
async def test_cancelled_timers_are_few() -> None:
    """A close under a limit leaves no timer behind, or one that asyncio sweeps out: its heap does not grow."""
    loop: Any = asyncio.get_running_loop()
    most = 0
    for _ in range(20):
        await break_out(KINDS["plain"], 50)
        most = max(most, len(getattr(loop, "_scheduled", ())))
    assert most <= MOST_TIMERS


@on_trio
async def test_no_deadline_is_left() -> None:
    """A close under a limit leaves no deadline of its own to the run."""
    before = trio.lowlevel.current_statistics()
    await break_out(KINDS["plain"], 50)
    after = trio.lowlevel.current_statistics()
    assert after.seconds_to_next_deadline == before.seconds_to_next_deadline == float("inf")
    assert after.run_sync_soon_queue_size == 0


# -- at once

AT_ONCE = 1000


class Counting:
    """Sources that count how many of them are open."""

    def __init__(self) -> None:
        self.open = 0

    async def source(self) -> AsyncIterator[int]:
        self.open += 1
        try:
            while True:
                yield self.open
        finally:
            await anyio.lowlevel.checkpoint()
            self.open -= 1

    async def nested(self) -> AsyncIterator[int]:
        async for item in self.source():
            yield item


@pytest.mark.parametrize("order", ["last first", "first first"])
async def test_open_at_once_in_one_task(order: str) -> None:
    """A thousand streams that one task holds open are all closed, in whatever order it leaves them."""
    counting = Counting()
    streams: list[GuardedStream[int]] = [guarded_stream(counting.nested()) for _ in range(AT_ONCE)]
    for stream in streams:
        await stream.__aenter__()
        await anext(stream)
    assert counting.open == AT_ONCE
    for number, stream in enumerate(streams if order == "first first" else streams[::-1], 1):
        await stream.__aexit__(None, None, None)
        assert counting.open == AT_ONCE - number


async def test_open_at_once_in_many_tasks(anyio_backend_name: str) -> None:
    """A thousand tasks that each hold a stream, cancelled together, leave them all closed, and no task."""
    counting = Counting()
    before = len(tasks(anyio_backend_name))

    async def consume() -> None:
        async with guarded_stream(counting.nested()) as stream:
            async for _ in stream:
                await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        for _ in range(AT_ONCE):
            group.start_soon(consume)
        await anyio.wait_all_tasks_blocked()
        assert counting.open == AT_ONCE
        assert len(tasks(anyio_backend_name)) == before + 2 * AT_ONCE
        group.cancel_scope.cancel()
    assert counting.open == 0
    assert len(tasks(anyio_backend_name)) == before


async def test_open_at_once_in_an_exit_stack() -> None:
    """A thousand streams in one exit stack, left by an error, are all closed, and the error leaves bare."""
    counting = Counting()
    error = Fault()
    with pytest.raises(Fault) as caught:
        async with AsyncExitStack() as stack:
            for _ in range(AT_ONCE):
                await anext(await stack.enter_async_context(guarded_stream(counting.source())))
            assert counting.open == AT_ONCE
            raise error
    assert caught.value is error
    assert counting.open == 0


async def test_long_chain() -> None:
    """A chain of a thousand members has one of them open at a time, and tells of each."""
    counting = Counting()
    async with guarded_chain(*(counting.source() for _ in range(AT_ONCE))) as chain:
        async for item in chain:
            assert item == counting.open == 1
            if chain.current < AT_ONCE - 1:
                chain.hand_off(counting.source())
            if chain.current == AT_ONCE - 1:
                break
    assert counting.open == 0
    assert len(chain.end.members) == 2 * AT_ONCE - 1


async def test_deep_nest() -> None:
    """A source of 100 generators inside each other is closed from the outer one to the inner one, in the block."""
    log: list[int] = []

    async def level(depth: int) -> AsyncIterator[int]:
        try:
            if depth == 100:
                yield depth
                yield depth
            else:
                async for item in level(depth + 1):
                    yield item
        finally:
            await anyio.lowlevel.checkpoint()
            log.append(depth)

    await break_out(lambda: guarded_stream(level(1)), 1)
    assert log == list(range(1, 101))


async def test_guards_inside_each_other() -> None:
    """Fifty guards, each the source of the next one's generator, are closed from the inner one, in the block."""
    log: list[int] = []

    async def level(depth: int) -> AsyncIterator[int]:
        try:
            if depth == 50:
                yield depth
                yield depth
            else:
                async with guarded_stream(level(depth + 1)) as stream:
                    async for item in stream:
                        yield item
        finally:
            await anyio.lowlevel.checkpoint()
            log.append(depth)

    await break_out(lambda: guarded_stream(level(1)), 1)
    assert log == list(range(50, 0, -1))
