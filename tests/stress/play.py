"""Plays a list of operations on a guarded stream or chain, and on its `model`, and compares what comes of each.

The operations are played one after the other, from several tasks: after each, everything comes to rest before the next
one. So the model can say exactly what has to come of it, whatever the order.
"""

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import anyio
import trio
import trio.testing

from recording import Fault
from streamguard import CleanupError, StreamEnd, guarded_chain, guarded_stream
from turns import CleanupFault

from . import model
from .model import Options, Script
from .witness import Witness

MAIN = 0
ACTORS = 3
"""Tasks that read; the first one is in the block."""


@dataclass(frozen=True)
class Operation:
    """Something that is done to the stream, by the driver or by one of the actors."""

    what: str
    actor: int = -1
    script: Script | None = None

    def __str__(self) -> str:
        return f"{self.what} by {self.actor}" if self.actor >= 0 else self.what


@dataclass(frozen=True)
class Play:
    """What is played."""

    scripts: tuple[Script, ...]
    options: Options
    operations: tuple[Operation, ...]
    is_chain: bool = False
    makes_natively: bool = False


def name_of(error: BaseException | None) -> str | None:
    """What the model calls an error."""
    if error is None:
        return None
    if isinstance(error, anyio.get_cancelled_exc_class()):
        return "cancelled"
    if isinstance(error, Fault | CleanupFault):
        return f"{type(error).__name__} {error}"
    return type(error).__name__


def ended(end: StreamEnd[int], left_by: BaseException | None = None) -> model.Ended:
    """An end, as the model has it."""
    return model.Ended(
        end.reason.name,
        end.items,
        end.last,
        [str(name_of(error)) for error in end.cleanup_errors],
        name_of(left_by),
        [ended(member) for member in end.members],
    )


class Actor:
    """A task that does one thing after the other; its model does the same."""

    def __init__(self) -> None:
        self.result: object = None
        self.busy = False
        self.pending: Generator[None, None, int] | None = None
        """The model's read that waits."""
        self.scope: anyio.CancelScope | None = None
        self._operation = ""
        self._asked = anyio.Event()

    def ask(self, operation: str) -> None:
        self.busy = True
        self._operation = operation
        asked, self._asked = self._asked, anyio.Event()
        asked.set()

    async def next_operation(self) -> str:
        while not self.busy:
            await self._asked.wait()
        return self._operation

    def done(self, result: object) -> None:
        self.result = result
        self.busy = False


