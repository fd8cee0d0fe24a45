"""Sources that note what is done to them, and in which task: what was opened, closed, told to stop, cut."""

import asyncio
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel

from spies import this_task


class Log(list[str]):
    """What happened, and in which tasks."""

    def __init__(self) -> None:
        self.tasks: set[object] = set()

    def note(self, entry: str) -> None:
        self.append(entry)
        self.tasks.add(this_task())


async def numbers(log: Log, count: int = 3) -> AsyncGenerator[int, None]:
    """Counts, then ends; its cleanup waits."""
    try:
        for number in range(1, count + 1):
            log.tasks.add(this_task())
            yield number
    finally:
        await anyio.lowlevel.checkpoint()
        log.note("closed")


async def waiting(log: Log) -> AsyncGenerator[int, None]:
    """Gives one item, then waits for ever; its cleanup waits as well."""
    try:
        yield 1
        log.note("waits")
        await anyio.sleep_forever()
    finally:
        await anyio.lowlevel.checkpoint()
        log.note("closed")


async def read_all(stream: AsyncIterator[int], items: list[int]) -> None:
    async for item in stream:
        items.append(item)


async def noted_numbers(log: Log, count: int = 3) -> AsyncGenerator[int, None]:
    """Counts, and notes each item that it makes."""
    try:
        for number in range(1, count + 1):
            log.note(f"made {number}")
            yield number
    finally:
        await anyio.lowlevel.checkpoint()
        log.note("closed")


async def cancel_when_blocked(scope: anyio.CancelScope) -> None:
    await anyio.wait_all_tasks_blocked()
    scope.cancel()


async def read_in_vain(stream: AsyncIterator[Any]) -> None:
    """A read that is cancelled as soon as everybody waits."""
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(cancel_when_blocked, scope)
            await anext(stream)
    assert scope.cancelled_caught


@dataclass
class Story:
    """What a source does at its second item, and what was done to it, in which tasks."""

    second: str = "item"
    log: list[str] = field(default_factory=list)
    tasks: set[object] = field(default_factory=set)
    waits: anyio.Event = field(default_factory=anyio.Event)

    def note(self, entry: str) -> None:
        self.tasks.add(this_task())
        self.log.append(entry)

    async def item(self, number: int) -> int:
        """The item of that number, if the source has one."""
        self.tasks.add(this_task())
        if number == 2 and self.second == "wait":
            self.waits.set()
            await anyio.sleep_forever()
        if number == 2 and self.second == "fail":
            raise OSError("source")
        if number > 3:
            raise StopAsyncIteration
        return number

    async def close(self, entry: str) -> None:
        """A cleanup that waits."""
        self.tasks.add(this_task())
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        self.note(entry)

    def check(self, *log: str) -> None:
        """One task has done all this, and it was not ours."""
        assert self.log == list(log)
        assert len(self.tasks) == 1
        assert self.tasks != {this_task()}


async def generator(story: Story) -> AsyncGenerator[int, None]:
    try:
        for number in (1, 2, 3):
            yield await story.item(number)
    finally:
        await story.close("closed")


class Run:
    """A run handle without a background task."""

    def __init__(self, story: Story) -> None:
        self.story = story

    def stream_events(self) -> AsyncGenerator[int, None]:
        return generator(self.story)


class AgentsRun:
    """Shaped like the result of openai-agents: it runs in a task from the start, and must be cancelled only once."""

    def __init__(self, story: Story, *, fails: str = "") -> None:
        self.story = story
        self.fails = fails
        self.is_complete = False
        self.may_call_tool = asyncio.Event()
        self._run_impl_task = None
        self._cancel_mode = "none"
        self._queue: asyncio.Queue[int | None] = asyncio.Queue()
        self.run_loop_task = asyncio.create_task(self._run())

    @property
    def run_loop_exception(self) -> BaseException | None:
        task = self.run_loop_task
        return task.exception() if task.done() and not task.cancelled() else None

    def cancel(self, mode: str = "immediate") -> None:
        self.story.log.append("cancel")
        self._cancel_mode = mode
        if mode == "immediate":
            self.run_loop_task.cancel()
            self.is_complete = True
            self._queue.put_nowait(None)

    async def stream_events(self) -> AsyncGenerator[int, None]:
        try:
            while (item := await self._queue.get()) is not None:
                yield item
            await asyncio.wait([self.run_loop_task])
            if self.run_loop_exception:
                raise self.run_loop_exception
        except asyncio.CancelledError:
            self.cancel()
            raise
        finally:
            self.story.tasks.add(this_task())
            await asyncio.wait([self.run_loop_task])

    async def _run(self) -> None:
        try:
            for number in (1, 2):
                self._queue.put_nowait(number)
            await self.may_call_tool.wait()
            self.story.log.append("tool")
            if self.fails == "run":
                raise OSError("run")
            self._queue.put_nowait(3)
        finally:
            await self._close_model()
            self.is_complete = True
            self._queue.put_nowait(None)

    async def _close_model(self) -> None:
        try:
            for _ in range(5):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.story.log.append("model cut")
            raise
        if self.fails == "cleanup":
            raise OSError("cleanup")
        self.story.log.append("model closed")


class CancelledByUser(Exception):
    """How a workflow says that it was told to stop."""

    __qualname__ = "WorkflowCancelledByUser"


CancelledByUser.__name__ = "WorkflowCancelledByUser"


class WorkflowHandle:
    """Shaped like llama-index's handler: awaitable, stopped by a coroutine, one more event after that."""

    def __init__(self, story: Story, *, fails: bool = False) -> None:
        self.story = story
        self.fails = fails
        self.may_end = asyncio.Event()
        self._stop = asyncio.Event()
        self._queue: asyncio.Queue[int | None] = asyncio.Queue()
        self._result_task = asyncio.create_task(self._run())
        self._result_task.add_done_callback(lambda task: task.cancelled() or task.exception())

    def __await__(self) -> Generator[Any, Any, str]:
        return self._result_task.__await__()

    def is_done(self) -> bool:
        return self._result_task.done()

    def cancel(self) -> None:
        warnings.warn("use cancel_run()", DeprecationWarning, stacklevel=2)
        self._result_task.cancel()

    async def cancel_run(self) -> None:
        self.story.log.append("cancel_run")
        self._stop.set()
        with suppress(asyncio.CancelledError, CancelledByUser):
            await self._result_task

    async def stream_events(self) -> AsyncGenerator[int, None]:
        while (item := await self._queue.get()) is not None:
            yield item

    async def _run(self) -> str:
        for number in (1, 2):
            self._queue.put_nowait(number)
        ends = [asyncio.create_task(event.wait()) for event in (self.may_end, self._stop)]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for _ in range(5):
                await asyncio.sleep(0)
            self.story.log.append("step cleaned up")
        except asyncio.CancelledError:
            self.story.log.append("step cut")
            raise
        finally:
            for end in ends:
                end.cancel()
            self._queue.put_nowait(99)
            self._queue.put_nowait(None)
            for _ in range(5):
                await asyncio.sleep(0)
            self.story.log.append("run ended")
        if self._stop.is_set():
            raise CancelledByUser
        if self.fails:
            raise OSError("workflow")
        return "result"
