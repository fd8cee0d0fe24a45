"""What the guard cannot do, shown as `docs/limits.md` says it.

The limits of inner generators stand in `test_hooks`, those of deadlines around a block in `test_closing`, those of a
guard that is never left in `test_abandoned` and `test_shutdown`.
"""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from nothing_left import collect_until_quiet, tasks
from recording import Fault, kind_of, only_asyncio
from spies import on_trio, this_task
from streamguard import Aclosing, CleanupError, CleanupTimeoutError, EndReason, _hooks, guarded_stream

pytestmark = pytest.mark.anyio


# -- a source that is in its own `finally`


class SlowEnd:
    """A source whose `finally` waits until it may end."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.in_finally = anyio.Event()
        self.may_end = anyio.Event()

    async def source(self) -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            self.in_finally.set()
            try:
                await self.may_end.wait()
            except BaseException as error:
                self.log.append(kind_of(error))
                raise
            self.log.append("closed")


async def test_natural_end_has_no_limit() -> None:
    """At its natural end a source has all the time that it wants in its `finally`: that is part of its last step."""
    slow = SlowEnd()

    async def let_it_end() -> None:
        await slow.in_finally.wait()
        await anyio.wait_all_tasks_blocked()
        slow.may_end.set()

    async with anyio.create_task_group() as group:
        group.start_soon(let_it_end)
        async with guarded_stream(slow.source(), cleanup_timeout=0) as stream:
            items = [item async for item in stream]
    assert items == [1]
    assert slow.log == ["closed"]
    assert stream.end.cleanup_errors == ()


async def test_cancelled_at_the_natural_end() -> None:
    """A consumer that is cancelled while its source is in the `finally` of its natural end cuts it there."""
    slow = SlowEnd()

    async def cancel() -> None:
        await slow.in_finally.wait()
        scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(cancel)
        with anyio.CancelScope() as scope:
            async with guarded_stream(slow.source()) as stream:
                async for _ in stream:
                    pass
    assert scope.cancelled_caught
    assert slow.log == ["cancelled"]


async def test_cancelled_in_the_close() -> None:
    """A consumer that is cancelled while the close is under way does not cut it, in `finally` or not."""
    slow = SlowEnd()

    async def cancel() -> None:
        await slow.in_finally.wait()
        scope.cancel()
        await anyio.wait_all_tasks_blocked()
        slow.may_end.set()

    async with anyio.create_task_group() as group:
        group.start_soon(cancel)
        with anyio.CancelScope() as scope:
            async with guarded_stream(slow.source()) as stream:
                async for _ in stream:
                    break
    assert slow.log == ["closed"]


# -- what blocks, and what does not obey


async def test_blocking_cleanup() -> None:
    """A cleanup that blocks the event loop is not cut at the deadline: the block is left when it lets go."""
    log: list[str] = []

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            time.sleep(0.05)  # noqa: ASYNC251 - that is what it shows
            log.append("closed")

    start = time.monotonic()
    async with guarded_stream(source(), cleanup_timeout=0.001) as stream:
        async for _ in stream:
            break
    assert time.monotonic() - start >= 0.05
    assert log == ["closed"]


async def test_blocking_tail() -> None:
    """Nor is a tail that blocks the event loop."""
    log: list[str] = []

    def tail(_: object) -> None:
        time.sleep(0.05)
        log.append("tail")

    start = time.monotonic()
    async with guarded_stream(SlowEnd().source(), cleanup_timeout=0.001, tail=tail):
        pass
    assert time.monotonic() - start >= 0.05
    assert log == ["tail"]


async def test_source_that_ignores_every_cancellation(anyio_backend_name: str) -> None:
    """A source that ignores every cancellation is abandoned at the deadline: its task is there until it ends."""
    may_end = anyio.Event()
    cancelled = 0

    async def source() -> AsyncIterator[int]:
        nonlocal cancelled
        try:
            yield 1
        finally:
            while not may_end.is_set():
                try:
                    await may_end.wait()
                except anyio.get_cancelled_exc_class():
                    cancelled += 1
                    with anyio.CancelScope(shield=True):
                        await anyio.lowlevel.checkpoint()
                        if anyio_backend_name == "trio":  # which would tell it again at once
                            await may_end.wait()

    before = len(tasks(anyio_backend_name))
    with pytest.raises(CleanupTimeoutError, match="abandoned"):
        async with guarded_stream(source(), cleanup_timeout=0) as stream:
            async for _ in stream:
                break
    assert cancelled == 1
    assert len(tasks(anyio_backend_name)) == before + 1
    may_end.set()
    await anyio.wait_all_tasks_blocked()
    assert len(tasks(anyio_backend_name)) == before


async def test_worker_thread(anyio_backend_name: str) -> None:
    """A source whose worker thread is at work: on trio the close waits for the thread, on asyncio it goes on alone."""
    log: list[str] = []
    started = threading.Event()
    may_end = threading.Event()
    ended = threading.Event()

    def work() -> None:
        started.set()
        may_end.wait(10)
        log.append("thread done")
        ended.set()

    async def source() -> AsyncIterator[int]:
        yield 1
        await anyio.to_thread.run_sync(work)
        yield 2

    async def stop(stream: Any) -> None:
        while not started.is_set():
            await anyio.lowlevel.checkpoint()
        stream.stop()
        if anyio_backend_name == "trio":
            await anyio.sleep(0.03)  # a number of the close's tries: nothing tells of them
            may_end.set()

    async with anyio.create_task_group() as group:
        async with guarded_stream(source()) as stream:
            group.start_soon(stop, stream)
            async for _ in stream:
                pass
        log.append("left")
    may_end.set()
    assert ended.wait(10)
    assert log == (["thread done", "left"] if anyio_backend_name == "trio" else ["left", "thread done"])


# -- what is not the stream's


async def test_detached_task() -> None:
    """A task that the source starts in somebody else's task group goes on when the block was left."""
    log: list[str] = []
    may_end = anyio.Event()

    async def detached() -> None:
        await may_end.wait()
        log.append("detached task done")

    async with anyio.create_task_group() as group:

        async def source() -> AsyncIterator[int]:
            group.start_soon(detached)
            yield 1
            yield 2

        async with guarded_stream(source()) as stream:
            async for _ in stream:
                break
        log.append("left")
        may_end.set()
    assert log == ["left", "detached task done"]


