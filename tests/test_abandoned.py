"""Guards that are never entered, or entered and dropped: they say so, and their sources are closed."""

import asyncio
import re
import sys
import threading
import warnings
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from nothing_left import Watch, collect_until_quiet
from recording import Fault, only_asyncio
from spies import spawned_tasks
from stories import AgentsRun, Log, Story, WorkflowHandle, cancel_when_blocked, numbers, read_in_vain, waiting
from streamguard import GuardedStream, guarded_chain, guarded_stream

pytestmark = pytest.mark.anyio


def _place(offset: int) -> str:
    frame = sys._getframe(1)
    return re.escape(f"{frame.f_code.co_filename}:{frame.f_lineno + offset}")


async def test_never_entered() -> None:
    """A guard that is never entered says so when it is dropped, with the place where it was made."""
    source = numbers(Log())
    with pytest.warns(ResourceWarning, match=r"numbers.*made at .*was never entered; use \"async with\"") as caught:
        place = _place(1)
        guarded_stream(source)
        collect_until_quiet()
    (warning,) = caught
    assert re.search(place, str(warning.message))
    await source.aclose()


async def test_warning_has_the_guard() -> None:
    """The warning has the guard as its source, so that tracemalloc can show where it was made, frame by frame."""
    source = numbers(Log())
    with pytest.warns(ResourceWarning, match="never entered") as caught:
        guarded_stream(source)
        collect_until_quiet()
    (warning,) = caught
    assert type(warning.source) is GuardedStream
    await source.aclose()


async def test_left_guard_says_nothing() -> None:
    """A guard that was left gives no warning when it is dropped, nor does one that was closed by hand."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with guarded_stream(numbers(Log())) as stream:
            await anext(stream)
        closed = guarded_stream(numbers(Log()))
        await closed.aclose()
        del stream, closed
        collect_until_quiet()


async def test_abandoned() -> None:
    """A guard that is entered and dropped says so; its source is closed by its owner."""
    log = Log()
    place = _place(1)
    guard = guarded_stream(numbers(log))
    stream = await guard.__aenter__()
    assert await anext(stream) == 1
    with pytest.warns(ResourceWarning, match=place + ".* was entered, but its block was never left"):
        del guard, stream
        collect_until_quiet()
    await anyio.wait_all_tasks_blocked()
    assert log == ["closed"]
    assert len(log.tasks) == 1


async def test_abandoned_while_the_source_awaits() -> None:
    """An abandoned guard's source is closed also if it awaits something."""
    log = Log()
    stream = await guarded_stream(waiting(log)).__aenter__()
    assert await anext(stream) == 1
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(cancel_when_blocked, scope)
            await anext(stream)
    assert log == ["waits"]
    with pytest.warns(ResourceWarning, match="never left"):
        del stream
        collect_until_quiet()
    await anyio.wait_all_tasks_blocked()
    assert log == ["waits", "closed"]


async def test_abandoned_in_a_cycle() -> None:
    """A guard that is part of a reference cycle is noticed by the collector, and its source is closed."""
    log = Log()
    holder: dict[str, Any] = {}
    holder["self"] = holder
    holder["stream"] = await guarded_stream(numbers(log)).__aenter__()
    await anext(holder["stream"])
    with pytest.warns(ResourceWarning, match="never left"):
        del holder
        collect_until_quiet()
    await anyio.wait_all_tasks_blocked()
    assert log == ["closed"]


async def test_abandoned_in_another_thread() -> None:
    """A guard whose last reference is dropped in another thread is closed in its own loop."""
    log = Log()
    holder = [await guarded_stream(numbers(log)).__aenter__()]
    await anext(holder[0])

    def drop() -> None:
        holder.clear()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        thread = threading.Thread(target=drop)
        thread.start()
        thread.join()
    assert [warning.category for warning in caught] == [ResourceWarning]
    caught.clear()
    # It came over a thread's way in, which no task waits for.
    while not log:
        await anyio.lowlevel.checkpoint()
    await anyio.wait_all_tasks_blocked()
    assert log == ["closed"]
    assert len(log.tasks) == 1


