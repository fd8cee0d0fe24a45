"""Whatever way a guarded block is left, nothing of the stream is left."""

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
import trio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from recording import Fault, Recording, fail, go_on, kind_of, leave, only_asyncio, outcome_of
from streamguard import Aclosing, EndReason, StreamEnd, guarded_chain, guarded_stream

pytestmark = pytest.mark.anyio

SOON = 0.05
"""Seconds until a limit passes: long enough that the body, or the source, is at work by then."""


# -- the ways out: each returns how the consumer ended


async def by_break(recording: Recording) -> str:
    await recording.consume(leave)
    return "returned"


async def by_return(recording: Recording) -> str:
    async def first() -> int:
        stream = recording.open()
        try:
            async with stream:
                async for number in stream:
                    return number
            return 0
        finally:
            recording.log.append("left")
            recording.end = stream.end

    return f"returned {await first()}"


async def by_an_error_in_the_body(recording: Recording) -> str:
    try:
        await recording.consume(fail)
    except Fault:
        return "Fault"
    return "returned"


async def by_an_error_in_the_source(recording: Recording) -> str:
    try:
        await recording.consume(go_on, recording.numbers(fail_after=1))
    except Fault:
        return "Fault"
    return "returned"


async def by_exhaustion(recording: Recording) -> str:
    await recording.consume(go_on)
    return "returned"


async def by_until(recording: Recording) -> str:
    await recording.consume(go_on, until=lambda number: number == 2)
    return "returned"


async def by_stop_in_the_body(recording: Recording) -> str:
    stream = recording.open()
    async with stream:
        async for _ in stream:
            stream.stop()
    recording.log.append("left")
    recording.end = stream.end
    return "returned"


async def by_stop_while_the_source_waits(recording: Recording) -> str:
    stream = recording.open(recording.numbers(hold_after=1))

    async def stop() -> None:
        await recording.holding.wait()
        stream.stop()

    async with anyio.create_task_group() as group:
        group.start_soon(stop)
        async with stream:
            async for _ in stream:
                pass
        recording.log.append("left")
        recording.end = stream.end
    return "returned"


async def by_aclose_while_the_source_waits(recording: Recording) -> str:
    stream = recording.open(recording.numbers(hold_after=1))

    async def close() -> None:
        await recording.holding.wait()
        await stream.aclose()

    async with anyio.create_task_group() as group:
        group.start_soon(close)
        async with stream:
            async for _ in stream:
                pass
        recording.log.append("left")
        recording.end = stream.end
    return "returned"


async def by_generator_exit_in_the_body(recording: Recording) -> str:
    async def doubled() -> AsyncIterator[int]:
        stream = recording.open()
        try:
            async with stream:
                async for number in stream:
                    yield 2 * number
        finally:
            recording.log.append("left")
            recording.end = stream.end

    async with aclosing(doubled()) as outer:
        async for _ in outer:
            break
    return "returned"


async def by_a_scope_while_the_body_works(recording: Recording) -> str:
    return await _in_a_scope(recording, recording.work, recording.working)


async def by_a_scope_while_the_source_waits(recording: Recording) -> str:
    return await _in_a_scope(recording, go_on, recording.holding, recording.numbers(hold_after=1))


async def by_a_scope_cancelled_in_the_body(recording: Recording) -> str:
    scope = anyio.CancelScope()

    async def body(_: int) -> bool:
        scope.cancel()
        await anyio.sleep_forever()
        return False

    with scope:
        await recording.consume(body)
    return "caught" if scope.cancelled_caught else "returned"


async def by_a_scope_of_trio(recording: Recording) -> str:
    async def cancel() -> None:
        await recording.holding.wait()
        scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel)
        with trio.CancelScope() as scope:
            await recording.consume(go_on, recording.numbers(hold_after=1))
    return "caught" if scope.cancelled_caught else "returned"


