"""Which error leaves a guarded block, and what becomes of the others."""

import asyncio
import logging
import traceback
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from nothing_left import Watch
from recording import Fault, only_asyncio
from streamguard import (
    CleanupError,
    CleanupTimeoutError,
    EndReason,
    GuardedStream,
    StreamEnd,
    guarded_chain,
    guarded_stream,
)

pytestmark = pytest.mark.anyio


class CleanupFault(Exception):
    """What the cleanup raises."""


async def numbers() -> AsyncGenerator[int, None]:
    yield 1
    yield 2


async def failing(error: BaseException) -> AsyncGenerator[int, None]:
    """A generator whose cleanup fails."""
    try:
        yield 1
        yield 2
    finally:
        await anyio.lowlevel.checkpoint()
        raise error


def claim_one(watch: Watch) -> BaseException:
    """The one error that was logged, with its traceback."""
    (report,) = watch.claim("^streamguard: ERROR")
    assert isinstance(report.source, logging.LogRecord)
    assert report.source.exc_info is not None
    kind, error, trace = report.source.exc_info
    assert error is not None
    assert kind is type(error)
    assert trace is error.__traceback__
    return error


def assert_told(
    watch: Watch,
    stream: GuardedStream[int],
    other: BaseException,
    leaving: BaseException,
    words: str = "the cleanup failed as well",
) -> None:
    """The other error is a note on the one that leaves, stands in `cleanup_errors`, and was logged once."""
    assert stream.end.cleanup_errors == (other,)
    assert claim_one(watch) is other
    (note,) = leaving.__notes__
    assert note.startswith(f"streamguard: {words}: ")
    assert type(other).__name__ in note
    assert str(other) in note


# -- row 1: ok, break, return or GeneratorExit in the body, and the cleanup fails


@pytest.mark.parametrize("where", ["source", "tail", "sync tail", "cancel"])
async def test_break_and_cleanup_fails(where: str) -> None:
    """Body left by break, cleanup fails with C: C leaves, bare; nothing is logged."""
    error = CleanupFault(where)
    stream = _failing_in(where, error)
    with pytest.raises(CleanupFault) as caught:
        async with stream:
            async for _ in stream:
                break
    assert caught.value is error
    assert not hasattr(error, "__notes__")
    assert stream.end.reason is EndReason.FAILED
    assert stream.end.error is error
    assert stream.end.cleanup_errors == (error,)


async def test_exhausted_and_tail_fails() -> None:
    """Body ended by itself, tail fails: the tail's error leaves."""
    error = CleanupFault("tail")
    stream = _failing_in("tail", error)
    with pytest.raises(CleanupFault) as caught:
        async with stream:
            async for _ in stream:
                pass
    assert caught.value is error


async def test_never_read_and_tail_fails() -> None:
    """Nothing was read, tail fails: the tail's error leaves."""
    error = CleanupFault("tail")
    with pytest.raises(CleanupFault) as caught:
        async with _failing_in("tail", error):
            pass
    assert caught.value is error


async def test_return_and_cleanup_fails() -> None:
    """Body left by return, cleanup fails: the error leaves instead of the result."""
    error = CleanupFault("source")

    async def first() -> int:
        async with guarded_stream(failing(error)) as stream:
            async for number in stream:
                return number
        return 0

    with pytest.raises(CleanupFault) as caught:
        await first()
    assert caught.value is error


async def test_generator_exit_and_cleanup_fails() -> None:
    """GeneratorExit in the body, cleanup fails: the error leaves."""
    error = CleanupFault("source")

    async def relay() -> AsyncIterator[int]:
        async with guarded_stream(failing(error)) as stream:
            async for number in stream:
                yield number

    with pytest.raises(CleanupFault) as caught:
        async with aclosing(relay()) as outer:
            async for _ in outer:
                break
    assert caught.value is error


# -- row 2: error E, and the cleanup is fine


async def test_error_of_the_body() -> None:
    """Body raises E, cleanup is fine: E leaves, bare, the very object, with nothing added to it."""
    error = Fault()
    stream = guarded_stream(numbers(), tail=lambda _: None)
    with pytest.raises(Fault) as caught:
        async with stream:
            async for _ in stream:
                raise error
    assert caught.value is error
    assert error.__context__ is None
    assert error.__cause__ is None
    assert not hasattr(error, "__notes__")
    assert (stream.end.reason, stream.end.error, stream.end.cleanup_errors) == (EndReason.FAILED, error, ())


