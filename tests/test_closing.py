"""How a source is closed, state by state, and what becomes of a source that misbehaves while it is closed."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest
import trio

from nothing_left import Watch
from recording import Fault, Recording, fail, kind_of, leave, only_asyncio
from stories import read_in_vain
from streamguard import CleanupError, CleanupTimeoutError, EndReason, GuardedStream, StreamEnd, guarded_stream

pytestmark = pytest.mark.anyio

only_trio = pytest.mark.parametrize("anyio_backend", [pytest.param(("trio", {}), id="trio")])

LIMIT = 0.05
GRACE = 0.25
SLACK = 0.5
"""Seconds that a busy machine may take on top."""
TICK = 0.005
"""Seconds by which the timers of a loop may be early: uvloop counts milliseconds."""


class Clock:
    """How long a block took."""

    def __enter__(self) -> "Clock":
        self._start = anyio.current_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = anyio.current_time() - self._start


async def read_and_stop(stream: Any, ready: anyio.Event, release: Callable[[], object] | None = None) -> None:
    """Reads a stream to the point where its source waits, and has another task stop it there.

    What cannot be cancelled is released when the close has tried for a while.
    """

    async def stop() -> None:
        await ready.wait()
        await anyio.wait_all_tasks_blocked()
        stream.stop()
        if release is not None:
            await anyio.sleep(0.03)  # a number of its tries: nothing tells of them
            release()

    async with anyio.create_task_group() as group:
        group.start_soon(stop)
        async with stream:
            async for _ in stream:
                pass


# -- the source is at a `yield`


class Seen:
    """A source that only tells what is thrown in at its `yield`."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []

    async def source(self) -> AsyncIterator[int]:
        try:
            yield 1
        except BaseException as error:
            self.errors.append(error)
            raise

    @property
    def kinds(self) -> list[str]:
        return [kind_of(error) for error in self.errors]


async def test_at_a_yield_break() -> None:
    """At a yield, left by break: GeneratorExit."""
    seen = Seen()
    async with guarded_stream(seen.source()) as stream:
        async for _ in stream:
            break
    assert seen.kinds == ["GeneratorExit"]


async def test_at_a_yield_error() -> None:
    """At a yield, left by an error: GeneratorExit, never the body's error."""
    seen = Seen()
    with pytest.raises(Fault):
        async with guarded_stream(seen.source()) as stream:
            async for _ in stream:
                raise Fault
    assert seen.kinds == ["GeneratorExit"]


async def test_at_a_yield_scope() -> None:
    """At a yield, the body cancelled by a scope: GeneratorExit, never a cancellation."""
    seen = Seen()
    with anyio.CancelScope() as scope:
        async with guarded_stream(seen.source()) as stream:
            async for _ in stream:
                scope.cancel()
                await anyio.sleep_forever()
    assert seen.kinds == ["GeneratorExit"]


@only_asyncio  # cancels natively
async def test_at_a_yield_native_cancel() -> None:
    """At a yield, the body cancelled natively: GeneratorExit, never a cancellation."""
    seen = Seen()
    working = anyio.Event()

    async def consume() -> None:
        async with guarded_stream(seen.source()) as stream:
            async for _ in stream:
                working.set()
                await anyio.sleep_forever()

    task = asyncio.create_task(consume())
    await working.wait()
    task.cancel()
    await asyncio.wait([task])
    assert seen.kinds == ["GeneratorExit"]


async def test_at_a_yield_with_an_interrupt_in_a_variable() -> None:
    """At a yield with exceptions in its variables: that is no cleanup under way; closed there, not stepped on."""
    log: list[str] = []

    async def source(kept: BaseException) -> AsyncIterator[int]:
        other = BaseExceptionGroup("kept", [KeyboardInterrupt(), GeneratorExit()])
        try:
            yield 1
            log.append("stepped")
        finally:
            log.append("closed")
            del kept, other

    stream = guarded_stream(source(GeneratorExit()))
    async with stream:
        async for _ in stream:
            break
    assert log == ["closed"]
    assert stream.end.cleanup_errors == ()


@only_asyncio  # a task that is cancelled natively
async def test_at_a_yield_in_an_except_block() -> None:
    """At a yield in the `except` block for a cancelled task of its own: GeneratorExit there, and not stepped."""
    log: list[str] = []

    async def source() -> AsyncIterator[str]:
        task = asyncio.create_task(anyio.sleep_forever())
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            try:
                yield "the tool was cancelled"
                log.append("stepped")
            except BaseException as error:
                log.append(kind_of(error))
                raise

    stream = guarded_stream(source())
    async with stream:
        async for _ in stream:
            break
    assert log == ["GeneratorExit"]
    assert stream.end.cleanup_errors == ()


# -- the source is inside its own await


async def test_in_its_await_one_edge() -> None:
    """Inside its await: one cancellation, and every await in its `finally` runs."""
    recording = Recording()
    await read_and_stop(recording.open(recording.numbers(hold_after=1)), recording.holding)
    assert recording.log == ["cancelled", "closing", "closed", "tail"]


async def test_in_its_await_several_levels() -> None:
    """Inside an await several coroutines deep: each `finally` on the way out may await."""
    log: list[str] = []
    holding = anyio.Event()

    async def deep(level: int) -> None:
        try:
            if level:
                await deep(level - 1)
            else:
                holding.set()
                await anyio.sleep_forever()
        finally:
            await anyio.lowlevel.checkpoint()
            log.append(f"level {level}")

    async def source() -> AsyncIterator[int]:
        yield 1
        await deep(2)

    await read_and_stop(guarded_stream(source()), holding)
    assert log == ["level 0", "level 1", "level 2"]


async def test_in_its_await_a_lock_is_released() -> None:
    """Inside its await with a lock held: the lock is free behind the block."""
    lock = anyio.Lock()
    holding = anyio.Event()

    async def source() -> AsyncIterator[int]:
        yield 1
        async with lock:
            holding.set()
            await anyio.sleep_forever()

    await read_and_stop(guarded_stream(source()), holding)
    assert not lock.locked()


async def test_in_its_await_with_child_tasks() -> None:
    """Inside a task group: its child tasks have ended, and what stands behind the group may await."""
    log: list[str] = []
    holding = anyio.Event()

    async def child() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            log.append("child ended")

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
            async with anyio.create_task_group() as group:
                group.start_soon(child)
                group.start_soon(child)
                await anyio.wait_all_tasks_blocked()
                holding.set()
                await anyio.sleep_forever()
        finally:
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            log.append("closed")

    await read_and_stop(guarded_stream(source()), holding)
    assert log == ["child ended", "child ended", "closed"]


async def test_at_a_yield_with_child_tasks() -> None:
    """At a yield inside a task group with children that run: they have ended behind the block, nothing is raised."""
    log: list[str] = []

    async def child() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            log.append("child ended")

    async def source() -> AsyncIterator[int]:
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(child)
                await anyio.wait_all_tasks_blocked()
                yield 1
                yield 2
        finally:
            await anyio.lowlevel.checkpoint()
            log.append("closed")

    async with guarded_stream(source()) as stream:
        async for _ in stream:
            break
    assert log == ["child ended", "closed"]


@only_asyncio  # asyncio's own task group
async def test_in_its_await_with_a_task_group_of_asyncio() -> None:
    """Inside `asyncio.TaskGroup`: its tasks have ended, and what stands behind the group may await."""
    log: list[str] = []
    holding = anyio.Event()

    async def child() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            await asyncio.sleep(0)
            log.append("child ended")

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
            async with asyncio.TaskGroup() as group:
                group.create_task(child())
                await asyncio.sleep(0)
                holding.set()
                await anyio.sleep_forever()
        finally:
            await asyncio.sleep(0)
            log.append("closed")

    await read_and_stop(guarded_stream(source()), holding)
    assert log == ["child ended", "closed"]


