"""One run of a program, what can be done to it meanwhile, and whether the promise was kept in spite of that."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import trio

from .programs import Program
from .witness import Witness, pause

NATIVE = frozenset({"native", "timeout", "closer"})
"""What only asyncio has."""


def suits(parts: Collection[str], program: Program, backend: str) -> bool:
    """Whether a program can be cancelled so."""
    if backend == "trio" and NATIVE.intersection(parts):
        return False
    if "read" in parts and program.way != "reads":
        return False
    return program.closers > 0 or not {"closer", "closer scope"}.intersection(parts)


@dataclass
class Trial:
    """One run of a program that may be cancelled by any of `parts`."""

    program: Program
    parts: Collection[str]
    witness: Witness = field(default_factory=Witness)
    faults: list[str] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)
    """What was done before the program was at its end, so that it must tell."""
    acts: int = 0
    """How often anything was done to it before its end."""
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
        self.has_ended = False
        """Whether nothing is left of the program but the last moments of its task."""
        self.too_late = False
        """Whether its task was cancelled there, where Python may or may not tell."""

    def act(self, what: str) -> None:
        """Cancel the program, or whoever reads or closes for it."""
        self.acts += not self.has_ended
        match what:
            case "native":
                self.too_late |= self.has_ended
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
        try:
            with ExitStack() as stack:
                if "outer" in self.parts:
                    stack.enter_context(self.outer)
                if "scope" in self.parts:
                    stack.enter_context(self.scope)
                if "timeout" in self.parts:
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
        finally:
            self.has_ended = True

    async def close_when_asked(self) -> None:
        """What may be cancelled itself."""
        with self.closer_scope:
            await self._close(0)

    async def _close(self, moments: int) -> None:
        await self.witness.asked_to_close.wait()
        for _ in range(moments):
            await pause()
        await self.witness.stream.aclose()
        self.witness.see_closed()

    async def run(
        self,
        around: AbstractContextManager[object] | None = None,
        disturb: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """Run the program alone, with everything watched; `around` it, or beside it, is what cancels it."""
        self.witness.start()
        with around or nullcontext():
            await self.perform(disturb)
        self.witness.stop()
        gc.collect()

    async def perform(self, disturb: Callable[[], Awaitable[object]] | None = None) -> None:
        """Run the program, beside others perhaps; `disturb` runs in a task of its own until the program ends."""
        helpers: list[Callable[[], Any]] = [self.close_when_asked]
        helpers += [partial(self._close, moments) for moments in range(1, self.program.closers)]
        if disturb is not None:
            helpers.append(disturb)
        if trio.lowlevel.in_trio_task():
            await self._run_on_trio(helpers)
        else:
            await self._run_on_asyncio(helpers)

    async def _run_on_asyncio(self, helpers: list[Callable[[], Any]]) -> None:
        loop = asyncio.get_running_loop()
        self.timeout = asyncio.timeout(None)
        tasks = [loop.create_task(helper()) for helper in helpers]
        self.helper = tasks[0]
        self.task = loop.create_task(self.consume())
        for task in (*tasks, self.task):
            self.witness.expect(task)
        await asyncio.wait([self.task])
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self.outcome = self._outcome_of(self.task)
        self.helped = self._outcome_of(self.helper)
        for task in tasks[1:]:
            if self._outcome_of(task) not in ("returned", "cancelled"):
                self.faults.append(f"who closes as well, or disturbs, {self._outcome_of(task)}")

    @staticmethod
    def _outcome_of(task: "asyncio.Task[None]") -> str:
        if task.cancelled():
            return "cancelled"
        error = task.exception()
        return "returned" if error is None else repr(error)

    async def _run_on_trio(self, helpers: list[Callable[[], Any]]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._help_on_trio)
            for helper in helpers[1:]:
                nursery.start_soon(helper)
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
        """What is wrong."""
        faults = [*self.faults, *self.program.broken_promises(self.witness)]
        if not self.too_late and not self._is_pythons_own():
            faults += self._wrong_outcome()
        return faults

    def _is_pythons_own(self) -> bool:
        """Whether cancellations met in the reader's own task, in a cleanup: which one leaves is not for us to say."""
        return self.program.is_bare and (self.witness.eats_cancellations or len(self.asked) > 1)

    def _wrong_outcome(self) -> list[str]:
        asked, faults = self.asked, []
        expected = {"returned"}
        if "native" in asked:
            expected = {"cancelled"}
        elif "timeout" in asked:
            expected = {"TimeoutError()"}
        elif "timeout" in self.parts:
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
