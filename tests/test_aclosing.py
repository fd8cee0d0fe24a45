"""`Aclosing` is `contextlib.aclosing` that loses no error and closes what has only ``close()``."""

import asyncio
import gc
import logging
import weakref
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from typing import Any

import anyio
import pytest
import trio

from nothing_left import Watch, tasks
from recording import Fault, Recording, kind_of, leave, only_asyncio
from streamguard import Aclosing

pytestmark = pytest.mark.anyio


async def numbers() -> AsyncGenerator[int, None]:
    yield 1
    yield 2


async def failing(error: BaseException) -> AsyncGenerator[int, None]:
    """A generator whose cleanup fails."""
    try:
        yield 1
        yield 2
    finally:
        raise error


async def cut_short(log: list[str]) -> AsyncGenerator[int, None]:
    """A generator whose cleanup awaits, and says what came of it."""
    try:
        yield 1
        yield 2
    finally:
        try:
            await anyio.sleep_forever()
        except BaseException as error:
            log.append(kind_of(error))
            raise


def errors_in(watch: Watch) -> list[Any]:
    """What was logged as an error of a cleanup, as exceptions; there must be something."""
    reports = watch.claim("^streamguard: ERROR")
    assert all(isinstance(report.source, logging.LogRecord) for report in reports)
    return [report.source.exc_info[1] for report in reports]


def chain_of(error: BaseException) -> list[BaseException]:
    """The error and all that stands behind it as context or cause."""
    chain: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        link = waiting.pop()
        if link is not None and link not in chain:
            chain.append(link)
            waiting += [link.__context__, link.__cause__]
    return chain


# -- which error leaves the block, row by row


async def test_break_ok_cleanup_fails() -> None:
    """Body left by break, cleanup fails: the cleanup's error leaves, bare."""
    error = OSError("cleanup")
    with pytest.raises(OSError, match="cleanup") as caught:
        async with Aclosing(failing(error)) as stream:
            async for _ in stream:
                break
    assert caught.value is error


async def test_return_cleanup_fails() -> None:
    """Body left by return, cleanup fails: the cleanup's error leaves instead of the result."""

    async def first() -> int:
        async with Aclosing(failing(OSError("cleanup"))) as stream:
            async for number in stream:
                return number
        return 0

    with pytest.raises(OSError, match="cleanup"):
        await first()


async def test_generator_exit_in_the_body_cleanup_fails() -> None:
    """GeneratorExit in the body, cleanup fails: the cleanup's error leaves."""
    error = OSError("cleanup")

    async def outer() -> AsyncGenerator[int, None]:
        async with Aclosing(failing(error)) as stream:
            async for number in stream:
                yield number

    source = outer()
    await anext(source)
    with pytest.raises(OSError, match="cleanup") as caught:
        await source.aclose()
    assert caught.value is error


async def test_error_cleanup_ok() -> None:
    """Body raises E, cleanup is fine: E leaves, the very object, with nothing added to it."""
    error = Fault()
    with pytest.raises(Fault) as caught:
        async with Aclosing(numbers()) as stream:
            async for _ in stream:
                raise error
    assert caught.value is error
    assert not hasattr(error, "__notes__")
    assert error.__context__ is None


async def test_group_of_the_user_stays() -> None:
    """An exception group of the body leaves as it is."""
    error = ExceptionGroup("mine", [ValueError(1), ExceptionGroup("inner", [OSError(2)])])
    with pytest.raises(ExceptionGroup) as caught:
        async with Aclosing(numbers()):
            raise error
    assert caught.value is error


async def test_error_of_the_source() -> None:
    """An error of the source, read in the body, leaves as it is."""
    error = Fault()

    async def source() -> AsyncGenerator[int, None]:
        yield 1
        raise error

    with pytest.raises(Fault) as caught:
        async with Aclosing(source()) as stream:
            async for _ in stream:
                pass
    assert caught.value is error


async def test_error_cleanup_fails(watch: Watch) -> None:
    """Body raises E, cleanup fails with C: E leaves; C is a note on it and one log record."""
    error, cleanup = ValueError("body"), OSError("cleanup")
    with pytest.raises(ValueError, match="body") as caught:
        async with Aclosing(failing(cleanup)) as stream:
            async for _ in stream:
                raise error
    assert caught.value is error
    (note,) = error.__notes__
    assert "OSError: cleanup" in note
    assert errors_in(watch) == [cleanup]


