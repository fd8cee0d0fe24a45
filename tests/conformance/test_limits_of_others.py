"""What a guard cannot change in others' code, as `docs/limits.md` says it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any

import anyio
import httpx
import httpx2
import pytest
from agents import Agent, RunConfig, Runner, RunResultStreaming, function_tool
from agents.testing import ScriptedModel, function_call
from sse_server import Server

from streamguard import guarded_stream

pytestmark = pytest.mark.anyio

_CLOSES_THE_OUTERMOST = pytest.mark.may_leave("the event loop closes the client's own generators")


class SlowTool:
    """A tool whose cleanup waits until it may end."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.working = asyncio.Event()
        self.may_end = asyncio.Event()

    async def work(self) -> str:
        """Works for ever."""
        self.working.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.log.append("tool is cancelled")
            await self.may_end.wait()
            self.log.append("tool has cleaned up")
        return ""

    def start_run(self) -> RunResultStreaming:
        model = ScriptedModel([[function_call("work", {}, call_id="1")]])
        agent = Agent(name="worker", model=model, tools=[function_tool(self.work)])
        return Runner.run_streamed(agent, "Work.", run_config=RunConfig(tracing_disabled=True))


@pytest.mark.may_leave("openai-agents has detached the tool's task")
async def test_running_tool_of_openai_agents() -> None:
    """A tool that is at work when its run is cancelled gets the cancellation; nobody waits for its cleanup."""
    tool = SlowTool()
    async with guarded_stream(tool.start_run()) as stream:
        async for _ in stream:
            if tool.working.is_set():
                break
            await anyio.wait_all_tasks_blocked()
    tool.log.append("the block is left")
    tool.may_end.set()
    await anyio.wait_all_tasks_blocked()
    assert tool.log == ["tool is cancelled", "the block is left", "tool has cleaned up"]


@pytest.mark.parametrize(("library", "leaves_one"), [(httpx, True), (httpx2, False)])
@pytest.mark.parametrize("closing", [pytest.param(aclosing, marks=_CLOSES_THE_OUTERMOST), guarded_stream])
async def test_cancelled_while_connecting(library: Any, leaves_one: bool, closing: Any) -> None:
    """Cancelled at some step while it connects, httpx leaves a connection that counts as busy; httpx2 leaves none."""
    left: list[Any] = []
    async with Server(["a\n"], []).run() as server:
        for steps in range(1, 20):
            # Certificates take a while to load, and none is needed on the loopback.
            async with library.AsyncClient(trust_env=False, verify=False) as http:
                reading = asyncio.create_task(read_one(closing(lines(http, server.url))))
                for _ in range(steps):
                    await asyncio.sleep(0)
                reading.cancel()
                await asyncio.wait([reading])
                # One that is idle is as it should be, one that is closed takes no place.
                left += [c for c in http._transport._pool.connections if not c.is_idle() and not c.is_closed()]
    assert bool(left) == leaves_one


async def read_one(block: AbstractAsyncContextManager[AsyncIterator[str]]) -> str:
    async with block as stream:
        return await anext(stream)


async def lines(http: Any, url: str) -> AsyncIterator[str]:
    async with http.stream("GET", url) as response:
        async for line in response.aiter_lines():
            yield line