async def test_error_of_the_source() -> None:
    """Source raises E while it is read: E leaves, bare, the very object."""
    error = Fault()
    stream = guarded_stream(_fails_after_one(error))
    with pytest.raises(Fault) as caught:
        async with stream:
            async for _ in stream:
                pass
    assert caught.value is error
    assert error.__context__ is None
    assert not hasattr(error, "__notes__")
    assert (stream.end.reason, stream.end.error, stream.end.cleanup_errors) == (EndReason.FAILED, error, ())


async def test_error_that_the_body_handles() -> None:
    """Source raises E and the body handles it: nothing leaves, and the end tells of E."""
    error = Fault()
    stream = guarded_stream(_fails_after_one(error))
    async with stream:
        with pytest.raises(Fault):
            async for _ in stream:
                pass
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
    assert (stream.end.reason, stream.end.error, stream.end.cleanup_errors) == (EndReason.FAILED, error, ())


async def test_error_that_the_body_replaces() -> None:
    """Source raises E and the body raises another one from it: that one leaves."""
    error, replacement = Fault(), CleanupFault()
    stream = guarded_stream(_fails_after_one(error))
    with pytest.raises(CleanupFault) as caught:
        async with stream:
            try:
                async for _ in stream:
                    pass
            except Fault as fault:
                raise replacement from fault
    assert caught.value is replacement
    assert replacement.__cause__ is error
    assert stream.end.error is replacement
    assert stream.end.cleanup_errors == ()


@pytest.mark.parametrize("place", ["body", "source"])
async def test_group_of_the_user(place: str) -> None:
    """A group that body or source raised leaves as it is: the same object, the same parts."""
    parts = [ValueError(1), ExceptionGroup("inner", [OSError(2)])]
    error = ExceptionGroup("mine", parts)
    stream = guarded_stream(_fails_after_one(error))
    with pytest.raises(ExceptionGroup) as caught:
        async with stream:
            async for _ in stream:
                if place == "body":
                    raise error
    assert caught.value is error
    assert list(error.exceptions) == parts


async def test_single_error_in_a_group_of_the_user() -> None:
    """A group that holds one error is not unwrapped."""
    error = ExceptionGroup("mine", [ValueError(1)])
    with pytest.raises(ExceptionGroup) as caught:
        async with guarded_stream(numbers()):
            raise error
    assert caught.value is error


async def test_group_of_a_task_group_in_the_source() -> None:
    """What a task group in the source raises while it is read arrives as that group, and in no other."""
    error = Fault()

    async def source() -> AsyncIterator[int]:
        async with anyio.create_task_group():
            yield 1
            raise error

    with pytest.raises(ExceptionGroup) as caught:
        async with guarded_stream(source()) as stream:
            async for _ in stream:
                pass
    assert caught.value.exceptions == (error,)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
async def test_interrupt_of_the_source(kind: type[BaseException]) -> None:
    """Source raises an exception that is no error while it is read: the reader gets that very object."""
    interrupt = kind()
    caught: BaseException | None = None
    stream = guarded_stream(_fails_after_one(interrupt))
    async with stream:
        try:
            async for _ in stream:
                pass
        except BaseException as raised:
            caught = raised
    assert caught is interrupt


@only_asyncio  # a cancellation that can be made by hand
async def test_cancellation_of_the_source() -> None:
    """A CancelledError that the source itself raises while it is read arrives bare."""
    error = asyncio.CancelledError("mine")
    caught: BaseException | None = None
    async with guarded_stream(_fails_after_one(error)) as stream:
        try:
            async for _ in stream:
                pass
        except asyncio.CancelledError as raised:
            caught = raised
    assert caught is error
    assert asyncio.current_task().cancelling() == 0


@pytest.mark.parametrize("option", ["until", "where"])
async def test_error_of_a_predicate(option: Any) -> None:
    """An error of `until` or `where` is an error of the source: it arrives at the read, and the source is closed."""
    error = Fault()
    source = numbers()

    def predicate(_: int) -> bool:
        raise error

    stream = guarded_stream(source, **{option: predicate})
    with pytest.raises(Fault) as caught:
        async with stream:
            await anext(stream)
    assert caught.value is error
    assert source.ag_frame is None
    assert stream.end.items == 0