async def test_in_its_await_behind_a_shield(anyio_backend_name: str) -> None:
    """Inside a shielded section: the source closes, and every await in its `finally` runs.

    trio lets the section end first; asyncio's native cancellation goes through a shield of anyio.
    """
    log: list[str] = []
    holding, release = anyio.Event(), anyio.Event()

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
            with anyio.CancelScope(shield=True):
                holding.set()
                await release.wait()
                log.append("section ended")
            await anyio.sleep_forever()
        finally:
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
            log.append("closed")

    stream = guarded_stream(source())
    await read_and_stop(stream, holding, release.set)
    assert log == (["section ended", "closed"] if anyio_backend_name == "trio" else ["closed"])
    assert stream.end.cleanup_errors == ()


@only_trio  # only there does the section outlast the cancellation
async def test_shielded_section_that_yields() -> None:
    """A shielded section that ends while the close waits, and then yields, is closed at that yield by GeneratorExit."""
    log: list[str] = []
    holding, release = anyio.Event(), anyio.Event()

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
            with anyio.CancelScope(shield=True):
                holding.set()
                await release.wait()
            yield 2
        except BaseException as error:
            log.append(kind_of(error))
            raise
        finally:
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
                await anyio.sleep(0.02)  # longer than the close waits before it tries again
            log.append("closed")

    await read_and_stop(guarded_stream(source()), holding, release.set)
    assert log == ["GeneratorExit", "closed"]


async def test_in_a_worker_thread() -> None:
    """Inside a worker thread: the source closes, and every await in its `finally` runs.

    trio waits for the thread; asyncio's native cancellation lets it run on alone.
    """
    log: list[str] = []
    started, release = anyio.Event(), threading.Event()

    def work() -> None:
        anyio.from_thread.run_sync(started.set)
        release.wait(5)

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
            await anyio.to_thread.run_sync(work)
            await anyio.sleep_forever()
        finally:
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
            log.append("closed")

    stream = guarded_stream(source())
    await read_and_stop(stream, started, release.set)
    assert log == ["closed"]
    assert stream.end.cleanup_errors == ()


@only_trio  # asyncio's native cancellation does not wait for the thread
async def test_in_a_worker_thread_that_fails() -> None:
    """Inside a worker thread that then fails: its error is an error of the close, and awaits in `finally` run."""
    log: list[str] = []
    started, release = anyio.Event(), threading.Event()

    def work() -> None:
        trio.from_thread.run_sync(started.set)
        release.wait(5)
        raise Fault

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
            await trio.to_thread.run_sync(work)
        finally:
            log.append("closed")

    with pytest.RaisesGroup(Fault):  # the group is that of the test
        await read_and_stop(guarded_stream(source()), started, release.set)
    assert log == ["closed"]


async def test_source_that_answers_its_cancellation_with_an_error() -> None:
    """A source that turns its cancellation into an error of its own: that is an error of the close."""
    holding = anyio.Event()
    error = Fault()

    async def source() -> AsyncIterator[int]:
        yield 1
        try:
            holding.set()
            await anyio.sleep_forever()
        finally:
            raise error

    with pytest.RaisesGroup(Fault):  # the group is that of the test
        await read_and_stop(guarded_stream(source()), holding)


async def test_source_that_swallows_one_cancellation_and_yields() -> None:
    """A source that swallows its cancellation and yields is closed at that yield; the item is dropped."""
    log: list[str] = []
    holding = anyio.Event()

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
            try:
                holding.set()
                await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class():
                log.append("swallowed")
            yield 2
        except GeneratorExit:
            log.append("GeneratorExit")
            raise

    stream = guarded_stream(source())
    await read_and_stop(stream, holding)
    assert log == ["swallowed", "GeneratorExit"]
    assert (stream.end.items, stream.end.last) == (1, 1)


async def test_source_that_swallows_one_cancellation_and_ends() -> None:
    """A source that swallows its cancellation and comes to its end is closed, with no error."""
    holding = anyio.Event()

    async def source() -> AsyncIterator[int]:
        yield 1
        try:
            holding.set()
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            pass

    stream = guarded_stream(source())
    await read_and_stop(stream, holding)
    assert stream.end.reason is EndReason.STOPPED
    assert stream.end.cleanup_errors == ()


@only_asyncio  # cancels natively
async def test_source_that_swallows_the_consumers_cancellation() -> None:
    """A source that swallows every cancellation of its own does not swallow the consumer's: the task ends cancelled."""
    holding = anyio.Event()

    async def source() -> AsyncIterator[int]:
        yield 1
        try:
            holding.set()
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            return

    async def consume(opener: Any) -> None:
        async with opener(source()) as stream:
            async for _ in stream:
                pass

    for opener, cancelled in [(guarded_stream, True), (aclosing, False)]:
        holding = anyio.Event()
        task = asyncio.create_task(consume(opener))
        await holding.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() is cancelled, opener


# -- the source answers its own timeout


@pytest.mark.parametrize("kind", ["anyio", "asyncio"])
async def test_answering_its_own_timeout(kind: str, anyio_backend_name: str) -> None:
    """A source that is answering its own timeout gets the time to: no cancellation hits its answer."""
    if kind == "asyncio" and anyio_backend_name == "trio":
        pytest.skip("asyncio's own timeout")
    log: list[str] = []
    answering, answer = anyio.Event(), anyio.Event()

    async def source() -> AsyncIterator[int]:
        try:
            if kind == "asyncio":
                async with asyncio.timeout(0.01):
                    yield 1
            else:
                with anyio.fail_after(0.01):
                    yield 1
        except TimeoutError:
            answering.set()
            await answer.wait()
            log.append("answered")
        finally:
            await anyio.lowlevel.checkpoint()
            log.append("closed")

    async def let_answer() -> None:
        await answering.wait()
        await anyio.wait_all_tasks_blocked()
        log.append("still closing")
        answer.set()

    async with anyio.create_task_group() as group:
        async with guarded_stream(source()) as stream:
            async for _ in stream:
                await answering.wait()
                group.start_soon(let_answer)
                break
        log.append("left")
    assert log == ["still closing", "answered", "closed", "left"]
    assert stream.end.cleanup_errors == ()


async def test_answering_its_own_timeout_too_long() -> None:
    """An answer that takes more than half the limit is cancelled, by one edge: its `finally` may await."""
    log: list[str] = []
    answering = anyio.Event()

    async def source() -> AsyncIterator[int]:
        try:
            with anyio.fail_after(0.01):
                yield 1
        except TimeoutError:
            answering.set()
            await anyio.sleep_forever()
        finally:
            await anyio.sleep(0.1)  # fits into the other half
            log.append("closed")

    with Clock() as clock:
        async with guarded_stream(source(), cleanup_timeout=0.6) as stream:
            async for _ in stream:
                await answering.wait()
                break
        log.append("left")
    assert log == ["closed", "left"]
    assert clock.seconds < 0.6 + SLACK
    assert stream.end.cleanup_errors == ()


# -- still busy at the deadline


async def hanging_in_its_cleanup(log: list[str]) -> AsyncIterator[int]:
    try:
        yield 1
    finally:
        try:
            await anyio.sleep_forever()  # the line where it hangs
        except BaseException as error:
            log.append(kind_of(error))
            raise


async def test_hang_in_the_cleanup() -> None:
    """A hang: CleanupTimeoutError at the deadline that names the generator and the line; then it is cancelled."""
    log: list[str] = []
    with Clock() as clock, pytest.raises(CleanupTimeoutError) as caught:
        async with guarded_stream(
            hanging_in_its_cleanup(log), cleanup_timeout=LIMIT, tail=lambda _: log.append("tail")
        ) as stream:
            async for _ in stream:
                break
    assert log == ["cancelled", "tail"]
    message = str(caught.value)
    assert "hanging_in_its_cleanup" in message
    assert "await anyio.sleep_forever()  # the line where it hangs" in message
    assert __file__ in message
    assert LIMIT - TICK <= clock.seconds < LIMIT + GRACE + SLACK
    assert stream.end.cleanup_errors == (caught.value,)
    assert stream.end.reason is EndReason.FAILED


