"""Runs small programs again and again, cancelled at the 1st, 2nd, 3rd ... point, until they end by themselves.

``python -m stress.every_cancellation [BACKEND [PART]]`` in ``tests``; the backend is asyncio, uvloop or trio, or all; a
part is a text that the program's name or kind of cancellation contains. Prints what was tried, and each promise that
was broken. Exits with 1 if one was.
"""

import asyncio
import faulthandler
import gc
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import trio

from .points import Points
from .programs import Program, programs
from .witness import Witness

BACKENDS = ("asyncio", "uvloop", "trio")
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
        if backend == "trio" and (self.turns or self.parts & {"native", "timeout", "closer"}):
            return False
        if "read" in self.parts and program.way != "reads":
            return False
        return not (self.parts & {"closer", "closer scope"} and program.way != "closed")


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
class Trial:
    """One run of a program, cancelled at one point."""

    program: Program
    kind: Kind
    at: int
    witness: Witness = field(default_factory=Witness)
    faults: list[str] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)
    """What was done before the program was at its end, so that it must tell."""
    outcome: str = ""
    helped: str = ""

    def __post_init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.outer = anyio.CancelScope()
        self.closer_scope = anyio.CancelScope()
        self.timeout: Any = None
        self.in_timeout = False
        self.task: Any = None
        self.helper: Any = None
        actions: dict[int, list[Callable[[], object]]] = {self.at: [lambda: self.act(self.kind.first)]}
        if self.kind.second:
            actions.setdefault(self.at + self.kind.gap, []).append(lambda: self.act(self.kind.second))
        self.points = Points(actions)

    def act(self, what: str) -> None:
        """Cancel the program, or whoever reads or closes for it."""
        match what:
            case "native":
                if self.task.cancel():
                    self.asked.add(what)
            case "closer":
                if self.helper.cancel():
                    self.asked.add(what)
            case "closer scope":
                self.closer_scope.cancel()
            case "read":
                if self.witness.read_scope is not None:
                    self.witness.read_scope.cancel()
            case "timeout":
                if self.in_timeout:
                    self.timeout.reschedule(0)
                    self._ask(what)
            case "scope":
                self.scope.cancel()
                self._ask(what)
            case "outer":
                self.outer.cancel()
                self._ask(what)

    def _ask(self, what: str) -> None:
        if not self.witness.at_its_end:
            self.asked.add(what)

    # -- the tasks

    async def consume(self) -> None:
        with ExitStack() as stack:
            if "outer" in self.kind.parts:
                stack.enter_context(self.outer)
            if "scope" in self.kind.parts:
                stack.enter_context(self.scope)
            if "timeout" in self.kind.parts:
                async with self.timeout:
                    self.in_timeout = True
                    try:
                        await self.program.run(self.witness)
                    finally:
                        self.in_timeout = False
            else:
                await self.program.run(self.witness)
        if self.asked and "native" not in self.asked and not trio.lowlevel.in_trio_task():
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                self.faults.append("the task's count of cancellations is not what it was")

    async def close_when_asked(self) -> None:
        with self.closer_scope:
            await self.witness.asked_to_close.wait()
            await self.witness.stream.aclose()

    async def run(self) -> None:
        self.witness.start()
        with self.points.turns() if self.kind.turns else self.points.steps():
            if trio.lowlevel.in_trio_task():
                await self._run_on_trio()
            else:
                await self._run_on_asyncio()
        self.witness.stop()
        gc.collect()

    async def _run_on_asyncio(self) -> None:
        loop = asyncio.get_running_loop()
        self.timeout = asyncio.timeout(None)
        self.helper = loop.create_task(self.close_when_asked())
        self.witness.expect(self.helper)
        self.task = loop.create_task(self.consume())
        self.witness.expect(self.task)
        await asyncio.wait([self.task])
        self.helper.cancel()
        await asyncio.wait([self.helper])
        self.outcome = self._outcome_of(self.task)
        self.helped = self._outcome_of(self.helper)

    @staticmethod
    def _outcome_of(task: "asyncio.Task[None]") -> str:
        if task.cancelled():
            return "cancelled"
        error = task.exception()
        return "returned" if error is None else repr(error)

    async def _run_on_trio(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._help_on_trio)
            for child in nursery.child_tasks:
                self.witness.expect(child)
            ended = trio.Event()
            nursery.start_soon(self._consume_on_trio, ended)
            await ended.wait()
            nursery.cancel_scope.cancel()

    async def _help_on_trio(self) -> None:
        await self.close_when_asked()
        self.helped = "returned"

    async def _consume_on_trio(self, ended: trio.Event) -> None:
        self.witness.expect(trio.lowlevel.current_task())
        try:
            await self.consume()
            self.outcome = "returned"
        except BaseException as error:
            self.outcome = repr(error)
            raise
        finally:
            ended.set()

    # -- the verdict

    def broken_promises(self) -> list[str]:
        faults = [*self.faults, *self.program.broken_promises(self.witness)]
        asked = self.asked
        expected = {"returned"}
        if "native" in asked:
            expected = {"cancelled"}
        elif "timeout" in asked:
            expected = {"TimeoutError()"}
        elif "timeout" in self.kind.parts:
            expected.add("TimeoutError()")  # it came with the last checkpoint
        if self.outcome not in expected:
            faults.append(f"the program {self.outcome}, not {expected}")
        if "returned" in expected and asked & {"scope", "outer"}:
            caught = self.scope.cancelled_caught or self.outer.cancelled_caught
            if not caught:
                faults.append("the scope's cancellation was eaten")
        if self.helped != "cancelled" and "closer" in asked:
            faults.append(f"the closer {self.helped}, not cancelled")
        return faults


