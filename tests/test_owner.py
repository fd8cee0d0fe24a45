"""The owner task: one task and one context for the whole life of a source, in lockstep with its reader."""

import asyncio
import contextvars
import logging
import traceback
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import pytest
import trio

from nothing_left import Watch, collect_until_quiet
from spies import on_asyncio, on_trio, spawned_tasks, steps, this_task
from stories import Log, noted_numbers, read_in_vain
from streamguard import EndReason, GuardedStream, guarded_stream
from test_sources import Traced

pytestmark = pytest.mark.anyio

var: contextvars.ContextVar[str] = contextvars.ContextVar("var", default="unset")

SHORT = 0.01
"""Seconds until something fires; nothing waits for it but by events."""


# -- one task, one context


async def test_one_task() -> None:
    """Whoever reads, one task makes every item, judges it and closes the source."""
    log = Log()

    def judge(item: int) -> bool:
        log.note(f"judged {item}")
        return True

    async def read_one() -> None:
        await anext(stream)

    async with guarded_stream(noted_numbers(log), where=judge) as stream:
        for _ in range(2):
            async with anyio.create_task_group() as group:
                group.start_soon(read_one)
    assert log == ["made 1", "judged 1", "made 2", "judged 2", "closed"]
    assert len(log.tasks) == 1
    assert log.tasks != {this_task()}


async def test_name_of_the_task() -> None:
    """The task tells by its name which source it reads."""
    async with guarded_stream(noted_numbers(log := Log())) as stream:
        await anext(stream)
    (task,) = log.tasks
    name: str = task.get_name() if isinstance(task, asyncio.Task) else task.name  # type: ignore[attr-defined]
    assert name == "streamguard: async generator 'noted_numbers'"


async def test_context_variables_do_not_leak() -> None:
    """A variable that the source sets is set for the whole source, and never in the body or after the block."""
    seen: list[str] = []

    async def source() -> AsyncGenerator[int, None]:
        var.set("source")
        try:
            yield 1
            seen.append(var.get())
            yield 2
        finally:
            seen.append(var.get())

    async with guarded_stream(source()) as stream:
        async for item in stream:
            assert var.get() == "unset"
            if item == 2:
                break
    assert var.get() == "unset"
    assert seen == ["source", "source"]


async def test_context_variable_is_reset() -> None:
    """The source may reset in its cleanup, by its token, what it set: it runs in one context."""

    async def source() -> AsyncGenerator[int, None]:
        token = var.set("source")
        try:
            yield 1
            yield 2
        finally:
            var.reset(token)

    async with guarded_stream(source()) as stream:
        async for _ in stream:
            break
    assert var.get() == "unset"


async def test_context_is_copied_on_entry() -> None:
    """The source sees the variables as they were on entry, not as they are changed later in the body."""
    seen: list[str] = []

    async def source() -> AsyncGenerator[int, None]:
        while True:
            seen.append(var.get())
            yield 1

    token = var.set("made")
    guard = guarded_stream(source())
    var.set("entered")
    async with guard as stream:
        var.set("first read")
        await anext(stream)
        var.set("second read")
        await anext(stream)
    var.reset(token)
    assert seen == ["entered", "entered"]


async def test_deadlines_of_the_consumer_are_not_seen() -> None:
    """Inside the source the consumer's deadlines are not visible."""
    seen: list[float] = []

    async def source() -> AsyncGenerator[int, None]:
        seen.append(anyio.current_effective_deadline())
        yield 1

    with anyio.fail_after(60):
        async with guarded_stream(source()) as stream:
            await anext(stream)
    assert seen == [float("inf")]


@on_trio
async def test_keyboard_interrupt_reaches_the_source() -> None:
    """The source can be interrupted from the keyboard although its task is a system task (only trio protects those)."""
    seen: list[bool] = []

    class Source:
        def __aiter__(self) -> "Source":
            return self

        async def __anext__(self) -> int:
            seen.append(trio.lowlevel.currently_ki_protected())
            return 1

        async def aclose(self) -> None:
            seen.append(trio.lowlevel.currently_ki_protected())

    async with guarded_stream(Source()) as stream:
        await anext(stream)
        await anext(stream)
    assert seen == [False, False, False]