async def by_a_task_group_that_fails(recording: Recording) -> str:
    async def break_down() -> None:
        await recording.holding.wait()
        raise Fault

    with pytest.RaisesGroup(Fault):
        async with anyio.create_task_group() as group:
            group.start_soon(break_down)
            await recording.consume(go_on, recording.numbers(hold_after=1))
    return "group of Fault"


async def by_cancel_while_the_body_works(recording: Recording) -> str:
    task = asyncio.create_task(recording.consume(recording.work))
    await recording.working.wait()
    task.cancel()
    return await _ended(task)


async def by_cancel_while_the_source_waits(recording: Recording) -> str:
    task = asyncio.create_task(recording.consume(go_on, recording.numbers(hold_after=1)))
    await recording.holding.wait()
    await anyio.wait_all_tasks_blocked()
    task.cancel()
    return await _ended(task)


async def by_several_cancels_at_once(recording: Recording) -> str:
    task = asyncio.create_task(recording.consume(go_on, recording.numbers(hold_after=1)))
    await recording.holding.wait()
    for _ in range(3):
        task.cancel()
    return await _ended(task)


async def by_cancels_until_it_has_ended(recording: Recording) -> str:
    task = asyncio.create_task(recording.consume(go_on, recording.numbers(hold_after=1)))
    await recording.holding.wait()
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)
    return outcome_of(task)


async def by_cancels_while_it_closes(recording: Recording) -> str:
    recording.hold_the_close()
    task = asyncio.create_task(recording.consume(recording.work))
    await recording.working.wait()
    task.cancel()
    await recording.closing.wait()
    for _ in range(3):
        task.cancel()
        await anyio.wait_all_tasks_blocked()
    recording.may_close.set()
    return await _ended(task)


async def by_asyncio_timeout_in_the_body(recording: Recording) -> str:
    try:
        async with asyncio.timeout(SOON):
            await recording.consume(recording.work)
    except TimeoutError:
        return "TimeoutError"
    return "returned"


async def by_asyncio_timeout_in_the_source(recording: Recording) -> str:
    try:
        async with asyncio.timeout(SOON):
            await recording.consume(go_on, recording.numbers(hold_after=1))
    except TimeoutError:
        return "TimeoutError"
    return "returned"


async def by_wait_for(recording: Recording) -> str:
    try:
        await asyncio.wait_for(recording.consume(go_on, recording.numbers(hold_after=1)), SOON)
    except TimeoutError:
        return "TimeoutError"
    return "returned"


async def by_fail_after_in_the_body(recording: Recording) -> str:
    try:
        with anyio.fail_after(SOON):
            await recording.consume(recording.work)
    except TimeoutError:
        return "TimeoutError"
    return "returned"


async def by_fail_after_in_the_source(recording: Recording) -> str:
    try:
        with anyio.fail_after(SOON):
            await recording.consume(go_on, recording.numbers(hold_after=1))
    except TimeoutError:
        return "TimeoutError"
    return "returned"


async def by_move_on_after_in_the_body(recording: Recording) -> str:
    with anyio.move_on_after(SOON) as scope:
        await recording.consume(recording.work)
    return "caught" if scope.cancelled_caught else "returned"


async def by_move_on_after_in_the_source(recording: Recording) -> str:
    with anyio.move_on_after(SOON) as scope:
        await recording.consume(go_on, recording.numbers(hold_after=1))
    return "caught" if scope.cancelled_caught else "returned"


async def by_a_keyboard_interrupt_in_the_body(recording: Recording) -> str:
    async def interrupted(_: int) -> bool:
        raise KeyboardInterrupt

    try:
        await recording.consume(interrupted)
    except KeyboardInterrupt:
        return "KeyboardInterrupt"
    return "returned"


async def by_drain(recording: Recording) -> str:
    await recording.consume(leave, on_early_exit="drain")
    return "returned"


