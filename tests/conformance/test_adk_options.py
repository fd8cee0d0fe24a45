"""What an early end means to google-adk: callbacks that it skips, calls that it leaves without a response."""

import asyncio
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.genai import types
from ways_out import Probe

from offline_adk import OfflineModel, answer, open_runner, start_turn, two_agents
from streamguard import EndReason, guarded_stream

pytestmark = pytest.mark.anyio


def find_order(number: str) -> str:
    """Finds an order by its number."""
    return "lost in the mail"


@pytest.mark.parametrize(("on_early_exit", "callbacks"), [("close", []), ("drain", ["after talker"])])
async def test_after_agent_callback(on_early_exit: Any, callbacks: list[str]) -> None:
    """Left at its final response, ADK skips what comes after the agent; a drain runs it before the block is left."""
    probe = Probe()
    ran: list[str] = []
    talker = LlmAgent(
        name="talker",
        model=OfflineModel(model="offline", wire=probe, replies=[answer("It", "is on", "its way.")]),
        after_agent_callback=lambda callback_context: ran.append(f"after {callback_context.agent_name}"),
    )
    runner = await open_runner(talker)
    async with guarded_stream(start_turn(runner), on_early_exit=on_early_exit, cleanup_timeout=5) as stream:
        async for event in stream:
            if event.is_final_response():
                break
    assert ran == callbacks
    assert stream.end.reason is EndReason.LEFT
    assert probe.opened == probe.closed == 1


@pytest.mark.parametrize("sealed", [False, True])
async def test_call_without_a_response(sealed: bool) -> None:
    """Left right after a function call, the session keeps a call without a response, unless `cancel` seals it."""
    runner = await open_runner(two_agents(Probe(), find_order))
    abort = asyncio.Event()
    turn = runner.run_async(
        user_id="ada",
        session_id="today",
        new_message=types.UserContent("Where is my money?"),
        abort_signal=abort,
    )
    async with guarded_stream(turn, cancel=abort.set if sealed else None, cleanup_timeout=5) as stream:
        async for event in stream:
            if event.get_function_calls():
                break
    session = await runner.session_service.get_session(app_name="shop", user_id="ada", session_id="today")
    calls = [call.id for event in session.events for call in event.get_function_calls()]
    responses = [response.id for event in session.events for response in event.get_function_responses()]
    assert len(calls) == 1
    assert responses == (calls if sealed else [])
