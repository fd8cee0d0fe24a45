"""Very many guarded runs at once, for a while, a third of them with a fault: is anything left, does memory grow?

``python -m stress.soak [BACKEND] [--seconds 300] [--runs 1000] [--seed N]`` in ``tests``; the backend is asyncio,
uvloop or trio, or all. Prints what was run, and each promise that was broken. Exits with 1 if one was, or if anything
is left or has grown.
"""

import argparse
import asyncio
import contextvars
import faulthandler
import gc
import itertools
import logging
import math
import sys
import time
import warnings
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any

import anyio
import trio

from nothing_left import LOGGERS, collect_until_quiet, open_generators, tasks

from .backends import chosen, run_on
from .memory import blocks, heap, rss
from .programs import FAULTS, FOR_CHAINS, ON_ASYNCIO, SOURCES, WAYS, Program
from .random_cancels import PATTERNS
from .trial import Trial, suits
from .witness import Witness, backend, pace

FAILING = ("failing", "failing child", "failing cleanup", "failing inside", "yielding", "converting")
"""Sources that are a fault themselves."""
CALM_WAYS = tuple(way for way in WAYS if way != "error")
EARLY_WAYS = ("break", "error", "never", "stop", "aclose")
"""What ends a source that hangs in its cleanup before it comes to its end."""
GUARDS = ("stream", "ahead", "decorated", "chain")
FAULTY = 1 / 3
PAUSE = 0.8
"""Seconds that a program waits at most each time."""
LONGEST = 10
"""Pauses after which no cancellation comes any more; few runs take as long."""
PATIENCE = 60.0
"""Seconds after which runs that have not ended have hung."""
ROUNDS = (0.1, 0.3, 0.3, 0.3)
"""Parts of the time; the first one fills caches and pools."""
GROWTH = 0.02
"""The part by which Python's memory blocks may grow after the first round, with nothing open."""
GROWTH_OF_HEAP = 2.0
"""MiB by which what is larger than these blocks may grow: tables stay as large as they were at the worst moment. How
large the process is says, beside, how far apart lies what is in use.
"""
TELLING = 30.0
"""Seconds that a run has to take before its memory tells anything."""

COLLECT_EVERY = 50
"""Looks at what is open between two collections."""

_here: contextvars.ContextVar[Witness | None] = contextvars.ContextVar("witness", default=None)