async def _in_a_scope(recording: Recording, body: Any, ready: anyio.Event, source: object = None) -> str:
    scope = anyio.CancelScope()

    async def cancel() -> None:
        await ready.wait()
        scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(cancel)
        with scope:
            await recording.consume(body, source)
    return "caught" if scope.cancelled_caught else "returned"


async def _ended(task: "asyncio.Task[Any]") -> str:
    await asyncio.wait([task])
    return outcome_of(task)


@dataclass(frozen=True)
class Way:
    """A way out, what its source must see, and what must be told of it."""

    take: Callable[[Recording], Awaitable[str]]
    outcome: str
    reason: EndReason
    seen: list[str] = field(default_factory=lambda: ["GeneratorExit"])
    items: int = 1


CUT = ["cancelled"]
WAYS = [
    Way(by_break, "returned", EndReason.LEFT),
    Way(by_return, "returned 1", EndReason.LEFT),
    Way(by_generator_exit_in_the_body, "returned", EndReason.LEFT),
    Way(by_an_error_in_the_body, "Fault", EndReason.FAILED),
    Way(by_a_keyboard_interrupt_in_the_body, "KeyboardInterrupt", EndReason.FAILED),
    Way(by_an_error_in_the_source, "Fault", EndReason.FAILED, ["Fault"]),
    Way(by_exhaustion, "returned", EndReason.EXHAUSTED, [], items=3),
    Way(by_until, "returned", EndReason.MATCHED, items=2),
    Way(by_stop_in_the_body, "returned", EndReason.STOPPED),
    Way(by_stop_while_the_source_waits, "returned", EndReason.STOPPED, CUT),
    Way(by_aclose_while_the_source_waits, "returned", EndReason.STOPPED, CUT),
    Way(by_drain, "returned", EndReason.LEFT, []),
    Way(by_a_scope_while_the_body_works, "caught", EndReason.CANCELLED),
    Way(by_a_scope_cancelled_in_the_body, "caught", EndReason.CANCELLED),
    Way(by_a_scope_while_the_source_waits, "caught", EndReason.CANCELLED, CUT),
    Way(by_a_task_group_that_fails, "group of Fault", EndReason.CANCELLED, CUT),
    Way(by_fail_after_in_the_body, "TimeoutError", EndReason.CANCELLED),
    Way(by_fail_after_in_the_source, "TimeoutError", EndReason.CANCELLED, CUT),
    Way(by_move_on_after_in_the_body, "caught", EndReason.CANCELLED),
    Way(by_move_on_after_in_the_source, "caught", EndReason.CANCELLED, CUT),
]
OF_ASYNCIO = [
    Way(by_cancel_while_the_body_works, "cancelled", EndReason.CANCELLED),
    Way(by_cancel_while_the_source_waits, "cancelled", EndReason.CANCELLED, CUT),
    Way(by_several_cancels_at_once, "cancelled", EndReason.CANCELLED, CUT),
    Way(by_cancels_until_it_has_ended, "cancelled", EndReason.CANCELLED, CUT),
    Way(by_cancels_while_it_closes, "cancelled", EndReason.CANCELLED),
    Way(by_asyncio_timeout_in_the_body, "TimeoutError", EndReason.CANCELLED),
    Way(by_asyncio_timeout_in_the_source, "TimeoutError", EndReason.CANCELLED, CUT),
    Way(by_wait_for, "TimeoutError", EndReason.CANCELLED, CUT),
]
OF_TRIO = [Way(by_a_scope_of_trio, "caught", EndReason.CANCELLED, CUT)]


def name_of(way: Way) -> str:
    return way.take.__name__


async def check(way: Way) -> None:
    recording = Recording()
    outcome = await way.take(recording)
    assert recording.log == [*way.seen, "closing", "closed", "tail", "left"]
    assert len(recording.tasks) == 1, "the source ran in more than one task"
    assert outcome == way.outcome
    (told,), end = recording.ends, recording.end
    assert end is not None
    assert (end.reason, end.items, end.last) == (way.reason, way.items, way.items)
    assert told == end
    assert end.cleanup_errors == ()