# -- an error that nobody read


async def test_unread_error_leaves_from_the_exit() -> None:
    """An error of the source that stands ahead when the body is left by break leaves from the exit, bare."""
    error = Fault()
    stream = guarded_stream(_fails_at_a_timeout(error))
    with pytest.raises(Fault) as caught:
        async with stream:
            await anext(stream)
            await _until_it_stands_ahead()
    assert caught.value is error
    assert (stream.end.reason, stream.end.error) == (EndReason.FAILED, error)


async def test_unread_error_under_an_error_of_the_body(watch: Watch) -> None:
    """Body raises E while an error of the source stands unread: E leaves, the other one is told."""
    error, unread = Fault("body"), CleanupFault("unread")
    stream = guarded_stream(_fails_at_a_timeout(unread))
    with pytest.raises(Fault) as caught:
        async with stream:
            await anext(stream)
            await _until_it_stands_ahead()
            raise error
    assert caught.value is error
    assert_told(watch, stream, unread, error, "this took the place of")


async def _fails_at_a_timeout(error: BaseException) -> AsyncIterator[int]:
    try:
        with anyio.fail_after(0.01):
            yield 1
            yield 2
    except TimeoutError:
        raise error from None


async def _until_it_stands_ahead() -> None:
    await anyio.sleep(0.03)  # the source's own timeout has no event that a body could wait for
    await anyio.wait_all_tasks_blocked()


# -- row 3: error E, and the cleanup fails with C


@pytest.mark.parametrize("where", ["source", "tail", "sync tail", "cancel"])
async def test_error_and_cleanup_fails(where: str, watch: Watch) -> None:
    """Body raises E, cleanup fails with C: E leaves; C is a note, in `cleanup_errors`, and logged once."""
    error, cleanup = Fault("body"), CleanupFault(where)
    stream = _failing_in(where, cleanup)
    with pytest.raises(Fault) as caught:
        async with stream:
            async for _ in stream:
                raise error
    assert caught.value is error
    assert stream.end.error is error
    assert stream.end.reason is EndReason.FAILED
    assert_told(watch, stream, cleanup, error)


async def test_error_of_the_source_and_tail_fails(watch: Watch) -> None:
    """Source raises E, tail fails with C: E leaves; C is told."""
    error, cleanup = Fault("source"), CleanupFault("tail")

    async def tail(_: object) -> None:
        raise cleanup

    stream = guarded_stream(_fails_after_one(error), tail=tail)
    with pytest.raises(Fault) as caught:
        async with stream:
            async for _ in stream:
                pass
    assert caught.value is error
    assert_told(watch, stream, cleanup, error)


async def test_error_and_cleanup_hangs(watch: Watch) -> None:
    """Body raises E, cleanup hangs: E leaves; the timeout is told."""
    error = Fault("body")

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await anyio.sleep_forever()

    stream = guarded_stream(source(), cleanup_timeout=0.01)
    with pytest.raises(Fault) as caught:
        async with stream:
            async for _ in stream:
                raise error
    assert caught.value is error
    (cleanup,) = stream.end.cleanup_errors
    assert isinstance(cleanup, CleanupTimeoutError)
    assert claim_one(watch) is cleanup
    assert len(error.__notes__) == 1


async def test_group_of_the_user_and_cleanup_fails(watch: Watch) -> None:
    """Body raises a group, cleanup fails with C: the group leaves as it was; C is told on it."""
    parts = [ValueError(1), ExceptionGroup("inner", [OSError(2)])]
    error, cleanup = ExceptionGroup("mine", parts), CleanupFault("cleanup")
    stream = guarded_stream(failing(cleanup))
    with pytest.raises(ExceptionGroup) as caught:
        async with stream:
            async for _ in stream:
                raise error
    assert caught.value is error
    assert list(error.exceptions) == parts
    assert_told(watch, stream, cleanup, error)