async def test_no_task_before_the_first_read() -> None:
    """The owner starts at the first read; one task is made, however much is read."""
    with spawned_tasks() as names:
        async with guarded_stream(noted_numbers(Log())) as stream:
            await anyio.wait_all_tasks_blocked()
            assert names == []
            await anext(stream)
            assert len(names) == 1
            async for _ in stream:
                pass
    assert len(names) == 1


async def test_scope_over_a_yield() -> None:
    """A task group that is open over a ``yield`` is left by the task that entered it: a break just works."""
    log = Log()

    async def source() -> AsyncGenerator[int, None]:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            yield 1
            yield 2
            group.cancel_scope.cancel()
        log.note("not reached at a break")

    async with guarded_stream(source()) as stream:
        async for _ in stream:
            break
    await anyio.lowlevel.checkpoint()  # the consumer is not cancelled
    assert log == []
    assert stream.end.reason is EndReason.LEFT


async def test_scope_stays_with_the_source() -> None:
    """A scope that a step enters stays in the owner: the task that read that step may end, and is not cancelled."""
    scopes: list[anyio.CancelScope] = []
    log = Log()

    async def source() -> AsyncGenerator[int, None]:
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            yield 1
            await anyio.lowlevel.checkpoint()
            yield 2
        log.note("scope left")
        yield 3

    async def read_one() -> None:
        got.append(await anext(stream))

    got: list[int] = []
    async with guarded_stream(source()) as stream:
        for _ in range(3):
            async with anyio.create_task_group() as group:
                group.start_soon(read_one)
    assert got == [1, 2, 3]
    assert log == ["scope left"]


# -- what fires inside an idle source


class Fires:
    """Something inside a source that fires while the body works."""

    def __init__(self, open_: Callable[["Fires"], Any], error: type[BaseException]) -> None:
        self.open = open_
        self.error = error
        self.go = anyio.Event()
        self.answered = anyio.Event()


async def fail_when_told(go: anyio.Event) -> None:
    await go.wait()
    raise KeyError("child")


@asynccontextmanager
async def asyncio_group(fires: Fires) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        group.create_task(fail_when_told(fires.go))
        yield


@asynccontextmanager
async def anyio_group(fires: Fires) -> AsyncIterator[None]:
    async with anyio.create_task_group() as group:
        group.start_soon(fail_when_told, fires.go)
        yield


@asynccontextmanager
async def sync(scope: AbstractContextManager[object]) -> AsyncIterator[None]:
    with scope:
        yield


EVERYWHERE: dict[str, tuple[Callable[[Fires], AbstractAsyncContextManager[Any]], type[BaseException]]] = {
    "anyio.fail_after": (lambda _: sync(anyio.fail_after(SHORT)), TimeoutError),
    "anyio task group": (anyio_group, ExceptionGroup),
}
ON_ASYNCIO = {
    "asyncio.timeout": (lambda _: asyncio.timeout(SHORT), TimeoutError),
    "asyncio.TaskGroup": (asyncio_group, ExceptionGroup),
}
ON_TRIO = {"trio.fail_after": (lambda _: sync(trio.fail_after(SHORT)), trio.TooSlowError)}


@pytest.fixture(params=[*EVERYWHERE, *ON_ASYNCIO, *ON_TRIO])
def fires(request: pytest.FixtureRequest, anyio_backend_name: str) -> Fires:
    here = {**EVERYWHERE, **(ON_TRIO if anyio_backend_name == "trio" else ON_ASYNCIO)}
    if request.param not in here:
        pytest.skip(f"{anyio_backend_name} has no {request.param}")
    return Fires(*here[request.param])


async def firing(fires: Fires, log: Log, *, then: str = "raise") -> AsyncGenerator[str, None]:
    try:
        try:
            async with fires.open(fires):
                yield "first"
                log.note("stepped on")
                yield "second"
        except fires.error:
            log.note("fired")
            fires.answered.set()
            if then == "raise":
                raise
            if then == "item":
                yield "instead"
                yield "after"
    finally:
        await anyio.lowlevel.checkpoint()
        log.note("closed")