async def test_abandoned_without_a_read() -> None:
    """A guard that was entered, never read and dropped says so; nothing was started."""
    log = Log()
    source = numbers(log)
    with spawned_tasks() as names, pytest.warns(ResourceWarning, match="never left"):
        stream = await guarded_stream(source).__aenter__()
        del stream
        collect_until_quiet()
    assert names == []
    await source.aclose()


async def test_abandoned_without_a_read_is_closed() -> None:
    """The source of a guard that was entered, never read and dropped is closed, if it has begun already."""
    log = Log()
    source = numbers(log)
    await anext(source)
    log.tasks.clear()
    with pytest.warns(ResourceWarning, match="never left"):
        await guarded_stream(source).__aenter__()
        collect_until_quiet()
    await anyio.wait_all_tasks_blocked()
    assert log == ["closed"]


async def test_idle_owner_is_not_collected(watch: Watch) -> None:
    """A guard that is kept, but not read, keeps its owner over a collection."""
    log = Log()
    async with guarded_stream(numbers(log)) as stream:
        assert await anext(stream) == 1
        collect_until_quiet()
        assert await anext(stream) == 2
    assert log == ["closed"]


class Stubborn:
    """A run handle whose `cancel()` fails."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def cancel(self) -> None:
        raise OSError("no cancel")

    def stream_events(self) -> Any:
        return numbers(self._log)


async def test_abandoned_run_that_cannot_be_stopped(watch: Watch) -> None:
    """An abandoned guard of a run whose `cancel()` fails closes its events all the same, and logs the error."""
    log = Log()
    stream = await guarded_stream(Stubborn(log)).__aenter__()
    assert await anext(stream) == 1
    with pytest.warns(ResourceWarning, match="its block was never left"):
        del stream
        collect_until_quiet()
    await anyio.wait_all_tasks_blocked()
    assert log == ["closed"]
    watch.claim("OSError: no cancel")


async def test_abandoned_with_an_error_that_nobody_read(watch: Watch) -> None:
    """An error of the source that stood ahead of the reader of an abandoned guard is logged."""

    async def source() -> AsyncIterator[int]:
        yield 1
        raise OSError("unread")

    stream = await guarded_stream(source(), prefetch=2).__aenter__()
    assert await anext(stream) == 1
    await anyio.wait_all_tasks_blocked()
    with pytest.warns(ResourceWarning, match="never left"):
        del stream
        collect_until_quiet()
    await anyio.wait_all_tasks_blocked()
    (report,) = watch.claim("OSError: unread")
    assert report.text.startswith("streamguard: ERROR error while closing a stream: OSError: unread")


async def test_abandoned_with_a_timeout_that_nobody_read(watch: Watch) -> None:
    """So is what came of a timeout inside the source while nobody read."""
    log = Log()

    async def source() -> AsyncIterator[int]:
        try:
            with anyio.fail_after(0):
                yield 1
        finally:
            log.append("closed")

    stream = await guarded_stream(source()).__aenter__()
    assert await anext(stream) == 1
    await anyio.wait_all_tasks_blocked()
    assert log == ["closed"]
    with pytest.warns(ResourceWarning, match="never left"):
        del stream
        collect_until_quiet()
    await anyio.wait_all_tasks_blocked()
    assert len(watch.claim("TimeoutError")) == 1


async def _failing_to_close() -> AsyncIterator[int]:
    try:
        yield 1
    finally:
        raise Fault


async def test_abandoned_after_a_close_that_failed(watch: Watch) -> None:
    """What failed when the stream was closed inside a block that is never left is logged."""
    stream = await guarded_stream(_failing_to_close()).__aenter__()
    assert await anext(stream) == 1
    await stream.aclose()
    with pytest.warns(ResourceWarning, match="never left"):
        del stream
        collect_until_quiet()
    await anyio.wait_all_tasks_blocked()
    assert len(watch.claim("Fault")) == 1


async def test_abandoned_chain_after_a_close_that_failed(watch: Watch) -> None:
    """So is what failed in the close of an earlier member; the current one is closed."""
    log = Log()
    chain = await guarded_chain(_failing_to_close()).__aenter__()
    assert await anext(chain) == 1
    chain.hand_off(numbers(log))
    assert await anext(chain) == 1
    with pytest.warns(ResourceWarning, match="never left"):
        del chain
        collect_until_quiet()
    await anyio.wait_all_tasks_blocked()
    assert log == ["closed"]
    assert len(watch.claim("Fault")) == 1


@only_asyncio  # has cancellations that anybody may raise
async def test_abandoned_with_a_cancellation_that_nobody_read() -> None:
    """A cancellation of its own that stood ahead of the reader of an abandoned guard is no error: nothing is logged."""
    log = Log()

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
            raise asyncio.CancelledError
        finally:
            log.append("closed")

    stream = await guarded_stream(source(), prefetch=2).__aenter__()
    assert await anext(stream) == 1
    await anyio.wait_all_tasks_blocked()
    with pytest.warns(ResourceWarning, match="never left"):
        del stream
        collect_until_quiet()
    await anyio.wait_all_tasks_blocked()
    assert log == ["closed"]


@only_asyncio  # there is a task to cancel
async def test_abandoned_and_cancelled() -> None:
    """A cancellation that hit the owner of an abandoned guard is no error: nothing is logged."""
    owners: list[asyncio.Task[Any]] = []

    async def source() -> AsyncIterator[int]:
        owners.append(asyncio.current_task())
        yield 1

    stream = await guarded_stream(source()).__aenter__()
    assert await anext(stream) == 1
    owners[0].cancel()
    await anyio.wait_all_tasks_blocked()
    with pytest.warns(ResourceWarning, match="never left"):
        del stream
        collect_until_quiet()
    await anyio.wait_all_tasks_blocked()
    assert owners[0].done()


async def test_abandoned_at_its_end() -> None:
    """A guard that was read to the end and dropped says so; there is nothing to close any more."""
    log = Log()
    stream = await guarded_stream(numbers(log)).__aenter__()
    assert [number async for number in stream] == [1, 2, 3]
    assert log == ["closed"]
    with pytest.warns(ResourceWarning, match="its block was never left"):
        del stream
        collect_until_quiet()
    await anyio.wait_all_tasks_blocked()
    assert log == ["closed"]


class Patient:
    """A run handle that notes its `cancel()`."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def cancel(self) -> None:
        self._log.append("cancel")

    def stream_events(self) -> Any:
        return numbers(self._log)