async def test_notes_of_the_user_stay(watch: Watch) -> None:
    """The note on E comes behind those that E has."""
    error, cleanup = Fault("body"), CleanupFault("cleanup")
    error.add_note("mine")
    with pytest.raises(Fault):
        async with guarded_stream(failing(cleanup)) as stream:
            async for _ in stream:
                raise error
    assert error.__notes__[0] == "mine"
    assert len(error.__notes__) == 2
    assert claim_one(watch) is cleanup


async def test_cleanup_error_that_cannot_be_shown(watch: Watch) -> None:
    """A cleanup error whose text cannot be made does not take the place of E."""

    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    error, cleanup = Fault("body"), Unprintable()
    with pytest.raises(Fault) as caught:
        async with guarded_stream(failing(cleanup)) as stream:
            async for _ in stream:
                raise error
    assert caught.value is error
    assert claim_one(watch) is cleanup


async def test_source_raises_the_error_of_the_body_again() -> None:
    """A context manager as the source that raises the body's own error again adds nothing to it."""
    error = Fault()

    class Manager:
        async def __aenter__(self) -> AsyncIterator[int]:
            self.source = numbers()
            return self.source

        async def __aexit__(self, kind: object, raised: BaseException | None, trace: object) -> None:
            await self.source.aclose()
            if raised is not None:
                raise raised

    stream: GuardedStream[int] = guarded_stream(Manager())
    with pytest.raises(Fault) as caught:
        async with stream:
            async for _ in stream:
                raise error
    assert caught.value is error
    assert not hasattr(error, "__notes__")
    assert stream.end.cleanup_errors == ()


# -- row 4: cancelled, and the cleanup fails with C


@only_asyncio  # cancels natively
@pytest.mark.parametrize("where", ["source", "tail", "sync tail", "cancel"])
async def test_cancelled_and_cleanup_fails(where: str, watch: Watch) -> None:
    """The body is cancelled, cleanup fails with C: the task ends cancelled; C is told."""
    cleanup = CleanupFault(where)
    stream = _failing_in(where, cleanup)
    working = anyio.Event()
    seen: list[BaseException] = []

    async def consume() -> None:
        try:
            async with stream:
                async for _ in stream:
                    working.set()
                    await anyio.sleep_forever()
        except asyncio.CancelledError as error:
            seen.append(error)
            raise

    task = asyncio.create_task(consume())
    await working.wait()
    task.cancel("why")
    await asyncio.wait([task])
    assert task.cancelled()
    (left,) = seen
    assert left.args == ("why",)
    assert stream.end.reason is EndReason.CANCELLED
    assert stream.end.error is left
    assert_told(watch, stream, cleanup, left)


@pytest.mark.parametrize("where", ["source", "tail", "sync tail", "cancel"])
async def test_scope_cancelled_and_cleanup_fails(where: str, watch: Watch) -> None:
    """The body is cancelled by a scope, cleanup fails with C: the scope catches its cancellation; C is told."""
    cleanup = CleanupFault(where)
    stream = _failing_in(where, cleanup)
    with anyio.CancelScope() as scope:
        async with stream:
            async for _ in stream:
                scope.cancel()
                await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert stream.end.reason is EndReason.CANCELLED
    assert stream.end.cleanup_errors == (cleanup,)
    assert claim_one(watch) is cleanup


async def test_scope_cancelled_while_the_source_waits_and_cleanup_fails(watch: Watch) -> None:
    """The same when the source waits: what its cleanup raises is told, its cancellation is not."""
    cleanup = CleanupFault("cleanup")

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
            scope.cancel()
            await anyio.sleep_forever()
        finally:
            await anyio.lowlevel.checkpoint()
            raise cleanup

    stream = guarded_stream(source())
    with anyio.CancelScope() as scope:
        async with stream:
            async for _ in stream:
                pass
    assert scope.cancelled_caught
    assert stream.end.cleanup_errors == (cleanup,)
    assert claim_one(watch) is cleanup


# -- row 5: error E inside an already cancelled scope


async def test_error_in_a_cancelled_scope() -> None:
    """Body raises E inside an already cancelled scope: E leaves block and scope, and the cleanup is not cut."""
    error = Fault()
    log: list[str] = []

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            log.append("closed")

    stream = guarded_stream(source())
    with pytest.raises(Fault) as caught, anyio.CancelScope() as scope:
        async with stream:
            async for _ in stream:
                scope.cancel()
                raise error
    assert caught.value is error
    assert log == ["closed"]
    assert not scope.cancelled_caught
    assert (stream.end.reason, stream.end.error, stream.end.cleanup_errors) == (EndReason.FAILED, error, ())


