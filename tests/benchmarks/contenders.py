"""The ways to read a stream: the bare loop, the floor, ours, what people do without us, and other libraries.

The rule kept here: all run the same loop over the same source, and do no more than that.
"""

import asyncio
import contextlib
import functools
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, Self

import aiostream
import anyio
import asyncstdlib
import trio
from aioitertools.itertools import islice

from streamguard import Aclosing, guarded_chain, guarded_stream

Source = Callable[[int], AsyncGenerator[int, None]]
Contender = Callable[[Source, int, int], Awaitable[None]]
"""Reads a source of so many numbers, up to this one; awaited to its end."""
Opener = Callable[[AsyncGenerator[int, None]], AbstractAsyncContextManager[AsyncIterator[int]]]

ALL = sys.maxsize
"""Read up to this number: to the end."""
BUFFER = 64
"""How many items may stand ahead of the reader, where any may."""

# -- sources


async def numbers(count: int) -> AsyncGenerator[int, None]:
    """Never waits."""
    for number in range(count):
        yield number


async def _paused_on_asyncio(count: int) -> AsyncGenerator[int, None]:
    for number in range(count):
        await asyncio.sleep(0)
        yield number


async def _paused_on_trio(count: int) -> AsyncGenerator[int, None]:
    for number in range(count):
        await trio.lowlevel.checkpoint()
        yield number


def paused(backend: str) -> Source:
    """Lets others run, once before each item."""
    return _paused_on_trio if backend == "trio" else _paused_on_asyncio


# -- the bare loop, and the same in a block


async def bare(source: Source, count: int, read: int) -> None:
    async for number in source(count):
        if number == read:
            break


def in_block(open_: Opener) -> Contender:
    """The loop in an `async with` block."""

    async def contender(source: Source, count: int, read: int) -> None:
        async with open_(source(count)) as stream:
            async for number in stream:
                if number == read:
                    break

    return contender


def sliced(source: AsyncGenerator[int, None]) -> AbstractAsyncContextManager[AsyncIterator[int]]:
    return contextlib.nullcontext(islice(source, None))


def streamed(source: AsyncGenerator[int, None]) -> AbstractAsyncContextManager[AsyncIterator[int]]:
    return aiostream.stream.iterate(source).stream()


_OPENERS: dict[str, Opener] = {
    "Aclosing": Aclosing,
    "guarded_stream": guarded_stream,
    "contextlib.aclosing": aclosing,
    "asyncstdlib.scoped_iter": asyncstdlib.scoped_iter,
    "aiostream.stream": streamed,
    "aioitertools.islice": sliced,
    "guarded_chain": guarded_chain,
    "prefetch=64": functools.partial(guarded_stream, prefetch=BUFFER),
    "where": functools.partial(guarded_stream, where=lambda _: False),
}
BLOCKS = {name: in_block(open_) for name, open_ in _OPENERS.items()}

# -- a task of its own, the usual way


def memory_stream(buffer: int) -> Contender:
    """A task feeds the loop through an anyio memory object stream."""

    async def contender(source: Source, count: int, read: int) -> None:
        send, receive = anyio.create_memory_object_stream[int](buffer)

        async def feed() -> None:
            async with send, aclosing(source(count)) as stream:
                async for number in stream:
                    await send.send(number)

        async with anyio.create_task_group() as group, receive:
            group.start_soon(feed)
            async for number in receive:
                if number == read:
                    group.cancel_scope.cancel()
                    break

    return contender


_safe_channel_of = functools.cache(trio.as_safe_channel)


async def safe_channel(source: Source, count: int, read: int) -> None:
    async with _safe_channel_of(source)(count) as stream:
        async for number in stream:
            if number == read:
                break


# -- the floor: the least that two tasks need to hand over an item


async def _floor_of_asyncio(source: Source, count: int, _read: int) -> None:
    """Two bare futures for each item."""
    new = asyncio.get_running_loop().create_future
    asked, given = new(), new()

    async def feed() -> None:
        nonlocal asked
        async for number in source(count):
            given.set_result(number)
            await asked
            asked = new()

    feeder = asyncio.create_task(feed())
    for _ in range(count):
        await given
        given = new()
        asked.set_result(None)
    await feeder


async def _floor_of_trio(source: Source, count: int, _read: int) -> None:
    """Each task wakes the other, and waits."""
    reader = trio.lowlevel.current_task()

    async def feed() -> None:
        async for _ in source(count):
            trio.lowlevel.reschedule(reader)
            await trio.lowlevel.wait_task_rescheduled(_abort)

    feeder = trio.lowlevel.spawn_system_task(feed)
    for _ in range(count):
        await trio.lowlevel.wait_task_rescheduled(_abort)
        trio.lowlevel.reschedule(feeder)


def _abort(_: Any) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.SUCCEEDED


def floor(backend: str) -> Contender:
    return _floor_of_trio if backend == "trio" else _floor_of_asyncio


# -- the floor ahead: the least that it takes to have a task fill a queue of 64 for a reader

Sleep = Callable[[], tuple[Callable[[], None], Awaitable[None]]]
"""What wakes the task that calls this, and what it awaits until then."""


def _nobody() -> None:
    """Wakes nobody."""


class _Ahead:
    """Reads from the queue; each side wakes the other when the queue is full, or empty."""

    def __init__(self, source: AsyncGenerator[int, None], sleep: Sleep) -> None:
        self.source = source
        self.sleep = sleep
        self.queue: deque[int] = deque()
        self.over = False
        self.wake_feeder = self.wake_reader = _nobody

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> int:
        if not self.queue:
            if self.over:
                raise StopAsyncIteration
            wake, self.wake_feeder = self.wake_feeder, _nobody
            wake()
            self.wake_reader, woken = self.sleep()
            await woken
            if not self.queue:
                raise StopAsyncIteration
        return self.queue.popleft()

    async def feed(self) -> None:
        left = BUFFER
        async for number in self.source:
            self.queue.append(number)
            left -= 1
            if not left:
                self.call_reader()
                self.wake_feeder, woken = self.sleep()
                await woken
                left = BUFFER
        self.over = True
        self.call_reader()

    def call_reader(self) -> None:
        wake, self.wake_reader = self.wake_reader, _nobody
        wake()


def _sleep_on_asyncio() -> tuple[Callable[[], None], Awaitable[None]]:
    future = asyncio.get_running_loop().create_future()
    return functools.partial(future.set_result, None), future


def _sleep_on_trio() -> tuple[Callable[[], None], Awaitable[None]]:
    wake = functools.partial(trio.lowlevel.reschedule, trio.lowlevel.current_task())
    return wake, trio.lowlevel.wait_task_rescheduled(_abort)  # noqa: ASYNC105 - the caller awaits it


async def _floor_ahead_on_asyncio(source: Source, count: int, _read: int) -> None:
    ahead = _Ahead(source(count), _sleep_on_asyncio)
    feeder = asyncio.create_task(ahead.feed())
    async for _ in ahead:
        pass
    await feeder


async def _floor_ahead_on_trio(source: Source, count: int, _read: int) -> None:
    ahead = _Ahead(source(count), _sleep_on_trio)
    trio.lowlevel.spawn_system_task(ahead.feed)
    async for _ in ahead:
        pass


def floor_ahead(backend: str) -> Contender:
    return _floor_ahead_on_trio if backend == "trio" else _floor_ahead_on_asyncio