async def test_hang_at_the_bottom_of_many_calls() -> None:
    """Of a hang below a hundred calls the error shows the frames from the top, and not without end."""

    async def below(depth: int) -> None:
        if depth:
            await below(depth - 1)
        else:
            await anyio.sleep_forever()

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await below(100)

    with pytest.raises(CleanupTimeoutError) as caught:
        async with guarded_stream(source(), cleanup_timeout=LIMIT) as stream:
            async for _ in stream:
                break
    message = str(caught.value)
    assert "await below(100)" in message
    assert 40 <= message.count("await below(depth - 1)") <= 50


async def test_hang_in_the_cleanup_under_a_cancelled_scope(watch: Watch) -> None:
    """A hang under a cancelled scope ends at the deadline too; the scope catches its cancellation, the hang is told."""
    log: list[str] = []
    with anyio.CancelScope() as scope:
        async with guarded_stream(hanging_in_its_cleanup(log), cleanup_timeout=LIMIT) as stream:
            async for _ in stream:
                scope.cancel()
                await anyio.sleep_forever()
    assert scope.cancelled_caught
    (error,) = stream.end.cleanup_errors
    assert isinstance(error, CleanupTimeoutError)
    watch.claim("did not end within")


async def test_five_swallowed_cancellations() -> None:
    """Swallows cancellations in its cleanup: CleanupTimeoutError at the deadline plus grace; the tail runs."""
    log: list[str] = []
    ended = anyio.Event()

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            for _ in range(5):
                try:
                    await anyio.sleep(0.1)
                except anyio.get_cancelled_exc_class():
                    log.append("swallowed")
            ended.set()

    with Clock() as clock, pytest.raises(CleanupTimeoutError):
        async with guarded_stream(source(), cleanup_timeout=LIMIT, tail=lambda _: log.append("tail")) as stream:
            async for _ in stream:
                break
    assert clock.seconds < LIMIT + GRACE + SLACK
    assert log[0] == "swallowed"
    assert log[-1] == "tail"
    await ended.wait()
    await anyio.wait_all_tasks_blocked()


async def test_every_cancellation_swallowed() -> None:
    """Swallows every cancellation in its own await: abandoned after the grace, and the error says so; the tail runs."""
    log: list[str] = []
    holding, ended = anyio.Event(), anyio.Event()
    released = False

    async def source() -> AsyncIterator[int]:
        yield 1
        holding.set()
        while not released:
            try:
                await anyio.sleep(0.01)
            except anyio.get_cancelled_exc_class():
                pass
        ended.set()

    stream = guarded_stream(source(), cleanup_timeout=LIMIT, tail=lambda _: log.append("tail"))
    with Clock() as clock, pytest.RaisesGroup(pytest.RaisesExc(CleanupTimeoutError, match="abandoned")):
        await read_and_stop(stream, holding)
    assert log == ["tail"]
    assert LIMIT + GRACE - TICK <= clock.seconds < LIMIT + GRACE + SLACK
    released = True
    await ended.wait()
    await anyio.wait_all_tasks_blocked()


async def test_first_cancellation_swallowed() -> None:
    """Swallows its first cancellation and hangs: it is cancelled once more at the deadline, and obeys."""
    log: list[str] = []
    holding = anyio.Event()

    async def source() -> AsyncIterator[int]:
        yield 1
        for _ in range(2):
            try:
                holding.set()
                await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class():
                log.append("cancelled")
        log.append("ended")

    stream = guarded_stream(source(), cleanup_timeout=LIMIT)
    with pytest.RaisesGroup(pytest.RaisesExc(CleanupTimeoutError, match="It was cancelled")):
        await read_and_stop(stream, holding)
    assert log == ["cancelled", "cancelled", "ended"]


async def test_abandoned_source_tells_nobody_later(watch: Watch) -> None:
    """What an abandoned source raises later is nobody's: the end that was told does not change, and nothing crashes."""
    released, ended = anyio.Event(), anyio.Event()

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            while not released.is_set():
                try:
                    await anyio.sleep(0.01)
                except anyio.get_cancelled_exc_class():
                    pass
            ended.set()
            raise Fault

    with pytest.raises(CleanupTimeoutError) as caught:
        async with guarded_stream(source(), cleanup_timeout=LIMIT) as stream:
            async for _ in stream:
                break
    end = stream.end
    released.set()
    await ended.wait()
    await anyio.wait_all_tasks_blocked()
    assert stream.end is end
    assert end.cleanup_errors == (caught.value,)


@only_trio  # elsewhere a native cancellation goes through the shield
async def test_shielded_wait_outlasts_the_limit() -> None:
    """A source that waits in a shield of its own is given up at the deadline, and ends when its wait does."""
    log: list[str] = []
    released, ended = anyio.Event(), anyio.Event()

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
            with anyio.CancelScope(shield=True):
                await released.wait()
        finally:
            log.append("closed")
            ended.set()

    with Clock() as clock, pytest.raises(CleanupTimeoutError, match="did not obey a cancellation"):
        async with guarded_stream(source(), cleanup_timeout=LIMIT, tail=lambda _: log.append("tail")) as stream:
            await anext(stream)
            await read_in_vain(stream)
    assert clock.seconds < LIMIT + GRACE + SLACK
    released.set()
    await ended.wait()
    await anyio.wait_all_tasks_blocked()
    assert log == ["tail", "closed"]


async def test_abandoned_context_tells_nobody_later(watch: Watch) -> None:
    """The same for an async context manager, which was given the details of the way out."""
    released, ended = anyio.Event(), anyio.Event()

    class Session:
        async def __aenter__(self) -> AsyncIterator[int]:
            return Recording().numbers()

        async def __aexit__(self, *details: object) -> None:
            while not released.is_set():
                with suppress(anyio.get_cancelled_exc_class()):
                    await anyio.sleep(0.01)
            ended.set()
            raise Fault

    with pytest.raises(CleanupTimeoutError) as caught:
        async with guarded_stream(Session(), cleanup_timeout=LIMIT) as stream:
            async for _ in stream:
                break
    released.set()
    await ended.wait()
    await anyio.wait_all_tasks_blocked()
    assert stream.end.cleanup_errors == (caught.value,)


async def test_abandoned_source_that_another_task_waits_for() -> None:
    """`aclose()` by another task returns also if the source is abandoned, since it obeys no cancellation."""
    log: list[str] = []
    released, closing = anyio.Event(), anyio.Event()

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            closing.set()
            while not released.is_set():
                with suppress(anyio.get_cancelled_exc_class()), anyio.CancelScope(shield=True):
                    await released.wait()
            log.append("closed")

    stream = guarded_stream(source(), cleanup_timeout=LIMIT)

    async def close_too() -> None:
        await closing.wait()
        await stream.aclose()
        log.append("closer returned")

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(close_too)
            with pytest.raises(CleanupTimeoutError):
                async with stream:
                    await anext(stream)
    released.set()
    await anyio.wait_all_tasks_blocked()
    assert log == ["closer returned", "closed"]


async def test_hung_close_that_another_task_waits_for() -> None:
    """`aclose()` by another task waits for the same close: it returns when the block's exit has given up."""
    log: list[str] = []
    closing = anyio.Event()

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            closing.set()
            await anyio.sleep_forever()

    stream = guarded_stream(source(), cleanup_timeout=LIMIT)

    async def close_too() -> None:
        await closing.wait()
        await stream.aclose()
        log.append("closer returned")

    with anyio.fail_after(2):
        async with anyio.create_task_group() as group:
            group.start_soon(close_too)
            with pytest.raises(CleanupTimeoutError):
                async with stream:
                    async for _ in stream:
                        break
    assert log == ["closer returned"]


