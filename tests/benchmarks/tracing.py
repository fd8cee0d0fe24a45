"""What tracking costs: for each item, for each generator that is started, and for each one that is left.

Run it with `python tests/benchmarks/tracing.py`; it takes some seconds.
"""

import asyncio
import platform
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import anyio.lowlevel
import trio
import uvloop

from streamguard.leaks import track

Case = Callable[[int], Awaitable[None]]
ROUNDS = 15
COUNT = 5_000


async def numbers(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number


async def items(count: int) -> None:
    async for _ in numbers(count):
        pass


async def started(count: int) -> None:
    for _ in range(count):
        async for _ in numbers(1):
            pass


async def left(count: int) -> None:
    for turn in range(count):
        async for _ in numbers(2):
            break
        if turn % 100 == 0:  # let the event loop close them
            await anyio.lowlevel.checkpoint()


async def medians(case: Case, count: int) -> tuple[float, float]:
    """Microseconds for one of `count`, without and with tracking, in turns, so that both meet the same weather."""
    plain: list[float] = []
    tracked: list[float] = []
    for _ in range(ROUNDS + 1):
        plain.append(await seconds(case, count))
        with track():
            tracked.append(await seconds(case, count))
    # The first round warms up.
    return statistics.median(plain[1:]) / count * 1e6, statistics.median(tracked[1:]) / count * 1e6


async def seconds(case: Case, count: int) -> float:
    start = time.process_time()
    await case(count)
    return time.process_time() - start


async def run(label: str) -> None:
    print(f"\n{label:<20}{'plain':>10}{'tracked':>10}{'more':>10}   us")
    for case, count in ((items, 20 * COUNT), (started, COUNT), (left, COUNT)):
        plain, tracked = await medians(case, count)
        print(f"  {case.__name__:<18}{plain:>10.3f}{tracked:>10.3f}{tracked - plain:>10.3f}")


def main() -> None:
    print(f"Python {platform.python_version()}, {platform.system()} {platform.machine()}; CPU time, median of {ROUNDS}")
    asyncio.run(run("asyncio"))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run("uvloop"))
    trio.run(run, "trio")


if __name__ == "__main__":
    sys.exit(main())