async def test_abandoned_run_at_its_end() -> None:
    """A run whose events were read to the end is not told to stop when its guard is dropped."""
    log = Log()
    stream = await guarded_stream(Patient(log)).__aenter__()
    assert [number async for number in stream] == [1, 2, 3]
    await anyio.wait_all_tasks_blocked()
    with pytest.warns(ResourceWarning, match="its block was never left"):
        del stream
        collect_until_quiet()
    await anyio.wait_all_tasks_blocked()
    assert log == ["closed"]


@only_asyncio
async def test_abandoned_run_that_is_stopped_by_a_coroutine() -> None:
    """The run of an abandoned guard is told to stop, also where that takes time, and its events are closed."""
    story = Story()
    run = WorkflowHandle(story)
    stream = await guarded_stream(run).__aenter__()
    assert await anext(stream) == 1
    with pytest.warns(ResourceWarning, match="its block was never left"):
        del stream
        collect_until_quiet()
    await asyncio.wait([run._result_task])
    await anyio.wait_all_tasks_blocked()
    assert story.log == ["cancel_run", "step cleaned up", "run ended"]


@only_asyncio
async def test_abandoned_run_that_is_at_work() -> None:
    """A run that was told to stop while its reader waited ends by itself: the cleanup of its model is not cut."""
    story = Story()
    run = AgentsRun(story)
    stream = await guarded_stream(run).__aenter__()
    assert [await anext(stream), await anext(stream)] == [1, 2]
    await read_in_vain(stream)
    with pytest.warns(ResourceWarning, match="its block was never left"):
        del stream
        collect_until_quiet()
    await asyncio.wait([run.run_loop_task])
    await anyio.wait_all_tasks_blocked()
    assert story.log == ["cancel", "model closed"]