async def test_fires_while_the_body_works(fires: Fires) -> None:
    """What fires inside an idle source does not disturb the body; its error arrives at the next read, once."""
    log = Log()
    body: list[str] = []
    async with guarded_stream(firing(fires, log)) as stream:
        assert await anext(stream) == "first"
        fires.go.set()
        await fires.answered.wait()
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        body.append("undisturbed")
        with pytest.raises(fires.error) as caught:
            await anext(stream)
        body.append("read")
        assert await anext(stream, None) is None
        body.append("end")
    assert body == ["undisturbed", "read", "end"]
    assert log == ["fired", "closed"]
    assert len(log.tasks) == 1
    assert stream.end.error is caught.value
    assert stream.end.reason is EndReason.FAILED


async def test_fires_and_leaves_from_the_loop(fires: Fires) -> None:
    """What fires while the body works ends the loop by its error, after the body's turn."""
    log = Log()
    body: list[str] = []
    with pytest.raises(fires.error):
        async with guarded_stream(firing(fires, log)) as stream:
            async for item in stream:
                fires.go.set()
                await fires.answered.wait()
                await anyio.lowlevel.checkpoint()
                body.append(item)
    assert body == ["first"]
    assert log == ["fired", "closed"]


async def test_fires_and_nobody_reads_it(fires: Fires) -> None:
    """What fired and was not read leaves from the exit of the block."""
    log = Log()
    with pytest.raises(fires.error):
        async with guarded_stream(firing(fires, log)) as stream:
            await anext(stream)
            fires.go.set()
            await fires.answered.wait()
            await anyio.wait_all_tasks_blocked()
    assert log == ["fired", "closed"]


async def test_fires_and_the_source_answers_with_an_item(fires: Fires) -> None:
    """An item that the source gives as its answer stands ahead, and arrives at the next read; then it goes on."""
    log = Log()
    async with guarded_stream(firing(fires, log, then="item")) as stream:
        assert await anext(stream) == "first"
        fires.go.set()
        await fires.answered.wait()
        await anyio.wait_all_tasks_blocked()
        assert [item async for item in stream] == ["instead", "after"]
    assert log == ["fired", "closed"]
    assert stream.end.items == 3


async def test_fires_and_a_proxy_of_the_source_answers(fires: Fires) -> None:
    """The same for a generator that instrumentation has wrapped."""
    log = Log()
    async with guarded_stream(Traced(firing(fires, log, then="item"))) as stream:
        assert await anext(stream) == "first"
        fires.go.set()
        await fires.answered.wait()
        await anyio.wait_all_tasks_blocked()
        assert [item async for item in stream] == ["instead", "after"]
    assert log == ["fired", "closed"]


async def test_fires_and_the_source_answers_with_its_end(fires: Fires) -> None:
    """A source that answers with its end is exhausted at the next read."""
    log = Log()
    async with guarded_stream(firing(fires, log, then="end")) as stream:
        assert await anext(stream) == "first"
        fires.go.set()
        await fires.answered.wait()
        await anyio.wait_all_tasks_blocked()
        assert [item async for item in stream] == []
    assert log == ["fired", "closed"]
    assert stream.end.reason is EndReason.EXHAUSTED


async def test_answer_goes_through_the_predicates(fires: Fires) -> None:
    """An item that is the source's answer is judged like every other."""
    log = Log()
    async with guarded_stream(firing(fires, log, then="item"), where=lambda item: item != "instead") as stream:
        assert await anext(stream) == "first"
        fires.go.set()
        await fires.answered.wait()
        await anyio.wait_all_tasks_blocked()
        assert await anext(stream) == "after"
    assert log == ["fired", "closed"]


async def test_fires_while_the_source_is_read(fires: Fires) -> None:
    """What fires while the source awaits arrives at that read."""
    log = Log()

    async def source() -> AsyncGenerator[int, None]:
        try:
            async with fires.open(fires):
                yield 1
                fires.go.set()
                await anyio.sleep_forever()
        finally:
            await anyio.lowlevel.checkpoint()
            log.note("closed")

    async with guarded_stream(source()) as stream:
        assert await anext(stream) == 1
        with pytest.raises(fires.error):
            await anext(stream)
    assert log == ["closed"]


