"""What a guard takes besides CPU time: memory while it is open, memory after very many, time to import it."""

import gc
import statistics
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from contenders import numbers
from rows import Row, at_most, sized
from streamguard import guarded_stream
from timing import Spread

OPEN = 2_000
WARM_UP = 200

Opened = AbstractAsyncContextManager[AsyncIterator[int]]


async def measure(backend: str, streams: int) -> list[Row]:
    """Memory, as `tracemalloc` counts it after a collection; KiB are 1,024 bytes."""
    tracemalloc.start(1)
    try:
        grown = await _bytes_after(streams)
        guarded = await _bytes_while_open(lambda: guarded_stream(numbers(9)))
        bare = await _bytes_while_open(lambda: nullcontext(numbers(9)))
    finally:
        tracemalloc.stop()
    limit = 7 if backend == "trio" else 4
    return [
        sized(backend, "an open stream, its source not counted", (guarded - bare) / 1024, limit),
        sized(backend, f"{streams:,} streams, one after the other", grown / 1024, 1024),
    ]


async def _bytes_while_open(make: Callable[[], Opened]) -> float:
    """Of one stream of which one item was read, of very many that are open."""
    await _leave(await _enter(make, WARM_UP))
    before = _traced()
    entered = await _enter(make, OPEN)
    after = _traced()
    await _leave(entered)
    return (after - before) / OPEN


async def _enter(make: Callable[[], Opened], count: int) -> list[tuple[Opened, Any]]:
    entered = []
    for _ in range(count):
        block = make()
        stream: Any = await block.__aenter__()
        await anext(stream)
        entered.append((block, stream))
    return entered


async def _leave(entered: list[tuple[Opened, Any]]) -> None:
    for block, stream in entered:
        await block.__aexit__(None, None, None)
        await stream.aclose()


async def _bytes_after(streams: int) -> int:
    """By how much memory has grown after so many streams, each left at its first item."""
    await _read_first(WARM_UP)
    before = _traced()
    await _read_first(streams)
    return _traced() - before


async def _read_first(streams: int) -> None:
    for _ in range(streams):
        async with guarded_stream(numbers(9)) as stream:
            async for _ in stream:
                break


def _traced() -> int:
    while gc.collect():
        pass
    return tracemalloc.get_traced_memory()[0]


# -- the import

IMPORTS = {
    "anyio": "import anyio",
    "streamguard": "import streamguard",
    "anyio in use": "import anyio, asyncio, anyio._backends._asyncio",
    "streamguard in use": "import streamguard._stream, streamguard._asyncio, anyio._backends._asyncio",
}


def imports(rounds: int) -> tuple[Row, dict[str, float]]:
    """CPU milliseconds of each import, every time in a new interpreter, in turns; the row is the first two's."""
    seconds: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for _ in range(rounds + 1):
        for name, statement in IMPORTS.items():
            seconds[name].append(_import(statement))
    # The first round compiles.
    taken = {name: times[1:] for name, times in seconds.items()}
    ratio = Spread.of([ours / other for ours, other in zip(taken["streamguard"], taken["anyio"], strict=True)])
    millis = {name: statistics.median(times) * 1000 for name, times in taken.items()}
    micros = millis["streamguard"] * 1000, millis["anyio"] * 1000
    figures = ratio.median, ratio.low, ratio.high
    return Row("", "import streamguard", "x", *figures, at_most(1.35), "import anyio", *micros), millis


def _import(statement: str) -> float:
    program = f"import time; start = time.process_time()\n{statement}\nprint(time.process_time() - start)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return float(run.stdout)
