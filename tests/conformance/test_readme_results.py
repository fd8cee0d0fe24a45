"""The README's block on stored results, run with a real SDK: without one it only defines a function."""

import gc
import re
import weakref
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, RunConfig, Runner
from agents.testing import ScriptedModel, assistant_message

from nothing_left import collect_until_quiet

README = Path(__file__).parents[2] / "README.md"

pytestmark = pytest.mark.anyio


async def test_stored_results() -> None:
    """The run is stored, its agent is gone, its name and its output are there."""
    (block,) = (block for block in python_blocks() if "ResultHistory(" in block)
    names: dict[str, Any] = {}
    exec(block, names)
    agent = Agent(name="writer", model=ScriptedModel([[assistant_message("The end.")]]))
    gone = weakref.ref(agent)
    run = Runner.run_streamed(agent, "Write.", run_config=RunConfig(tracing_disabled=True))
    del agent
    assert await names["answer"](run) == "The end."
    collect_until_quiet()
    gc.collect()
    assert gone() is None
    (entry,) = names["history"]
    assert entry.result is run
    assert entry.report.names == ("writer",)


def python_blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", README.read_text(), flags=re.DOTALL | re.MULTILINE)
