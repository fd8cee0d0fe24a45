"""Every way out of a turn of a real SDK, by a bare loop, by `contextlib.aclosing`, by the guard.

A way runs a consumer in a task of its own and returns a `Leaving`: what was still there at the very
first moment after the block, and how the consumer ended.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from dataclasses import dataclass, field
from typing import Any

import anyio

from nothing_left import Watch
from offline_wire import Wire
from streamguard import EndReason, StreamEnd, guarded_stream

Opener = Callable[["Turn"], AbstractAsyncContextManager[AsyncIterator[Any]]]
Body = Callable[[Any], Awaitable[bool]]


class BoomError(Exception):
    """What the body of the loop raises."""


class Probe(Wire):
    """The wire of the offline models: counts the calls, and stops where the test says."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed = 0
        self.hold_at: Callable[[Any], bool] | None = None
        self.holding = asyncio.Event()
        self.go_on = asyncio.Event()
        self.closing = asyncio.Event()
        self.may_close = asyncio.Event()
        self.may_close.set()
        self.close_error: Exception | None = None

    @property
    def open_calls(self) -> int:
        return self.opened - self.closed

    def open(self) -> None:
        self.opened += 1

    async def receive(self, piece: Any) -> None:
        await asyncio.sleep(0)
        if self.hold_at is not None and self.hold_at(piece):
            self.holding.set()
            await self.go_on.wait()

    async def close(self) -> None:
        if not self.may_close.is_set():
            self.closing.set()
            await self.may_close.wait()
        for _ in range(3):
            await asyncio.sleep(0)
        self.closed += 1
        if self.close_error:
            raise self.close_error


@dataclass
class Turn:
    """A turn that can be started once, and what the ways out need to know of it."""

    start: Callable[[], Any]
    """Gives what the guard is given: an async generator or a run handle."""
    is_final: Callable[[Any], bool]
    """Whether this event is the final response. The model call is still open there."""
    is_late: Callable[[Any], bool]
    """Whether this is a piece that the model makes the reader wait for."""
    probe: Probe
    source: Any = None
    """What was started."""
    kept: Any = None
    """The generator that a bare loop was given. A reference to it keeps it open."""

    def open_source(self) -> Any:
        self.source = self.start()
        return self.source

    def open_events(self) -> Any:
        source = self.open_source()
        self.kept = source.stream_events() if hasattr(source, "stream_events") else source
        return self.kept

    async def tidy(self) -> None:
        """Ends what a loop without a guard has left."""
        self.probe.go_on.set()
        self.probe.may_close.set()
        if self.kept is not None:
            await self.kept.aclose()
        if task := getattr(self.source, "run_loop_task", None):
            await asyncio.wait([task])


@dataclass
class Leaving:
    """What there was when the block had just been left, and how the consumer ended."""

    task: asyncio.Task[None]
    scope: anyio.CancelScope | None = None
    left: list[str] = field(default_factory=list)
    """Tasks and open async generators that were not there before the turn."""
    open_calls: int = 0
    """Model calls whose cleanup had not finished."""
    end: StreamEnd[Any] | None = None

    @property
    def outcome(self) -> str:
        if self.task.cancelled():
            return "cancelled"
        if self.task.exception():
            return repr(self.task.exception())
        return "caught" if self.scope and self.scope.cancelled_caught else "returned"


def bare(turn: Turn) -> AbstractAsyncContextManager[AsyncIterator[Any]]:
    return nullcontext(turn.open_events())


def aclosed(turn: Turn) -> AbstractAsyncContextManager[AsyncIterator[Any]]:
    return aclosing(turn.open_events())


def guarded(turn: Turn) -> AbstractAsyncContextManager[AsyncIterator[Any]]:
    return guarded_stream(turn.open_source(), cleanup_timeout=5)


async def leave_at_first_event(turn: Turn, opener: Opener) -> Leaving:
    async def body(event: object) -> bool:
        return True

    return await _ended(_start(turn, opener, body))


async def leave_at_final_response(turn: Turn, opener: Opener) -> Leaving:
    async def body(event: object) -> bool:
        return turn.is_final(event)

    return await _ended(_start(turn, opener, body))


async def error_in_body(turn: Turn, opener: Opener) -> Leaving:
    async def body(event: object) -> bool:
        if turn.is_final(event):
            raise BoomError
        return False

    return await _ended(_start(turn, opener, body))


async def cancel_in_body(turn: Turn, opener: Opener) -> Leaving:
    leaving = await _working(turn, opener)
    leaving.task.cancel()
    return await _ended(leaving)


async def cancel_while_waiting(turn: Turn, opener: Opener) -> Leaving:
    leaving = await _waiting(turn, opener)
    leaving.task.cancel()
    return await _ended(leaving)


async def cancel_twice_in_body(turn: Turn, opener: Opener) -> Leaving:
    leaving = await _working(turn, opener)
    return await _cancelled_twice(leaving, turn.probe)


