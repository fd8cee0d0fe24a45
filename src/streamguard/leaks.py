"""Find the async generators that were left suspended: `track` what a piece of a program starts and leaves.

``python -m streamguard trace SCRIPT`` does it for a whole program, ``pytest --streamguard=error`` for each test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from ._report import report
from ._tracker import How, Leak, Tracker

__all__ = ["How", "Leak", "Leaks", "UnguardedStreamWarning", "track"]


class UnguardedStreamWarning(UserWarning):
    """A test left an async generator suspended; what the pytest plugin warns with."""


class Leaks:
    """What was left so far, and, once the block of `track` has been left, at its end."""

    __slots__ = ("_tracker",)

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker

    @property
    def found(self) -> tuple[Leak, ...]:
        """What your code iterated and left, one `Leak` for each line and way, with its count."""
        return self._leaks(yours=True)

    @property
    def inside(self) -> tuple[Leak, ...]:
        """What libraries iterated and left, often because the generator around it was left; not yours to fix."""
        return self._leaks(yours=False)

    def report(self, *, inside: bool = False, colour: bool = False) -> str:
        """All of it as text for people, at most 100 columns wide; empty if nothing was left.

        Args:
            inside: Whether what libraries left is listed, and not only counted.
            colour: Whether to write for a terminal that knows colours.
        """
        return report(self.found, self.inside, list_inside=inside, how_to_list="report(inside=True)", colour=colour)

    def _leaks(self, *, yours: bool) -> tuple[Leak, ...]:
        counts: Counter[Leak] = Counter()
        for (_, is_yours, leak), count in self._tracker.found().items():
            if is_yours is yours:
                counts[leak] += count
        leaks = (replace(leak, count=count) for leak, count in counts.items())
        return tuple(sorted(leaks, key=lambda leak: (leak.first_file, leak.first_line, leak.file, leak.line, leak.how)))


@contextmanager
def track(*, packages: Iterable[str] = ()) -> Iterator[Leaks]:
    """Track the async generators that are first iterated in the block, in all threads and event loops.

    Reported is what was left suspended: dropped at a ``break``, ``return`` or exception, still open when its event loop
    or the block ended, or never closed at all. What was exhausted, closed (`contextlib.aclosing` does), never started,
    or is guarded by streamguard is not. Hooks that a program or an event loop installs are called as before, and are
    back afterwards.

    Inside a running event loop, what a task is still at work on when the block ends is not reported, and event loops
    that already run in other threads are not seen.

    Args:
        packages: Names of installed packages that count as your own code, for example the one that you work on.

    Example:
        >>> import asyncio
        >>> async def letters():
        ...     yield "a"
        ...     yield "b"
        >>> async def first():
        ...     async for letter in letters():
        ...         return letter
        >>> with track() as leaks:
        ...     asyncio.run(first())
        'a'
        >>> [(leak.name, leak.how.value, leak.count) for leak in leaks.found]
        [('letters', 'dropped', 1)]
    """
    tracker = Tracker(packages)
    tracker.start()
    try:
        yield Leaks(tracker)
    finally:
        tracker.stop()
