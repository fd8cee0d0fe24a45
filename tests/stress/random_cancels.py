"""Cancels small programs at random times: after some turns of the loop, or after some time.

``python -m stress.random_cancels [BACKEND] [--cancels 2000] [--seed N] [--only NUMBER]`` in ``tests``; the backend is
asyncio, uvloop or trio, or all. Prints what was tried, and each promise that was broken, with the number of its trial:
by ``--only`` this one is made again, though what the clock does is not. Exits with 1 if one was.
"""

import argparse
import faulthandler
import gc
import itertools
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from random import Random

import anyio
import anyio.lowlevel

from .backends import chosen, deterministic, run_on
from .every_cancellation import ONCE, PAIRS, PATIENCE
from .programs import Program, programs
from .trial import Trial, suits
from .witness import pace

PATTERNS: tuple[tuple[str, ...], ...] = (
    *((kind.first,) for kind in ONCE),
    *PAIRS,
    ("native", "native", "native"),
    ("native", "scope", "native"),
    ("scope", "native", "outer"),
    ("scope", "outer", "native"),
    ("read", "read", "read"),
    ("read", "native", "scope"),
    ("closer", "native", "native"),
)
"""By what a program is cancelled, one after the other."""
MOST_TURNS = 40
MOST_SECONDS = 0.005
LONGEST_PAUSE = 0.001
"""Seconds that a program waits each time, if it goes by the clock."""


@dataclass(frozen=True)
class Plan:
    """How a program is cancelled: by what, and after how many turns (a whole number) or seconds."""

    program: Program
    parts: tuple[str, ...]
    waits: tuple[float, ...]
    by_the_clock: bool

    def __str__(self) -> str:
        steps = zip(self.waits, self.parts, strict=True)
        unit = "s" if self.by_the_clock else "turns"
        return f"{self.program}: " + ", ".join(f"{wait:.6g} {unit}, {part}" for wait, part in steps)


def draw(chance: Random, backend: str, all_programs: list[Program]) -> Plan:
    """Any program, any way to cancel it, at any time."""
    program = chance.choice(all_programs)
    parts = chance.choice([parts for parts in PATTERNS if suits(parts, program, backend)])
    by_the_clock = chance.random() < 0.5
    # The first may come at any time, the others may come soon after it.
    waits = [chance.uniform(0, MOST_SECONDS) if by_the_clock else chance.randrange(MOST_TURNS)]
    for _ in parts[1:]:
        waits.append(chance.uniform(0, MOST_SECONDS / 4) if by_the_clock else chance.randrange(MOST_TURNS // 4))
    return Plan(program, parts, tuple(waits), by_the_clock)


@dataclass
class Count:
    """What was tried, and what came of it."""

    trials: int = 0
    cancels: int = 0
    by_the_clock: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


async def try_plan(plan: Plan, chance: Random) -> Trial:
    """Run a program, and cancel it meanwhile."""
    trial = Trial(plan.program, plan.parts)

    async def disturb() -> None:
        for wait, part in zip(plan.waits, plan.parts, strict=True):
            if plan.by_the_clock:
                await anyio.sleep(wait)
            else:
                for _ in range(int(wait)):
                    await anyio.lowlevel.checkpoint()
            trial.act(part)

    token = pace.set((lambda: chance.choice((0, chance.uniform(0, LONGEST_PAUSE)))) if plan.by_the_clock else lambda: 0)
    try:
        await trial.run(disturb=disturb)
    finally:
        pace.reset(token)
    return trial


async def try_many(backend: str, cancels: int, seed: int, numbers: Iterable[int], count: Count) -> None:
    """Make trials until so many cancellations have come before the end of their program."""
    while gc.collect():
        pass
    gc.freeze()  # what is older need not be walked each time
    all_programs = programs(backend)
    for number in numbers:
        if count.cancels >= cancels:
            break
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        chance = Random(f"{seed} {number}")
        plan = draw(chance, backend, all_programs)
        trial = await try_plan(plan, chance)
        count.violations += [f"trial {number}: {plan}: {fault}" for fault in trial.broken_promises()]
        count.trials += 1
        count.cancels += trial.acts
        count.by_the_clock += trial.acts if plan.by_the_clock else 0
        count.kinds.update(plan.parts[: trial.acts])
    faulthandler.cancel_dump_traceback_later()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("backend", nargs="?", default="all")
    parser.add_argument("--cancels", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    warnings.simplefilter("error")
    failed = False
    for backend in chosen(options.backend):
        count = Count()
        began = time.monotonic()
        numbers = itertools.count() if options.only is None else [options.only]
        with deterministic(options.seed):
            run_on(backend, partial(try_many, backend, options.cancels, options.seed, numbers, count))
        sys.stdout.write(
            f"{backend}: {count.trials} trials with seed {options.seed}, {count.cancels} cancels "
            f"({count.by_the_clock} by the clock; {dict(count.kinds.most_common())}), "
            f"{len(count.violations)} violations, {time.monotonic() - began:.0f} s\n"
        )
        for violation in count.violations[:200]:
            sys.stdout.write(f"  {violation}\n")
        failed |= bool(count.violations)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