async def test_error_in_a_cancelled_scope_of_an_event() -> None:
    """The same when the scope is cancelled from outside while the body's last wait is already over."""
    error = Fault()
    with pytest.raises(Fault) as caught, anyio.CancelScope() as scope:
        async with guarded_stream(numbers()) as stream:
            async for _ in stream:
                try:
                    scope.cancel()
                    await anyio.sleep_forever()
                finally:
                    raise error
    assert caught.value is error


async def test_break_in_a_cancelled_scope() -> None:
    """A break inside an already cancelled scope leaves as usual; the scope tells at the next checkpoint."""
    went_on = False
    with anyio.CancelScope() as scope:
        async with guarded_stream(numbers()) as stream:
            async for _ in stream:
                scope.cancel()
                break
        went_on = True
        await anyio.lowlevel.checkpoint()
        pytest.fail("the scope did not cancel")
    assert went_on
    assert scope.cancelled_caught
    assert stream.end.reason is EndReason.LEFT


# -- row 6: error E, then a native cancellation during the close


@only_asyncio  # cancels natively
@pytest.mark.parametrize("during", ["close", "tail", "cancel"])
async def test_error_then_cancelled(during: str, watch: Watch) -> None:
    """Body raises E, the task is cancelled during close, tail or cancel: it ends cancelled; E is told."""
    error = Fault("body")
    closing, may_close = anyio.Event(), anyio.Event()
    seen: list[BaseException] = []

    async def hold(_: object = None) -> None:
        closing.set()
        await may_close.wait()

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            if during == "close":
                await hold()

    stream = guarded_stream(
        source(), tail=hold if during == "tail" else None, cancel=hold if during == "cancel" else None
    )

    async def consume() -> None:
        try:
            async with stream:
                async for _ in stream:
                    raise error
        except BaseException as raised:
            seen.append(raised)
            raise

    task = asyncio.create_task(consume())
    await closing.wait()
    task.cancel("why")
    await anyio.wait_all_tasks_blocked()
    assert not task.done()
    may_close.set()
    await asyncio.wait([task])
    assert task.cancelled()
    (left,) = seen
    assert left.args == ("why",)
    assert stream.end.reason is EndReason.CANCELLED
    assert stream.end.error is left
    assert_told(watch, stream, error, left, "this took the place of")


@only_asyncio  # cancels natively
async def test_unread_error_then_cancelled(watch: Watch) -> None:
    """An unread error of the source, then a native cancel during the tail: it ends cancelled; the error is told."""
    error = Fault("unread")
    in_the_tail, go_on_ = anyio.Event(), anyio.Event()
    seen: list[BaseException] = []

    async def tail(_: object) -> None:
        in_the_tail.set()
        await go_on_.wait()

    stream = guarded_stream(_fails_at_a_timeout(error), tail=tail)

    async def consume() -> None:
        try:
            async with stream:
                await anext(stream)
                await _until_it_stands_ahead()
        except BaseException as raised:
            seen.append(raised)
            raise

    task = asyncio.create_task(consume())
    await in_the_tail.wait()
    task.cancel()
    go_on_.set()
    await asyncio.wait([task])
    assert task.cancelled()
    assert_told(watch, stream, error, seen[0], "this took the place of")


# -- row 7: KeyboardInterrupt or SystemExit in the cleanup


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("where", ["source", "tail", "sync tail", "cancel"])
async def test_interrupt_in_the_cleanup(where: str, kind: type[BaseException]) -> None:
    """Cleanup raises KeyboardInterrupt or SystemExit: that one leaves over E, which is in its context."""
    error, interrupt = Fault(), kind()
    stream = _failing_in(where, interrupt)
    caught: BaseException | None = None
    try:
        async with stream:
            async for _ in stream:
                raise error
    except BaseException as raised:
        caught = raised
    assert caught is interrupt
    assert _has_context(interrupt, error)
    assert stream.end.reason is EndReason.FAILED
    assert stream.end.error is interrupt