async def test_error_cleanup_fails_in_contextlib() -> None:
    """`contextlib.aclosing` lets the cleanup's error out; the body's is lost, not even in the chain of contexts."""
    error, cleanup = ValueError("body"), OSError("cleanup")
    with pytest.raises(OSError, match="cleanup") as caught:
        async with aclosing(failing(cleanup)) as stream:
            async for _ in stream:
                raise error
    assert error not in chain_of(caught.value)


@only_asyncio  # cancels natively
async def test_cancelled_cleanup_fails(watch: Watch) -> None:
    """The body is cancelled, cleanup fails with C: the task ends cancelled; C is logged once."""
    cleanup = OSError("cleanup")
    working = anyio.Event()

    async def consume() -> None:
        async with Aclosing(failing(cleanup)) as stream:
            async for _ in stream:
                working.set()
                await anyio.sleep_forever()

    task = asyncio.create_task(consume())
    await working.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert errors_in(watch) == [cleanup]


@only_asyncio  # cancels natively
async def test_cancelled_cleanup_fails_in_contextlib() -> None:
    """`contextlib.aclosing` lets the cleanup's error out: the task does not end cancelled."""
    working = anyio.Event()

    async def consume() -> None:
        async with aclosing(failing(OSError("cleanup"))) as stream:
            async for _ in stream:
                working.set()
                await anyio.sleep_forever()

    task = asyncio.create_task(consume())
    await working.wait()
    task.cancel()
    await asyncio.wait([task])
    assert not task.cancelled()
    assert isinstance(task.exception(), OSError)


async def test_scope_cancelled_cleanup_fails(watch: Watch) -> None:
    """The body is cancelled by a scope, cleanup fails with C: the scope catches its cancellation; C is logged once."""
    cleanup = OSError("cleanup")
    with anyio.CancelScope() as scope:
        async with Aclosing(failing(cleanup)) as stream:
            async for _ in stream:
                scope.cancel()
                await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert errors_in(watch) == [cleanup]


async def test_error_in_a_cancelled_scope() -> None:
    """Body raises E inside an already cancelled scope that cuts the cleanup: E leaves the block and the scope."""
    log: list[str] = []
    error = ValueError("body")
    with pytest.raises(ValueError, match="body") as caught, anyio.CancelScope() as scope:
        async with Aclosing(cut_short(log)) as stream:
            async for _ in stream:
                scope.cancel()
                raise error
    assert caught.value is error
    assert log == ["cancelled"]
    assert not scope.cancelled_caught


async def test_error_in_a_cancelled_scope_in_contextlib() -> None:
    """`contextlib.aclosing` loses the body's error to the scope, which then says that it caught its cancellation."""
    log: list[str] = []
    with anyio.CancelScope() as scope:
        async with aclosing(cut_short(log)) as stream:
            async for _ in stream:
                scope.cancel()
                raise ValueError("body")
    assert scope.cancelled_caught


async def test_error_in_a_cancelled_scope_cut_group() -> None:
    """The same when the cut cleanup raises the cancellation in a group: E leaves, and nothing is reported."""
    error = ValueError("body")

    async def source() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            try:
                await anyio.sleep_forever()
            except BaseException as cancellation:
                raise BaseExceptionGroup("cut", [cancellation]) from None

    with pytest.raises(ValueError, match="body") as caught, anyio.CancelScope() as scope:
        async with Aclosing(source()) as stream:
            async for _ in stream:
                scope.cancel()
                raise error
    assert caught.value is error


@only_asyncio  # cancels natively
async def test_error_then_a_native_cancel_in_the_cleanup(watch: Watch) -> None:
    """Body raises E, the task is cancelled during the cleanup: it ends cancelled; E is logged once."""
    log: list[str] = []
    error = ValueError("body")
    closing = anyio.Event()

    async def source() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            closing.set()
            await anyio.sleep_forever()

    async def consume() -> None:
        async with Aclosing(source()) as stream:
            async for _ in stream:
                raise error
        log.append("went on")

    task = asyncio.create_task(consume())
    await closing.wait()
    await anyio.wait_all_tasks_blocked()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert errors_in(watch) == [error]
    assert log == []