@dataclass
class Count:
    """What was tried, and what came of it."""

    programs: int = 0
    points: int = 0
    cancels: int = 0
    violations: list[str] = field(default_factory=list)


async def try_every_point(program: Program, kind: Kind, count: Count) -> None:
    """Cancel a program at each of its points, one after the other, until it ends before it comes to the point."""
    count.programs += 1
    at = 0
    while True:
        at += 1
        trial = Trial(program, kind, at)
        await trial.run()
        faults = trial.broken_promises()
        count.violations += [f"{program}: {kind} at {at}: {fault}" for fault in faults]
        if trial.points.passed < at:
            return
        count.points += 1
        count.cancels += 2 if kind.second else 1


def cells(backend: str, kinds: list[Kind], part: str = "") -> Iterator[tuple[Program, Kind]]:
    """The programs, and how they are cancelled."""
    for program in programs(backend):
        for kind in kinds:
            if kind.suits(program, backend) and part in f"{program}: {kind}":
                yield program, kind


async def try_all(cells: Iterator[tuple[Program, Kind]], count: Count) -> None:
    while gc.collect():
        pass
    gc.freeze()  # what is older need not be walked each time
    for program, kind in cells:
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        await try_every_point(program, kind, count)
    faulthandler.cancel_dump_traceback_later()


@contextmanager
def deterministic() -> Iterator[None]:
    """Have trio step its tasks in the same order each time; it shuffles them."""
    from trio._core import _run

    before = _run._ALLOW_DETERMINISTIC_SCHEDULING
    _run._ALLOW_DETERMINISTIC_SCHEDULING = True
    try:
        yield
    finally:
        _run._ALLOW_DETERMINISTIC_SCHEDULING = before


def run(backend: str, cells: Iterator[tuple[Program, Kind]]) -> Count:
    """Try all cells on a backend."""
    count = Count()

    async def main() -> None:
        await try_all(cells, count)

    name = "trio" if backend == "trio" else "asyncio"
    options = {} if backend == "trio" else {"use_uvloop": backend == "uvloop"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        anyio.run(main, backend=name, backend_options=options)
    return count


def main(backend: str = "all", part: str = "") -> int:
    failed = False
    for each in BACKENDS if backend == "all" else (backend,):
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