async def test_hung_close_that_another_task_asked_for() -> None:
    """A close that ran out of time is told by the exit of the block, whoever asked for it."""
    closing = anyio.Event()

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            closing.set()
            await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        with pytest.raises(CleanupTimeoutError):
            async with guarded_stream(source(), cleanup_timeout=LIMIT) as stream:
                await anext(stream)
                group.start_soon(stream.aclose)
                await closing.wait()
    assert [type(error) for error in stream.end.cleanup_errors] == [CleanupTimeoutError]


async def test_hung_close_of_another_task_that_ends_as_the_block_is_left() -> None:
    """The exit waits for whoever closes also if the source itself is closed by now: that one has yet to tell."""
    cut = anyio.Event()

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            try:
                await anyio.sleep_forever()
            finally:
                cut.set()

    async with anyio.create_task_group() as group:
        with pytest.raises(CleanupTimeoutError):
            async with guarded_stream(source(), cleanup_timeout=LIMIT) as stream:
                await anext(stream)
                group.start_soon(stream.aclose)
                await cut.wait()
    assert [type(error) for error in stream.end.cleanup_errors] == [CleanupTimeoutError]


# -- it yields in its `finally`


async def thinking(log: list[str]) -> AsyncIterator[str]:
    try:
        yield "thought"
    finally:
        yield "</think>"
        await anyio.lowlevel.checkpoint()
        log.append("client closed")


async def test_yields_in_its_finally() -> None:
    """Yields in `finally`: one CleanupError that names generator and line, from Python's own; its cleanup finishes."""
    log: list[str] = []
    source = thinking(log)
    with pytest.raises(CleanupError) as caught:
        async with guarded_stream(source, tail=lambda _: log.append("tail")) as stream:
            async for _ in stream:
                break
    assert log == ["client closed", "tail"]
    assert source.ag_frame is None
    assert type(caught.value) is CleanupError
    assert isinstance(caught.value.__cause__, RuntimeError)
    message = str(caught.value)
    assert "thinking" in message
    line = thinking.__code__.co_firstlineno + 4
    assert f"{__file__}:{line}" in message
    assert stream.end.cleanup_errors == (caught.value,)
    assert (stream.end.items, stream.end.last) == (1, "thought")


async def test_yields_in_its_finally_under_an_error(watch: Watch) -> None:
    """Yields in `finally`, body raised E: E leaves; the CleanupError is told once."""
    log: list[str] = []
    error = Fault()
    with pytest.raises(Fault) as caught:
        async with guarded_stream(thinking(log)) as stream:
            async for _ in stream:
                raise error
    assert caught.value is error
    assert log == ["client closed"]
    (cleanup,) = stream.end.cleanup_errors
    assert type(cleanup) is CleanupError
    (report,) = watch.claim("yielded at")
    assert report.source.exc_info[1] is cleanup


async def test_answers_generator_exit_with_a_yield() -> None:
    """Catches GeneratorExit at a yield in its `finally`: exactly one CleanupError."""

    async def source() -> AsyncIterator[str]:
        try:
            yield "item"
        finally:
            with suppress(GeneratorExit):
                yield "DONE"

    with pytest.raises(CleanupError) as caught:
        async with guarded_stream(source()) as stream:
            async for _ in stream:
                break
    assert stream.end.cleanup_errors == (caught.value,)


async def test_answers_generator_exit_with_a_yield_and_ends() -> None:
    """Swallows GeneratorExit, yields, and is at its end then: the CleanupError says that it was stepped on to it."""
    log: list[str] = []

    async def source() -> AsyncIterator[str]:
        try:
            yield "item"
        except GeneratorExit:
            yield "DONE"
        log.append("end")

    with pytest.raises(CleanupError, match=r"there; it was stepped on to its end\.") as caught:
        async with guarded_stream(source()) as stream:
            async for _ in stream:
                break
    assert log == ["end"]
    assert stream.end.cleanup_errors == (caught.value,)


@pytest.mark.parametrize("yields", [2, 15])
async def test_yields_several_times_in_its_finally(yields: int) -> None:
    """Yields several times in `finally`: stepped on until its cleanup has finished; one CleanupError."""
    log: list[str] = []

    async def source() -> AsyncIterator[int]:
        try:
            yield 0
        finally:
            for number in range(yields):
                yield number
            log.append("closed")

    with pytest.raises(CleanupError) as caught:
        async with guarded_stream(source()) as stream:
            async for _ in stream:
                break
    assert log == ["closed"]
    assert stream.end.cleanup_errors == (caught.value,)


async def test_yields_for_ever_in_its_finally() -> None:
    """Yields for ever in `finally`: stepped on at most 16 times, then one CleanupError that says so."""
    steps = 0
    released = False

    async def source() -> AsyncIterator[int]:
        nonlocal steps
        try:
            yield 0
        finally:
            while not released:
                steps += 1
                yield steps

    generator = source()
    with anyio.fail_after(2), pytest.raises(CleanupError, match="16 more steps") as caught:
        async with guarded_stream(generator) as stream:
            async for _ in stream:
                break
    assert 2 <= steps <= 17
    assert stream.end.cleanup_errors == (caught.value,)
    released = True
    with pytest.raises(GeneratorExit):  # it was on its way when the `finally` began
        await anext(generator)


async def test_yields_and_fails_in_its_finally(watch: Watch) -> None:
    """Yields in `finally` and then raises: the CleanupError leaves, the other one is told."""
    error = Fault("behind the yield")

    async def source() -> AsyncIterator[int]:
        try:
            yield 0
        finally:
            yield 1
            raise error

    with pytest.raises(CleanupError) as caught:
        async with guarded_stream(source()) as stream:
            async for _ in stream:
                break
    assert stream.end.cleanup_errors == (caught.value, error)
    watch.claim("behind the yield")


async def test_yields_and_hangs_in_its_finally(watch: Watch) -> None:
    """Yields in `finally` and then hangs: left at the deadline; one error tells of the hang, one of the yield."""
    log: list[str] = []

    async def source() -> AsyncIterator[int]:
        try:
            yield 0
        finally:
            yield 1
            await anyio.sleep_forever()

    with Clock() as clock, pytest.raises(CleanupTimeoutError) as caught:
        async with guarded_stream(source(), cleanup_timeout=LIMIT, tail=lambda _: log.append("tail")) as stream:
            async for _ in stream:
                break
    assert clock.seconds < LIMIT + GRACE + SLACK
    assert log == ["tail"]
    hang, yielded = stream.end.cleanup_errors
    assert hang is caught.value
    assert type(yielded) is CleanupError
    (report,) = watch.claim("streamguard: ERROR")
    assert report.source.exc_info[1] is yielded


async def test_yields_in_its_finally_when_cancelled_in_its_await() -> None:
    """Cancelled inside its own await, yields in `finally`: its cleanup finishes, and one CleanupError tells of it."""
    log: list[str] = []
    holding = anyio.Event()

    async def source() -> AsyncIterator[str]:
        try:
            yield "thought"
            holding.set()
            await anyio.sleep_forever()
        finally:
            yield "</think>"
            await anyio.lowlevel.checkpoint()
            log.append("client closed")

    words = r"^async generator '.*source' yielded at .*test_closing.py:\d+ while .*; it was stepped on to its end\."
    with pytest.RaisesGroup(pytest.RaisesExc(CleanupError, match=words)):
        await read_and_stop(guarded_stream(source()), holding)
    assert log == ["client closed"]