async def cancel_twice_while_waiting(turn: Turn, opener: Opener) -> Leaving:
    leaving = await _waiting(turn, opener)
    return await _cancelled_twice(leaving, turn.probe)


async def cancel_while_closing(turn: Turn, opener: Opener) -> Leaving:
    """The loop is left at the final response; the cancellation arrives during the cleanup."""

    async def body(event: object) -> bool:
        if turn.is_final(event):
            turn.probe.may_close.clear()
            return True
        return False

    leaving = _start(turn, opener, body)
    await turn.probe.closing.wait()
    leaving.task.cancel()
    return await _released(leaving, turn.probe)


async def scope_cancelled_in_body(turn: Turn, opener: Opener) -> Leaving:
    leaving = await _working(turn, opener, scope=anyio.CancelScope())
    leaving.scope.cancel()
    return await _ended(leaving)


async def scope_cancelled_while_waiting(turn: Turn, opener: Opener) -> Leaving:
    leaving = await _waiting(turn, opener, scope=anyio.CancelScope())
    leaving.scope.cancel()
    return await _ended(leaving)


@dataclass(frozen=True)
class Way:
    """A way out, with the outcome that the consumer must see."""

    take: Callable[[Turn, Opener], Awaitable[Leaving]]
    outcome: str
    reason: EndReason


# The body works, or has just finished, when these leave.
FROM_THE_BODY = [
    Way(leave_at_first_event, "returned", EndReason.LEFT),
    Way(leave_at_final_response, "returned", EndReason.LEFT),
    Way(error_in_body, "BoomError()", EndReason.FAILED),
    Way(cancel_in_body, "cancelled", EndReason.CANCELLED),
    Way(cancel_twice_in_body, "cancelled", EndReason.CANCELLED),
    Way(scope_cancelled_in_body, "caught", EndReason.CANCELLED),
]
# The source waits for its model when these leave.
FROM_THE_SOURCE = [
    Way(cancel_while_waiting, "cancelled", EndReason.CANCELLED),
    Way(cancel_twice_while_waiting, "cancelled", EndReason.CANCELLED),
    Way(scope_cancelled_while_waiting, "caught", EndReason.CANCELLED),
]
# This one needs a close that takes time, so a bare loop has no such way.
FROM_THE_CLOSE = [
    Way(cancel_while_closing, "cancelled", EndReason.CANCELLED),
]
WAYS = FROM_THE_BODY + FROM_THE_SOURCE + FROM_THE_CLOSE


def name_of(way: Way) -> str:
    return way.take.__name__


def _start(turn: Turn, opener: Opener, body: Body, scope: anyio.CancelScope | None = None) -> Leaving:
    async def consume() -> None:
        watch = Watch()
        watch.start("asyncio")
        try:
            with scope or nullcontext():
                try:
                    async with opener(turn) as stream:
                        async for event in stream:
                            if await body(event):
                                break
                finally:
                    # At once, without an await: what is closed later was left.
                    leaving.left = [line for line in watch.left() if not line.startswith("not claimed")]
                    leaving.open_calls = turn.probe.open_calls
                    leaving.end = getattr(stream, "end", None)
        finally:
            watch.stop()
            # A bare loop ends before any cleanup has started: nobody should wait for one.
            turn.probe.closing.set()

    leaving = Leaving(asyncio.create_task(consume()), scope)
    return leaving


async def _working(turn: Turn, opener: Opener, scope: anyio.CancelScope | None = None) -> Leaving:
    """A consumer whose body works on the final response, for ever."""
    at_work = asyncio.Event()

    async def body(event: object) -> bool:
        if turn.is_final(event):
            at_work.set()
            await asyncio.Event().wait()
        return False

    leaving = _start(turn, opener, body, scope)
    await at_work.wait()
    return leaving


async def _waiting(turn: Turn, opener: Opener, scope: anyio.CancelScope | None = None) -> Leaving:
    """A consumer that waits for a source that waits for its model."""

    async def body(event: object) -> bool:
        return False

    turn.probe.hold_at = turn.is_late
    leaving = _start(turn, opener, body, scope)
    await turn.probe.holding.wait()
    await anyio.wait_all_tasks_blocked()
    return leaving


async def _cancelled_twice(leaving: Leaving, probe: Probe) -> Leaving:
    """The second cancellation arrives while the model's cleanup awaits."""
    probe.may_close.clear()
    leaving.task.cancel()
    await probe.closing.wait()
    leaving.task.cancel()
    return await _released(leaving, probe)


async def _released(leaving: Leaving, probe: Probe) -> Leaving:
    await anyio.wait_all_tasks_blocked()
    probe.may_close.set()
    return await _ended(leaving)


async def _ended(leaving: Leaving) -> Leaving:
    await asyncio.wait([leaving.task])
    # An error that nobody asks for is logged when the task goes.
    assert leaving.outcome
    return leaving
