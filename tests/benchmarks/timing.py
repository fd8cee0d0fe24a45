"""Timing: all contenders in one run, so that a ratio compares what met the same weather.

The rules kept here: CPU time; one ratio for each round, and the median of those; what one contender leaves to the
garbage collector, no other pays for.
"""

import gc
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

Case = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class Spread:
    """A median, and the quartiles around it."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> "Spread":
        return cls(*statistics.quantiles(values, n=4))


class Times:
    """CPU seconds that each contender took, round by round."""

    def __init__(self, seconds: dict[str, list[float]], count: int) -> None:
        self.seconds = seconds
        self.count = count

    def micros(self, name: str) -> float:
        """The median for one of `count` items, or streams."""
        return statistics.median(self.seconds[name]) / self.count * 1e6

    def ratio(self, name: str, base: str) -> Spread:
        """How many times as long as `base` it took, in the same round."""
        pairs = zip(self.seconds[name], self.seconds[base], strict=True)
        return Spread.of([one / other for one, other in pairs])


async def interleave(cases: dict[str, Case], count: int, rounds: int) -> Times:
    """Run each case once a round; `count` is what one run of a case is made of."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    order = list(cases.items())
    for _ in range(rounds + 1):
        for name, case in order:
            seconds[name].append(await cpu_seconds(case))
        order.append(order.pop(0))  # nobody always comes after the same one
    # The first round warms up.
    return Times({name: taken[1:] for name, taken in seconds.items()}, count)


async def cpu_seconds(case: Case) -> float:
    # The collector stays on: a case pays for the garbage that it makes.
    gc.collect()
    start = time.process_time()
    await case()
    return time.process_time() - start