@pytest.mark.parametrize("where", ["source", "cancel"])
async def test_tail_runs_after_an_interrupt(where: str) -> None:
    """KeyboardInterrupt in `cancel` or in the source's cleanup leaves after the close and the tail have run."""
    interrupt = KeyboardInterrupt()
    log: list[str] = []

    def cancel() -> None:
        if where == "cancel":
            raise interrupt

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await anyio.lowlevel.checkpoint()
            log.append("closed")
            if where == "source":
                raise interrupt

    caught: BaseException | None = None
    try:
        async with guarded_stream(source(), cancel=cancel, tail=lambda _: log.append("tail")) as stream:
            async for _ in stream:
                break
    except BaseException as raised:
        caught = raised
    assert caught is interrupt
    assert log == ["closed", "tail"]


async def test_interrupt_in_the_cleanup_under_a_cancelled_scope() -> None:
    """The body is cancelled by a scope, cleanup raises KeyboardInterrupt: that one leaves the block and the scope."""
    interrupt = KeyboardInterrupt()
    caught: BaseException | None = None
    try:
        with anyio.CancelScope() as scope:
            async with guarded_stream(failing(interrupt)) as stream:
                async for _ in stream:
                    scope.cancel()
                    await anyio.sleep_forever()
    except BaseException as raised:
        caught = raised
    assert caught is interrupt


# -- row 8: several fail


async def test_several_cleanups_fail(watch: Watch) -> None:
    """Source and tail both fail: the first leaves, bare; the second is told."""
    first, second = CleanupFault("source"), OSError("tail")

    async def tail(_: object) -> None:
        raise second

    stream = guarded_stream(failing(first), tail=tail)
    with pytest.raises(CleanupFault) as caught:
        async with stream:
            async for _ in stream:
                break
    assert caught.value is first
    assert stream.end.cleanup_errors == (first, second)
    assert claim_one(watch) is second
    (note,) = first.__notes__
    assert "OSError: tail" in note


async def test_all_cleanups_fail_under_an_error(watch: Watch) -> None:
    """Body raises E; cancel, source and tail all fail: E leaves; each is told once, in order."""
    error = Fault("body")
    failures = [CleanupFault("cancel"), CleanupFault("source"), CleanupFault("tail")]

    def cancel() -> None:
        raise failures[0]

    def tail(_: object) -> None:
        raise failures[2]

    stream = guarded_stream(failing(failures[1]), cancel=cancel, tail=tail)
    with pytest.raises(Fault) as caught:
        async with stream:
            async for _ in stream:
                raise error
    assert caught.value is error
    assert stream.end.cleanup_errors == tuple(failures)
    reports = watch.claim("^streamguard: ERROR")
    assert [report.source.exc_info[1] for report in reports] == failures
    assert len(error.__notes__) == 3


async def test_failing_cancel_stops_nothing() -> None:
    """A `cancel` that fails does not keep the source from being closed, nor the tail from running."""
    log: list[str] = []
    error = CleanupFault("cancel")

    def cancel() -> None:
        raise error

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            log.append("closed")

    with pytest.raises(CleanupFault) as caught:
        async with guarded_stream(source(), cancel=cancel, tail=lambda _: log.append("tail")) as stream:
            async for _ in stream:
                break
    assert caught.value is error
    assert log == ["closed", "tail"]


# -- the errors themselves


def test_kinds() -> None:
    """A cleanup error is a RuntimeError, a late one a TimeoutError as well, so that both ways to catch it work."""
    assert issubclass(CleanupError, RuntimeError)
    assert issubclass(CleanupTimeoutError, CleanupError)
    assert issubclass(CleanupTimeoutError, TimeoutError)


async def test_traceback_of_both_tasks() -> None:
    """The traceback of an error of the source has the frames of the reader and of the source."""

    async def the_source() -> AsyncIterator[int]:
        yield 1
        the_fault()

    def the_fault() -> None:
        raise Fault

    async def the_reader() -> None:
        async with guarded_stream(the_source()) as stream:
            async for _ in stream:
                pass

    with pytest.raises(Fault) as caught:
        await the_reader()
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert [name for name in names if name.startswith("the_")] == ["the_reader", "the_source", "the_fault"]


