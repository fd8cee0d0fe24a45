"""What a guard costs in CPU time, per item and per stream, on one event loop."""

from collections.abc import Iterator

from contenders import (
    ALL,
    BLOCKS,
    BUFFER,
    Contender,
    Source,
    bare,
    floor,
    floor_ahead,
    memory_stream,
    numbers,
    paused,
    safe_channel,
)
from rows import Row, compared, faster, slower
from streamguard import Aclosing
from timing import Case, Times, interleave

MEMORY = "anyio memory stream"
MEMORY_64 = "anyio memory stream, buffer 64"
SAFE = "trio.as_safe_channel"
CONTEXTLIB = "contextlib.aclosing"
AHEAD = "floor ahead"

# So many that one turn takes some milliseconds: after a collection the first of them are slower.
MANY_ITEMS = 10_000
BUFFERED_ITEMS = 5_000
ITEMS = 2_000
MANY_STREAMS = 1_000
STREAMS = 150

PREFETCHED, CHAINED, SKIPPED = "prefetch=64", "guarded_chain", "where"
SHAPES = {
    "1 item, to its end": (1, ALL),
    "3 items, to their end": (3, ALL),
    "1 item of 10, then left": (10, 0),
    "3 items of 10, then left": (10, 2),
}


def items(contender: Contender, source: Source, count: int) -> Case:
    """One stream of so many items."""
    return lambda: contender(source, count, ALL)


def streams(contender: Contender, shape: str, count: int) -> Case:
    """So many streams, one after the other."""
    made, read = SHAPES[shape]

    async def case() -> None:
        for _ in range(count):
            await contender(numbers, made, read)

    return case


async def measure(backend: str, rounds: int) -> list[Row]:
    assert await _is_handed_out()
    rows = list(_loops(backend, await _time_loops(3 * rounds)))  # short, and held to a narrow bar
    rows += _ahead(backend, await _time_ahead(backend, rounds))
    for label, source in (("", numbers), (", each after a sleep(0)", paused(backend))):
        rows += _tasks(backend, label, await _time_tasks(backend, source, rounds))
    for shape in SHAPES:
        rows += _blocks(backend, shape, await _time_blocks(shape, 2 * rounds))
        rows += _streams(backend, shape, await _time_streams(backend, shape, rounds))
    return rows


async def _is_handed_out() -> bool:
    given = numbers(0)
    async with Aclosing(given) as stream:
        return stream is given


async def _time_loops(rounds: int) -> Times:
    names = {"bare": bare} | {name: BLOCKS[name] for name in ("Aclosing", PREFETCHED, SKIPPED)}
    return await interleave({name: items(one, numbers, MANY_ITEMS) for name, one in names.items()}, MANY_ITEMS, rounds)


def _loops(backend: str, times: Times) -> Iterator[Row]:
    yield slower(backend, "Aclosing, an item (of the same object)", times, "Aclosing", "bare", 1.02)
    yield slower(backend, "guarded_stream(prefetch=64), an item", times, PREFETCHED, "bare", 3.5)
    yield slower(backend, "an item that `where` skips", times, SKIPPED, "bare", 2.5)


async def _time_ahead(backend: str, rounds: int) -> Times:
    names = {PREFETCHED: BLOCKS[PREFETCHED], MEMORY_64: memory_stream(BUFFER)}
    names |= {"bare": bare, AHEAD: floor_ahead(backend)}
    cases = {name: items(one, numbers, BUFFERED_ITEMS) for name, one in names.items()}
    return await interleave(cases, BUFFERED_ITEMS, rounds)


def _ahead(backend: str, times: Times) -> Iterator[Row]:
    yield faster(backend, "guarded_stream(prefetch=64), an item", times, PREFETCHED, MEMORY_64, 10)
    yield compared(backend, "guarded_stream(prefetch=64), an item", times, PREFETCHED, AHEAD)
    yield compared(backend, "the floor ahead, an item", times, AHEAD, "bare")
    yield compared(backend, "an anyio memory stream with a buffer of 64, an item", times, MEMORY_64, "bare")


async def _time_tasks(backend: str, source: Source, rounds: int) -> Times:
    names = {"floor": floor(backend), MEMORY: memory_stream(0)}
    names |= {name: BLOCKS[name] for name in ("guarded_stream", CHAINED)}
    if backend == "trio":
        names[SAFE] = safe_channel
    return await interleave({name: items(one, source, ITEMS) for name, one in names.items()}, ITEMS, rounds)


def _tasks(backend: str, label: str, times: Times) -> Iterator[Row]:
    what = f"guarded_stream, an item{label}"
    yield slower(backend, what, times, "guarded_stream", "floor", 1.25 if backend == "uvloop" else 1.15)
    if backend == "trio":
        yield faster(backend, what, times, "guarded_stream", SAFE, 1.35)
    else:
        yield faster(backend, what, times, "guarded_stream", MEMORY, 2.2 if backend == "uvloop" else 1.9)
    if not label:
        yield slower(backend, "guarded_chain, an item", times, CHAINED, "guarded_stream", 1.1)


async def _time_blocks(shape: str, rounds: int) -> Times:
    contenders = {"Aclosing": BLOCKS["Aclosing"], CONTEXTLIB: BLOCKS[CONTEXTLIB]}
    cases = {name: streams(one, shape, MANY_STREAMS) for name, one in contenders.items()}
    return await interleave(cases, MANY_STREAMS, rounds)


def _blocks(backend: str, shape: str, times: Times) -> Iterator[Row]:
    yield slower(backend, f"Aclosing, a stream: {shape}", times, "Aclosing", CONTEXTLIB, 1.4)


async def _time_streams(backend: str, shape: str, rounds: int) -> Times:
    contenders = {"guarded_stream": BLOCKS["guarded_stream"], MEMORY: memory_stream(0)}
    if backend == "trio":
        contenders[SAFE] = safe_channel
    return await interleave({name: streams(one, shape, STREAMS) for name, one in contenders.items()}, STREAMS, rounds)


def _streams(backend: str, shape: str, times: Times) -> Iterator[Row]:
    what = f"guarded_stream, a stream: {shape}"
    if backend == "trio":
        yield faster(backend, what, times, "guarded_stream", SAFE, 1.6)
    else:
        yield faster(backend, what, times, "guarded_stream", MEMORY, 2.3)
