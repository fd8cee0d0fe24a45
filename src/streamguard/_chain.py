"""`guarded_chain`: several streams, one flat loop, one tail.

The rule kept here: a member is closed before the next one is made or started; what never started is closed without
running; a close that fails never stops the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, TypeVar

import anyio.lowlevel

from ._closing import close
from ._end import EndReason, StreamEnd
from ._errors import is_interrupt
from ._guard import Block, make_owner
from ._leaving import call_cancel, close_stream, facts, limit, release, run_tail, without_frames
from ._options import Options, check_function
from ._outcome import Outcome
from ._owner import Owner
from ._sources import NO_DETAILS, Details, Made, Source, kind_of
from ._task import Task

T = TypeVar("T")

Member: TypeAlias = Made[T] | Callable[[StreamEnd[T]], Made[T]]

_NOTHING_BEFORE: StreamEnd[Any] = StreamEnd(
    reason=EndReason.UNSTARTED, error=None, cleanup_errors=(), items=0, last=None, source=None
)


class GuardedChain(Block[T]):
    """Several guarded streams that are read as one; made by `guarded_chain`.

    It is an async iterator for one task at a time, entered once, and left with one error, as a `GuardedStream`.
    """

    __slots__ = (
        "_all_closed",
        "_cancel",
        "_closing",
        "_ends",
        "_hand_offs",
        "_index",
        "_options",
        "_outcome",
        "_queue",
        "_reading",
        "_reason",
        "_replacing",
    )

    def __init__(
        self, members: tuple[object, ...], options: Options[T], cancel: Callable[[Any], object] | None, depth: int = 2
    ) -> None:
        self._queue: deque[object] = deque(_checked(member) for member in members)
        self._hand_offs: deque[object] = deque()
        self._options = options
        self._cancel = cancel
        self._outcome: Outcome | None = None
        """What went wrong with members that are closed."""
        self._ends: list[StreamEnd[T]] = []
        self._reason: EndReason | None = None
        self._index = 0
        self._reading = False
        self._replacing = False
        """Whether the next read closes the current member, since another was handed over to."""
        self._closing = False
        self._all_closed: Task | None = None
        """Never started, only waited for and finished."""
        super().__init__(depth + 1)

    def __repr__(self) -> str:
        state = "closed" if self._end else f"at member {self.current}" if self._home else "not entered"
        return f"<GuardedChain, {state}, {len(self._queue) + len(self._hand_offs)} members to come>"

    # -- members

    @property
    def current(self) -> int:
        """The index of the member that is being read, or was read last; 0 before the first."""
        return self._index

    def then(self, member: Member[T], /) -> None:
        """Queue a member behind all others.

        Args:
            member: A source, or a callable that gets the previous member's `StreamEnd` and makes one.

        Raises:
            TypeError: If this is no source; the chain stays as it was.
            RuntimeError: If the chain has ended.
        """
        checked = _checked(member)
        self._check_open()
        self._queue.append(checked)

    def hand_off(self, member: Member[T], /) -> None:
        """Close the current member at the next read, and go on with this one; before those that are queued.

        Args:
            member: A source, or a callable that gets the previous member's `StreamEnd` and makes one.

        Raises:
            TypeError: If this is no source; the chain stays as it was.
            RuntimeError: If the chain has not been entered, or has ended.
        """
        checked = _checked(member)
        if self._home is None:
            raise RuntimeError(f'{self!r} has no current member yet; use hand_off() inside its "async with" block')
        self._check_open()
        self._hand_offs.append(checked)
        self._replacing = self._owner is not None

    def _check_open(self) -> None:
        if self._end is not None or self._reason is not None:
            raise RuntimeError(f"{self!r} has ended; no member can be added. Make a new chain")

    # -- reading

    async def __anext__(self) -> T:
        if self._home is None:
            raise RuntimeError(f'{self!r} is read outside its block; use "async with" around the loop that reads it')
        if self._reading:
            raise RuntimeError(
                f"{self!r} is being read by another task; let one task read it, or make one chain for each"
            )
        self._reading = True
        try:
            while True:
                owner = self._owner
                if owner is None or (self._replacing and owner.reason is not EndReason.MATCHED):
                    owner = await self._advance()
                try:
                    return await super().__anext__()
                except StopAsyncIteration:
                    await self._finish(owner)
        finally:
            self._reading = False
            del self  # an error of a member holds this frame
            owner = None

    async def _advance(self) -> Owner[T]:
        """Close the current member and start the next one."""
        if self._owner is not None and self._reason is None:
            await self._close_current()
        if self._reason is None and not (self._hand_offs or self._queue):
            self._reason = EndReason.EXHAUSTED
        if self._reason is not None:
            raise StopAsyncIteration
        member = (self._hand_offs or self._queue).popleft()
        previous = self._ends[-1] if self._ends else _NOTHING_BEFORE
        self._index = len(self._ends)
        self._replacing = False  # a hand-off from a cleanup has put its member in the queue, that is all
        self._owner = make_owner(Source(member, previous), self._options)
        return self._owner

    async def _finish(self, owner: Owner[T]) -> None:
        """The current member gives no more: close it so that the next one has its turn, or end the chain."""
        if self._owner is not owner:
            raise StopAsyncIteration  # another task has left the block
        if not owner.exhausted:
            # Matched, stopped, failed, or closed by another task: that ends the chain.
            self._reason = self._reason or owner.reason
            raise StopAsyncIteration
        await self._close_current()

    def stop(self) -> None:
        """End the reader's loop, as `GuardedStream.stop`; no further member is started."""
        if self._home is not None and self._end is None:
            self._reason = self._reason or EndReason.STOPPED
            if self._owner is not None:
                self._owner.stop()

    # -- closing

    async def _close_current(self) -> None:
        """Close the current member between two; a cancellation that arrives meanwhile is obeyed afterwards."""
        self._replacing = False
        remembered: list[BaseException] = []
        errors: tuple[BaseException, ...] = ()
        try:
            errors = await self._close_member(NO_DETAILS, None, remembered, leaving=False)
            remembered += [error for error in errors if is_interrupt(error)]
            if remembered:
                raise remembered[-1]  # an interrupt rather than a cancellation
            # That of a scope could not tell so through the shield; the next member may have nothing to wait for.
            await anyio.lowlevel.checkpoint_if_cancelled()
        finally:
            remembered.clear()  # their tracebacks hold this frame
            del errors

    async def _close_member(
        self, details: Details, body: BaseException | None, remembered: list[BaseException], *, leaving: bool
    ) -> tuple[BaseException, ...]:
        owner, total = self._owner, self._outcome
        assert owner is not None
        assert total is not None
        outcome = Outcome(body, owner.cleanup_errors, owner.cancelled)
        outcome.remembered = remembered
        await close_stream(owner, self._options_of(owner), outcome, details, leaving=leaving)
        end = StreamEnd(*facts(owner, outcome))
        if not leaving:  # it is replaced, or at its end: nothing leaves the block
            end = replace(end, reason=owner.reason or EndReason.LEFT, error=outcome.ended_by)
        if self._owner is owner:  # else another task, which closed it as well, was first to note it
            self._owner = None
            self._ends.append(end)
            total.take_over(outcome)
            owner.cleanup_errors.clear()  # their tracebacks hold the owner
        return end.cleanup_errors

    def _options_of(self, owner: Owner[T]) -> Options[T]:
        """Those of one member: its ``cancel`` is given what is cancelled."""
        cancel = self._cancel
        if cancel is None:
            return self._options
        return replace(self._options, cancel=lambda: cancel(owner.source.opened))

    async def _close_all(
        self, details: Details, body: BaseException | None, remembered: list[BaseException], *, leaving: bool
    ) -> None:
        """Close the current member and those to come; if another task is doing it, wait for that."""
        assert self._all_closed is not None
        owner = self._owner
        if self._closing and owner is not None and not owner.closing and not leaving:
            # In a drain, or called from `cancel`, which whoever closes is waiting for: not for ever.
            await call_cancel(owner, self._options_of(owner), remembered)
            await close(owner, NO_DETAILS, limit(owner, self._options), remembered)
            return
        if self._closing:
            await self._all_closed.join(None, remembered)
            return
        self._closing = True
        try:
            if self._owner is not None:
                await self._close_member(details, body, remembered, leaving=leaving)
            await self._close_unstarted(remembered)
        finally:
            self._all_closed.finish()

    async def _close_unstarted(self, remembered: list[BaseException]) -> None:
        assert self._outcome is not None
        while self._hand_offs or self._queue:
            member = (self._hand_offs or self._queue).popleft()
            owner: Owner[T] = make_owner(Source(member, _NOTHING_BEFORE), self._options)
            await close(owner, NO_DETAILS, limit(owner, self._options), remembered)
            self._outcome.errors.extend(owner.cleanup_errors)
            self._ends.append(replace(_NOTHING_BEFORE, cleanup_errors=tuple(owner.cleanup_errors), source=member))

    async def _close_now(self, remembered: list[BaseException]) -> None:
        await self._close_all(NO_DETAILS, None, remembered, leaving=False)

    # -- the block

    async def __aenter__(self) -> Self:
        if self._home is not None:
            raise RuntimeError(f"{self!r} was entered before; make a new one for each block")
        # It has no source of its own, and runs what belongs to no member.
        self._home = home = make_owner(Source(_Nothing()), self._options)
        home.name = "the chain"
        self._all_closed = home.make_task()
        self._outcome = Outcome(None, home.cleanup_errors, home.cancelled)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, body: BaseException | None, trace: TracebackType | None
    ) -> None:
        home, outcome = self._home, self._outcome
        if home is None or outcome is None:
            raise RuntimeError(f'{self!r} is left without having been entered; use "async with"')
        leaving: BaseException | None = None
        try:
            outcome.leave_by(body)
            self._reason = self._reason or EndReason.LEFT
            # Every wait inside is shielded and has the limit, by `Task.join`.
            await self._close_all((kind, body, trace), body, outcome.remembered, leaving=True)  # noqa: ASYNC102
            if self._options.release_agents:
                self._ends = [release(end, outcome) for end in self._ends]
            self._end = self._describe(outcome)
            if self._options.tail is not None:
                await run_tail(home, self._options, outcome, self._end)  # noqa: ASYNC102
                self._end = self._describe(outcome)
            self._left = True
            outcome.report()
            leaving = outcome.error
            if leaving is not None and leaving is not body:
                raise leaving
        finally:
            # Errors hold this frame by their tracebacks: without this, cycles.
            outcome.forget()
            leaving = body = trace = None
            del self, home, outcome

    def _describe(self, outcome: Outcome) -> StreamEnd[T]:
        read = [end for end in self._ends if end.reason is not EndReason.UNSTARTED]
        given = [end for end in read if end.items]
        end = StreamEnd(
            reason=outcome.reason(self._reason),
            error=outcome.error or outcome.ended_by,
            cleanup_errors=outcome.others(),
            items=sum(end.items for end in read),
            last=given[-1].last if given else None,
            source=read[-1].source if read else None,
            members=tuple(self._ends),
            release=read[-1].release if read else None,
        )
        return without_frames(end) if self._options.release_agents else end