async def test_traceback_of_a_cleanup_error() -> None:
    """The traceback of an error of the cleanup has the frames of the block and of the source."""

    async def the_source() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            raise CleanupFault

    async def the_reader() -> None:
        async with guarded_stream(the_source()) as stream:
            async for _ in stream:
                break

    with pytest.raises(CleanupFault) as caught:
        await the_reader()
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert [name for name in names if name.startswith("the_")] == ["the_reader", "the_source"]


async def test_context_of_an_error_of_the_source() -> None:
    """Reading inside an `except` block gives the source's error no cause, and keeps the one it has."""
    error, cause = Fault(), OSError("cause")

    async def source() -> AsyncIterator[int]:
        yield 1
        raise error from cause

    with pytest.raises(Fault) as caught:
        async with guarded_stream(source()) as stream:
            async for _ in stream:
                pass
    assert caught.value.__cause__ is cause


def _failing_in(where: str, error: BaseException) -> GuardedStream[int]:
    """A stream of which one part fails while it is left."""

    def fail(*_: object) -> None:
        raise error

    async def fail_later(*_: object) -> None:
        await anyio.lowlevel.checkpoint()
        raise error

    if where == "source":
        return guarded_stream(failing(error))
    if where == "cancel":
        return guarded_stream(numbers(), cancel=fail_later)
    return guarded_stream(numbers(), tail=fail if where == "sync tail" else fail_later)


async def _fails_after_one(error: BaseException) -> AsyncIterator[int]:
    yield 1
    raise error


def _has_context(error: BaseException, wanted: BaseException) -> bool:
    context: BaseException | None = error
    while context is not None and context is not wanted:
        context = context.__context__
    return context is wanted


# -- what the note says


async def test_note_of_a_cleanup_that_hangs_after_a_failed_cancel(watch: Watch) -> None:
    """Of a `cancel` that fails and a close that hangs after it, the first one leaves, and the other one is told."""

    def cancel() -> None:
        raise OSError("cancel")

    async def hanging() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await anyio.sleep_forever()

    with pytest.raises(OSError, match="cancel") as caught:
        async with guarded_stream(hanging(), cancel=cancel, cleanup_timeout=0.02) as stream:
            async for _ in stream:
                break
    assert caught.value.args == ("cancel",)
    assert [type(error) for error in stream.end.cleanup_errors] == [OSError, CleanupTimeoutError]
    watch.claim("error while closing a stream: .*CleanupTimeoutError")


@only_asyncio
async def test_note_of_a_displaced_error(watch: Watch) -> None:
    """The body's error, whose place a cancellation took, is not called one of the cleanup."""

    async def slow() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            task.cancel()
            await anyio.lowlevel.checkpoint()

    async def consume() -> None:
        async with guarded_stream(slow()) as stream:
            async for _ in stream:
                raise KeyError("body")

    task = asyncio.ensure_future(consume())
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert caught.value.__notes__ == ["streamguard: this took the place of: KeyError: 'body'"]
    watch.claim("displaced while it was closed: KeyError: 'body'")


async def test_words_of_an_error_with_notes(watch: Watch) -> None:
    """What is told of an error has all its lines, its notes as well: in the log, and as a note of the one that left."""
    cleanup = CleanupFault("first line")
    cleanup.add_note("second line")
    with pytest.raises(Fault) as caught:
        async with guarded_stream(failing(cleanup)) as stream:
            async for _ in stream:
                raise Fault("body")
    words = "CleanupFault: first line\nsecond line"
    assert caught.value.__notes__ == [f"streamguard: the cleanup failed as well: {__name__}.{words}"]
    (report,) = watch.claim("first line")
    assert report.source.getMessage() == f"error while closing a stream: {__name__}.{words}"  # type: ignore[union-attr]


# -- errors in the record, with release_agents=True


class BuiltElsewhere(Exception):
    """An error that nobody can make again, as those of some validators."""

    def __new__(cls, *args: object, made: bool = False) -> "BuiltElsewhere":
        if not made:
            raise TypeError("use BuiltElsewhere.make()")
        return super().__new__(cls, *args)

    @classmethod
    def make(cls) -> "BuiltElsewhere":
        error = cls.__new__(cls, "built elsewhere", made=True)
        error.args = ("built elsewhere",)
        return error


class Coded(Exception):
    """An error that is made of other arguments than those it keeps."""

    def __init__(self, code: int, filename: str) -> None:
        super().__init__(f"code {code}")
        self.filename = filename