@only_asyncio  # trio warns of such a generator, and cuts its cleanup
async def test_old_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    """An inner generator that only an old reference cycle holds is closed when Python collects it, not by the close."""
    monkeypatch.setattr(_hooks, "_last_collection", 0.0)  # so that the close does collect the young ones
    log: list[str] = []

    async def inner() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            log.append("inner closed")

    async def source() -> AsyncIterator[int]:
        cycle: list[object] = [inner()]
        cycle.append(cycle)
        yield await anext(cycle[0])  # type: ignore[call-overload]
        yield 2

    async with guarded_stream(source()) as stream:
        async for _ in stream:
            gc.collect()  # what survives this is old
            gc.collect()
            break
    log.append("left")
    await anyio.wait_all_tasks_blocked()
    assert log == ["left"]
    collect_until_quiet()
    await anyio.wait_all_tasks_blocked()
    assert log == ["left", "inner closed"]


async def test_what_a_cleanup_waits_for_is_closed_elsewhere() -> None:
    """What the source dropped and waits for in its cleanup is closed in another task, after half the limit."""
    lock = anyio.Event()
    task_of: dict[str, object] = {}

    async def inner() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            task_of["inner"] = this_task()
            lock.set()

    async def source() -> AsyncIterator[int]:
        task_of["source"] = this_task()
        try:
            async for item in inner():
                yield item
        finally:
            await lock.wait()

    start = anyio.current_time()
    async with guarded_stream(source(), cleanup_timeout=0.1) as stream:
        async for _ in stream:
            break
    assert anyio.current_time() - start >= 0.045  # uvloop counts whole milliseconds
    assert task_of["inner"] is not task_of["source"]


@on_trio
async def test_dropped_one_that_is_waited_for_in_the_same_step() -> None:
    """On trio, a source that waits in one step for what it has dropped in it waits until the block is left."""
    log: list[str] = []
    let_go = anyio.Event()
    waits = anyio.Event()

    async def inner() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            log.append("inner closed")
            let_go.set()

    async def source() -> AsyncIterator[int]:
        async for _ in inner():
            break
        waits.set()
        await let_go.wait()
        log.append("went on")
        yield 1

    async def stop(stream: Any) -> None:
        await waits.wait()
        await anyio.wait_all_tasks_blocked()
        log.append("stop")
        stream.stop()

    async with anyio.create_task_group() as group:
        async with guarded_stream(source()) as stream:
            group.start_soon(stop, stream)
            assert [item async for item in stream] == []
    assert log == ["stop", "inner closed"]


@only_asyncio  # whose cancellations are exceptions that anybody may raise
async def test_yield_under_a_cancellation_of_its_own() -> None:
    """An inner generator that yields what it makes of a cancellation of its own is taken for one that yields late."""
    log: list[str] = []

    async def inner() -> AsyncIterator[str]:
        try:
            try:
                raise asyncio.CancelledError  # what a child task came to, for example
            except asyncio.CancelledError:
                yield "the child was cancelled"
                log.append("stepped on")
        finally:
            log.append("inner closed")

    async def source() -> AsyncIterator[str]:
        async for item in inner():
            yield item
            await anyio.sleep_forever()

    async def stop(stream: Any) -> None:
        await anyio.wait_all_tasks_blocked()
        stream.stop()

    async with anyio.create_task_group() as group:
        with pytest.raises(CleanupError, match="inner"):
            async with guarded_stream(source()) as stream:
                async for _ in stream:
                    group.start_soon(stop, stream)
    assert log == ["stepped on", "inner closed"]