async def test_left_at_a_yield_inside_a_handler() -> None:
    """A source that is left at a `yield` in which it handles an error of its own is closed as any other."""
    log: list[str] = []

    async def source() -> AsyncIterator[str]:
        try:
            raise SystemExit
        except SystemExit:
            yield "partial"
        finally:
            log.append("closed")

    async with guarded_stream(source()) as stream:
        assert await anext(stream) == "partial"
    assert log == ["closed"]
    assert stream.end.cleanup_errors == ()


async def test_runtime_error_of_its_own() -> None:
    """A RuntimeError that the cleanup raises, whatever its words, is no yield: it leaves as it is."""
    error = RuntimeError("async generator ignored GeneratorExit")

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            raise error

    with pytest.raises(RuntimeError) as caught:
        async with guarded_stream(source()) as stream:
            async for _ in stream:
                break
    assert caught.value is error


# -- a cancellation that nobody asked for


@only_asyncio  # a cancellation that can be made by hand
async def test_cancellation_nobody_asked_for() -> None:
    """Raises a CancelledError in its cleanup at a yield: a CleanupError from it, not a cancelled consumer."""
    error = asyncio.CancelledError("cleanup")

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            raise error

    words = r"^async generator '.*source' raised a cancellation that nobody asked for$"
    with pytest.raises(CleanupError, match=words) as caught:
        async with guarded_stream(source()) as stream:
            async for _ in stream:
                break
    assert caught.value.__cause__ is error
    assert stream.end.reason is EndReason.FAILED
    assert asyncio.current_task().cancelling() == 0


@only_asyncio  # a cancellation that can be made by hand
@pytest.mark.parametrize("option", ["cancel", "tail"])
@pytest.mark.parametrize("awaits", [False, True], ids=["plain", "async"])
async def test_cancellation_nobody_asked_for_from_an_option(option: str, awaits: bool) -> None:
    """A `cancel` or a tail that raises a CancelledError does not cancel the consumer: a CleanupError that names it."""
    error = asyncio.CancelledError("made by hand")

    def give_up(*_: object) -> None:
        raise error

    async def give_up_later(*_: object) -> None:
        give_up()

    words = f"^the {option} of async generator '.*numbers' raised a cancellation that nobody asked for$"
    with pytest.raises(CleanupError, match=words) as caught:
        async with guarded_stream(Recording().numbers(), **{option: give_up_later if awaits else give_up}) as stream:
            await anext(stream)
    assert caught.value.__cause__ is error


@only_asyncio  # a cancellation that can be made by hand
async def test_cancellation_nobody_asked_for_of_a_cancelled_consumer(watch: Watch) -> None:
    """The same while the consumer is cancelled: it ends cancelled, and the CleanupError is told."""
    error = asyncio.CancelledError("cleanup")
    working = anyio.Event()

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            raise error

    stream = guarded_stream(source())

    async def consume() -> None:
        async with stream:
            async for _ in stream:
                working.set()
                await anyio.sleep_forever()

    task = asyncio.create_task(consume())
    await working.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    (cleanup,) = stream.end.cleanup_errors
    assert isinstance(cleanup, CleanupError)
    assert cleanup.__cause__ is error
    watch.claim("nobody asked for")


@only_asyncio  # a cancellation that can be raised once more
async def test_close_raises_our_cancellation_once_more() -> None:
    """An iterator that was cut in its await may raise that cancellation from its `aclose()`, too: it is ours."""

    class Iterator:
        def __init__(self) -> None:
            self.cut: list[asyncio.CancelledError] = []

        async def __anext__(self) -> int:
            try:
                await anyio.sleep_forever()
            except asyncio.CancelledError as cancellation:
                self.cut.append(cancellation)
                raise
            return 1

        async def aclose(self) -> None:
            raise self.cut.pop()

    async with guarded_stream(Iterator()) as stream:
        await read_in_vain(stream)
    assert (stream.end.reason, stream.end.cleanup_errors) == (EndReason.LEFT, ())


@only_asyncio  # a cancellation that can be made by hand
async def test_cancellation_of_our_own() -> None:
    """Raises a CancelledError after it was cancelled by the close: a clean close."""
    holding = anyio.Event()

    async def source() -> AsyncIterator[int]:
        yield 1
        try:
            holding.set()
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            raise asyncio.CancelledError("another one") from None

    stream = guarded_stream(source())
    await read_and_stop(stream, holding)
    assert stream.end.cleanup_errors == ()


@only_asyncio  # a cancellation that can be made by hand
@pytest.mark.parametrize("part", ["tail", "cancel"])
async def test_cancellation_nobody_asked_for_in_a_callback(part: Any) -> None:
    """A `tail` or `cancel` that raises a CancelledError: a CleanupError from it, not a cancelled consumer."""
    error = asyncio.CancelledError("mine")

    async def callback(*_: object) -> None:
        raise error

    with pytest.raises(CleanupError) as caught:
        async with guarded_stream(Seen().source(), **{part: callback}) as stream:
            async for _ in stream:
                break
    assert caught.value.__cause__ is error


@only_trio  # its cancellations cannot be made by hand
@pytest.mark.parametrize("part", ["tail", "cancel"])
async def test_kept_cancellation_in_a_callback(part: Any) -> None:
    """The same on trio, of a cancellation that was kept from somewhere else."""
    kept: list[trio.Cancelled] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as error:
            kept.append(error)

    async def callback(*_: object) -> None:
        raise kept[0]

    with pytest.raises(CleanupError) as caught:
        async with guarded_stream(Seen().source(), **{part: callback}) as stream:
            async for _ in stream:
                break
    assert caught.value.__cause__ is kept.pop()


@only_asyncio  # awaits a task that was cancelled
async def test_cleanup_awaits_a_cancelled_task() -> None:
    """A cleanup that cancels a task of its own and awaits it without catching: a CleanupError, the consumer goes on."""

    async def source() -> AsyncIterator[int]:
        task = asyncio.create_task(anyio.sleep_forever())
        try:
            yield 1
        finally:
            task.cancel()
            await task

    with pytest.raises(CleanupError) as caught:
        async with guarded_stream(source()) as stream:
            async for _ in stream:
                break
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)


# -- GeneratorExit in groups


@pytest.mark.parametrize("nested", [False, True])
async def test_group_of_generator_exit(nested: bool) -> None:
    """A group that holds only GeneratorExit, nested or not: a clean close."""

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
        except GeneratorExit as closing:
            group = BaseExceptionGroup("unhandled", [closing])
            raise BaseExceptionGroup("outer", [group]) if nested else group from None

    stream = guarded_stream(source())
    async with stream:
        async for _ in stream:
            break
    assert (stream.end.reason, stream.end.cleanup_errors) == (EndReason.LEFT, ())


async def test_group_of_generator_exit_under_an_error() -> None:
    """The same, body raised E: E leaves, with nothing added to it."""
    error = Fault()

    async def source() -> AsyncIterator[int]:
        async with anyio.create_task_group():
            yield 1
            yield 2

    with pytest.raises(Fault) as caught:
        async with guarded_stream(source()) as stream:
            async for _ in stream:
                raise error
    assert caught.value is error
    assert not hasattr(error, "__notes__")


async def test_mixed_group() -> None:
    """A mixed group: only the rest is raised, in its structure."""
    rest = OSError("cleanup")

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
        except GeneratorExit as closing:
            raise BaseExceptionGroup(
                "outer", [BaseExceptionGroup("only", [closing]), BaseExceptionGroup("mixed", [GeneratorExit(), rest])]
            ) from None

    with pytest.raises(ExceptionGroup, match="outer") as caught:
        async with guarded_stream(source()) as stream:
            async for _ in stream:
                break
    (inner,) = caught.value.exceptions
    assert isinstance(inner, ExceptionGroup)
    assert inner.message == "mixed"
    assert inner.exceptions == (rest,)