class OfItsOwn(Coded):
    """The same, and its `__new__` takes no fewer."""

    def __new__(cls, code: object, *more: object) -> "OfItsOwn":
        return super().__new__(cls, code, *more)


class Prefixed(Exception):
    """An error that a copy would give its prefix twice."""

    def __init__(self, text: str) -> None:
        super().__init__(f"failed: {text}")


@pytest.mark.parametrize(
    "error",
    [
        BuiltElsewhere.make(),
        FileNotFoundError(2, "no file", "name"),
        ValueError("plain"),
        Coded(7, "name"),
        OfItsOwn(7, "name"),
        Prefixed("once"),
    ],
)
async def test_error_in_a_record_without_frames(error: Exception) -> None:
    """An error leaves untouched whether it can be copied or not, the tail runs, and the record's one has no frames."""
    tails: list[StreamEnd[int]] = []

    async def source() -> AsyncIterator[int]:
        yield 1

    with pytest.raises(type(error)) as caught:
        async with guarded_stream(source(), release_agents=True, tail=tails.append) as stream:
            async for _ in stream:
                raise error
    assert caught.value is error
    assert [end.reason for end in tails] == [EndReason.FAILED]
    kept = stream.end.error
    assert kept is not None
    assert kept is not error
    assert kept.__traceback__ is None
    assert str(error) in str(kept)
    assert getattr(kept, "filename", None) == getattr(error, "filename", None)


async def test_error_in_the_record_of_a_chain_without_frames() -> None:
    """The same of a chain: neither its record nor those of its members have frames."""
    error = ValueError("body")
    with pytest.raises(ValueError, match=r"^body$"):
        async with guarded_chain(numbers(), release_agents=True) as chain:
            async for _ in chain:
                raise error
    assert error.__traceback__ is not None
    assert [str(end.error) for end in (chain.end, *chain.end.members)] == ["body", "body"]
    assert [end.error.__traceback__ for end in (chain.end, *chain.end.members)] == [None, None]


async def test_copies_of_errors_keep_their_class() -> None:
    """Whoever looks at the record's error finds the class and the words that the error has."""
    for error in (Coded(7, "name"), OfItsOwn(7, "name"), Prefixed("once")):
        with pytest.raises(type(error)):
            async with guarded_stream(numbers(), release_agents=True) as stream:
                raise error
        kept = stream.end.error
        assert type(kept) is type(error)
        assert str(kept) == str(error)


async def test_error_that_cannot_be_copied() -> None:
    """In its place stands an error with its words, its notes as well, that says so."""
    error = BuiltElsewhere.make()
    error.add_note("a note")
    with pytest.raises(BuiltElsewhere):
        async with guarded_stream(numbers(), release_agents=True) as stream:
            raise error
    kept = stream.end.error
    words = f"{__name__}.BuiltElsewhere: built elsewhere\na note"
    assert type(kept) is RuntimeError
    assert str(kept) == f"{words} (stands for an error that cannot be copied)"


async def test_group_in_a_record_without_frames() -> None:
    """A group keeps its members' shape; none of them has frames."""

    def fail() -> None:
        raise ValueError("inner")

    with pytest.raises(ExceptionGroup) as caught:
        async with guarded_stream(numbers(), release_agents=True) as stream:
            try:
                fail()
            except ValueError as inner:
                raise ExceptionGroup("outer", [inner]) from None
    assert caught.value.exceptions[0].__traceback__ is not None
    kept = stream.end.error
    assert isinstance(kept, ExceptionGroup)
    assert (kept.message, kept.__traceback__) == ("outer", None)
    (inner,) = kept.exceptions
    assert (str(inner), inner.__traceback__) == ("inner", None)


class _RunData:
    last_agent = object()


async def test_error_in_a_record_holds_no_run() -> None:
    """What an SDK's error tells of its run holds agents: the copy goes without, the error keeps it."""
    error = ValueError("too many turns")
    error.run_data = data = _RunData()

    async def source() -> AsyncIterator[int]:
        yield 1

    with pytest.raises(ValueError, match="too many turns"):
        async with guarded_stream(source(), release_agents=True) as stream:
            async for _ in stream:
                raise error
    assert error.run_data is data
    assert stream.end.error.run_data is None
