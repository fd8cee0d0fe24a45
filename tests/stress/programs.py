"""Small programs that consume one guarded stream: a kind of source, a way out, a kind of guard."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import anyio.lowlevel

from recording import Fault
from streamguard import Aclosing, CleanupError, CleanupTimeoutError, EndReason, guarded, guarded_chain, guarded_stream

from .witness import Witness, call_soon, pause, var

# -- sources


async def plain(witness: Witness, name: str, *, dropped: bool = False) -> AsyncGenerator[int, None]:
    async with witness.resource(f"{name}.source", dropped=dropped):
        for number in (1, 2, 3):
            await pause()
            yield number


async def nested(witness: Witness, name: str) -> AsyncGenerator[int, None]:
    async with witness.resource(f"{name}.outer"):
        async for item in _middle(witness, name):
            yield item


async def _middle(witness: Witness, name: str) -> AsyncGenerator[int, None]:
    async with witness.resource(f"{name}.middle"):
        async for item in plain(witness, name):
            yield item


async def dropping(witness: Witness, name: str) -> AsyncGenerator[int, None]:
    """Drops one inner generator while it runs, and goes on with another."""
    async with witness.resource(f"{name}.outer"):
        async for _ in plain(witness, f"{name}.first", dropped=True):
            break
        await pause()
        async for item in plain(witness, f"{name}.second"):
            yield item


async def in_task_group(witness: Witness, name: str) -> AsyncGenerator[int, None]:
    async with witness.resource(f"{name}.source"):
        async with anyio.create_task_group() as group:
            group.start_soon(_child, witness, name)
            await pause()
            for number in (1, 2, 3):
                yield number
                await pause()
            group.cancel_scope.cancel()


async def _child(witness: Witness, name: str) -> None:
    try:
        await anyio.sleep_forever()
    finally:
        witness.log.append(f"closed {name}.child")


async def in_native_group(witness: Witness, name: str) -> AsyncGenerator[int, None]:
    async with witness.resource(f"{name}.source"):
        async with asyncio.TaskGroup() as group:
            child = group.create_task(_child(witness, name))
            await pause()
            for number in (1, 2, 3):
                yield number
                await pause()
            child.cancel()


async def failing_child(witness: Witness, name: str) -> AsyncGenerator[int, None]:
    """A child of its task group fails when the body sets it off."""
    lit = anyio.Event()
    witness.fuse = lit.set

    async def fail() -> None:
        await lit.wait()
        witness.fail(Fault("child"))

    async with witness.resource(f"{name}.source"):
        async with anyio.create_task_group() as group:
            group.start_soon(fail)
            for number in (1, 2, 3):
                await pause()
                yield number
            group.cancel_scope.cancel()


async def in_timeout(witness: Witness, name: str) -> AsyncGenerator[int, None]:
    async with witness.resource(f"{name}.source"):
        with anyio.fail_after(60):
            for number in (1, 2, 3):
                await pause()
                yield number


async def in_native_timeout(witness: Witness, name: str) -> AsyncGenerator[int, None]:
    async with witness.resource(f"{name}.source"):
        async with asyncio.timeout(60):
            for number in (1, 2, 3):
                await pause()
                yield number


async def in_fired_scope(witness: Witness, name: str) -> AsyncGenerator[int, None]:
    """A scope around two items is cancelled when the body sets it off."""
    async with witness.resource(f"{name}.source"):
        with anyio.CancelScope() as scope:
            witness.fuse = scope.cancel
            witness.may_skip = True
            for number in (1, 2):
                await pause()
                yield number
        await pause()
        yield 3


async def in_fired_timeout(witness: Witness, name: str) -> AsyncGenerator[int, None]:
    """A native timeout around two items expires when the body sets it off."""
    async with witness.resource(f"{name}.source"):
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as timeout:

                def light() -> None:
                    with suppress(RuntimeError):  # it has expired, or its block is left
                        timeout.reschedule(0)

                witness.fuse = light
                witness.may_skip = True
                for number in (1, 2):
                    await pause()
                    yield number
        await pause()
        yield 3


async def impatient(witness: Witness, name: str) -> AsyncGenerator[int, None]:
    """Every item comes after a timeout of its own."""
    async with witness.resource(f"{name}.source"):
        for number in (1, 2, 3):
            with anyio.CancelScope() as scope:
                call_soon(scope.cancel)
                await anyio.sleep_forever()
            yield number


async def with_token(witness: Witness, name: str) -> AsyncGenerator[int, None]:
    token = var.set("inside")
    try:
        async with witness.resource(f"{name}.source"):
            for number in (1, 2, 3):
                await pause()
                yield number
    finally:
        var.reset(token)


async def with_lock(witness: Witness, name: str) -> AsyncGenerator[int, None]:
    async with witness.lock, witness.resource(f"{name}.source"):
        for number in (1, 2, 3):
            await pause()
            yield number


async def slow(witness: Witness, name: str) -> AsyncGenerator[int, None]:
    async with witness.resource(f"{name}.source", turns=6):
        await anyio.lowlevel.checkpoint()
        for number in (1, 2, 3):
            yield number


async def failing_cleanup(witness: Witness, name: str) -> AsyncGenerator[int, None]:
    async with witness.resource(f"{name}.source", turns=1, fails=True):
        for number in (1, 2, 3):
            await pause()
            yield number


async def failing_inside(witness: Witness, name: str) -> AsyncGenerator[int, None]:
    """An inner generator fails to close, the outer one as well."""
    async with witness.resource(f"{name}.outer", turns=1, fails=True):
        async for item in failing_cleanup(witness, name):
            yield item


async def failing(witness: Witness, name: str) -> AsyncGenerator[int, None]:
    async with witness.resource(f"{name}.source"):
        await pause()
        yield 1
        await pause()
        witness.fail(Fault("source"))


async def yielding(witness: Witness, name: str) -> AsyncGenerator[int, None]:
    """Yields in its `finally`, and goes on with its cleanup."""
    async with witness.resource(f"{name}.source"):
        try:
            for number in (1, 2, 3):
                await pause()
                yield number
        finally:
            yield 4
            await pause()


async def swallowing(witness: Witness, name: str) -> AsyncGenerator[int, None]:
    """Swallows a cancellation, and goes on."""
    async with witness.resource(f"{name}.source"):
        for number in (1, 2, 3):
            with suppress(anyio.get_cancelled_exc_class()):
                await pause()
            yield number


async def converting(witness: Witness, name: str) -> AsyncGenerator[int, None]:
    """Makes an error of its own of a cancellation."""
    async with witness.resource(f"{name}.source"):
        for number in (1, 2, 3):
            try:
                await pause()
            except anyio.get_cancelled_exc_class():
                witness.fail(Fault("converted"))
            yield number


class Handle:
    """A run handle without a run."""

    def __init__(self, witness: Witness, name: str) -> None:
        self._events = plain(witness, name)

    def stream_events(self) -> AsyncGenerator[int, None]:
        return self._events


class BackgroundRun:
    """A run handle with a run: in a task from the start, told to stop by `cancel`, never twice."""

    def __init__(self, witness: Witness, name: str) -> None:
        self._witness = witness
        self._name = name
        self._cancels = 0
        self.is_complete = False
        self._queue: asyncio.Queue[int | None] = asyncio.Queue()
        self.run_loop_task = asyncio.get_running_loop().create_task(self._run())

    @property
    def run_loop_exception(self) -> BaseException | None:
        task = self.run_loop_task
        return task.exception() if task.done() and not task.cancelled() else None

    def cancel(self) -> None:
        self._cancels += 1
        if self._cancels > 1:
            self._witness.note("the run was cancelled twice")
        self.run_loop_task.cancel()
        self.is_complete = True
        self._queue.put_nowait(None)

    async def stream_events(self) -> AsyncGenerator[int, None]:
        async with self._witness.resource(f"{self._name}.events"):
            while (item := await self._queue.get()) is not None:
                yield item

    async def _run(self) -> None:
        try:
            async with self._witness.resource(f"{self._name}.run"):
                for number in (1, 2, 3):
                    await pause()
                    self._queue.put_nowait(number)
        finally:
            self._queue.put_nowait(None)


class Manager:
    """A context manager that gives a generator."""

    def __init__(self, witness: Witness, name: str) -> None:
        self._witness = witness
        self._name = name
        self._resource = witness.resource(f"{name}.manager")

    async def __aenter__(self) -> AsyncGenerator[int, None]:
        await pause()
        await self._resource.__aenter__()
        return plain(self._witness, self._name)

    async def __aexit__(self, *details: Any) -> None:
        await self._resource.__aexit__(*details)


class Closable:
    """An iterator that is no generator."""

    def __init__(self, witness: Witness, name: str) -> None:
        self._resource = witness.resource(f"{name}.source")
        self._is_open = False
        self._number = 0

    def __aiter__(self) -> AsyncIterator[int]:
        return self

    async def __anext__(self) -> int:
        if not self._is_open:
            self._is_open = True
            await self._resource.__aenter__()
        await pause()
        self._number += 1
        if self._number > 3:
            self._resource.at_its_end = True
            raise StopAsyncIteration
        return self._number

    async def aclose(self) -> None:
        if self._is_open:
            await self._resource.__aexit__(GeneratorExit, GeneratorExit(), None)


class Iterable:
    """An iterable that makes a fresh iterator."""

    def __init__(self, witness: Witness, name: str) -> None:
        self._witness = witness
        self._name = name

    def __aiter__(self) -> AsyncIterator[int]:
        return plain(self._witness, self._name)


async def promised(witness: Witness, name: str) -> AsyncIterator[int]:
    await pause()
    return plain(witness, name)


async def hanging(witness: Witness, name: str) -> AsyncGenerator[int, None]:
    """Its cleanup takes as long as it may."""
    try:
        for number in (1, 2, 3):
            await pause()
            yield number
    finally:
        await anyio.sleep_forever()


Make = Callable[[Witness, str], Any]

SOURCES: dict[str, Make] = {
    "plain": plain,
    "nested": nested,
    "dropping": dropping,
    "in a task group": in_task_group,
    "failing child": failing_child,
    "in a timeout": in_timeout,
    "in a scope that fires": in_fired_scope,
    "impatient": impatient,
    "with a token": with_token,
    "with a lock": with_lock,
    "slow": slow,
    "failing cleanup": failing_cleanup,
    "failing inside": failing_inside,
    "failing": failing,
    "yielding": yielding,
    "swallowing": swallowing,
    "converting": converting,
    "handle": Handle,
    "manager": Manager,
    "closable": Closable,
    "iterable": Iterable,
    "awaitable": promised,
    "callable": lambda witness, name: lambda *_: plain(witness, name),
    "guard": lambda witness, name: guarded_stream(nested(witness, name)),
}
ON_ASYNCIO: dict[str, Make] = {
    "in a native group": in_native_group,
    "in a native timeout": in_native_timeout,
    "in a timeout that fires": in_fired_timeout,
    "run": BackgroundRun,
}
"""Sources that only asyncio has."""
HANGING: dict[str, Make] = {"hanging": hanging}
"""Sources that want a short limit, and a way out before their end."""
OWN_ERRORS: dict[str, tuple[type[BaseException], ...]] = {
    "yielding": (CleanupError,),
    "hanging": (CleanupTimeoutError,),
}
"""What streamguard itself raises for a kind of source."""

# -- ways out


@dataclass(frozen=True)
class Way:
    """How a block is left if nothing comes between, and how the stream then ended."""

    body: Callable[[Any, Witness], Awaitable[object]]
    reasons: frozenset[EndReason]
    options: dict[str, Any] = field(default_factory=dict)
    closers: int = 0
    """How many other tasks close the stream when the body asks for it, each a moment after the one before."""


async def read_on(stream: Any, witness: Witness) -> None:
    async for item in stream:
        witness.items.append(item)
        await pause()
        witness.fuse()


async def break_out(stream: Any, witness: Witness) -> None:
    async for item in stream:
        witness.items.append(item)
        await pause()
        witness.fuse()
        break


async def fail(stream: Any, witness: Witness) -> None:
    async for item in stream:
        witness.items.append(item)
        await pause()
        witness.fail(Fault("body"))


async def stop(stream: Any, witness: Witness) -> None:
    async for item in stream:
        witness.items.append(item)
        await pause()
        stream.stop()


async def stop_soon(stream: Any, witness: Witness) -> None:
    """Stopped from elsewhere while it is being read."""
    async for item in stream:
        witness.items.append(item)
        call_soon(stream.stop)


async def close_inside(stream: Any, witness: Witness) -> None:
    async for item in stream:
        witness.items.append(item)
        await stream.aclose()


async def be_closed(stream: Any, witness: Witness) -> None:
    """Closed by another task."""
    async for item in stream:
        witness.items.append(item)
        witness.asked_to_close.set()
        await pause()


async def be_closed_on_leaving(stream: Any, witness: Witness) -> None:
    """Closed by others when its block is being left already, or about to be."""
    async for item in stream:
        witness.items.append(item)
        witness.asked_to_close.set()
        break


async def never_read(stream: Any, witness: Witness) -> None:
    await pause()


async def read_in_scopes(stream: Any, witness: Witness) -> None:
    """Each read is in a scope of its own; a read that was cancelled is tried again."""
    while True:
        with anyio.CancelScope() as witness.read_scope:
            try:
                witness.items.append(await anext(stream))
            except StopAsyncIteration:
                break
    witness.read_scope = None


WAYS: dict[str, Way] = {
    "exhaust": Way(read_on, frozenset({EndReason.EXHAUSTED})),
    "break": Way(break_out, frozenset({EndReason.LEFT})),
    "error": Way(fail, frozenset()),
    "match": Way(read_on, frozenset({EndReason.MATCHED}), {"until": lambda item: item >= 2}),
    "stop": Way(stop, frozenset({EndReason.STOPPED})),
    "stop soon": Way(stop_soon, frozenset({EndReason.STOPPED, EndReason.EXHAUSTED})),
    "drain": Way(break_out, frozenset({EndReason.LEFT}), {"on_early_exit": "drain"}),
    "aclose": Way(close_inside, frozenset({EndReason.STOPPED})),
    "closed": Way(be_closed, frozenset({EndReason.STOPPED, EndReason.EXHAUSTED}), closers=1),
    "closed by two": Way(be_closed, frozenset({EndReason.STOPPED, EndReason.EXHAUSTED}), closers=2),
    "closed on leaving": Way(be_closed_on_leaving, frozenset({EndReason.STOPPED, EndReason.LEFT}), closers=2),
    "closed in the drain": Way(
        be_closed_on_leaving,
        frozenset({EndReason.STOPPED, EndReason.LEFT}),
        {"on_early_exit": "drain"},
        closers=2,
    ),
    "never": Way(never_read, frozenset({EndReason.LEFT})),
    "reads": Way(read_in_scopes, frozenset({EndReason.EXHAUSTED})),
}


async def hand_off(stream: Any, witness: Witness) -> None:
    async for item in stream:
        witness.items.append(item)
        await pause()
        if len(witness.items) == 1:
            stream.hand_off(plain(witness, "c"))


# -- faults beside those of sources and bodies


def _failing_predicate(option: str) -> Callable[[Witness], dict[str, Any]]:
    return lambda witness: {option: lambda _: witness.fail(Fault(option))}


def _failing_tail(witness: Witness) -> dict[str, Any]:
    async def tail(end: Any) -> None:
        await witness.tail(end)
        witness.tail_failed = True
        witness.fail(Fault("tail"))

    return {"tail": tail}


def _failing_cancel(witness: Witness) -> dict[str, Any]:
    async def cancel(*source: object) -> None:
        await witness.cancel(*source)
        witness.fail(Fault("cancel"))

    return {"cancel": cancel}


def _short_limit(witness: Witness) -> dict[str, Any]:
    """A close that hangs is cut soon; what else has the same limit does not wait."""
    return {"cleanup_timeout": 0.02, "tail": witness.tail_at_once, "cancel": witness.cancel_at_once}


FAULTS: dict[str, Callable[[Witness], dict[str, Any]]] = {
    "until fails": _failing_predicate("until"),
    "where fails": _failing_predicate("where"),
    "tail fails": _failing_tail,
    "cancel fails": _failing_cancel,
    "out of time": _short_limit,
}
"""Options of a guard that bring a fault."""


# -- guards


def _options(witness: Witness, way: Way) -> dict[str, Any]:
    return {"tail": witness.tail, "cancel": witness.cancel, **way.options}


def stream(make: Make, witness: Witness, way: Way) -> Any:
    return guarded_stream(make(witness, "a"), **_options(witness, way))


def ahead(make: Make, witness: Witness, way: Way) -> Any:
    return guarded_stream(make(witness, "a"), prefetch=2, **_options(witness, way))


def decorated(make: Make, witness: Witness, way: Way) -> Any:
    return guarded(**_options(witness, way))(lambda: make(witness, "a"))()


def chain(make: Make, witness: Witness, way: Way) -> Any:
    return guarded_chain(make(witness, "a"), lambda _: make(witness, "b"), **_options(witness, way))


def bare(make: Make, witness: Witness, way: Way) -> Any:
    return Aclosing(make(witness, "a"))


GUARDS: dict[str, Callable[[Make, Witness, Way], Any]] = {
    "stream": stream,
    "ahead": ahead,
    "decorated": decorated,
    "chain": chain,
    "bare": bare,
}
FOR_CHAINS: dict[str, Way] = {"hand off": Way(hand_off, frozenset({EndReason.EXHAUSTED}))}
"""Ways that only a chain has."""
BARE_SOURCES = ("plain", "with a token", "with a lock", "slow", "failing cleanup", "failing", "closable")
"""What an `Aclosing` makes its promise for."""
BARE_WAYS = ("exhaust", "break", "error", "never")


# -- programs


@dataclass(frozen=True)
class Program:
    """What consumes which source, in which guard, and how it leaves."""

    source: str
    way: str
    guard: str
    fault: str = ""

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.guard, self.source, self.way, self.fault)))

    @property
    def is_bare(self) -> bool:
        return self.guard == "bare"

    @property
    def closers(self) -> int:
        return WAYS[self.way].closers if self.way in WAYS else 0

    async def run(self, witness: Witness) -> None:
        """Run it to its end; errors that leave the block are only noted."""
        way = WAYS.get(self.way) or FOR_CHAINS[self.way]
        if self.fault:
            way = replace(way, options={**way.options, **FAULTS[self.fault](witness)})
        make = {**SOURCES, **ON_ASYNCIO, **HANGING}[self.source]
        block = witness.stream = GUARDS[self.guard](make, witness, way)
        try:
            await self._consume(block, way, witness)
        except Exception:  # noted
            witness.read_scope = None
        finally:
            if not self.is_bare:
                witness.end = block.end
        await pause()
        witness.at_its_end = True
        await anyio.lowlevel.checkpoint()

    async def _consume(self, block: Any, way: Way, witness: Witness) -> None:
        try:
            async with block as stream:
                witness.entered = True
                try:
                    await way.body(stream, witness)
                except BaseException as error:
                    witness.body = error
                    raise
        except BaseException as error:
            witness.leave(error)
            raise
        witness.leave(None)

    def broken_promises(self, witness: Witness) -> list[str]:
        way = WAYS.get(self.way) or FOR_CHAINS[self.way]
        faults = witness.broken_promises(set(way.reasons), may_raise=OWN_ERRORS.get(self.source, ()), bare=self.is_bare)
        if way.options.get("on_early_exit") == "drain" and not way.closers:
            faults += witness.wrong_drain()
        return faults


def programs(backend: str) -> list[Program]:
    """All programs that a backend can run."""
    sources = [*SOURCES, *(ON_ASYNCIO if backend != "trio" else ())]
    found = []
    for guard in GUARDS:
        ways = [*WAYS, *(FOR_CHAINS if guard == "chain" else ())]
        for source in BARE_SOURCES if guard == "bare" else sources:
            found += [Program(source, way, guard) for way in (BARE_WAYS if guard == "bare" else ways)]
    return found