async def test_group_of_our_cancellation() -> None:
    """Cancelled inside its own await, it raises the cancellation in a group: a clean close."""
    holding = anyio.Event()

    async def source() -> AsyncIterator[int]:
        yield 1
        try:
            holding.set()
            await anyio.sleep_forever()
        except BaseException as error:
            raise BaseExceptionGroup("mine", [error]) from None

    stream = guarded_stream(source())
    await read_and_stop(stream, holding)
    assert stream.end.cleanup_errors == ()


# -- the limit


async def test_no_limit() -> None:
    """`cleanup_timeout=None`: the close takes the time that it needs."""
    assert await _closed_slowly(None) == ["GeneratorExit", "closing", "closed", "tail", "left"]


async def test_infinite_limit() -> None:
    """`cleanup_timeout=inf`: the same."""
    assert await _closed_slowly(float("inf")) == ["GeneratorExit", "closing", "closed", "tail", "left"]


async def _closed_slowly(limit: float | None) -> list[str]:
    recording = Recording()
    recording.hold_the_close()

    async def let_close() -> None:
        await recording.closing.wait()
        await anyio.wait_all_tasks_blocked()
        recording.may_close.set()

    async with anyio.create_task_group() as group:
        group.start_soon(let_close)
        await recording.consume(leave, cleanup_timeout=limit)
    return recording.log


@pytest.mark.parametrize("limit", [None, float("inf")])
async def test_no_limit_in_its_await(limit: float | None) -> None:
    """Without a limit a source inside its own await is cancelled as usual."""
    recording = Recording()
    stream = recording.open(recording.numbers(hold_after=1), cleanup_timeout=limit)
    await read_and_stop(stream, recording.holding)
    assert recording.log == ["cancelled", "closing", "closed", "tail"]


@pytest.mark.parametrize("limit", [0, 0.0])
async def test_zero_limit_with_nothing_to_wait_for(limit: float) -> None:
    """`cleanup_timeout=0`: a cleanup and a tail that need no waiting run in full."""
    log: list[str] = []

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            log.append("closed")

    async def tail(_: object) -> None:
        log.append("tail")

    async with guarded_stream(source(), cleanup_timeout=limit, tail=tail) as stream:
        async for _ in stream:
            break
    assert log == ["closed", "tail"]
    assert stream.end.cleanup_errors == ()


async def test_zero_limit_in_its_await() -> None:
    """`cleanup_timeout=0`: a source inside its own await is cancelled; a cleanup without waiting runs in full."""
    log: list[str] = []
    holding = anyio.Event()

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
            holding.set()
            await anyio.sleep_forever()
        finally:
            log.append("closed")

    stream = guarded_stream(source(), cleanup_timeout=0)
    await read_and_stop(stream, holding)
    assert log == ["closed"]
    assert stream.end.cleanup_errors == ()


async def test_zero_limit_with_a_cleanup_that_waits() -> None:
    """`cleanup_timeout=0`: a cleanup that waits is cut and reported, and the tail runs."""
    log: list[str] = []
    with pytest.raises(CleanupTimeoutError):
        async with guarded_stream(
            hanging_in_its_cleanup(log), cleanup_timeout=0, tail=lambda _: log.append("tail")
        ) as stream:
            async for _ in stream:
                break
    assert log == ["cancelled", "tail"]


# -- the tail


async def test_tail_has_a_limit_of_its_own() -> None:
    """A tail that hangs ends at its own deadline with CleanupTimeoutError that names it and the line."""
    log: list[str] = []

    async def the_tail(_: object) -> None:
        try:
            await anyio.sleep_forever()  # here
        except BaseException as error:
            log.append(kind_of(error))
            raise

    with Clock() as clock, pytest.raises(CleanupTimeoutError, match="tail") as caught:
        async with guarded_stream(Seen().source(), cleanup_timeout=LIMIT, tail=the_tail) as stream:
            async for _ in stream:
                break
    assert log == ["cancelled"]
    assert "await anyio.sleep_forever()  # here" in str(caught.value)
    assert clock.seconds < LIMIT + GRACE + SLACK
    assert stream.end.cleanup_errors == (caught.value,)


async def test_async_tail_after_a_hung_close() -> None:
    """After a hung close the tail still has its whole limit, and its awaits run to the end."""
    log: list[str] = []

    async def tail(_: object) -> None:
        for _ in range(3):
            await anyio.sleep(LIMIT / 5)
        log.append("tail")

    with pytest.raises(CleanupTimeoutError, match="hanging_in_its_cleanup"):
        async with guarded_stream(hanging_in_its_cleanup(log), cleanup_timeout=LIMIT * 4, tail=tail) as stream:
            async for _ in stream:
                break
    assert log == ["cancelled", "tail"]


async def test_tail_is_told_of_the_hung_close() -> None:
    """The tail's argument holds the error of the close."""
    log: list[str] = []
    told: list[tuple[BaseException, ...]] = []
    with pytest.raises(CleanupTimeoutError) as caught:
        async with guarded_stream(
            hanging_in_its_cleanup(log), cleanup_timeout=LIMIT, tail=lambda end: told.append(end.cleanup_errors)
        ) as stream:
            async for _ in stream:
                break
    assert told == [(caught.value,)]


@only_asyncio  # cancels natively
async def test_tail_under_several_cancels() -> None:
    """Several native cancellations during the tail do not cut it; the task ends cancelled."""
    log: list[str] = []
    in_the_tail, go_on_ = anyio.Event(), anyio.Event()

    async def tail(_: object) -> None:
        in_the_tail.set()
        await go_on_.wait()
        await asyncio.sleep(0)
        log.append("tail")

    async def consume() -> None:
        async with guarded_stream(Seen().source(), tail=tail) as stream:
            async for _ in stream:
                break
        log.append("went on")

    task = asyncio.create_task(consume())
    await in_the_tail.wait()
    for _ in range(3):
        task.cancel()
        await anyio.wait_all_tasks_blocked()
    go_on_.set()
    await asyncio.wait([task])
    assert log == ["tail"]
    assert task.cancelled()


async def test_tail_under_a_cancelled_scope() -> None:
    """A scope cancelled during the tail does not cut it; the scope tells at the next checkpoint."""
    log: list[str] = []

    async def tail(_: object) -> None:
        scope.cancel()
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        log.append("tail")

    with anyio.CancelScope() as scope:
        async with guarded_stream(Seen().source(), tail=tail) as stream:
            async for _ in stream:
                break
        await anyio.lowlevel.checkpoint()
        log.append("went on")
    assert log == ["tail"]
    assert scope.cancelled_caught


async def test_tail_that_raises_after_a_hung_close(watch: Watch) -> None:
    """Hung close and failing tail: the close's error leaves, the tail's is told."""
    error = Fault("tail")

    def tail(_: object) -> None:
        raise error

    with pytest.raises(CleanupTimeoutError) as caught:
        async with guarded_stream(hanging_in_its_cleanup([]), cleanup_timeout=LIMIT, tail=tail) as stream:
            async for _ in stream:
                break
    assert stream.end.cleanup_errors == (caught.value, error)
    watch.claim("Fault: tail")


# -- cancelled during the close


@only_asyncio  # cancels natively
async def test_native_cancel_during_the_close() -> None:
    """A native cancellation during the close is remembered: the cleanup ends first, then the task ends cancelled."""
    recording = Recording()
    recording.hold_the_close()
    task = asyncio.create_task(recording.consume(leave))
    await recording.closing.wait()
    task.cancel()
    await anyio.wait_all_tasks_blocked()
    assert not task.done()
    assert task.cancelling() == 1
    recording.may_close.set()
    await asyncio.wait([task])
    assert recording.log == ["GeneratorExit", "closing", "closed", "tail", "left"]
    assert task.cancelled()
    assert recording.end is not None
    assert recording.end.reason is EndReason.CANCELLED