@pytest.mark.parametrize("prefetch", [0, 3])
async def test_waits_again_after_its_answer(prefetch: int) -> None:
    """A source that has answered its own timeout, and waits for something else, is cut there as any other."""
    log = Log()
    fired = anyio.Event()

    async def source() -> AsyncGenerator[str, None]:
        try:
            with anyio.move_on_after(SHORT):
                yield "first"
                await anyio.sleep_forever()
            fired.set()
            yield "second"
            await anyio.sleep_forever()
        finally:
            await anyio.lowlevel.checkpoint()
            log.note("closed")

    async with guarded_stream(source(), prefetch=prefetch, cleanup_timeout=0.5) as stream:
        assert await anext(stream) == "first"
        await fired.wait()
        assert await anext(stream) == "second"
        await read_in_vain(stream)
    assert log == ["closed"]


async def test_timeout_over_reads_by_several_tasks() -> None:
    """A timeout inside the source holds although each item is read by another task."""

    async def source() -> AsyncGenerator[int, None]:
        with anyio.fail_after(SHORT):
            yield 1
            await anyio.sleep_forever()
            yield 2

    got: list[int] = []
    caught: list[BaseException] = []

    async def read_one() -> None:
        try:
            got.append(await anext(stream))
        except TimeoutError as error:
            caught.append(error)

    async with guarded_stream(source()) as stream:
        for _ in range(2):
            async with anyio.create_task_group() as group:
                group.start_soon(read_one)
    assert got == [1]
    assert len(caught) == 1


async def test_a_further_one_is_held() -> None:
    """While one outcome stands unread, what fires next is held until it is read, and is not lost."""
    scopes: list[anyio.CancelScope] = []
    log = Log()

    async def source() -> AsyncGenerator[str, None]:
        try:
            with anyio.fail_after(None) as outer:
                with anyio.CancelScope() as inner:
                    scopes.extend([outer, inner])
                    yield "first"
                log.note("inner fired")
                yield "between"
                log.note("too far")
                yield "never"
        finally:
            await anyio.lowlevel.checkpoint()
            log.note("closed")

    async with guarded_stream(source()) as stream:
        assert await anext(stream) == "first"
        outer, inner = scopes
        inner.cancel()
        await anyio.wait_all_tasks_blocked()
        assert log == ["inner fired"]
        outer.deadline = anyio.current_time()
        while not outer.cancel_called:
            await anyio.lowlevel.checkpoint()
        await anyio.wait_all_tasks_blocked()
        assert log == ["inner fired"]
        assert await anext(stream) == "between"
        with pytest.raises(TimeoutError):
            await anext(stream)
    assert log == ["inner fired", "closed"]


@on_asyncio
async def test_a_further_native_one_is_held() -> None:
    """The same for `asyncio.timeout`, which cancels natively, and once (only asyncio has it)."""
    timeouts: list[asyncio.Timeout] = []
    log = Log()

    async def source() -> AsyncGenerator[str, None]:
        try:
            async with asyncio.timeout(None) as outer:
                timeouts.append(outer)
                try:
                    async with asyncio.timeout(SHORT):
                        yield "first"
                except TimeoutError:
                    log.note("inner fired")
                yield "between"
                log.note("too far")
                yield "never"
        finally:
            await anyio.lowlevel.checkpoint()
            log.note("closed")

    async with guarded_stream(source()) as stream:
        assert await anext(stream) == "first"
        while not log:
            await anyio.lowlevel.checkpoint()
        timeouts[0].reschedule(0)
        while not timeouts[0].expired():
            await anyio.lowlevel.checkpoint()
        await anyio.wait_all_tasks_blocked()
        assert log == ["inner fired"]
        assert await anext(stream) == "between"
        with pytest.raises(TimeoutError):
            await anext(stream)
    assert log == ["inner fired", "closed"]


