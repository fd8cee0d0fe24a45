"""Breaks out of very many streams, one after the other, and says what has grown.

``python -m stress.sequential [BACKEND [KIND [NUMBER]]]`` in ``tests``; the backend is asyncio, uvloop or trio, the kind
one of those below, or all of either. Exits with 1 if anything grew.
"""

import asyncio
import gc
import sys
import tracemalloc
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.lowlevel
import trio

from streamguard import guarded_chain, guarded_stream

BACKENDS = ("asyncio", "uvloop", "trio")
WARM_UP = 200
MOST_KIB = 1024
"""KiB by which memory may grow."""
MOST_TIMERS = 200
"""Timers that asyncio may keep although they are cancelled: it sweeps them out when they are many."""
MOST_OBJECTS = 100
"""Objects by which the collector's list may grow: what is made once, somewhere."""
DEADLINES = 1000
"""Deadlines that trio may keep although they have gone: it sweeps them out when they are many."""
OF_DEADLINES = (trio.CancelScope, tuple)


async def source() -> AsyncIterator[bytearray]:
    try:
        while True:
            yield bytearray(1000)
    finally:
        await anyio.lowlevel.checkpoint()


async def nested() -> AsyncIterator[bytearray]:
    async for item in source():
        yield item


async def in_tasks() -> AsyncIterator[bytearray]:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep_forever)
        async for item in source():
            yield item


KINDS: dict[str, Callable[[], Any]] = {
    "plain": lambda: guarded_stream(source()),
    "nested": lambda: guarded_stream(nested()),
    "in tasks": lambda: guarded_stream(in_tasks()),
    "prefetch": lambda: guarded_stream(source(), prefetch=3),
    "chain": lambda: guarded_chain(source(), nested()),
}


@dataclass(frozen=True)
class State:
    """What may grow."""

    objects: int
    tasks: int
    timers: int

    def since(self, before: "State") -> "State":
        return State(self.objects - before.objects, self.tasks - before.tasks, self.timers - before.timers)


def state() -> State:
    """What there is now."""
    while gc.collect():
        pass
    try:
        loop: Any = asyncio.get_running_loop()
    except RuntimeError:
        objects = sum(type(thing) not in OF_DEADLINES for thing in gc.get_objects())
        statistics = trio.lowlevel.current_statistics()
        return State(objects, statistics.tasks_living, 0 if statistics.seconds_to_next_deadline == float("inf") else 1)
    return State(len(gc.get_objects()), len(asyncio.all_tasks()), len(getattr(loop, "_scheduled", ())))


async def break_out(make: Callable[[], Any], number: int) -> None:
    """Open a stream, read one item and leave; so many times."""
    for _ in range(number):
        async with make() as stream:
            async for _item in stream:
                break


async def measure(kind: str, number: int) -> bool:
    """Break out of so many streams, and say what has grown; whether that was too much."""
    await break_out(KINDS[kind], WARM_UP)
    before = state()
    tracemalloc.start()
    try:
        await break_out(KINDS[kind], WARM_UP)  # what tracemalloc itself makes the first time
        start = _traced()
        tracemalloc.reset_peak()
        await break_out(KINDS[kind], number)
        _, peak = tracemalloc.get_traced_memory()
        more = (_traced() - start) / 1024
    finally:
        tracemalloc.stop()
    grown = state().since(before)
    at_the_peak = (peak - start) / 1024
    sys.stdout.write(f"  {kind}, {number} streams: {more:.1f} KiB more, {at_the_peak:.1f} KiB at the peak, {grown}\n")
    return more > MOST_KIB or grown.objects > MOST_OBJECTS or grown.tasks > 0 or grown.timers > MOST_TIMERS


def _traced() -> int:
    while gc.collect():
        pass
    return tracemalloc.get_traced_memory()[0]


def main(backend: str = "all", kind: str = "all", number: str = "100000") -> int:
    """Measure what is asked for; 1 if anything grew too much."""
    failed = False
    for each in BACKENDS if backend == "all" else (backend,):
        sys.stdout.write(f"{each}\n")
        name, options = ("trio", {}) if each == "trio" else ("asyncio", {"use_uvloop": each == "uvloop"})
        for one in KINDS if kind == "all" else (kind,):
            failed |= anyio.run(measure, one, int(number), backend=name, backend_options=options)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