@only_asyncio  # times out natively
async def test_error_then_a_timeout_in_the_cleanup(watch: Watch) -> None:
    """Body raises E, `asyncio.timeout` around the block fires during the cleanup: TimeoutError leaves; E is logged."""
    error = ValueError("body")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01), Aclosing(cut_short([])) as stream:
            async for _ in stream:
                raise error
    assert errors_in(watch) == [error]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
async def test_interrupt_in_the_cleanup(kind: type[BaseException]) -> None:
    """Body raises E, cleanup raises KeyboardInterrupt or SystemExit: that one leaves, with E in its context."""
    error, interrupt = Fault(), kind()
    caught: BaseException | None = None
    try:
        async with Aclosing(failing(interrupt)) as stream:
            async for _ in stream:
                raise error
    except BaseException as raised:
        caught = raised
    assert caught is interrupt
    assert error in chain_of(interrupt)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
async def test_interrupt_in_the_cleanup_without_error(kind: type[BaseException]) -> None:
    """Body is fine, cleanup raises KeyboardInterrupt or SystemExit: that one leaves."""
    interrupt = kind()
    caught: BaseException | None = None
    try:
        async with Aclosing(failing(interrupt)) as stream:
            async for _ in stream:
                break
    except BaseException as raised:
        caught = raised
    assert caught is interrupt


async def test_keyboard_interrupt_in_the_body() -> None:
    """KeyboardInterrupt in the body: the source is closed, then it leaves."""
    recording = Recording()
    caught: BaseException | None = None
    try:
        async with Aclosing(recording.numbers()) as stream:
            async for _ in stream:
                raise KeyboardInterrupt
    except KeyboardInterrupt as raised:
        caught = raised
    assert caught is not None
    assert recording.log == ["GeneratorExit", "closing", "closed"]