async def test_a_scope_that_stays_cancelled_does_not_spin() -> None:
    """A scope inside the source that stays cancelled while its outcome stands unread does not keep the owner busy."""
    scopes: list[anyio.CancelScope] = []
    log = Log()

    async def source() -> AsyncGenerator[str, None]:
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            try:
                yield "first"
            except anyio.get_cancelled_exc_class():
                log.note("fired")
                # Still inside the cancelled scope.
                yield "inside"
                raise
        yield "outside"

    with steps() as spy:
        async with guarded_stream(source()) as stream:
            assert await anext(stream) == "first"
            scopes[0].cancel()
            while not log:
                await anyio.lowlevel.checkpoint()
            before = spy.total
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
            assert spy.total - before <= 3
            assert await anext(stream) == "inside"
            before = spy.total
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
            assert spy.total - before <= 3
            rest = [item async for item in stream]
    assert rest == ["outside"]


async def test_fires_in_a_source_without_athrow() -> None:
    """An iterator that is no generator learns of it at the next step: the read raises, the body is undisturbed."""
    log = Log()

    class Iterator:
        def __init__(self) -> None:
            self.timeout = anyio.fail_after(SHORT)

        def __aiter__(self) -> "Iterator":
            return self

        async def __anext__(self) -> int:
            if self.timeout is not None and not log:
                self.scope = self.timeout.__enter__()
                log.note("first")
                return 1
            await anyio.lowlevel.checkpoint()
            log.note("second")
            return 2

        async def aclose(self) -> None:
            log.note("closed")
            try:
                self.timeout.__exit__(None, None, None)
            except TimeoutError:
                log.note("timed out")

    source = Iterator()
    body: list[str] = []
    cancelled = anyio.get_cancelled_exc_class()
    try:
        async with guarded_stream(source) as stream:
            assert await anext(stream) == 1
            while not source.scope.cancel_called:
                await anyio.lowlevel.checkpoint()
            await anyio.wait_all_tasks_blocked()
            body.append("undisturbed")
            with pytest.raises(cancelled):
                await anext(stream)
            body.append("read")
    finally:
        assert body == ["undisturbed", "read"]
        assert "closed" in log
        assert "second" not in log


@on_asyncio
async def test_asyncio_timeout_in_a_source_without_athrow() -> None:
    """The same for a timeout that cancels only once: the next step is what it hits."""

    class Iterator:
        timeout = asyncio.timeout(SHORT)
        steps = 0

        async def __anext__(self) -> int:
            self.steps += 1
            if self.steps == 1:
                await self.timeout.__aenter__()
            else:
                await anyio.lowlevel.checkpoint()
            return self.steps

        async def aclose(self) -> None:
            await self.timeout.__aexit__(None, None, None)

    source = Iterator()
    async with guarded_stream(source) as stream:
        assert await anext(stream) == 1
        while not source.timeout.expired():
            await anyio.lowlevel.checkpoint()
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(asyncio.CancelledError):
            await anext(stream)
    assert source.steps == 2


@on_asyncio
async def test_asyncio_timeout_that_a_source_without_athrow_handles() -> None:
    """The timeout that hits the next step is the source's own: there it becomes a TimeoutError."""

    class Iterator:
        timeout = asyncio.timeout(SHORT)
        steps = 0

        async def __anext__(self) -> int:
            self.steps += 1
            if self.steps == 1:
                await self.timeout.__aenter__()
                return 1
            try:
                await anyio.sleep_forever()
            except asyncio.CancelledError as error:
                await self.timeout.__aexit__(type(error), error, error.__traceback__)
                raise

    source = Iterator()
    async with guarded_stream(source) as stream:
        assert await anext(stream) == 1
        while not source.timeout.expired():
            await anyio.lowlevel.checkpoint()
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(TimeoutError):
            await anext(stream)
    assert source.steps == 2


# -- somebody cancels the owner (only on asyncio can a task be cancelled from outside)


@on_asyncio
async def test_third_party_cancels_the_idle_owner() -> None:
    """Somebody cancels the owner while the body works: the source learns of it, the body is undisturbed."""
    log = Log()
    owners: list[asyncio.Task[Any]] = []

    async def source() -> AsyncGenerator[int, None]:
        try:
            owners.append(asyncio.current_task())  # type: ignore[arg-type]
            yield 1
        except asyncio.CancelledError:
            log.note("cancelled")
            raise
        finally:
            await anyio.lowlevel.checkpoint()
            log.note("closed")

    body: list[str] = []
    async with guarded_stream(source()) as stream:
        await anext(stream)
        owners[0].cancel()
        await anyio.wait_all_tasks_blocked()
        body.append("undisturbed")
        with pytest.raises(asyncio.CancelledError):
            await anext(stream)
        body.append("read")
    assert body == ["undisturbed", "read"]
    assert log == ["cancelled", "closed"]


