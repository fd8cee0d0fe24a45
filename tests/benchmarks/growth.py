"""How cost grows: many streams at once, deep nesting, much to close.

The slope is that of a straight line through the total times, both axes logarithmic: 1 is linear, 2 quadratic. What is
there but once makes it smaller, so it is taken over the larger sizes only.
"""

import math
import statistics
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

from contenders import numbers
from streamguard import guarded_chain, guarded_stream
from timing import cpu_seconds

Story = Callable[[int], Awaitable[None]]

LINEAR = 1.1
"""The slope up to which we speak of linear growth: caches and clocks are not ideal."""


@dataclass(frozen=True)
class Growth:
    """Microseconds for one of so many."""

    backend: str
    what: str
    micros: list[tuple[int, float]]
    """So many, and microseconds."""
    slope: float

    @property
    def is_linear(self) -> bool:
        return self.slope <= LINEAR


async def at_once(count: int) -> None:
    """Streams that are all open, each read once, then all left."""
    streams = [guarded_stream(numbers(2)) for _ in range(count)]
    for stream in streams:
        await stream.__aenter__()
        await anext(stream)
    for stream in streams:
        await stream.__aexit__(None, None, None)


async def first_of(source: AsyncGenerator[int, None]) -> None:
    async with guarded_stream(source) as stream:
        async for _ in stream:
            break


async def nested_generators(depth: int) -> None:
    """Generators inside each other, closed by one guard around them."""

    async def level(number: int) -> AsyncGenerator[int, None]:
        async for item in level(number - 1) if number > 1 else numbers(2):
            yield item

    await first_of(level(depth))


async def nested_guards(depth: int) -> None:
    """Guards inside each other, each in the source of the next."""

    async def level(number: int) -> AsyncGenerator[int, None]:
        async with guarded_stream(level(number - 1) if number > 1 else numbers(2)) as stream:
            async for item in stream:
                yield item

    await first_of(level(depth))


async def _start(count: int) -> list[AsyncGenerator[int, None]]:
    generators = [numbers(2) for _ in range(count)]
    for generator in generators:
        await anext(generator)
    return generators


async def inner_at_close(count: int) -> None:
    """Inner generators that the source drops when it is closed."""

    async def source() -> AsyncGenerator[int, None]:
        held = await _start(count)
        yield len(held)

    await first_of(source())


async def inner_while_read(count: int) -> None:
    """Inner generators that the source drops while it runs."""

    async def source() -> AsyncGenerator[int, None]:
        (await _start(count)).clear()
        yield 1

    await first_of(source())


async def members(count: int) -> None:
    """Members of one chain."""
    async with guarded_chain(*[numbers(1) for _ in range(count)]) as chain:
        async for _ in chain:
            pass


STORIES: list[tuple[str, Story, tuple[int, ...]]] = [
    ("streams open at once", at_once, (1, 10, 100, 1_000, 10_000)),
    ("generators nested in one another", nested_generators, (1, 2, 5, 10, 20)),
    ("guards nested in one another", nested_guards, (1, 2, 5, 10, 20)),
    ("inner generators, dropped by the close", inner_at_close, (1, 10, 100, 1_000)),
    ("inner generators, dropped before", inner_while_read, (1, 10, 100, 1_000)),
    ("members of a chain", members, (1, 10, 100, 1_000)),
]


async def measure(backend: str, rounds: int, largest: int) -> list[Growth]:
    return [
        await _grow(backend, what, story, [size for size in sizes if size <= largest], rounds)
        for what, story, sizes in STORIES
    ]


async def _grow(backend: str, what: str, story: Story, sizes: list[int], rounds: int) -> Growth:
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(rounds + 1):
        for size in sizes:
            seconds[size].append(await _one(story, size))
    # The first round warms up.
    medians = {size: statistics.median(taken[1:]) for size, taken in seconds.items()}
    micros = [(size, median / size * 1e6) for size, median in medians.items()]
    return Growth(backend, what, micros, _slope({size: medians[size] for size in sizes[len(sizes) // 2 :]}))


async def _one(story: Story, size: int) -> float:
    """Seconds of one story; small ones are told several times, to be long enough for the clock."""
    times = max(1, 50 // size)

    async def case() -> None:
        for _ in range(times):
            await story(size)

    return await cpu_seconds(case) / times


def _slope(seconds: dict[int, float]) -> float:
    fit = statistics.linear_regression([math.log(size) for size in seconds], [math.log(s) for s in seconds.values()])
    return fit.slope


def line(growth: Growth) -> str:
    per_unit = "".join(f"{size:>8,}: {micros:<8.1f}" for size, micros in growth.micros)
    verdict = "linear" if growth.is_linear else "FASTER THAN LINEAR"
    return f"{growth.backend:<9}{growth.what:<42}slope {growth.slope:<6.2f}{verdict:<10}{per_unit}"
