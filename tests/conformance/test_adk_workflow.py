"""A google-adk workflow with an agent as its node: a generator that drops another one when it is closed."""

import asyncio
from collections.abc import AsyncIterator

import anyio
import pytest
from google.adk.events import Event
from google.adk.models import LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.workflow import START, Workflow
from ways_out import (
    FROM_THE_BODY,
    WAYS,
    Probe,
    Turn,
    Way,
    aclosed,
    bare,
    guarded,
    leave_at_first_event,
    name_of,
)

from offline_adk import OfflineAgent, answer, start_turn
from streamguard import EndReason, guarded_stream

pytestmark = pytest.mark.anyio


async def open_desk(*agents: OfflineAgent) -> InMemoryRunner:
    """A runner whose root is a workflow: the agents, one after the other."""
    workflow = Workflow(name="desk", edges=[(START, *agents)])
    runner = InMemoryRunner(node=workflow, app_name="shop")
    await runner.session_service.create_session(app_name="shop", user_id="ada", session_id="today")
    return runner


@pytest.fixture
async def turn() -> AsyncIterator[Turn]:
    """A turn of two agents. The second one has the final response."""
    probe = Probe()
    reply = answer("It", "is on", "its way.")
    runner = await open_desk(
        OfflineAgent(name="clerk", wire=probe, reply=reply[-1:]),
        OfflineAgent(name="talker", wire=probe, reply=reply),
    )

    def is_final(event: Event) -> bool:
        return event.author == "talker" and event.is_final_response()

    def is_late(piece: LlmResponse) -> bool:
        return piece.content.parts[0].text == "is on"

    turn = Turn(lambda: start_turn(runner), is_final, is_late, probe)
    yield turn
    await turn.tidy()


@pytest.mark.parametrize("way", WAYS, ids=name_of)
async def test_guarded(turn: Turn, way: Way) -> None:
    """Nothing is left, the agent's cleanup is complete, and the outcome is the consumer's own."""
    leaving = await way.take(turn, guarded)
    assert leaving.left == []
    assert leaving.open_calls == 0
    assert turn.probe.opened > 0
    assert leaving.outcome == way.outcome
    assert leaving.end.reason is way.reason


@pytest.mark.parametrize("way", FROM_THE_BODY, ids=name_of)
async def test_bare_loop(turn: Turn, way: Way) -> None:
    """A loop of its own leaves the workflow's generators and its tasks, and the agent's cleanup for later."""
    leaving = await way.take(turn, bare)
    assert any("run_async" in line for line in leaving.left)
    assert any(line.startswith("task: ") for line in leaving.left)
    assert leaving.open_calls == 1


async def test_aclosing_returns_early(turn: Turn) -> None:
    """`contextlib.aclosing` is done while the agent is still in its cleanup, in a task of the event loop."""
    turn.probe.may_close.clear()
    with anyio.fail_after(5):
        leaving = await leave_at_first_event(turn, aclosed)
    assert leaving.outcome == "returned"
    assert leaving.open_calls == 1
    assert any("async_generator_athrow" in line for line in leaving.left)
    assert any("OfflineAgent._run_async_impl" in line for line in leaving.left)


async def test_guarded_waits_for_the_agent(turn: Turn) -> None:
    """The guard is not done before the agent's cleanup is."""
    turn.probe.may_close.clear()
    leaving = asyncio.create_task(leave_at_first_event(turn, guarded))
    with anyio.fail_after(5):
        await turn.probe.closing.wait()
        await anyio.wait_all_tasks_blocked()
        assert not leaving.done()
        turn.probe.may_close.set()
        assert (await leaving).left == []


async def test_to_the_end(turn: Turn) -> None:
    """A workflow that is read to its end ends as it would without the guard, with the answer last."""
    async with guarded_stream(turn.open_source(), cleanup_timeout=5) as stream:
        authors = [event.author async for event in stream]
    assert stream.end.reason is EndReason.EXHAUSTED
    assert authors == ["clerk", "talker", "talker", "talker", "talker"]
    assert turn.probe.opened == turn.probe.closed == 2