@pytest.mark.parametrize("way", WAYS, ids=name_of)
async def test_way_out(way: Way) -> None:
    """Closed in the source's one task, all awaits of its cleanup run; then one tail; then the right outcome."""
    await check(way)


@only_asyncio  # cancels tasks, or times out, by asyncio's own means
@pytest.mark.parametrize("way", OF_ASYNCIO, ids=name_of)
async def test_way_out_of_asyncio(way: Way) -> None:
    """The same for native cancellations."""
    await check(way)


@pytest.mark.parametrize("anyio_backend", [pytest.param(("trio", {}), id="trio")])  # takes trio's own scopes
@pytest.mark.parametrize("way", OF_TRIO, ids=name_of)
async def test_way_out_of_trio(way: Way) -> None:
    """The same for a scope of trio."""
    await check(way)


async def test_never_iterated() -> None:
    """A stream that nobody reads is closed without running, and the tail runs."""
    recording = Recording()
    source = recording.numbers()
    async with recording.open(source) as stream:
        pass
    assert source.ag_frame is None
    assert recording.log == ["tail"]
    assert recording.tasks == set()
    assert (stream.end.reason, stream.end.items, stream.end.last) == (EndReason.LEFT, 0, None)


async def test_never_iterated_but_advanced_before() -> None:
    """A generator that somebody advanced before is closed, although the guard never read it."""
    recording = Recording()
    source = recording.numbers()
    assert await anext(source) == 1
    async with recording.open(source):
        pass
    assert recording.log == ["GeneratorExit", "closing", "closed", "tail"]


async def test_error_before_the_first_read() -> None:
    """An error in the body before anything was read closes the source all the same, and leaves bare."""
    recording = Recording()
    source = recording.numbers()
    error = Fault()
    stream = recording.open(source)
    with pytest.raises(Fault) as caught:
        async with stream:
            raise error
    assert caught.value is error
    assert source.ag_frame is None
    assert recording.log == ["tail"]
    assert (stream.end.reason, stream.end.error, stream.end.items) == (EndReason.FAILED, error, 0)


class Closable:
    """An iterator that is no generator, so that only a call of `aclose` closes it."""

    def __init__(self) -> None:
        self.steps = 0
        self.closes = 0

    def __aiter__(self) -> "Closable":
        return self

    async def __anext__(self) -> int:
        self.steps += 1
        await anyio.lowlevel.checkpoint()
        return self.steps

    async def aclose(self) -> None:
        await anyio.lowlevel.checkpoint()
        self.closes += 1


async def test_scope_cancelled_before_the_first_read() -> None:
    """A read that is cancelled before the source has made its first step does not keep the source from being closed."""
    for _ in range(20):  # trio takes tasks that are ready in random order
        source = Closable()
        recording = Recording()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await recording.consume(go_on, source)
        assert scope.cancelled_caught
        assert source.closes == 1
        assert recording.log == ["tail", "left"]


async def test_closed_by_another_task_before_the_first_step() -> None:
    """A close by another task, in the very turn in which the first read starts the owner, closes the source."""
    source = Closable()
    async with guarded_stream(source) as stream, anyio.create_task_group() as group:

        async def read() -> None:
            async for _ in stream:
                pass

        # Whichever of the two the scheduler runs first.
        group.start_soon(read)
        group.start_soon(stream.aclose)
        group.start_soon(stream.aclose)
    assert source.closes == 1


@only_asyncio  # cancels natively
async def test_cancelled_before_the_first_step() -> None:
    """A native cancellation that is waiting when the block is entered closes a generator that never ran."""
    recording = Recording()
    source = recording.numbers()

    async def consume() -> None:
        asyncio.current_task().cancel()
        await recording.consume(go_on, source)

    task = asyncio.create_task(consume())
    await asyncio.wait([task])
    assert task.cancelled()
    assert source.ag_frame is None
    assert recording.log[-2:] == ["tail", "left"]


