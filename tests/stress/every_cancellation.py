"""Runs small programs again and again, cancelled at the 1st, 2nd, 3rd ... point, until they end by themselves.

``python -m stress.every_cancellation [BACKEND] [--times once|turns|twice] [--part TEXT] [--minutes N] [--seed N]`` in
``tests``; the backend is asyncio, uvloop or trio, or all; a part is a text that the program's name or kind of
cancellation contains. In less time than all would take, it tries what it draws. Prints what was tried, and each promise
that was broken. Exits with 1 if one was.
"""

import argparse
import faulthandler
import gc
import itertools
import math
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random

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
KINDS = {
    "once": ONCE,
    "turns": [Kind(kind.first, turns=True) for kind in ONCE],
    "twice": [*TWICE, *(Kind(kind.first, kind.second, kind.gap, turns=True) for kind in TWICE if kind.gap in (0, 1))],
}
"""How often a program is cancelled, or by turns of the loop instead of steps."""


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


def drawn(some: list[tuple[Program, Kind]], minutes: float, seed: int) -> Iterator[tuple[Program, Kind]]:
    """Those cells in any order, until so much of the processor's time is over."""
    Random(seed).shuffle(some)
    until = time.process_time() + 60 * minutes
    return itertools.takewhile(lambda _: time.process_time() < until, some)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m stress.every_cancellation")
    parser.add_argument("backend", nargs="?", default="all")
    parser.add_argument("--times", choices=KINDS, action="append", help="by default all of them")
    parser.add_argument("--part", default="", help="in the name of a program or of a kind of cancellation")
    parser.add_argument("--minutes", type=float, default=math.inf, help="of the processor, for each backend and kind")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    failed = False
    for backend, times in itertools.product(chosen(options.backend), options.times or KINDS):
        some = list(cells(backend, KINDS[times], options.part))
        began = time.process_time()
        count = run(backend, drawn(some, options.minutes, options.seed))
        sys.stdout.write(
            f"{backend}, {times}: {count.programs} of {len(some)} cells, {count.points} points, {count.cancels} "
            f"cancellations, {len(count.violations)} violations, {(time.process_time() - began) / 60:.1f} min\n"
        )
        for violation in count.violations[:200]:
            sys.stdout.write(f"  {violation}\n")
        sys.stdout.flush()
        failed |= bool(count.violations)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
