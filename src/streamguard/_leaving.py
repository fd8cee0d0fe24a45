"""Leaving a guarded block: what is closed and called, in order, and which one error is let out.

The rule kept here: everything runs to its end or its limit, whatever fails or cancels meanwhile; then one error leaves,
bare, and every other one is reported.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Generic, TypeVar

from . import _closing
from ._end import EndReason, StreamEnd
from ._errors import consists_of, report
from ._options import Options
from ._owner import Owner
from ._sources import Details
from ._task import Limit

T = TypeVar("T")


class Leaving(Generic[T]):
    """One way out of a block."""

    __slots__ = ("_body", "_by_generator_exit", "_ended_by", "_options", "_owner", "_remembered", "_unread")

    def __init__(self, owner: Owner[T], options: Options[T], body: BaseException | None) -> None:
        self._owner = owner
        self._options = options
        self._by_generator_exit = isinstance(body, GeneratorExit)
        self._body = None if self._by_generator_exit else body
        self._remembered: list[BaseException] = []
        """Native cancellations, and KeyboardInterrupt, that arrived meanwhile."""
        self._unread: BaseException | None = None
        """The source's error that nobody read."""
        self._ended_by: BaseException | None = None
        """The source's error, read or not."""

    async def close(self, details: Details) -> None:
        """Drain or cancel the source, as the options say, and close it."""
        owner, options = self._owner, self._options
        owner.check_loop()
        if options.on_early_exit == "drain" and self._body is None:
            await _closing.drain(owner, self._limit(), self._remembered)
        if options.cancel is not None and not owner.exhausted:
            await self._call(options.cancel, (), f"the cancel of {owner.name}")
        await _closing.close(owner, details, self._limit(), self._remembered)
        self._unread = owner.take_failure()
        self._ended_by = self._unread or owner.take_given_failure()

    async def run_tail(self, end: StreamEnd[T]) -> None:
        """Call the tail, and await what it returns, protected like the close."""
        if self._options.tail is not None:
            await self._call(self._options.tail, (end,), f"the tail of {self._owner.name}")

    async def _call(self, function: Callable[..., object], arguments: tuple[object, ...], what: str) -> None:
        try:
            result = function(*arguments)
        except BaseException as error:
            self._owner.add_cleanup_error(error, what)
            return
        if inspect.isawaitable(result):
            await _closing.call(self._owner, result, what, self._limit(), self._remembered)

    def _limit(self) -> Limit:
        return Limit(self._options.cleanup_timeout, self._owner.clock)

    def describe(self) -> StreamEnd[T]:
        """How the stream ended, as far as it is known by now."""
        owner, error = self._owner, self.error
        return StreamEnd(
            reason=self._reason(error),
            error=error or self._ended_by,
            cleanup_errors=tuple(self._others(error)),
            items=owner.items,
            last=owner.last,
            source=owner.source.opened,
        )

    @property
    def error(self) -> BaseException | None:
        """The error that leaves the block."""
        cleanup = self._owner.cleanup_errors
        for error in (*self._remembered, *cleanup):
            if isinstance(error, KeyboardInterrupt | SystemExit):
                return error
        if self._remembered and not consists_of(self._body, self._owner.cancelled):
            return self._remembered[0]
        return next((error for error in (self._body, self._unread, *cleanup) if error is not None), None)

    def _others(self, leaving: BaseException | None) -> list[BaseException]:
        """What went wrong in the cleanup, and what a cancellation or an error took the place of."""
        body = None if isinstance(leaving, KeyboardInterrupt | SystemExit) else self._body  # it is in their context
        displaced = [e for e in (body, self._unread, self._owner.overtaken) if e is not None and e is not leaving]
        return [*displaced, *self._owner.cleanup_errors]

    def _reason(self, leaving: BaseException | None) -> EndReason:
        if leaving is not None:
            return EndReason.CANCELLED if consists_of(leaving, self._owner.cancelled) else EndReason.FAILED
        if self._by_generator_exit:
            return EndReason.LEFT
        return self._owner.reason or EndReason.LEFT

    def report(self) -> None:
        """Tell of every error that cannot leave the block."""
        leaving = self.error
        for error in self._others(leaving):
            if error is not leaving:
                report(error, leaving)

    def forget(self) -> None:
        """Let go of every error: their tracebacks hold frames that hold this."""
        self._remembered.clear()
        self._body = self._unread = self._ended_by = None
        self._owner.cleanup_errors = []
        self._owner.overtaken = None