@only_asyncio  # cancels natively
@pytest.mark.parametrize("cancels", [1, 2])
async def test_cancelled_at_any_turn(cancels: int) -> None:
    """At whatever turn of the loop a cancellation comes, the source is closed in the block and the tail ran once."""
    for turns in range(40):
        source = Closable()
        recording = Recording()
        task = asyncio.create_task(_three_items(recording, source))
        for _ in range(turns):
            await asyncio.sleep(0)
        for _ in range(cancels):
            task.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([task])
        if recording.log == []:
            assert turns == 0  # it never ran
            continue
        assert recording.log == ["tail", "left"], turns
        assert source.closes == 1, turns
        assert recording.end is not None
        assert (recording.end.reason is EndReason.CANCELLED) == task.cancelled(), turns


async def test_scope_cancelled_at_any_turn() -> None:
    """The same for a scope."""
    for turns in range(40):
        source = Closable()
        recording = Recording()
        scope = anyio.CancelScope()

        async def consume(recording: Recording = recording, scope: Any = scope, source: Any = source) -> None:
            with scope:
                await _three_items(recording, source)

        async with anyio.create_task_group() as group:
            group.start_soon(consume)
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            scope.cancel()
        assert recording.log == ["tail", "left"], turns
        assert source.closes == 1, turns


async def _three_items(recording: Recording, source: object) -> None:
    async def body(number: int) -> bool:
        await anyio.lowlevel.checkpoint()
        return number == 3

    await recording.consume(body, source)


# -- what happens without a guard


@pytest.mark.parametrize("body", [leave, fail], ids=lambda body: body.__name__)
async def test_bare_loop_leaves_it_open(body: Any) -> None:
    """Without a guard the source is still open behind the loop; this is what the tests above would find."""
    recording = Recording()
    with pytest.raises(Fault) if body is fail else nullcontext():
        await recording.consume_by(nullcontext, body)
    assert recording.log == ["left"]
    await recording.generator.aclose()


async def test_aclosing_is_cut_by_a_scope() -> None:
    """`contextlib.aclosing` in a cancelled scope: the cleanup stops at its first await."""
    recording = Recording()
    with anyio.CancelScope() as scope:

        async def body(_: int) -> bool:
            scope.cancel()
            await anyio.sleep_forever()
            return False

        await recording.consume_by(aclosing, body)
    assert recording.log == ["GeneratorExit", "closing", "left"]


@only_asyncio  # cancels natively
async def test_aclosing_is_cut_by_a_second_cancel() -> None:
    """`contextlib.aclosing`, cancelled again during the cleanup: the rest of the cleanup does not run."""
    recording = Recording()
    recording.hold_the_close()
    task = asyncio.create_task(recording.consume_by(aclosing, recording.work))
    await recording.working.wait()
    task.cancel()
    await recording.closing.wait()
    task.cancel()
    await asyncio.wait([task])
    assert recording.log == ["GeneratorExit", "closing", "left"]


# -- what people meet


async def test_connection_closed_at_once() -> None:
    """A `return` out of the loop closes the connection at once, without gc and without another turn of the loop."""

    class Connection:
        open = False

    async def body(connection: Connection) -> AsyncIterator[int]:
        connection.open = True
        try:
            yield 1
            yield 2
        finally:
            connection.open = False

    async def first(connection: Connection) -> None:
        async with guarded_stream(body(connection)) as stream:
            async for _ in stream:
                return

    connection = Connection()
    await first(connection)
    assert not connection.open


async def test_context_manager_in_the_source_sees_generator_exit() -> None:
    """An `async with` around the yield is left by GeneratorExit, not by a cancellation, and runs to its last line."""
    log: list[object] = []

    class Manager:
        async def __aenter__(self) -> None:
            pass

        async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
            log.append(kind)
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            log.append("last line")

    async def source() -> AsyncIterator[int]:
        async with Manager():
            yield 1
            yield 2

    async with guarded_stream(source()) as stream:
        async for _ in stream:
            break
    log.append("left")
    assert log == [GeneratorExit, "last line", "left"]