@on_asyncio
async def test_third_party_cancels_the_busy_owner() -> None:
    """Somebody cancels the owner while the source awaits: the cancellation arrives at the read, bare."""
    log = Log()
    owners: list[asyncio.Task[Any]] = []

    async def source() -> AsyncGenerator[int, None]:
        try:
            owners.append(asyncio.current_task())  # type: ignore[arg-type]
            await anyio.sleep_forever()
            yield 1
        finally:
            await anyio.lowlevel.checkpoint()
            log.note("closed")

    async def cancel() -> None:
        await anyio.wait_all_tasks_blocked()
        owners[0].cancel()

    async with guarded_stream(source()) as stream:
        task = asyncio.create_task(cancel())
        with pytest.raises(asyncio.CancelledError):
            await anext(stream)
        await task
    assert log == ["closed"]


@on_asyncio
async def test_third_party_cancels_the_owner_before_its_first_step() -> None:
    """An owner that is cancelled before its first step leaves the source unharmed: it is closed all the same."""
    log = Log()
    source = noted_numbers(log)
    await anext(source)
    log.clear()
    log.tasks.clear()
    loop = asyncio.get_running_loop()
    made: list[asyncio.Task[Any]] = []

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **options)
        if not made:
            task.cancel()
        made.append(task)
        return task

    loop.set_task_factory(factory)  # type: ignore[arg-type]
    try:
        async with guarded_stream(source) as stream:
            with pytest.raises(asyncio.CancelledError):
                await anext(stream)
    finally:
        loop.set_task_factory(None)
    assert log == ["closed"]


@on_asyncio
async def test_owner_that_was_cancelled_before_its_first_step_is_let_go() -> None:
    """An owner whose task was cancelled before its first step is not held, though it has nothing to close."""
    loop = asyncio.get_running_loop()

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **options)
        task.cancel()
        return task

    source = noted_numbers(Log())
    loop.set_task_factory(factory)  # type: ignore[arg-type]
    try:
        async with guarded_stream(source) as stream:
            with pytest.raises(asyncio.CancelledError):
                await anext(stream)
    finally:
        loop.set_task_factory(None)
    gone = weakref.ref(source)
    del source, stream
    collect_until_quiet()
    assert gone() is None


@on_asyncio
async def test_third_party_cancels_the_owner_before_its_first_step_in_the_close() -> None:
    """An owner that is cancelled before its first step, while its stream is closed, is started once more to close."""
    log = Log()
    source = noted_numbers(log)
    await anext(source)
    log.clear()
    log.tasks.clear()

    async def read(stream: AsyncIterator[int]) -> None:
        log.extend([f"read {number}" async for number in stream])
        log.append("reader done")

    async def cancel_and_close(stream: GuardedStream[int]) -> None:
        (owner,) = [task for task in asyncio.all_tasks() if task.get_name().startswith("streamguard")]
        owner.cancel()
        await stream.aclose()
        log.append("closer done")

    loop = asyncio.get_running_loop()
    # With a factory of somebody else's the loop takes the first step later.
    loop.set_task_factory(lambda loop, coroutine, **options: asyncio.Task(coroutine, loop=loop, **options))
    try:
        async with guarded_stream(source) as stream:
            await asyncio.gather(read(stream), cancel_and_close(stream))
    finally:
        loop.set_task_factory(None)
    assert sorted(log) == ["closed", "closer done", "reader done"]
    assert len(log.tasks) == 1


@on_asyncio
async def test_source_raises_a_cancellation_of_its_own() -> None:
    """A CancelledError that the source itself raises arrives bare; the consumer is not cancelled."""
    error = asyncio.CancelledError("of its own")

    async def source() -> AsyncGenerator[int, None]:
        yield 1
        raise error

    async with guarded_stream(source()) as stream:
        await anext(stream)
        with pytest.raises(asyncio.CancelledError) as caught:
            await anext(stream)
    assert caught.value is error
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


