"""What guarding a real agent turn costs: google-adk with an offline model, 20 events."""

import contextlib
import functools
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from rows import Row, slower
from streamguard import Aclosing, guarded_stream
from timing import interleave

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "examples"))

import anyio.lowlevel
import google.adk.utils.context_utils
from google.adk.agents import LlmAgent
from google.adk.runners import InMemoryRunner

from offline_adk import OfflineModel, answer, open_runner, start_turn
from offline_wire import Wire

logging.getLogger("google_adk").setLevel(logging.ERROR)

EVENTS = 20
TURNS = 2
"""In one round."""


class QuickWire(Wire):
    """Waits for a turn of the loop, not for time."""

    async def receive(self, piece: object) -> None:
        await anyio.lowlevel.checkpoint()

    async def close(self) -> None:
        await anyio.lowlevel.checkpoint()


async def new_runner() -> InMemoryRunner:
    pieces = [f"piece {number}" for number in range(EVENTS - 1)]  # and then the whole of it
    model = OfflineModel(model="offline", wire=QuickWire(), replies=[answer(*pieces)])
    return await open_runner(LlmAgent(name="writer", model=model))


async def bare() -> None:
    for _ in range(TURNS):
        events = 0
        async for _ in start_turn(await new_runner()):
            events += 1
        assert events == EVENTS


async def guarded() -> None:
    for _ in range(TURNS):
        async with guarded_stream(start_turn(await new_runner())) as stream:
            async for _ in stream:
                pass
        assert stream.end.items == EVENTS


async def with_our_aclosing() -> None:
    with replaced():
        await bare()


THEIRS = google.adk.utils.context_utils.Aclosing


@contextlib.contextmanager
def replaced() -> Iterator[None]:
    """ADK's `Aclosing`, which is contextlib's, is ours, wherever a module of ADK has it by a name."""
    places = _places()
    for module, name in places:
        setattr(module, name, Aclosing)
    try:
        yield
    finally:
        for module, name in places:
            setattr(module, name, THEIRS)


@functools.cache  # the search takes longer than a turn
def _places() -> list[tuple[ModuleType, str]]:
    modules = [sys.modules[name] for name in sys.modules if name == "contextlib" or name.startswith("google.adk")]
    places = [(module, name) for module in modules for name, thing in vars(module).items() if thing is THEIRS]
    assert len(places) > 10
    return places


async def measure(backend: str, rounds: int) -> list[Row]:
    cases: dict[str, Any] = {"bare": bare, "guarded": guarded, "our Aclosing": with_our_aclosing}
    times = await interleave(cases, TURNS, rounds)
    what = f"an ADK turn of {EVENTS} events"
    return [
        slower(backend, f"{what}, guarded", times, "guarded", "bare", 1.05),
        slower(backend, f"{what}, `Aclosing` ours", times, "our Aclosing", "bare", 1.05),
    ]