async def test_context_variable_is_reset() -> None:
    """The source sees its consumer's variables; what it sets is reset in its own context and never visible outside."""
    variable: ContextVar[str] = ContextVar("variable")
    log: list[str] = []

    async def source() -> AsyncIterator[int]:
        log.append(variable.get())
        token = variable.set("source")
        try:
            yield 1
            yield 2
        finally:
            variable.reset(token)
            log.append(variable.get())

    variable.set("consumer")
    async with guarded_stream(source()) as stream:
        async for _ in stream:
            assert variable.get() == "consumer"
            break
    assert log == ["consumer", "consumer"]
    assert variable.get() == "consumer"


async def test_no_span_stays_current(caplog: pytest.LogCaptureFixture) -> None:
    """A span around the yield is detached in its own context: no record, and no span is current after the block."""
    tracer = TracerProvider().get_tracer("test")

    async def run() -> AsyncGenerator[int, None]:
        with tracer.start_as_current_span("run"):
            yield 1
            yield 2

    with caplog.at_level(logging.ERROR):
        async with guarded_stream(run()) as stream:
            async for _ in stream:
                break
    assert not trace.get_current_span().get_span_context().is_valid
    assert caplog.records == []

    # The bare loop: the span that has ended is current for whoever comes next.
    bare = run()
    await anext(bare)
    assert trace.get_current_span().get_span_context().is_valid
    await bare.aclose()


async def test_timeout_around_a_slow_cleanup() -> None:
    """A timeout around the block lets the cleanup end, and still says that it fired."""
    log: list[str] = []
    fired = anyio.Event()

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await fired.wait()
            log.append("cleanup done")

    async def body() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            fired.set()

    with anyio.move_on_after(SOON) as scope:
        async with guarded_stream(source()) as stream:
            async for _ in stream:
                await body()
    assert log == ["cleanup done"]
    assert scope.cancelled_caught


async def test_cancel_of_the_producer() -> None:
    """A stream whose cleanup waits for a run is left at once when `cancel` stops that run; its tool does not run."""
    log: list[str] = []
    go_on = anyio.Event()
    stopped = anyio.Event()
    ended = anyio.Event()

    class Run:
        async def work(self) -> None:
            await sender.send(1)
            with anyio.CancelScope() as self.scope:
                await go_on.wait()
                log.append("tool")
            ended.set()

        def cancel(self) -> None:
            log.append("cancel")
            self.scope.cancel()
            stopped.set()

        async def stream(self) -> AsyncIterator[int]:
            try:
                async for number in receiver:
                    yield number
            finally:
                await ended.wait()
                log.append("closed")

    sender, receiver = anyio.create_memory_object_stream[int](1)
    run = Run()
    async with anyio.create_task_group() as group, sender, receiver:
        group.start_soon(run.work)
        async with guarded_stream(run.stream(), cancel=run.cancel) as stream:
            async for _ in stream:
                break
        log.append("left")
    assert log == ["cancel", "closed", "left"]


