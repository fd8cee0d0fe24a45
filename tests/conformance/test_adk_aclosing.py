"""google-adk with our `Aclosing` in the place of `contextlib.aclosing`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"

# ADK's modules take the name when they are imported, so it is replaced in a new interpreter. Some of
# them take it from contextlib, whatever the first replacement says.
SCRIPT = """
import asyncio
import gc
import sys
from collections import Counter
from types import AsyncGeneratorType

import streamguard

opened = Counter()


class Counted(streamguard.Aclosing):
    def __init__(self, thing):
        opened["aclosing"] += 1
        super().__init__(thing)


if sys.argv[1] == "contextlib.aclosing":
    import contextlib

    contextlib.aclosing = Counted
import google.adk.utils.context_utils

if sys.argv[1] == "context_utils.Aclosing":
    google.adk.utils.context_utils.Aclosing = Counted
assert google.adk.utils.context_utils.Aclosing is Counted
assert "google.adk.agents" not in sys.modules

import offline_adk
import offline_wire


class Wire(offline_wire.Wire):
    def open(self):
        opened["calls"] += 1

    async def close(self):
        await super().close()
        opened["calls closed"] += 1


def find_order(number: str) -> str:
    return "lost in the mail"


def still_open():
    things = gc.get_objects()
    return [thing for thing in things if type(thing) is AsyncGeneratorType and thing.ag_frame]


async def turn(leave_early):
    agent = offline_adk.two_agents(Wire(), find_order)
    runner = await offline_adk.open_runner(agent)
    events = []
    async with Counted(offline_adk.start_turn(runner)) as stream:
        async for event in stream:
            events.append(event)
            if leave_early and event.is_final_response():
                break
    assert still_open() == []
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert opened["calls"] == opened["calls closed"]
    assert events[-1].author == "refunds"
    assert events[-1].content.parts[0].text == "Your money is on its way."


asyncio.run(turn(leave_early=False))
asyncio.run(turn(leave_early=True))
assert opened["calls"] == 6, opened
print(opened["aclosing"])
"""


@pytest.mark.parametrize("name", ["context_utils.Aclosing", "contextlib.aclosing"])
def test_turns(name: str) -> None:
    """A multi-agent turn and an early stop run as before and leave nothing open."""
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, name],
        env={**os.environ, "PYTHONPATH": str(EXAMPLES)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    # ADK opened many of ours itself, besides the two of the script.
    assert int(result.stdout) > 20
