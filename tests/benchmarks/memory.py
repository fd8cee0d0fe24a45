"""What stored results of agent runs cost, with their agents and without.

Every turn makes two agents of its own, as a server does for each request. The chat loop counts what Python has
allocated, by `tracemalloc` after a collection; the long one the most that the process ever had. It takes some minutes.
"""

import asyncio
import gc
import platform
import resource
import tracemalloc
import weakref
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, ClassVar

from agents import Agent, Runner, RunResultStreaming, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call

from streamguard import ResultHistory, guarded_stream

TURNS = 1_000
MANY_TURNS = 10_000
KEPT = 1_000


class Desk:
    """Two agents, made for one turn: a planner hands off to a writer, who has a tool."""

    alive: ClassVar = weakref.WeakSet[Any]()
    """Each is held by the writer's tool: it lives as long as its agents do, and is hashable, unlike them."""

    def __init__(self) -> None:
        def search(text: str) -> str:
            """Searches the library."""
            return f"{self}: {text}"

        self.alive.add(self)
        call, answer = function_call("search", {"text": "it"}, call_id="2"), assistant_message("That is it.")
        hand_off = function_call("transfer_to_writer", {}, call_id="1")
        writer = Agent(name="writer", model=ScriptedModel([[call], [answer]]), tools=[function_tool(search)])
        self.planner = Agent(name="planner", model=ScriptedModel([[hand_off]]), handoffs=[writer])


async def turn(number: int) -> RunResultStreaming:
    """One question and its answer."""
    async with guarded_stream(Runner.run_streamed(Desk().planner, f"Question {number}")) as stream:
        async for _ in stream:
            pass
    return stream.end.source


def megabytes() -> float:
    while gc.collect():
        pass
    return tracemalloc.get_traced_memory()[0] / 1e6


async def chat(label: str, store: Callable[[RunResultStreaming], object], kept: Any) -> None:
    before = megabytes()
    for number in range(TURNS):
        store(await turn(number))
    await asyncio.sleep(0)  # the last run's task has its last turn
    grown = megabytes() - before
    print(f"  {label:<24}{len(kept):>10}{2 * len(Desk.alive):>10}{grown:>10.1f}")


async def flat() -> None:
    history = ResultHistory[RunResultStreaming](maxlen=KEPT)
    most = 0
    for number in range(1, MANY_TURNS + 1):
        history.append(await turn(number))
        most = max(most, len(Desk.alive))  # without a collection of ours
        if number % (MANY_TURNS // 10) == 0:
            await asyncio.sleep(0)
            while gc.collect():
                pass
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # KiB on Linux
            print(f"  {number:>10}{len(history):>10}{2 * most:>16}{2 * len(Desk.alive):>16}{peak:>12.0f}")
            most = 0


async def chats() -> None:
    print(f"\nA chat loop of {TURNS} turns, all results stored\n")
    print(f"  {'':<24}{'results':>10}{'agents':>10}{'MB':>10}")
    plain: list[RunResultStreaming] = []
    await chat("a list", plain.append, plain)
    plain.clear()
    released = ResultHistory[RunResultStreaming]()
    await chat("ResultHistory()", released.append, released)


async def main() -> None:
    await turn(0)  # what is imported and cached at the first run counts for nobody
    await asyncio.sleep(0)
    gc.collect()
    gc.freeze()
    print(f"\n{MANY_TURNS} turns through ResultHistory(maxlen={KEPT})\n")
    print(f"  {'turns':>10}{'results':>10}{'agents at most':>16}{'after gc':>16}{'peak MiB':>12}")
    await flat()
    tracemalloc.start(1)
    await chats()


if __name__ == "__main__":
    names = ["streamguard-aio", "openai-agents", "anyio"]
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    print(f"{platform.python_implementation()} {platform.python_version()}, {versions}")
    print(f"{platform.system()} {platform.machine()}")
    set_tracing_disabled(True)
    asyncio.run(main())
