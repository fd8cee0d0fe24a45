"""A task that is waited for within a limit, whatever cancels its waiters.

The rule kept here: what does not end in time is cancelled once more, given a moment, and given up with a report that
says where it hangs.
"""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from ._errors import CleanupTimeoutError
from ._where import hanging_at

GRACE = 0.25
"""Seconds between the last cancellation of what hangs and giving it up."""
SOFT_WAIT = 1.0
"""Seconds that a source may take to answer its own timeout before it is cancelled; at most half the limit."""


class Task(Protocol):
    """A task of ours that several others may wait for; what the backends bring."""

    done: bool
    cut: bool
    """Whether `force` was called: a cancellation that comes out is ours."""

    def start(
        self, main: Callable[[], Awaitable[None]], context: contextvars.Context, name: str, lost: Callable[[], None]
    ) -> None:
        """Start the task; its last act is to call `finish`. ``lost`` is called if it is cancelled before its first."""

    def finish(self) -> None:
        """Wake whoever waits; for good."""

    async def join(self, seconds: float | None, remembered: list[BaseException]) -> bool:
        """Wait for the end, shielded; whether it came. Native cancellations that arrive are remembered."""

    def interrupt(self) -> bool:
        """Cancel what the task waits for, by one edge: later awaits run. Whether anything was hit."""

    def force(self) -> None:
        """Cancel the task as hard as the backend can."""

    def forget(self) -> None:
        """Take our own cancellations back from the task's count, if the backend counts."""

    def is_current(self) -> bool:
        """Whether the caller runs in this task."""

    @property
    def disturbed(self) -> bool:
        """Whether somebody else has cancelled the task, and it has not come back from that."""

    @property
    def coroutine(self) -> object:
        """What the task runs, to see where it hangs."""


class Limit:
    """A time limit that several waits share."""

    __slots__ = ("_clock", "_end", "seconds")

    def __init__(self, seconds: float | None, clock: Callable[[], float]) -> None:
        self.seconds = seconds
        self._clock = clock
        self._end = None if seconds is None else clock() + seconds

    def left(self, at_most: float | None = None) -> float | None:
        """Seconds that are left, ``None`` for no limit."""
        if self._end is None:
            return at_most
        left = max(0.0, self._end - self._clock())
        return left if at_most is None else min(left, at_most)

    def soft(self) -> float | None:
        """Seconds to wait for what should end by itself."""
        return self.left(SOFT_WAIT if self.seconds is None else min(SOFT_WAIT, self.seconds / 2))

    async def enforce(
        self, task: Task, what: str, remembered: list[BaseException], others: Iterable[object] = ()
    ) -> CleanupTimeoutError | None:
        """Wait for a task until the limit, then cancel it, wait a moment, and give it up.

        The error says where it hangs; if it waits for others, where these do.
        """
        if await task.join(self.left(), remembered):
            return None
        frames = "\n".join(hanging_at(other) for other in others) or hanging_at(task.coroutine)
        task.force()
        ended = await task.join(GRACE, remembered)
        task.finish()
        fate = "It was cancelled" if ended else "It did not obey a cancellation and was abandoned"
        return CleanupTimeoutError(f"{what} did not end within {self.seconds:g} s. {fate}; it was waiting at\n{frames}")