@only_asyncio  # times out natively
@pytest.mark.parametrize("body", [leave, fail], ids=lambda body: body.__name__)
async def test_asyncio_timeout_during_the_close(body: Any, request: pytest.FixtureRequest) -> None:
    """`asyncio.timeout` around the block that fires during the close: the cleanup ends, then TimeoutError leaves."""
    recording = Recording()
    recording.hold_the_close()

    limits: list[asyncio.Timeout] = []

    async def let_close() -> None:
        await recording.closing.wait()
        limits[0].reschedule(0)
        while not task.cancelling():
            await anyio.sleep(0.001)
        await anyio.wait_all_tasks_blocked()
        recording.may_close.set()

    async def consume() -> None:
        async with asyncio.timeout(None) as limit:
            limits.append(limit)
            await recording.consume(body)

    task = asyncio.create_task(consume())
    async with anyio.create_task_group() as group:
        group.start_soon(let_close)
        await asyncio.wait([task])
    assert recording.log == ["GeneratorExit", "closing", "closed", "tail", "left"]
    assert isinstance(task.exception(), TimeoutError)
    assert not isinstance(task.exception(), CleanupTimeoutError)
    if body is fail:  # it could not leave, so it was logged
        watch: Watch = request.getfixturevalue("watch")
        watch.claim("Fault")


@only_asyncio  # times out natively
async def test_asyncio_timeout_and_a_cancel_during_the_close() -> None:
    """A timeout and a cancellation from outside during the close: the task ends cancelled, not with TimeoutError."""
    recording = Recording()
    recording.hold_the_close()

    async def consume() -> None:
        async with asyncio.timeout(0.01):
            await recording.consume(leave)

    task = asyncio.create_task(consume())
    await recording.closing.wait()
    while not task.cancelling():
        await anyio.sleep(0.001)
    task.cancel()
    await anyio.wait_all_tasks_blocked()
    recording.may_close.set()
    await asyncio.wait([task])
    assert task.cancelled()


@only_asyncio  # times out natively
async def test_wait_for_during_the_close() -> None:
    """`asyncio.wait_for` that times out during the close: the cleanup ends, then TimeoutError."""
    recording = Recording()
    recording.hold_the_close()
    task = asyncio.create_task(recording.consume(leave))

    async def let_close() -> None:
        while not task.cancelling():
            await anyio.sleep(0.001)
        recording.may_close.set()

    async with anyio.create_task_group() as group:
        group.start_soon(let_close)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(task, 0.02)
    assert recording.log == ["GeneratorExit", "closing", "closed", "tail", "left"]


async def test_move_on_after_during_the_close() -> None:
    """A scope around the block whose deadline comes during the close: the cleanup ends, the next checkpoint is cut."""
    recording = Recording()
    recording.hold_the_close()

    async def let_close(scope: anyio.CancelScope) -> None:
        while not scope.cancel_called:
            await anyio.sleep(0.001)
        await anyio.wait_all_tasks_blocked()
        recording.may_close.set()

    async with anyio.create_task_group() as group:
        with anyio.move_on_after(0.02) as scope:
            group.start_soon(let_close, scope)
            await recording.consume(leave)
            recording.log.append("behind")
            await anyio.lowlevel.checkpoint()
            recording.log.append("went on")
    assert recording.log == ["GeneratorExit", "closing", "closed", "tail", "left", "behind"]
    assert scope.cancelled_caught


async def test_scope_cancelled_during_the_close() -> None:
    """A scope cancelled from outside during the close: the cleanup ends, the next checkpoint is cut."""
    recording = Recording()
    recording.hold_the_close()
    scope = anyio.CancelScope()

    async def cancel() -> None:
        await recording.closing.wait()
        scope.cancel()
        await anyio.wait_all_tasks_blocked()
        recording.may_close.set()

    async with anyio.create_task_group() as group:
        group.start_soon(cancel)
        with scope:
            await recording.consume(leave)
            await anyio.lowlevel.checkpoint()
            recording.log.append("went on")
    assert recording.log == ["GeneratorExit", "closing", "closed", "tail", "left"]
    assert scope.cancelled_caught


async def test_error_and_a_scope_cancelled_during_the_close() -> None:
    """Body raises E, a scope is cancelled from outside during the close: E leaves both, for nothing was cut."""
    recording = Recording()
    recording.hold_the_close()
    scope = anyio.CancelScope()

    async def cancel() -> None:
        await recording.closing.wait()
        scope.cancel()
        await anyio.wait_all_tasks_blocked()
        recording.may_close.set()

    async with anyio.create_task_group() as group:
        group.start_soon(cancel)
        with pytest.raises(Fault), scope:
            await recording.consume(fail)
    assert recording.log == ["GeneratorExit", "closing", "closed", "tail", "left"]


@only_asyncio  # cancels natively
async def test_scope_in_the_body_then_native_cancel_during_the_close() -> None:
    """The body was cancelled by a scope and the task natively during the close: the scope does not hide that."""
    recording = Recording()
    recording.hold_the_close()
    scope = anyio.CancelScope()

    async def consume() -> None:
        with scope:
            await recording.consume(recording.work)
        recording.log.append("behind")
        await asyncio.sleep(0)
        recording.log.append("went on")

    task = asyncio.create_task(consume())
    await recording.working.wait()
    scope.cancel()
    await recording.closing.wait()
    task.cancel()
    await anyio.wait_all_tasks_blocked()
    recording.may_close.set()
    await asyncio.wait([task])
    assert task.cancelled()
    assert "went on" not in recording.log


@only_asyncio  # cancels natively
@pytest.mark.parametrize("turns", range(12))
async def test_native_cancel_at_any_turn_of_the_close(turns: int) -> None:
    """At whatever turn of the close a cancellation comes, cleanup and tail end first, and it is not lost."""
    recording = Recording()

    async def consume() -> None:
        await recording.consume(leave)
        await anyio.sleep_forever()

    task = asyncio.create_task(consume())
    await recording.closing.wait()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert recording.log == ["GeneratorExit", "closing", "closed", "tail", "left"]


@only_asyncio  # cancels natively
@pytest.mark.parametrize("wait", ["answering", "cancelled", "past half of the limit", "past the limit"])
async def test_native_cancel_in_each_wait_of_the_close(wait: str, watch: Watch) -> None:
    """Whatever the close is waiting for, a cancellation that comes meanwhile is obeyed when the tail has run."""
    log: list[object] = []
    at_work = anyio.Event()
    limit = 0.2

    async def source() -> AsyncIterator[int]:
        with suppress(TimeoutError):
            async with asyncio.timeout(0 if wait == "answering" else None):
                yield 1
                with suppress(asyncio.CancelledError):
                    await anyio.sleep_forever()
        if wait == "past half of the limit":
            await anyio.sleep(limit * 0.75)
        if wait == "past the limit":
            with suppress(asyncio.CancelledError):
                await anyio.sleep_forever()
        at_work.set()
        await anyio.wait_all_tasks_blocked()
        task.cancel()
        await anyio.wait_all_tasks_blocked()
        log.append("source ended")

    def tail(end: StreamEnd[int]) -> None:
        log.append(end.reason)

    async def consume() -> None:
        async with guarded_stream(source(), cleanup_timeout=limit, tail=tail) as stream:
            await anext(stream)
            if wait == "answering":
                await at_work.wait()
            else:
                await read_in_vain(stream)
        log.append("went on")

    task = asyncio.create_task(consume())
    await asyncio.wait([task])
    assert task.cancelled()
    assert log == ["source ended", EndReason.CANCELLED]
    if wait == "past the limit":
        watch.claim("did not end within 0.2 s. It was cancelled")