# -- what is not told


async def test_drain_that_was_cut() -> None:
    """A drain that was cut at its limit is told in the same way as one that came to its end."""
    log: list[str] = []

    async def source(may_end: anyio.Event) -> AsyncIterator[int]:
        yield 1
        await may_end.wait()
        log.append("saved")

    in_time, never = anyio.Event(), anyio.Event()
    in_time.set()
    ends = []
    for may_end in (in_time, never):
        async with guarded_stream(source(may_end), on_early_exit="drain", cleanup_timeout=0.01) as stream:
            await anext(stream)
        ends.append(replace(stream.end, source=None))
    assert ends[0] == ends[1]
    assert log == ["saved"]


async def test_generator_in_two_guards() -> None:
    """Two guards of one generator share it; the first one that is left closes it, and the other finds its end."""
    source = read_on([1, 2, 3])
    async with guarded_stream(source) as one:
        async with guarded_stream(source) as other:
            assert await anext(one) == 1
            assert await anext(other) == 2
        assert [item async for item in one] == []
    assert one.end.reason is EndReason.EXHAUSTED
    assert other.end.reason is EndReason.LEFT
    assert one.end.cleanup_errors == other.end.cleanup_errors == ()


async def read_on(items: list[int]) -> AsyncIterator[int]:
    for item in items:
        yield item


# -- two tasks


async def _locked(lock: anyio.Lock) -> AsyncIterator[int]:
    await lock.acquire()
    yield 1
    yield 2


async def test_lock_of_the_source_is_not_the_bodys() -> None:
    """What is bound to the task that took it, as a lock of anyio is, cannot be given back by the body."""
    lock = anyio.Lock()
    async with guarded_stream(_locked(lock)) as stream:
        async for _ in stream:
            with pytest.raises(RuntimeError):
                lock.release()
            break


async def test_lock_of_the_source_under_aclosing() -> None:
    """Under `Aclosing` the source runs in the body's task: what it took there the body can give back."""
    lock = anyio.Lock()
    async with Aclosing(_locked(lock)) as stream:
        async for _ in stream:
            lock.release()
            break
    assert not lock.locked()


# -- errors hold what they passed through


async def test_error_that_passed_through_a_function_is_freed_late() -> None:
    """An error whose traceback holds the guard, by the frame that it left, is freed by the collector, not at once."""
    freed: list[weakref.ref[Fault]] = []

    async def numbers() -> AsyncIterator[int]:
        yield 1
        yield 2

    async def consume() -> None:
        async with guarded_stream(numbers()) as stream:
            await anext(stream)
            error = Fault()
            freed.append(weakref.ref(error))
            try:
                raise error
            finally:
                del error

    gc.disable()
    try:
        with suppress(Fault):
            await consume()
        (error,) = freed
        assert error() is not None
        collect_until_quiet()
        assert error() is None
    finally:
        gc.enable()


async def test_aclose_from_inside_the_source() -> None:
    """A task of the source that closes the stream waits for itself, up to the limit; `stop()` does not."""
    log: list[str] = []

    async def source() -> AsyncIterator[int]:
        async with anyio.create_task_group() as group:
            try:
                yield 1
                group.start_soon(close)
                await anyio.sleep_forever()
            finally:
                log.append("closed")

    async def close() -> None:
        with anyio.CancelScope(shield=True):
            await stream.aclose()

    with pytest.raises(CleanupTimeoutError):
        async with guarded_stream(source(), cleanup_timeout=0.05) as stream:
            assert [item async for item in stream] == [1]
    assert log == ["closed"]


@only_asyncio
async def test_error_of_what_the_event_loop_closes() -> None:
    """What fails in the cleanup of a generator that the source drops while it runs is told by the event loop."""
    told: list[BaseException | None] = []
    loop = asyncio.get_running_loop()

    async def inner() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            raise Fault

    async def source() -> AsyncIterator[int]:
        async for _ in inner():
            break
        yield 2

    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: told.append(context.get("exception")))
    try:
        async with guarded_stream(source()) as stream:
            assert [item async for item in stream] == [2]
        collect_until_quiet()
        await anyio.wait_all_tasks_blocked()
    finally:
        loop.set_exception_handler(before)
    assert [type(error) for error in told] == [Fault]
    assert stream.end.cleanup_errors == ()