@on_asyncio
async def test_closed_behind_cancel_after_a_cancellation_of_its_own() -> None:
    """A source that raised a CancelledError of its own is closed when the block is left, after `cancel`, as always."""
    log: list[str] = []

    class Iterator:
        async def __anext__(self) -> int:
            raise asyncio.CancelledError

        async def aclose(self) -> None:
            log.append("closed")

    async with guarded_stream(Iterator(), cancel=lambda: log.append("cancel")) as stream:
        with pytest.raises(asyncio.CancelledError):
            await anext(stream)
        await anyio.wait_all_tasks_blocked()
        log.append("body")
    assert log == ["body", "cancel", "closed"]


# -- errors


async def test_error_is_bare_with_the_frames_of_both_tasks() -> None:
    """The source's error is the very object, in no group, and its traceback shows the reader and the source."""
    error = OSError("source")

    async def deep_inside() -> None:
        await anyio.lowlevel.checkpoint()
        raise error

    async def the_source() -> AsyncGenerator[int, None]:
        await deep_inside()
        yield 1

    async def the_reader() -> None:
        async with guarded_stream(the_source()) as stream:
            await anext(stream)

    with pytest.raises(OSError, match=r"^source$") as caught:
        await the_reader()
    assert caught.value is error
    assert error.__cause__ is None
    names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert [name for name in names if name in ("the_reader", "the_source", "deep_inside")] == [
        "the_reader",
        "the_source",
        "deep_inside",
    ]


async def test_error_keeps_its_own_group() -> None:
    """An exception group of the source arrives as it is."""
    error = ExceptionGroup("mine", [OSError("a"), ValueError("b")])

    async def source() -> AsyncGenerator[int, None]:
        raise error
        yield 1

    async with guarded_stream(source()) as stream:
        with pytest.raises(ExceptionGroup) as caught:
            await anext(stream)
    assert caught.value is error
    assert len(error.exceptions) == 2


async def test_unread_error_leaves_from_the_exit(caplog: pytest.LogCaptureFixture) -> None:
    """An error of the source that nobody read leaves from the exit of the block, bare, and is not logged."""
    go_on = anyio.Event()
    error = OSError("source")

    async def source() -> AsyncGenerator[int, None]:
        await go_on.wait()
        raise error
        yield 1

    with caplog.at_level(logging.ERROR, "streamguard"), pytest.raises(OSError, match=r"^source$") as caught:
        async with guarded_stream(source()) as stream:
            await read_in_vain(stream)
            go_on.set()
            await anyio.wait_all_tasks_blocked()
    assert caught.value is error
    assert caplog.records == []
    assert stream.end.error is error
    assert stream.end.reason is EndReason.FAILED


async def test_unread_error_and_an_error_of_the_body(watch: Watch) -> None:
    """The body's error leaves; the source's that nobody read is a note on it and logged once."""
    go_on = anyio.Event()

    async def source() -> AsyncGenerator[int, None]:
        await go_on.wait()
        raise OSError("source")
        yield 1

    with pytest.raises(ValueError, match=r"^body") as caught:
        async with guarded_stream(source()) as stream:
            await read_in_vain(stream)
            go_on.set()
            await anyio.wait_all_tasks_blocked()
            raise ValueError("body")
    assert len(caught.value.__notes__) == 1
    assert "OSError: source" in caught.value.__notes__[0]
    assert [str(error) for error in stream.end.cleanup_errors] == ["source"]
    assert len(watch.claim("OSError: source")) == 1


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration])
async def test_stop_iteration_inside_the_source(kind: type[Exception]) -> None:
    """A StopIteration that escapes inside a generator is Python's RuntimeError, never a silent end."""

    async def source() -> AsyncGenerator[int, None]:
        yield 1
        raise kind

    async with guarded_stream(source()) as stream:
        assert await anext(stream) == 1
        with pytest.raises(RuntimeError, match=f"raised {kind.__name__}"):
            await anext(stream)
