"""`ResultHistory`: results that are kept for audit and hold no agents.

The rule kept here: a result is released before it is kept, and its names are kept with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, overload

from ._release import ReleaseReport, release_agents

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class HistoryEntry(Generic[R]):
    """One result of a `ResultHistory`."""

    result: R
    """The result, without its agents."""
    report: ReleaseReport
    """Who took part, by name, and what could not be let go."""


class ResultHistory(Sequence[HistoryEntry[R]]):
    """Results of agent runs, kept for audit; each lets go of its agents when it is appended.

    A sequence of entries with ``.result`` and ``.report``, the oldest first. A result that must keep its agents (its
    run has not ended, failed, or waits for an approval) and an unknown object are kept as they are; the report says so.

    Args:
        maxlen: How many results are kept; the oldest go first. ``None`` for all.

    Raises:
        TypeError: If ``maxlen`` is no whole number.
        ValueError: If ``maxlen`` is negative.

    Example:
        >>> history = ResultHistory(maxlen=1000)
        >>> history.append("no result of a run").report.known
        False
        >>> len(history), history[-1].result
        (1, 'no result of a run')
    """

    __slots__ = ("_entries",)

    def __init__(self, maxlen: int | None = None) -> None:
        if maxlen is not None and (isinstance(maxlen, bool) or not isinstance(maxlen, int)):
            raise TypeError(f"maxlen={maxlen!r}; give the number of results to keep, or None for all")
        if maxlen is not None and maxlen < 0:
            raise ValueError(f"maxlen={maxlen!r}; give the number of results to keep, from 0 up, or None for all")
        self._entries: deque[HistoryEntry[R]] = deque(maxlen=maxlen)

    @property
    def maxlen(self) -> int | None:
        """How many results are kept; ``None`` for all."""
        return self._entries.maxlen

    def append(self, result: R) -> HistoryEntry[R]:
        """Let go of a result's agents, as `release_agents` does, and keep it.

        Args:
            result: The result of a run that has come to its end.

        Returns:
            The entry that is kept.
        """
        entry = HistoryEntry(result, release_agents(result))
        self._entries.append(entry)
        return entry

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[HistoryEntry[R]]:
        return iter(tuple(self._entries))  # a turn may be appended while somebody awaits in the loop

    @overload
    def __getitem__(self, index: int) -> HistoryEntry[R]: ...

    @overload
    def __getitem__(self, index: slice) -> list[HistoryEntry[R]]: ...

    def __getitem__(self, index: int | slice) -> HistoryEntry[R] | list[HistoryEntry[R]]:
        if isinstance(index, slice):
            return list(self._entries)[index]
        return self._entries[index]

    def __repr__(self) -> str:
        return f"<ResultHistory of {len(self)} results, maxlen={self.maxlen}>"