class _Nothing:
    """The source of the owner that runs the tail."""

    async def __anext__(self) -> Any:
        raise NotImplementedError


def _checked(member: object) -> object:
    kind_of(member, _NOTHING_BEFORE)
    return member


def guarded_chain(
    *members: Member[T],
    until: Callable[[T], bool] | None = None,
    where: Callable[[T], bool] | None = None,
    cancel: Callable[[Any], object] | None = None,
    on_early_exit: Literal["close", "drain"] = "close",
    cleanup_timeout: float | None = 10.0,
    tail: Callable[[StreamEnd[T]], object] | None = None,
    prefetch: int = 0,
    release_agents: bool = False,
) -> GuardedChain[T]:
    """Guard several streams that are read one after the other in one loop, with one tail.

    Each member is closed before the next one is started, or its callable is called; those whose turn never comes are
    closed without running. More members can be added while it is read: `GuardedChain.then`, `GuardedChain.hand_off`.

    Args:
        *members: Sources as for `guarded_stream`, or callables (sync or async) that get the previous member's
            `StreamEnd` and make one; the first member's gets one that says ``UNSTARTED``.
        until: When it returns true for an item, that is the last one of the whole chain.
        where: When it returns false for an item, it is skipped.
        cancel: Called with the running member's source, once for each member that is left early.
        on_early_exit: What to do with the running member when the block is left cleanly and early; a member that is
            replaced by a hand-off is never drained.
        cleanup_timeout: Seconds for the close of each member, and again for the tail.
        tail: Called with the chain's `StreamEnd`, once, after everything is closed.
        prefetch: Items that a member may run ahead of the reader.
        release_agents: Whether every member's run lets go of its agents, last before the tail, as
            `streamguard.release_agents` does; the reports are in the members' `StreamEnd.release`.

    Raises:
        TypeError: If a member is no source, or an option is of the wrong type.
        ValueError: If an option has a value that it cannot have.

    Example:
        >>> import asyncio
        >>> async def plan():
        ...     yield "plan"
        >>> async def write(plan):
        ...     yield f"text after {plan}"
        >>> async def main():
        ...     async with guarded_chain(plan(), lambda end: write(end.last)) as chain:
        ...         return [item async for item in chain]
        >>> asyncio.run(main())
        ['plan', 'text after plan']
    """
    if cancel is not None:
        check_function("cancel", cancel, takes=("the member's source",))
    options = Options(until, where, None, on_early_exit, cleanup_timeout, tail, prefetch, release_agents)
    return GuardedChain(members, options, cancel)