class Stage:
    """Where a play is played, with what is wrong so far."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.witness = Witness()
        self.faults: list[str] = []
        self.states: set[tuple[object, ...]] = set()
        self.steps: set[tuple[object, ...]] = set()
        """From which state to which, by which operation."""
        self._state: tuple[object, ...] = ()
        self.actors = [Actor() for _ in range(ACTORS)]
        self.scope = anyio.CancelScope()
        self.task: Any = None
        self.has_left = False
        self.left_by: BaseException | None = None
        self.stream: Any = None
        self.model: Any = None
        self._gates: dict[tuple[int, int], anyio.Event] = {}
        self._opened: dict[int, int] = {}
        self._fuses: dict[int, Any] = {}
        self._made = 0

    # -- the sources

    def source(self, script: Script) -> AsyncGenerator[int, None]:
        index, self._made = self._made, self._made + 1
        return self._behave(script, index)

    async def _behave(self, script: Script, index: int) -> AsyncGenerator[int, None]:
        async with self.witness.resource(f"{index}.source", turns=1, fails=script.cleanup == "fails"):
            try:
                with ExitStack() as stack:
                    scope = stack.enter_context(anyio.CancelScope()) if script.scope else None
                    if scope is not None:
                        self._fuses[index] = scope.cancel
                    gates = 0
                    for number, step in enumerate(script.steps):
                        match step:
                            case "gate":
                                gates += 1
                                await self._gate(index, gates).wait()
                            case "fail":
                                raise Fault(f"{index}.{number}")
                            case "stop":
                                self.stream.stop()
                            case _:
                                yield 100 * index + number
                self._fuses.pop(index, None)
                if scope is not None and scope.cancelled_caught:
                    if script.scope == "fails":
                        raise Fault(f"{index}.scope")
                    if script.scope == "goes on":
                        yield 100 * index + model.FROM_THE_SCOPE
            finally:
                if script.cleanup == "yields":
                    yield 100 * index + model.FROM_THE_CLEANUP

    def _gate(self, index: int, number: int) -> anyio.Event:
        gate = self._gates.setdefault((index, number), anyio.Event())
        if number <= self._opened.get(index, 0):
            gate.set()
        return gate

    def open_gate(self, index: int) -> None:
        self._opened[index] = self._opened.get(index, 0) + 1
        for number in range(1, self._opened[index] + 1):
            self._gate(index, number)

    # -- the tasks

    def _make(self) -> None:
        play, options = self.play, self.play.options
        keywords: dict[str, Any] = {
            "prefetch": options.prefetch,
            "tail": self.witness.tail,
            "on_early_exit": "drain" if options.drains else "close",
        }
        if options.until is not None:
            keywords["until"] = lambda item: item % 100 == options.until
        if options.skipped is not None:
            keywords["where"] = lambda item: item % 100 != options.skipped
        sources = [self.source(script) for script in play.scripts]
        if play.is_chain:
            self.stream = guarded_chain(*sources, **keywords)
            self.model = model.Chain(list(play.scripts), options)
        else:
            self.stream = guarded_stream(sources[0], **keywords)
            self.model = model.Stream(play.scripts[0], options)

    async def consume(self) -> None:
        """The task with the block: it does as it is told, until it leaves."""
        with self.scope:
            try:
                async with self.stream:
                    self.witness.entered = True
                    await self._obey_inside()
            except BaseException as error:
                self._leave(error)
                if not isinstance(error, Exception):
                    raise
            else:
                self._leave(None)

    def _leave(self, error: BaseException | None) -> None:
        self.witness.leave(error)
        self.has_left = True
        self.left_by = error
        self.actors[MAIN].busy = False

    async def _obey_inside(self) -> None:
        actor = self.actors[MAIN]
        while (operation := await actor.next_operation()) != "leave":
            if operation == "raise":
                raise Fault("body")
            actor.done(await self._do(actor, operation))

    async def obey(self, actor: Actor) -> None:
        """Another task: what a read raises does not end it."""
        while True:
            operation = await actor.next_operation()
            try:
                actor.done(await self._do(actor, operation))
            except (Fault, CleanupFault) as error:
                actor.done(name_of(error))

    async def _do(self, actor: Actor, operation: str) -> object:
        if operation == "aclose":
            return await self.stream.aclose()
        with anyio.CancelScope() as actor.scope:
            try:
                return await anext(self.stream)
            except StopAsyncIteration:
                return "end"
            except RuntimeError as error:
                if isinstance(error, CleanupError):
                    raise
                return "misuse"
        return "timed out"

    # -- the driver

    async def run(self) -> None:
        self.witness.start()
        self._make()
        try:
            if trio.lowlevel.in_trio_task():
                await self._run_on_trio()
            else:
                await self._run_on_asyncio()
        finally:
            self.witness.stop()
        self._compare_ends()

    async def _run_on_asyncio(self) -> None:
        loop = asyncio.get_running_loop()
        self.task = loop.create_task(self.consume())
        others = [loop.create_task(self.obey(actor)) for actor in self.actors[1:]]
        for task in (self.task, *others):
            self.witness.expect(task)
        await self._drive()
        await asyncio.wait([self.task])
        for task in others:
            task.cancel()
        await asyncio.wait(others)
        if self.left_by is not None and name_of(self.left_by) == "cancelled":
            if not (self.task.cancelled() or self.scope.cancelled_caught):
                self.faults.append("the cancellation was eaten")
        elif self.task.cancelled() or self.task.exception():
            self.faults.append(f"the task ended with {self.task}")

    async def _run_on_trio(self) -> None:
        async with trio.open_nursery() as nursery:
            for actor in self.actors[1:]:
                nursery.start_soon(self.obey, actor)
            nursery.start_soon(self.consume)
            for task in nursery.child_tasks:
                self.witness.expect(task)
            await self._drive()
            nursery.cancel_scope.cancel()
        if name_of(self.left_by) == "cancelled" and not self.scope.cancelled_caught:
            self.faults.append("the cancellation was eaten")

    async def _drive(self) -> None:
        await settle()
        for operation in self.play.operations:
            await self._play(operation)
        if self.actors[MAIN].busy:
            await self._play(Operation("stop"))
        await self._play(Operation("leave", MAIN))
        if not self.has_left:
            self.faults.append("the block cannot be left")
            self.scope.cancel()
            await settle()

    async def _play(self, operation: Operation) -> None:
        """Do one thing to the stream and to the model, and compare."""
        what, actor = operation.what, self.actors[operation.actor]
        if operation.actor >= 0 and (actor.busy or (operation.actor == MAIN and self.has_left)):
            return
        if what == "leave" and self.play.options.drains:
            for _ in range(10):
                await self._play(Operation("open"))
        if operation.actor >= 0:
            actor.result = None
            actor.ask("read" if what == "timed read" else what)
            await settle()
            if what == "timed read" and actor.busy and actor.scope is not None:
                actor.scope.cancel()
                await settle()
            expected = self._play_model_by(operation)
        else:
            result = self._do_at_once(operation)
            await settle()
            expected = self._play_model(operation)
            if result != expected:
                self.faults.append(f"{operation}: {result}, not {expected}")
        self._resume_models()
        self._compare(operation)

    def _do_at_once(self, operation: Operation) -> object:
        member = self._current()
        match operation.what:
            case "open" if member is not None:
                self.open_gate(member.index)
            case "fire" if member is not None and member.index in self._fuses:
                self._fuses[member.index]()
            case "stop":
                self.stream.stop()
            case "cancel":
                self.scope.cancel()
            case "cancel natively" if self.task is not None:
                self.task.cancel()
            case "then" | "hand off" if self.play.is_chain:
                add = self.stream.then if operation.what == "then" else self.stream.hand_off
                made = self._made
                source = self.source(operation.script)
                try:
                    add(source)
                except RuntimeError:
                    self._made = made
                    return "misuse"
        return None

    # -- the model

    def _current(self) -> model.Member | None:
        return self.model.member

    def _play_model(self, operation: Operation) -> object:
        member = self._current()
        match operation.what:
            case "open" if member is not None:
                member.open_gate()
            case "fire" if member is not None:
                member.fire()
            case "stop":
                self.model.stop()
            case "cancel":
                self._leave_model("cancelled")
            case "cancel natively" if self.task is not None:
                self._leave_model("cancelled")
            case "then" | "hand off" if self.play.is_chain:
                add = self.model.then if operation.what == "then" else self.model.hand_off
                try:
                    add(operation.script)
                except model.Misuse:
                    return "misuse"
        return None

    def _leave_model(self, body: str | None) -> None:
        if self.model.end is None:
            if self.actors[MAIN].pending is not None:
                self.actors[MAIN].pending.close()
                self.actors[MAIN].pending = None
            self.model.leave(body)

    def _play_model_by(self, operation: Operation) -> None:
        actor = self.actors[operation.actor]
        match operation.what:
            case "leave":
                self._leave_model(None)
            case "raise":
                self._leave_model("Fault body")
            case "aclose":
                self.model.aclose()
                self._expect(actor, None)
            case _:
                actor.pending = self.model.read()
                self._resume_model(actor)
                if operation.what == "timed read" and actor.pending is not None:
                    actor.pending.close()
                    actor.pending = None
                    self._expect(actor, "timed out")

    def _resume_models(self) -> None:
        """Let the reads of the model go on that may."""
        for actor in self.actors:
            if actor.pending is not None:
                self._resume_model(actor)

    def _resume_model(self, actor: Actor) -> None:
        assert actor.pending is not None
        try:
            next(actor.pending)
        except StopIteration as item:
            result: object = item.value
        except model.End:
            result = "end"
        except model.Misuse:
            result = "misuse"
        except model.Problem as problem:
            result = str(problem)
            if actor is self.actors[MAIN]:
                actor.pending = None
                self._leave_model(result)
                return
        else:
            return
        actor.pending = None
        self._expect(actor, result)

    def _expect(self, actor: Actor, result: object) -> None:
        if actor.busy or actor.result != result:
            real = "waits" if actor.busy else actor.result
            self.faults.append(f"actor {self.actors.index(actor)} was given {real}, not {result}")

    def _compare(self, operation: Operation) -> None:
        for number, actor in enumerate(self.actors):
            if actor.busy != (actor.pending is not None):
                self.faults.append(f"{operation}: actor {number} {'waits' if actor.busy else 'does not wait'}")
        if self.has_left != (self.model.end is not None):
            self.faults.append(f"{operation}: the block {'was' if self.has_left else 'was not'} left")
        member = self._current()
        busy = tuple(actor.busy for actor in self.actors)
        state = (self.has_left, len(self.model.members), busy, *(member.state if member is not None else ()))
        self.states.add(state)
        self.steps.add((self._state, operation.what, operation.actor, state))
        self._state = state

    def _compare_ends(self) -> None:
        self.faults += self.witness.wrong_resources()
        self.faults += self.witness.wrong_calls()
        if not self.has_left or self.model.end is None:
            return
        real = ended(self.stream.end, self.left_by)
        if real != self.model.end:
            self.faults.append(f"the end is\n  {real}, not\n  {self.model.end}")
        if [ended(end) for end in self.witness.ends] != [ended(self.stream.end)]:
            self.faults.append(f"the tail was told {self.witness.ends}")


async def settle() -> None:
    """Let every other task come to rest."""
    if trio.lowlevel.in_trio_task():
        for _ in range(2):
            await trio.testing.wait_all_tasks_blocked()
        return
    quiet = 0
    while quiet < 3:
        await asyncio.sleep(0)
        quiet = quiet + 1 if all(map(_rests, asyncio.all_tasks())) else 0


def _rests(task: Any) -> bool:
    waiter = task._fut_waiter
    return task is asyncio.current_task() or (waiter is not None and not waiter.done())