@pytest.mark.parametrize(
    ("way", "calls"),
    [
        (by_break, 1),
        (by_return, 1),
        (by_an_error_in_the_body, 1),
        (by_a_scope_while_the_source_waits, 1),
        (by_until, 1),
        (by_stop_while_the_source_waits, 1),
        (by_exhaustion, 0),
    ],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
async def test_cancel_is_called_once_on_early_ways_out(way: Any, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cancel` is called once before the close, and awaited, on every way out but exhaustion."""
    recording = Recording()
    opened = recording.open

    async def cancel() -> None:
        await anyio.lowlevel.checkpoint()
        recording.log.append("producer cancelled")

    monkeypatch.setattr(recording, "open", lambda source=None, **options: opened(source, cancel=cancel, **options))
    await way(recording)
    assert recording.log.count("producer cancelled") == calls
    if calls:
        assert recording.log[0] == "producer cancelled"


async def test_work_after_the_last_item_is_skipped() -> None:
    """By default what stands behind the last item that was wanted does not run."""
    log = await _left_at_final("close")
    assert log == ["closed", "left"]


async def test_work_after_the_last_item_is_drained() -> None:
    """With `on_early_exit="drain"` the source runs to its own end, and its items are dropped."""
    log = await _left_at_final("drain")
    assert log == ["persisted", "closed", "left"]


async def _left_at_final(on_early_exit: Any) -> list[str]:
    log: list[str] = []

    async def run() -> AsyncIterator[str]:
        try:
            yield "final"
            await anyio.lowlevel.checkpoint()
            yield "more"
            log.append("persisted")
        finally:
            log.append("closed")

    async with guarded_stream(run(), on_early_exit=on_early_exit) as stream:
        async for item in stream:
            assert item == "final"
            break
    log.append("left")
    return log


async def test_drain_ends_at_the_deadline() -> None:
    """A source that does not come to its end while it is drained is closed after the limit."""
    recording = Recording()
    with anyio.fail_after(5):
        await recording.consume(leave, recording.numbers(hold_after=2), on_early_exit="drain", cleanup_timeout=0.05)
    assert recording.log == ["cancelled", "closing", "closed", "tail", "left"]
    assert recording.end is not None
    assert (recording.end.reason, recording.end.items) == (EndReason.LEFT, 1)


async def test_stands_still_after_the_drain() -> None:
    """A source that was drained up to the limit makes nothing more while `cancel` is awaited."""
    recording = Recording()

    async def endless() -> AsyncIterator[int]:
        number = 0
        while True:
            await anyio.lowlevel.checkpoint()
            yield (number := number + 1)

    async def cancel() -> None:
        await anyio.wait_all_tasks_blocked()
        recording.log.append("cancel")

    async with recording.open(endless(), on_early_exit="drain", cancel=cancel, cleanup_timeout=0.2) as stream:
        await anext(stream)
    assert recording.log == ["cancel", "tail"]


@only_asyncio  # a native cancellation
async def test_cancelled_while_it_is_drained() -> None:
    """A cancellation that comes while the source is drained is obeyed when all is done: the source ends by itself."""
    recording = Recording()
    draining, go_on = anyio.Event(), anyio.Event()

    async def source() -> AsyncIterator[int]:
        yield 1
        draining.set()
        await go_on.wait()
        recording.log.append("saved")

    async def consume() -> None:
        async with recording.open(source(), on_early_exit="drain") as stream:
            await anext(stream)

    task = asyncio.create_task(consume())
    await draining.wait()
    task.cancel()
    await anyio.wait_all_tasks_blocked()
    go_on.set()
    await asyncio.wait([task])
    assert task.cancelled()
    assert recording.log == ["saved", "tail"]
    assert [end.reason for end in recording.ends] == [EndReason.CANCELLED]


async def test_no_drain_of_what_was_never_read() -> None:
    """A source that nobody read does not run, with `on_early_exit="drain"` either."""
    recording = Recording()
    source = recording.numbers()
    async with recording.open(source, on_early_exit="drain"):
        pass
    assert recording.log == ["tail"]
    assert source.ag_frame is None


async def test_no_drain_of_what_is_at_its_end() -> None:
    """A source that came to its own end has nothing to drain."""
    recording = Recording()
    await recording.consume(go_on, on_early_exit="drain")
    assert recording.log == ["closing", "closed", "tail", "left"]
    assert recording.end is not None
    assert recording.end.reason is EndReason.EXHAUSTED


@pytest.mark.parametrize(
    "way", [by_an_error_in_the_body, by_a_scope_while_the_body_works], ids=lambda way: way.__name__
)
async def test_no_drain_on_errors(way: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source is not drained when an error or a cancellation leaves the block."""
    recording = Recording()
    opened = recording.open
    monkeypatch.setattr(
        recording, "open", lambda source=None, **options: opened(source, on_early_exit="drain", **options)
    )
    await way(recording)
    assert recording.log[0] == "GeneratorExit"


async def test_until_closes_without_another_step() -> None:
    """A match of `until` is delivered at once and the source not stepped again: a hang behind it costs nothing."""
    recording = Recording()
    with anyio.fail_after(5):
        await recording.consume(go_on, recording.numbers(hold_after=1), until=lambda number: number == 1)
    assert recording.log == ["GeneratorExit", "closing", "closed", "tail", "left"]


async def test_sync_tail() -> None:
    """A tail that is a plain function runs once, after the close."""
    recording = Recording()
    ends: list[StreamEnd[int]] = []

    def tail(end: StreamEnd[int]) -> None:
        ends.append(end)
        recording.log.append("sync tail")

    async with guarded_stream(recording.numbers(), tail=tail) as stream:
        async for _ in stream:
            break
    assert recording.log == ["GeneratorExit", "closing", "closed", "sync tail"]
    assert ends == [stream.end]


async def test_tail_runs_in_the_context_that_leaves() -> None:
    """The tail sees the context of the task that leaves the block."""
    variable: ContextVar[str] = ContextVar("variable")
    seen: list[str] = []

    async def tail(_: object) -> None:
        seen.append(variable.get())

    async with guarded_stream(Recording().numbers(), tail=tail) as stream:
        variable.set("set in the body")
        async for _ in stream:
            break
    assert seen == ["set in the body"]


async def test_guard_inside_a_guarded_source() -> None:
    """A guarded stream inside a guarded source is closed first, and both before the outer block is left."""
    inner, outer = Recording(), Recording()

    async def relay() -> AsyncIterator[int]:
        try:
            async with guarded_stream(inner.numbers(hold_after=1)) as stream:
                async for number in stream:
                    yield number
        except BaseException as error:
            outer.log.append(kind_of(error))
            raise
        finally:
            outer.log.extend([*inner.log, "closed"])

    scope = anyio.CancelScope()

    async def cancel() -> None:
        await inner.holding.wait()
        await anyio.wait_all_tasks_blocked()
        scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(cancel)
        with scope:
            await outer.consume(go_on, relay())
    assert outer.log == ["cancelled", "cancelled", "closing", "closed", "closed", "tail", "left"]


def test_run_that_ends_at_a_break_is_quiet(pytester: pytest.Pytester) -> None:
    """`asyncio.run` of a guarded break gives no warning, and the source was closed before the coroutine returned."""
    script = pytester.makepyfile(
        """
        import asyncio
        from streamguard import guarded_stream

        log = []

        async def source():
            try:
                yield 1
                yield 2
            finally:
                log.append("closed")

        async def main():
            async with guarded_stream(source()) as stream:
                async for _ in stream:
                    break
            log.append("returned")

        asyncio.run(main())
        print(log)
        """
    )
    result = pytester.run(sys.executable, "-W", "error", str(script))
    assert result.ret == 0
    result.stdout.fnmatch_lines(["['closed', 'returned']"])
    assert result.errlines == []


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("guard", [guarded_stream, guarded_chain, Aclosing])
@pytest.mark.parametrize("way", ["break", "error", "cancelled"])
async def test_interrupt_in_a_group(kind: type[BaseException], guard: Any, way: str) -> None:
    """An interrupt that a task group of the source has put into a group leaves the block whatever the way out."""

    async def source() -> AsyncIterator[int]:
        async with anyio.create_task_group():
            try:
                yield 1
            finally:
                raise kind

    with pytest.raises(BaseExceptionGroup) as caught, anyio.CancelScope() as scope:
        async with guard(source()) as stream:
            async for _ in stream:
                if way == "error":
                    raise KeyError
                if way == "cancelled":
                    scope.cancel()
                    await anyio.sleep_forever()
                break
    assert caught.value.subgroup(kind) is not None
