"""`guarded_stream`: the guard that the user holds.

The rule kept here: the guard is a plain class, so that nothing of it is ever left to a finaliser. Stepping and closing
is the owner's (`_owner`), leaving the block is `_leaving`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Literal, Self, TypeVar

from ._closing import close
from ._end import StreamEnd
from ._guard import Block, make_owner
from ._leaving import call_cancel, close_stream, facts, limit, release, run_tail, without_frames
from ._options import Options
from ._outcome import Outcome
from ._sources import NO_DETAILS, Given, Source, describe

T = TypeVar("T")


class GuardedStream(Block[T]):
    """A stream that is closed when its ``async with`` block is left; made by `guarded_stream`.

    It is an async iterator for one task at a time. Reading it outside its block, or while another task reads, and
    entering it twice are a RuntimeError. What leaves the block is one error, bare: the body's or the source's, else a
    cleanup's, a `CleanupError` or a `CleanupTimeoutError`.
    """

    __slots__ = ("_options", "_source")

    def __init__(self, source: object, options: Options[T], depth: int = 2) -> None:
        self._source = Source(source)
        self._options = options
        super().__init__(depth + 1)

    def __repr__(self) -> str:
        state = "closed" if self._has_ended else "open" if self._owner else "not entered"
        return f"<GuardedStream of {describe(self._source.opened)}, {state}>"

    def stop(self) -> None:
        """End the reader's loop as if the source were exhausted; the body is never interrupted.

        May be called from any task of the event loop, also from inside the source; from another thread by
        ``loop.call_soon_threadsafe(stream.stop)``. An item that nobody read is dropped. The source is closed when the
        block is left. Before the block is entered, or after the end, this does nothing.
        """
        if self._owner is not None:
            self._owner.stop()

    async def _close_now(self, remembered: list[BaseException]) -> None:
        owner = self._owner
        assert owner is not None
        await call_cancel(owner, self._options, remembered)
        await close(owner, NO_DETAILS, limit(owner, self._options), remembered)

    # -- the block

    async def __aenter__(self) -> Self:
        if self._owner is not None:
            raise RuntimeError(f"{self!r} was entered before; make a new one for each block")
        self._home = self._owner = make_owner(self._source, self._options)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, body: BaseException | None, trace: TracebackType | None
    ) -> None:
        owner = self._owner
        if owner is None:
            raise RuntimeError(f'{self!r} is left without having been entered; use "async with"')
        outcome = Outcome(body, owner.cleanup_errors, owner.cancelled)
        try:
            # Every wait inside is shielded and has the limit, by `Task.join`.
            await close_stream(owner, self._options, outcome, (kind, body, trace))  # noqa: ASYNC102
            self._facts = facts(owner, outcome)
            if self._options.release_agents:
                self._end = release(self.end, outcome)
            if self._options.tail is not None:
                await run_tail(owner, self._options, outcome, self.end)  # noqa: ASYNC102
                self._end = self._up_to_date(self.end, StreamEnd(*facts(owner, outcome)))
            owner.last = None
            self._left = True
            outcome.report()
            leaving = outcome.error
            if leaving is not None and leaving is not body:
                raise leaving
        finally:
            # Errors hold this frame by their tracebacks: without this, cycles.
            outcome.forget()
            leaving = body = trace = None
            del self, owner

    def _up_to_date(self, before: StreamEnd[T], now: StreamEnd[T]) -> StreamEnd[T]:
        """The record after the tail; what was released stays released."""
        if not self._options.release_agents:
            return now
        return without_frames(replace(now, last=before.last, release=before.release))


def guarded_stream(
    source: Given[T],
    /,
    *,
    until: Callable[[T], bool] | None = None,
    where: Callable[[T], bool] | None = None,
    cancel: Callable[[], object] | None = None,
    on_early_exit: Literal["close", "drain"] = "close",
    cleanup_timeout: float | None = 10.0,
    tail: Callable[[StreamEnd[T]], object] | None = None,
    prefetch: int = 0,
    release_agents: bool = False,
) -> GuardedStream[T]:
    """Guard a stream: when the ``async with`` block is left, by any way out, nothing of the stream is left.

    The source runs in a task of its own and in a copy of the context, from the first read to its close; it advances
    only when the reader asks. Leaving the block closes it there and waits for it, shielded from cancellation; then the
    tail runs; then the body's error, the source's or the cleanup's leaves, bare.

    Args:
        source: An async generator or iterator, an async iterable, a run handle (has ``stream_events()``), an async
            context manager or an awaitable that gives one of these, or a callable without arguments that makes one.
        until: Called with each item that is delivered; when it returns true that item is the last one.
        where: Called with each item; when it returns false the item is skipped, at no hand-off.
        cancel: Called, and awaited if awaitable, once on every way out but exhaustion, before the source is closed.
        on_early_exit: ``"drain"`` lets the source run to its own end (its items are dropped) after a clean early way
            out, for at most ``cleanup_timeout``, before ``cancel`` and the close.
        cleanup_timeout: Seconds for the close, and again for the tail (and for a drain); ``None`` for no limit; 0 for
            what needs no waiting. The longest stay at the exit is the sum (an awaitable ``cancel`` has the same limit),
            plus 0.25 s for each that is cut.
        tail: Called with the `StreamEnd`, and awaited if awaitable, once, after everything is closed, on every way out.
        prefetch: Items that the source may run ahead of the reader, once the first was read.
        release_agents: Whether the run lets go of its agents, last before the tail, as `streamguard.release_agents`
            does; the report is in `StreamEnd.release`.

    Raises:
        TypeError: If this is no source (the message says what to do), or an option is of the wrong type.
        ValueError: If ``cleanup_timeout`` or ``prefetch`` is negative or NaN, or ``on_early_exit`` is unknown.

    Example:
        >>> import asyncio
        >>> async def letters():
        ...     try:
        ...         yield "a"
        ...         yield "b"
        ...     finally:
        ...         await asyncio.sleep(0)
        ...         print("closed")
        >>> async def first():
        ...     async with guarded_stream(letters()) as stream:
        ...         async for letter in stream:
        ...             return letter
        >>> asyncio.run(first())
        closed
        'a'
    """
    options = Options(until, where, cancel, on_early_exit, cleanup_timeout, tail, prefetch, release_agents)
    return GuardedStream(source, options)
