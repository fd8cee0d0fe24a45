"""Runs small programs again and again, cancelled at the 1st, 2nd, 3rd ... point, until they end by themselves.

``python -m stress.every_cancellation [BACKEND [PART]]`` in ``tests``; the backend is asyncio, uvloop or trio, or all; a
part is a text that the program's name or kind of cancellation contains. Prints what was tried, and each promise that
was broken. Exits with 1 if one was.
"""

import faulthandler
import gc
import itertools
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from .backends import chosen, deterministic, run_on
from .points import Action, Points
from .programs import Program, programs
from .trial import Trial, suits

PATIENCE = 60.0
"""Seconds after which a program that hangs ends the process, with a traceback."""
GAPS = (0, 1, 2, 3, 5, 8, 13)
"""Points between two cancellations of one program."""


@dataclass(frozen=True)
class Kind:
    """How a program is cancelled: by what, and how many points later by what else."""

    first: str
    second: str = ""
    gap: int = 0
    turns: bool = False
    """Whether the points are turns of the loop instead of steps."""

    def __str__(self) -> str:
        name = f"{self.first} + {self.gap} {self.second}" if self.second else self.first
        return f"{name} by turns" if self.turns else name

    @property
    def parts(self) -> set[str]:
        return {self.first, self.second} - {""}

    def suits(self, program: Program, backend: str) -> bool:
        return suits(self.parts, program, backend) and not (self.turns and backend == "trio")

    def points(self, trial: Trial, at: int) -> Points:
        """The points of a trial that is cancelled at one of them."""
        actions: dict[int, list[Action]] = {at: [partial(trial.act, self.first)]}
        if self.second:
            actions.setdefault(at + self.gap, []).append(partial(trial.act, self.second))
        return Points(actions)


ONCE = [Kind(first) for first in ("native", "scope", "timeout", "read", "closer", "closer scope")]
PAIRS = (
    ("native", "native"),
    ("native", "scope"),
    ("scope", "native"),
    ("scope", "outer"),
    ("timeout", "native"),
    ("read", "read"),
    ("read", "scope"),
    ("read", "native"),
    ("closer", "closer"),
    ("closer", "native"),
    ("closer scope", "scope"),
)
TWICE = [Kind(first, second, gap) for first, second in PAIRS for gap in GAPS]
BY_TURNS = [Kind(kind.first, kind.second, kind.gap, turns=True) for kind in [*ONCE, *TWICE] if kind.gap in (0, 1)]


@dataclass
class Count:
    """What was tried, and what came of it."""

    programs: int = 0
    points: int = 0
    cancels: int = 0
    violations: list[str] = field(default_factory=list)


async def try_every_point(program: Program, kind: Kind, count: Count, stride: int = 1) -> None:
    """Cancel a program at each of its points, one after the other, until it ends before it comes to the point."""
    count.programs += 1
    for at in itertools.count(1, stride):
        trial = Trial(program, kind.parts)
        points = kind.points(trial, at)
        await trial.run(points.turns() if kind.turns else points.steps())
        faults = trial.broken_promises()
        count.violations += [f"{program}: {kind} at {at}: {fault}" for fault in faults]
        if points.passed < at:
            return
        count.points += 1
        count.cancels += 2 if kind.second else 1


def cells(backend: str, kinds: list[Kind], part: str = "") -> Iterator[tuple[Program, Kind]]:
    """The programs, and how they are cancelled."""
    for program in programs(backend):
        for kind in kinds:
            if kind.suits(program, backend) and part in f"{program}: {kind}":
                yield program, kind


async def try_all(cells: Iterator[tuple[Program, Kind]], count: Count, stride: int) -> None:
    while gc.collect():
        pass
    gc.freeze()  # what is older need not be walked each time
    for program, kind in cells:
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        await try_every_point(program, kind, count, stride)
    faulthandler.cancel_dump_traceback_later()


def run(backend: str, cells: Iterator[tuple[Program, Kind]], stride: int = 1) -> Count:
    """Try all cells on a backend, at every point, or at every so many."""
    count = Count()
    with warnings.catch_warnings(), deterministic():
        warnings.simplefilter("error")
        run_on(backend, partial(try_all, cells, count, stride))
    return count


def main(backend: str = "all", part: str = "") -> int:
    failed = False
    for each in chosen(backend):
        began = time.monotonic()
        kinds = [*ONCE, *TWICE, *BY_TURNS]
        count = run(each, cells(each, kinds, part))
        sys.stdout.write(
            f"{each}: {count.programs} programs, {count.points} points, {count.cancels} cancels, "
            f"{len(count.violations)} violations, {time.monotonic() - began:.0f} s\n"
        )
        for violation in count.violations[:200]:
            sys.stdout.write(f"  {violation}\n")
        failed |= bool(count.violations)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
