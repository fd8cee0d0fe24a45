"""Which one error leaves a block, and what becomes of the others.

The rule kept here: the body's error is never replaced by one of the cleanup; a cancellation and an interrupt are never
lost; what cannot leave is told, once.
"""

from __future__ import annotations

from ._end import EndReason
from ._errors import consists_of, is_interrupt, report


class Outcome:
    """What went wrong on one way out of a block."""

    __slots__ = ("_by_generator_exit", "_cancelled", "body", "ended_by", "errors", "overtaken", "remembered", "unread")

    def __init__(self, body: BaseException | None, errors: list[BaseException], cancelled: type[BaseException]) -> None:
        self._cancelled = cancelled
        self.leave_by(body)
        self.errors = errors
        """What the close, a ``cancel`` and the tail raised."""
        self.remembered: list[BaseException] = []
        """Native cancellations, and KeyboardInterrupt, that arrived while closing."""
        self.unread: BaseException | None = None
        """The source's error that nobody read."""
        self.ended_by: BaseException | None = None
        """The source's error, read or not."""
        self.overtaken: list[BaseException] = []
        """Errors of a source that stood behind items which nobody read."""

    def leave_by(self, body: BaseException | None) -> None:
        """Set what the body raised."""
        self._by_generator_exit = isinstance(body, GeneratorExit)
        self.body = None if self._by_generator_exit else body

    def take_over(self, member: Outcome) -> None:
        """Add what went wrong with one member of a chain."""
        self.errors.extend(member.errors)
        self.overtaken.extend(member.overtaken)
        if self.unread is None:
            self.unread = member.unread
        elif member.unread is not None:
            self.overtaken.append(member.unread)
        self.ended_by = member.ended_by

    @property
    def error(self) -> BaseException | None:
        """The error that leaves the block."""
        if not (self.remembered or self.errors):
            return self.body or self.unread
        for error in (*self.remembered, *self.errors):
            if is_interrupt(error):
                return error
        if self.remembered and not consists_of(self.body, self._cancelled):
            return self.remembered[0]
        return next(error for error in (self.body, self.unread, *self.errors) if error is not None)

    def others(self) -> tuple[BaseException, ...]:
        """What went wrong in the cleanup, and what the error that leaves took the place of."""
        if not (self.errors or self.overtaken or self.remembered or self.unread):
            return ()
        leaving = self.error
        body = None if is_interrupt(leaving) else self.body  # it is in their context
        displaced = [e for e in (body, self.unread, *self.overtaken) if e is not None and e is not leaving]
        if consists_of(leaving, self._cancelled):  # of two cancellations one leaves, and nothing is lost
            displaced = [e for e in displaced if not consists_of(e, self._cancelled)]
        return (*displaced, *self.errors)

    def reason(self, ended: EndReason | None) -> EndReason:
        """What ended the stream: what leaves the block, else what ended the source."""
        leaving = self.error
        if leaving is not None:
            return EndReason.CANCELLED if consists_of(leaving, self._cancelled) else EndReason.FAILED
        if self._by_generator_exit:
            return EndReason.LEFT
        return ended or EndReason.LEFT

    def report(self) -> None:
        """Tell of every error that cannot leave the block."""
        others = self.others()
        leaving = self.error if others else None
        for error in others:
            if error is not leaving:
                report(error, leaving, of_cleanup=any(error is other for other in self.errors))

    def forget(self) -> None:
        """Let go of every error: their tracebacks hold frames that hold this."""
        self.remembered.clear()
        self.errors.clear()
        self.overtaken.clear()
        self.body = self.unread = self.ended_by = None