class Crowd(logging.Handler):
    """Hears what is reported anywhere, and tells the witness of the run in whose context it was."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.faults: list[str] = []
        """What belongs to no run."""

    @contextmanager
    def listening(self) -> Iterator[None]:
        before = firstiter, finalizer = tuple(sys.get_asyncgen_hooks())
        self._tell_loop = firstiter
        ours = (self._firstiter, finalizer)
        sys.set_asyncgen_hooks(*ours)
        for name in LOGGERS:
            logging.getLogger(name).addHandler(self)
        sys.unraisablehook = self._on_unraisable
        loop = asyncio.get_running_loop() if backend() == "asyncio" else None
        if loop is not None:
            loop.set_exception_handler(self._on_loop_error)
        try:
            yield
        finally:
            if loop is not None:
                loop.set_exception_handler(None)
            sys.unraisablehook = sys.__unraisablehook__
            for name in LOGGERS:
                logging.getLogger(name).removeHandler(self)
            if tuple(sys.get_asyncgen_hooks()) != ours:
                self.faults.append("the hooks for async generators are not those before")
            sys.set_asyncgen_hooks(*before)

    def _firstiter(self, generator: AsyncGenerator[Any, Any]) -> None:
        witness = _here.get()
        if witness is not None:
            witness.started(generator)
        if self._tell_loop is not None:
            self._tell_loop(generator)

    def emit(self, record: logging.LogRecord) -> None:
        witness = _here.get()
        if witness is not None:
            witness.records.append(record)
        else:
            self.faults.append(f"logged: {record.getMessage()}")

    def _on_unraisable(self, unraisable: Any) -> None:
        self.faults.append(f"unraisable: {unraisable.err_msg} {unraisable.exc_value!r} in {unraisable.object!r}")

    def _on_loop_error(self, _: object, context: dict[str, Any]) -> None:
        self.faults.append(f"the loop: {context['message']} {context.get('exception')!r}")


def draw(chance: Random, backend: str) -> tuple[Program, tuple[str, ...]]:
    """Any program without a fault, or in a third of all cases with one; and by what it is cancelled."""
    sources = [source for source in (*SOURCES, *(() if backend == "trio" else ON_ASYNCIO)) if source not in FAILING]
    guard = chance.choice(GUARDS)
    ways = (*CALM_WAYS, *(FOR_CHAINS if guard == "chain" else ()))
    source, way = chance.choice(sources), chance.choice(ways)
    calm = Program(source, way, guard)
    if chance.random() >= FAULTY:
        return calm, ()
    match chance.choice(("source", "body", "hangs", "cancelled", "cancelled", "cancelled", *FAULTS)):
        case "source":
            return Program(chance.choice(FAILING), way, guard), ()
        case "body":
            return Program(source, "error", guard), ()
        case "hangs" | "out of time":
            return Program("hanging", chance.choice(EARLY_WAYS), guard, "out of time"), ()
        case "cancelled":
            return calm, chance.choice([parts for parts in PATTERNS if suits(parts, calm, backend)])
        case fault:
            return Program(source, way, guard, fault), ()


class Soak:
    """So many workers, each of which makes one run after the other."""

    def __init__(self, runs: int, seed: object, longest_pause: float = PAUSE) -> None:
        self.crowd = Crowd()
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self.looks = 0
        self.open_then = 0
        """How many blocks were open at these looks, all in all."""
        self.most_open = 0
        self.worst_delay = 0.0
        """Seconds by which the loop was late."""
        self._backend = backend()
        self._pause = longest_pause
        self._chances = [Random(f"{seed} {number}") for number in range(runs)]
        self._running: dict[int, Trial] = {}

    async def go_round(self, goes_on: Callable[[], bool]) -> None:
        """Let everybody work for a while, and see that nothing is left."""
        before = {"tasks": len(tasks(self._backend)), "generators": len(open_generators())}
        with self.crowd.listening():
            async with anyio.create_task_group() as group:
                group.start_soon(self._look, goes_on)
                async with anyio.create_task_group() as workers:
                    for number in range(len(self._chances)):
                        workers.start_soon(self._work, number, goes_on)
                    workers.start_soon(self._give_up, workers.cancel_scope, goes_on)
                group.cancel_scope.cancel()
            collect_until_quiet()
            after = {"tasks": len(tasks(self._backend)), "generators": len(open_generators())}
        left = [f"{after[what] - before[what]} {what} are left" for what in before if after[what] > before[what]]
        self.violations += left
        if timers := self._timers():
            self.violations.append(f"{timers} timers are left")
        self.violations += self.crowd.faults
        self.crowd.faults.clear()

    def _timers(self) -> int:
        """Timers that would still go off; uvloop does not tell."""
        if self._backend == "trio":
            return int(trio.lowlevel.current_statistics().seconds_to_next_deadline != math.inf)
        loop: Any = asyncio.get_running_loop()
        return sum(not handle.cancelled() for handle in getattr(loop, "_scheduled", ()))

    async def _look(self, goes_on: Callable[[], bool]) -> None:
        """Count what is open, and how late the loop is."""
        for number in itertools.count(1):
            if not goes_on():
                break
            if number % COLLECT_EVERY == 0:
                gc.collect()  # else the process is as large as the garbage of a minute
            began = time.monotonic()
            await anyio.sleep(0.1)
            self.worst_delay = max(self.worst_delay, time.monotonic() - began - 0.1)
            witnesses = [trial.witness for trial in self._running.values()]
            now = sum(witness.entered and not witness.has_left for witness in witnesses)
            self.looks += 1
            self.open_then += now
            self.most_open = max(self.most_open, now)

    async def _give_up(self, scope: anyio.CancelScope, goes_on: Callable[[], bool]) -> None:
        while goes_on():
            await anyio.sleep(0.01)
        with anyio.move_on_after(PATIENCE):
            while self._running:
                await anyio.sleep(0.01)
        if not self._running:
            return
        self.violations += [f"{trial.program} cancelled by {trial.parts} hangs" for trial in self._running.values()]
        scope.cancel()

    async def _work(self, number: int, goes_on: Callable[[], bool]) -> None:
        chance = self._chances[number]
        pace.set(lambda: chance.uniform(0, self._pause))
        await anyio.sleep(chance.uniform(0, 5 * self._pause))  # not all at once
        while goes_on():
            program, parts = draw(chance, self._backend)
            self._running[number] = trial = Trial(program, parts)
            _here.set(trial.witness)
            self.counts["runs"] += 1
            await trial.perform(partial(self._disturb, trial, chance) if parts else None)
            del self._running[number]
            self._judge(trial)
            del trial

    async def _disturb(self, trial: Trial, chance: Random) -> None:
        for part in trial.parts:
            await anyio.sleep(chance.uniform(0, LONGEST * self._pause / len(trial.parts)))
            trial.act(part)

    def _judge(self, trial: Trial) -> None:
        """Count what came of a run, and keep what is wrong with it."""
        witness, program, counts = trial.witness, trial.program, self.counts
        how = f"{program}, cancelled by {trial.parts}" if trial.parts else str(program)
        self.violations += [f"{how}: {fault}" for fault in trial.broken_promises()]
        counts[program.guard] += 1
        faulty = program.fault or program.way == "error" or program.source in FAILING or trial.parts
        counts["with a fault"] += bool(faulty)
        counts["cancels"] += trial.acts
        counts["entered"] += witness.entered
        counts["tails"] += len(witness.ends)
        counts["hurried on"] += witness.hurried
        counts["opened"] += len(witness.resources)
        counts["closed"] += sum(resource.cleanups for resource in witness.resources)
        if witness.end is not None:
            counts[witness.end.reason.value] += 1

    def sums(self) -> list[str]:
        """What does not add up."""
        counts = self.counts
        pairs = (("opened", "closed"), ("entered", "tails"))
        return [
            f"{one}: {counts[one]}, {other}: {counts[other]}" for one, other in pairs if counts[one] != counts[other]
        ]


async def soak(options: argparse.Namespace) -> bool:
    """Go round for so long; whether anything is wrong."""
    collect_until_quiet()
    gc.freeze()  # walking what is older would only make the loop late
    soak = Soak(options.runs, options.seed)
    sizes: list[tuple[int, float]] = []
    began = time.monotonic()
    for part in ROUNDS:
        until = time.monotonic() + options.seconds * part
        await soak.go_round(lambda until=until: time.monotonic() < until)
        sizes.append((blocks(), heap()))
        size = f"{sizes[-1][0]:,} blocks, {sizes[-1][1]:.2f} MiB beside them in use, the process has {rss():.1f} MiB"
        say(f"  {time.monotonic() - began:.0f} s: {soak.counts['runs']:,} runs; {size}")
    say(f"  {dict(soak.counts)}")
    say(f"  open at once: {soak.most_open} at most, {soak.open_then / soak.looks:.0f} on average", end="; ")
    say(f"the loop was {soak.worst_delay:.2f} s late at worst")
    wrong = soak.violations + soak.sums()
    if options.seconds >= TELLING:
        (first_blocks, first_heap), (last_blocks, last_heap) = sizes[0], sizes[-1]
        if last_blocks > first_blocks * (1 + GROWTH):
            wrong.append(f"memory blocks grew from {first_blocks:,} to {last_blocks:,}")
        if last_heap > first_heap + GROWTH_OF_HEAP:
            wrong.append(f"what is in use beside them grew from {first_heap:.2f} MiB to {last_heap:.2f} MiB")
    say(f"  {len(wrong)} violations")
    for violation in wrong[:200]:
        say(f"  {violation}")
    return bool(wrong)


def say(text: str, end: str = "\n") -> None:
    sys.stdout.write(text + end)
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("backend", nargs="?", default="all")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    warnings.simplefilter("error")
    failed = False
    for each in chosen(options.backend):
        say(f"{each}: {options.runs} runs at a time for {options.seconds:g} s, seed {options.seed}")
        faulthandler.dump_traceback_later(options.seconds + 5 * PATIENCE, exit=True)
        failed |= run_on(each, partial(soak, options))
        faulthandler.cancel_dump_traceback_later()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