@pytest.mark.parametrize("error_in_the_body", [False, True])
async def test_cleanup_error_is_freed(error_in_the_body: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the cleanup that left, or was reported, is freed with its last reference, without a collection."""
    references: list[weakref.ref[BaseException]] = []
    # pytest keeps every record until the test has ended, and with it the error.
    monkeypatch.setattr(logging.getLogger("streamguard"), "disabled", True)

    def made() -> Fault:
        error = Fault("cleanup")
        references.append(weakref.ref(error))
        return error

    async def source() -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
        finally:
            raise made()

    async def consume() -> None:
        async with Aclosing(source()) as stream:
            async for _ in stream:
                if error_in_the_body:
                    raise Fault
                break

    gc.disable()
    try:
        with suppress(Fault):
            await consume()
        assert references[0]() is None
    finally:
        gc.enable()


# -- GeneratorExit in groups


async def grouped(*errors: BaseException) -> AsyncGenerator[int, None]:
    """A generator that answers its close with a group of GeneratorExit and these."""
    try:
        yield 1
        yield 2
    except GeneratorExit as closing:
        raise BaseExceptionGroup("unhandled", [closing, *errors]) from None


async def test_group_of_generator_exit() -> None:
    """A cleanup that raises a group that holds only GeneratorExit, nested or not, is a clean close."""
    async with Aclosing(grouped(BaseExceptionGroup("inner", [GeneratorExit()]))) as stream:
        async for _ in stream:
            break


async def test_mixed_group() -> None:
    """From a mixed group only the rest is raised, in the user's own structure."""
    rest = OSError("cleanup")
    with pytest.raises(ExceptionGroup, match="unhandled") as caught:
        async with Aclosing(grouped(rest)) as stream:
            async for _ in stream:
                break
    assert caught.value.exceptions == (rest,)


async def test_mixed_group_under_an_error(watch: Watch) -> None:
    """Body raises E, cleanup raises a mixed group: E leaves, the rest is reported."""
    error, rest = Fault(), OSError("cleanup")
    with pytest.raises(Fault) as caught:
        async with Aclosing(grouped(rest)) as stream:
            async for _ in stream:
                raise error
    assert caught.value is error
    (reported,) = errors_in(watch)
    assert reported.exceptions == (rest,)


@only_asyncio  # asyncio's own task group
async def test_task_group_of_asyncio() -> None:
    """A break out of a generator with a TaskGroup around its yield just works."""

    async def source() -> AsyncGenerator[int, None]:
        async with asyncio.TaskGroup():
            yield 1
            yield 2

    async with Aclosing(source()) as stream:
        async for _ in stream:
            break

    with pytest.raises(BaseExceptionGroup):
        async with aclosing(source()) as stream:
            async for _ in stream:
                break


@pytest.mark.parametrize("anyio_backend", [pytest.param(("trio", {}), id="trio")])  # trio's own nursery
async def test_nursery_of_trio() -> None:
    """A break out of a generator with a nursery around its yield just works."""

    async def source() -> AsyncGenerator[int, None]:
        async with trio.open_nursery():
            yield 1
            yield 2

    async with Aclosing(source()) as stream:
        async for _ in stream:
            break


async def test_task_group_of_anyio() -> None:
    """The same with a task group of anyio."""

    async def source() -> AsyncGenerator[int, None]:
        async with anyio.create_task_group():
            yield 1
            yield 2

    async with Aclosing(source()) as stream:
        async for _ in stream:
            break


# -- what it closes, and how


class Closer:
    """A stream with only `close()`, sync."""

    def __init__(self) -> None:
        self.closes = 0

    def __aiter__(self) -> "Closer":
        return self

    async def __anext__(self) -> int:
        return 1

    def close(self) -> object:
        self.closes += 1
        return "not awaitable"


class AsyncCloser(Closer):
    """A stream with only `close()`, async."""

    async def close(self) -> None:
        await anyio.lowlevel.checkpoint()
        self.closes += 1


class SyncAcloser(Closer):
    """An `aclose` that is a plain function, beside a `close` that must not be called."""

    def __init__(self) -> None:
        super().__init__()
        self.acloses = 0

    def aclose(self) -> None:
        self.acloses += 1


@pytest.mark.parametrize("kind", [Closer, AsyncCloser])
async def test_only_close(kind: type[Closer]) -> None:
    """What has only `close()`, sync or async, is closed by it, once."""
    source = kind()
    async with Aclosing(source) as stream:
        async for _ in stream:
            break
    assert source.closes == 1


async def test_only_close_in_contextlib() -> None:
    """`contextlib.aclosing` fails after the body, and closes nothing."""
    source = AsyncCloser()
    with pytest.raises(AttributeError):
        async with aclosing(source) as stream:
            async for _ in stream:
                break
    assert source.closes == 0


async def test_aclose_before_close() -> None:
    """`aclose` is preferred to `close`, may be a plain function, and only one of them is called."""
    source = SyncAcloser()
    async with Aclosing(source):
        pass
    assert (source.acloses, source.closes) == (1, 0)


async def test_sync_close_fails(watch: Watch) -> None:
    """A `close()` that raises at the call is an error of the cleanup like any other."""
    error, cleanup = Fault(), OSError("cleanup")

    class Failing(Closer):
        def close(self) -> object:
            raise cleanup

    with pytest.raises(Fault) as caught:
        async with Aclosing(Failing()):
            raise error
    assert caught.value is error
    assert errors_in(watch) == [cleanup]


@pytest.mark.parametrize("thing", [object(), None, 3, "text"], ids=lambda thing: type(thing).__name__)
async def test_nothing_to_close(thing: object) -> None:
    """It constructs with anything, and what has nothing to close is left alone."""
    async with Aclosing(thing) as same:
        assert same is thing


async def test_same_object() -> None:
    """The block is given the very same object."""
    source = numbers()
    async with Aclosing(source) as stream:
        assert stream is source


async def test_without_as() -> None:
    """It works without `as`."""
    source = numbers()
    await anext(source)
    async with Aclosing(source):
        pass
    assert source.ag_frame is None


async def test_instance_attribute_counts() -> None:
    """`aclose` is looked up on the object, so that a proxy's is found."""
    called: list[str] = []

    class Proxy:
        def __getattr__(self, name: str) -> Any:
            if name != "aclose":
                raise AttributeError(name)
            return lambda: called.append(name)

    async with Aclosing(Proxy()):
        pass
    assert called == ["aclose"]


async def test_never_iterated() -> None:
    """A generator that was never iterated is closed without running."""
    recording = Recording()
    source = recording.numbers()
    async with Aclosing(source):
        pass
    assert source.ag_frame is None
    assert recording.log == []


# -- what it leaves as it is


async def test_closes_in_the_task_that_leaves(anyio_backend_name: str) -> None:
    """It starts no task: the source is read and closed in the caller's."""
    recording = Recording()
    before = tasks(anyio_backend_name)
    async with Aclosing(recording.numbers()) as stream:
        async for _ in stream:
            assert len(tasks(anyio_backend_name)) == len(before)
            break
    assert recording.tasks == {anyio.get_current_task().id}
    assert recording.log == ["GeneratorExit", "closing", "closed"]


def test_needs_no_running_loop() -> None:
    """It may be driven by hand, with no event loop at all."""
    log: list[str] = []

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            log.append("closed")

    async def first() -> int:
        async with Aclosing(source()) as stream:
            async for number in stream:
                return number
        return 0

    with pytest.raises(StopIteration) as returned:
        first().send(None)
    assert returned.value.value == 1
    assert log == ["closed"]


def test_needs_no_running_loop_for_errors(caplog: pytest.LogCaptureFixture) -> None:
    """With no event loop the body's error leaves as well, and the cleanup's is reported."""
    error, cleanup = Fault(), OSError("cleanup")

    async def consume() -> None:
        async with Aclosing(failing(cleanup)) as stream:
            async for _ in stream:
                raise error

    with pytest.raises(Fault) as caught:
        consume().send(None)
    assert caught.value is error
    assert [record.exc_info[1] for record in caplog.records if record.exc_info] == [cleanup]


def test_needs_no_running_loop_for_a_cancellation(caplog: pytest.LogCaptureFixture) -> None:
    """With no event loop a cancellation in the cleanup leaves as well, and the body's error is reported."""
    error, cancellation = Fault("body"), asyncio.CancelledError()

    async def consume() -> None:
        async with Aclosing(failing(cancellation)) as stream:
            async for _ in stream:
                raise error

    with pytest.raises(asyncio.CancelledError) as caught:
        consume().send(None)
    assert caught.value is cancellation
    assert caught.value.__notes__ == ["streamguard: this took the place of: recording.Fault: body"]
    assert [record.exc_info[1] for record in caplog.records if record.exc_info] == [error]


async def test_no_generator_inside() -> None:
    """It is a plain class: entering and leaving it makes no async generator that could be left to a finaliser."""
    from nothing_left import open_generators

    class Bare:
        pass

    before = open_generators()
    async with Aclosing(Bare()):
        assert open_generators() == before


async def test_left_while_another_task_reads() -> None:
    """Left while another task is inside the generator: Python's RuntimeError says so, and that task is undisturbed."""
    waiting, go_on = anyio.Event(), anyio.Event()
    got: list[int] = []

    async def source() -> AsyncGenerator[int, None]:
        waiting.set()
        await go_on.wait()
        yield 1

    generator = source()

    async def read() -> None:
        got.append(await anext(generator))

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        await waiting.wait()
        with pytest.raises(RuntimeError, match="already running"):
            async with Aclosing(generator):
                pass
        go_on.set()
    assert got == [1]
    await generator.aclose()


@only_asyncio  # cancels natively
async def test_second_cancel_cuts_the_cleanup() -> None:
    """It shields nothing: a second cancel cuts the cleanup, as in `contextlib.aclosing`; the task ends cancelled."""
    recording = Recording()
    recording.hold_the_close()
    task = asyncio.create_task(recording.consume_by(Aclosing, recording.work))
    await recording.working.wait()
    task.cancel()
    await recording.closing.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert recording.log == ["GeneratorExit", "closing", "left"]


async def test_same_as_contextlib_at_a_break() -> None:
    """At a plain break it does what `contextlib.aclosing` does, in the same order."""
    ours, theirs = Recording(), Recording()
    await ours.consume_by(Aclosing, leave)
    await theirs.consume_by(aclosing, leave)
    assert ours.log == theirs.log == ["GeneratorExit", "closing", "closed", "left"]