@only_asyncio  # cancels natively
async def test_native_cancel_while_another_task_closes() -> None:
    """The same while the exit of the block waits for the close that another task has begun."""
    recording = Recording()
    recording.hold_the_close()
    read = anyio.Event()
    stream = recording.open(recording.numbers())

    async def consume() -> None:
        async with stream:
            await anext(stream)
            read.set()
            await recording.closing.wait()

    task = asyncio.create_task(consume())
    await read.wait()
    closer = asyncio.create_task(stream.aclose())
    await anyio.wait_all_tasks_blocked()
    task.cancel()
    await anyio.wait_all_tasks_blocked()
    assert not task.done()
    recording.may_close.set()
    await asyncio.wait([task, closer])
    assert task.cancelled()
    assert closer.result() is None
    assert recording.log == ["GeneratorExit", "closing", "closed", "tail"]


@only_asyncio  # cancels natively
async def test_counts_of_cancellations_stay() -> None:
    """The close takes nothing from the task's count of cancellations."""
    recording = Recording()
    recording.hold_the_close()
    counts: list[int] = []

    async def consume() -> None:
        try:
            await recording.consume(leave)
        finally:
            counts.append(asyncio.current_task().cancelling())

    task = asyncio.create_task(consume())
    await recording.closing.wait()
    task.cancel()
    task.cancel()
    await anyio.wait_all_tasks_blocked()
    recording.may_close.set()
    await asyncio.wait([task])
    assert counts == [2]


class Counting:
    """An iterator that somebody else cancels as well, and that tells how many cancellations its close finds."""

    def __init__(self, swallowed: int = 0) -> None:
        self.holding = anyio.Event()
        self.found: list[int] = []
        self.task: asyncio.Task[Any] | None = None
        self._swallowed = swallowed

    def __aiter__(self) -> "Counting":
        return self

    async def __anext__(self) -> int:
        self.task = asyncio.current_task()
        self.holding.set()
        for _ in range(self._swallowed):
            with suppress(asyncio.CancelledError):
                await anyio.sleep_forever()
        await anyio.sleep_forever()
        return 1

    async def aclose(self) -> None:
        self.found.append(asyncio.current_task().cancelling())


@only_asyncio  # counts native cancellations
@pytest.mark.parametrize("others", [0, 1, 2])
async def test_our_cancellation_is_not_counted_in_the_close(others: int) -> None:
    """A close finds of the cancellations that hit the source's await those of others, not ours."""
    source = Counting()

    async def close(stream: GuardedStream[int]) -> None:
        await source.holding.wait()
        await anyio.wait_all_tasks_blocked()
        stream.stop()
        await asyncio.sleep(0)  # in which the exit cancels it
        for _ in range(others):
            source.task.cancel()

    async with anyio.create_task_group() as group:
        stream = guarded_stream(source)
        group.start_soon(close, stream)
        async with stream:
            async for _ in stream:
                pass
    assert source.found == [others]


@only_asyncio  # counts native cancellations
async def test_our_cancellations_are_not_counted_after_the_deadline() -> None:
    """Nor are both of ours, if a source swallowed the first and was cancelled at the deadline."""
    source = Counting(swallowed=1)
    stream = guarded_stream(source, cleanup_timeout=LIMIT)
    with pytest.RaisesGroup(pytest.RaisesExc(CleanupTimeoutError, match="It was cancelled")):
        await read_and_stop(stream, source.holding)
    assert source.found == [0]


# -- KeyboardInterrupt and SystemExit


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
async def test_interrupt_in_the_cleanup(kind: type[BaseException]) -> None:
    """KeyboardInterrupt or SystemExit in the cleanup leaves the block, after the tail has run."""
    interrupt = kind()
    log: list[str] = []

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await anyio.lowlevel.checkpoint()
            raise interrupt

    caught: BaseException | None = None
    try:
        async with guarded_stream(source(), tail=lambda _: log.append("tail")) as stream:
            async for _ in stream:
                break
    except BaseException as error:
        caught = error
    assert caught is interrupt
    assert log == ["tail"]


@only_asyncio  # cancels natively
async def test_interrupt_in_the_cleanup_of_a_cancelled_consumer() -> None:
    """KeyboardInterrupt in the cleanup leaves over a cancellation of the body."""
    interrupt = KeyboardInterrupt()
    caught: BaseException | None = None

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            raise interrupt

    async def consume() -> None:
        nonlocal caught
        try:
            async with guarded_stream(source()) as stream:
                async for _ in stream:
                    asyncio.current_task().cancel()
                    await anyio.sleep_forever()
        except BaseException as error:  # it must not reach the loop
            caught = error

    await asyncio.wait([asyncio.create_task(consume())])
    assert caught is interrupt


# -- other shapes of sources


async def test_iterator_is_closed_once() -> None:
    """An iterator with only `close()` is closed by it, once, whatever else happens."""

    class Stream:
        closes = 0

        def __aiter__(self) -> "Stream":
            return self

        async def __anext__(self) -> int:
            return 1

        async def close(self) -> None:
            await anyio.lowlevel.checkpoint()
            self.closes += 1

    source = Stream()
    async with guarded_stream(source) as stream:
        async for _ in stream:
            await stream.aclose()
    await stream.aclose()
    assert source.closes == 1


async def test_iterator_whose_read_raises_generator_exit_is_closed() -> None:
    """An iterator whose read raises GeneratorExit is closed all the same."""

    class Stream:
        closes = 0

        def __aiter__(self) -> "Stream":
            return self

        async def __anext__(self) -> int:
            raise GeneratorExit

        async def aclose(self) -> None:
            self.closes += 1

    source = Stream()
    caught: BaseException | None = None
    try:
        async with guarded_stream(source) as stream:
            await anext(stream)
    except GeneratorExit as error:
        caught = error
    assert caught is None or isinstance(caught, GeneratorExit)
    assert source.closes == 1


async def test_close_of_an_iterator_that_hangs() -> None:
    """An iterator's `aclose` that is busy at the deadline is cut and reported like a generator's."""

    class Stream:
        def __aiter__(self) -> "Stream":
            return self

        async def __anext__(self) -> int:
            return 1

        async def aclose(self) -> None:
            await anyio.sleep_forever()

    with pytest.raises(CleanupTimeoutError, match="Stream"):
        async with guarded_stream(Stream(), cleanup_timeout=LIMIT) as stream:
            async for _ in stream:
                break


async def test_iterator_inside_its_own_await() -> None:
    """An iterator that is no generator, inside its own await, is cancelled by one edge and then closed."""
    log: list[str] = []
    holding = anyio.Event()

    class Stream:
        def __aiter__(self) -> "Stream":
            return self

        async def __anext__(self) -> int:
            try:
                holding.set()
                await anyio.sleep_forever()
                raise AssertionError
            finally:
                await anyio.lowlevel.checkpoint()
                log.append("read ended")

        async def aclose(self) -> None:
            await anyio.lowlevel.checkpoint()
            log.append("closed")

    await read_and_stop(guarded_stream(Stream()), holding)
    assert log == ["read ended", "closed"]


# -- documented limits


async def test_limit_already_in_its_own_finally() -> None:
    """A source that is already in its own `finally` when it is cancelled gets the cancellation there."""
    log: list[str] = []
    holding = anyio.Event()

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            holding.set()
            try:
                await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class():
                log.append("cut in its finally")
                raise

    await read_and_stop(guarded_stream(source()), holding)
    assert log == ["cut in its finally"]


@only_asyncio  # a task that nobody owns
async def test_limit_detached_task() -> None:
    """A task that the source starts and detaches is not the stream's: it goes on."""
    kept: list[asyncio.Task[None]] = []

    async def source() -> AsyncIterator[int]:
        kept.append(asyncio.create_task(anyio.sleep_forever()))
        yield 1

    async with guarded_stream(source()) as stream:
        async for _ in stream:
            break
    (task,) = kept
    assert not task.done()
    task.cancel()
    await asyncio.wait([task])
