"""What a guard costs, per item and per stream: `nox -s bench`.

CPU time, medians of interleaved rounds. Compare the ratios; the microseconds are this machine's.
"""

import asyncio
import contextlib
import os
import platform
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from importlib.metadata import version

import anyio
import trio

from streamguard import Aclosing, guarded_stream

ROUNDS = 9
ITEMS = 4000
STREAMS = 300
BACKENDS = {
    "asyncio": ("asyncio", {"use_uvloop": False}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}

Case = Callable[[int], Awaitable[None]]


async def numbers(count: int) -> AsyncGenerator[int, None]:
    for number in range(count):
        yield number


async def bare(count: int) -> None:
    async for _ in numbers(count):
        pass


async def with_contextlib(count: int, read: int = sys.maxsize) -> None:
    async with contextlib.aclosing(numbers(count)) as stream:
        async for number in stream:
            if number == read:
                break


async def with_aclosing(count: int, read: int = sys.maxsize) -> None:
    async with Aclosing(numbers(count)) as stream:
        async for number in stream:
            if number == read:
                break


async def with_guard(count: int, read: int = sys.maxsize) -> None:
    async with guarded_stream(numbers(count)) as stream:
        async for number in stream:
            if number == read:
                break


async def with_memory_stream(count: int, read: int = sys.maxsize) -> None:
    """The usual way to let a task of its own feed a loop."""
    send, receive = anyio.create_memory_object_stream[int](0)

    async def feed() -> None:
        async with send, contextlib.aclosing(numbers(count)) as stream:
            async for number in stream:
                await send.send(number)

    async with anyio.create_task_group() as group, receive:
        group.start_soon(feed)
        async for number in receive:
            if number == read:
                group.cancel_scope.cancel()
                break


async def floor_asyncio(count: int) -> None:
    """The least that two tasks need to hand over one item: two bare futures."""
    new = asyncio.get_running_loop().create_future
    asked, given = new(), new()

    async def feed() -> None:
        nonlocal asked
        for number in range(count):
            await asked
            asked = new()
            given.set_result(number)

    feeder = asyncio.create_task(feed())
    for _ in range(count):
        asked.set_result(None)
        await given
        given = new()
    await feeder


async def floor_trio(count: int) -> None:
    """The same on trio: each task wakes the other and waits."""
    reader = trio.lowlevel.current_task()

    def abort(_: object) -> trio.lowlevel.Abort:
        return trio.lowlevel.Abort.SUCCEEDED

    async def feed() -> None:
        for _ in range(count):
            await trio.lowlevel.wait_task_rescheduled(abort)
            trio.lowlevel.reschedule(reader)

    feeder = trio.lowlevel.spawn_system_task(feed)
    await anyio.wait_all_tasks_blocked()
    for _ in range(count):
        trio.lowlevel.reschedule(feeder)
        await trio.lowlevel.wait_task_rescheduled(abort)


def left_early(case: Callable[[int, int], Awaitable[None]]) -> Case:
    async def streams(count: int) -> None:
        for _ in range(count):
            await case(10, 2)

    return streams


async def medians(cases: dict[str, Case], count: int) -> dict[str, float]:
    """Microseconds for one of `count`, each case once a round, so that all meet the same weather."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(ROUNDS + 1):
        for name, case in cases.items():
            start = time.process_time()
            await case(count)
            seconds[name].append(time.process_time() - start)
    # The first round warms up.
    return {name: statistics.median(taken[1:]) / count * 1e6 for name, taken in seconds.items()}


def show(title: str, micros: dict[str, float], bases: list[str]) -> None:
    print(f"\n{title:<34}" + "".join(f"{'x ' + base:>14}" for base in bases) + f"{'us':>9}")
    for name, value in micros.items():
        ratios = "".join(f"{value / micros[base]:>14.2f}" for base in bases)
        print(f"  {name:<32}{ratios}{value:>9.2f}")


async def run(label: str, backend: str) -> None:
    per_item: dict[str, Case] = {
        "bare": bare,
        "aclosing": with_contextlib,
        "Aclosing": with_aclosing,
        "floor": floor_trio if backend == "trio" else floor_asyncio,
        "guarded_stream": with_guard,
        "anyio memory stream": with_memory_stream,
    }
    show(f"{label}, one item", await medians(per_item, ITEMS), ["bare", "floor"])
    per_stream = {
        "aclosing": left_early(with_contextlib),
        "Aclosing": left_early(with_aclosing),
        "guarded_stream": left_early(with_guard),
        "anyio memory stream": left_early(with_memory_stream),
    }
    show(f"{label}, one stream left at item 3", await medians(per_stream, STREAMS), ["aclosing"])


def main() -> None:
    names = ["streamguard-aio", "anyio", "trio", "uvloop"]
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    print(f"{platform.python_implementation()} {platform.python_version()}, {versions}")
    print(f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores")
    print(f"CPU time, medians of {ROUNDS} interleaved rounds")
    for label, (backend, options) in BACKENDS.items():
        anyio.run(run, label, backend, backend=backend, backend_options=options)


if __name__ == "__main__":
    main()
