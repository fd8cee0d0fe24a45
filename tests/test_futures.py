"""Futures and tasks that give a source: awaited by the owner, cancelled or closed if nobody reads."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from spies import on_asyncio, this_task
from stories import AgentsRun, Story, generator
from streamguard import guarded_stream
from test_sources import SHAPES, WithAclose

pytestmark = pytest.mark.anyio


# Only asyncio has futures.


@on_asyncio
async def test_future() -> None:
    """A future is awaited at the first read, and the stream in it is closed."""
    story = Story()
    future: asyncio.Future[AsyncIterator[int]] = asyncio.get_running_loop().create_future()
    async with guarded_stream(future) as stream:
        future.set_result(generator(story))
        assert await anext(stream) == 1
    story.check("closed")


@on_asyncio
async def test_task() -> None:
    """A task that makes a stream is awaited, and the stream is closed by the owner."""
    story = Story()
    async with guarded_stream(asyncio.create_task(_make_later(story))) as stream:
        assert [item async for item in stream] == [1, 2, 3]
    story.check("aclose")


async def _make_later(story: Story) -> WithAclose:
    await anyio.lowlevel.checkpoint()
    return WithAclose(story)


@on_asyncio
async def test_unread_pending_future() -> None:
    """A pending future that nobody read is cancelled."""
    future: asyncio.Future[AsyncIterator[int]] = asyncio.get_running_loop().create_future()
    async with guarded_stream(future):
        pass
    assert future.cancelled()


@on_asyncio
async def test_unread_pending_task() -> None:
    """A pending task that nobody read is cancelled, and its cleanup has run when the block is left."""
    story = Story()

    async def opening() -> AsyncIterator[int]:
        try:
            story.waits.set()
            await anyio.sleep_forever()
        finally:
            await story.close("not opened")
        return generator(story)

    task = asyncio.create_task(opening())
    async with guarded_stream(task):
        await story.waits.wait()
    assert task.cancelled()
    assert story.log == ["not opened"]


@on_asyncio
async def test_unread_task_that_makes_its_stream_all_the_same() -> None:
    """What a task made although it was cancelled is closed."""
    story = Story()

    async def stubborn() -> WithAclose:
        story.waits.set()
        with suppress(asyncio.CancelledError):
            await anyio.sleep_forever()
        return WithAclose(story)

    task = asyncio.create_task(stubborn())
    async with guarded_stream(task):
        await story.waits.wait()
    assert story.log == ["aclose"]


FINISHED = {
    "generator": ["closed"],
    "iterator with aclose": ["aclose"],
    "iterator with close": ["close"],
    "iterator with sync close": ["close"],
    "iterable with aclose": ["iterable aclose"],
    "iterable with close": [],
    "bare iterator": [],
    "context": [],
    "guard": [],
}


@on_asyncio
@pytest.mark.parametrize("shape", FINISHED)
async def test_unread_finished_future(shape: str) -> None:
    """The stream in a finished future that nobody read is closed like a source of its own shape."""
    story = Story()
    source = SHAPES[shape][0](story)
    if shape == "generator":
        await anext(source)
    story.tasks.clear()
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_result(source)
    async with guarded_stream(future):
        pass
    assert story.log == FINISHED[shape]
    assert this_task() not in story.tasks


@on_asyncio
async def test_unread_finished_future_with_a_run_in_it() -> None:
    """The run in a finished future that nobody read is stopped and joined."""
    story = Story()
    run = AgentsRun(story)
    future: asyncio.Future[AgentsRun] = asyncio.get_running_loop().create_future()
    future.set_result(run)
    async with guarded_stream(future):
        await anyio.wait_all_tasks_blocked()
    assert run.run_loop_task.done()
    assert story.log == ["cancel", "model closed"]


@on_asyncio
async def test_unread_failed_future() -> None:
    """The error in a finished future that nobody read leaves from the exit: no error is lost."""
    future: asyncio.Future[AsyncIterator[int]] = asyncio.get_running_loop().create_future()
    future.set_exception(OSError("opening"))
    with pytest.raises(OSError, match=r"^opening$"):
        async with guarded_stream(future):
            pass


@on_asyncio
async def test_cancelled_future() -> None:
    """A future that somebody else cancels while it is awaited gives the cancellation to the reader, bare."""
    future: asyncio.Future[AsyncIterator[int]] = asyncio.get_running_loop().create_future()
    async with guarded_stream(future) as stream:
        future.cancel("elsewhere")
        with pytest.raises(asyncio.CancelledError, match="elsewhere"):
            await anext(stream)
