"""google-adk turns, left by every way out."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest
from google.adk.events import Event
from google.adk.models import LlmResponse
from ways_out import (
    FROM_THE_BODY,
    WAYS,
    Opener,
    Probe,
    Turn,
    Way,
    aclosed,
    bare,
    cancel_twice_in_body,
    cancel_twice_while_waiting,
    cancel_while_closing,
    guarded,
    leave_at_final_response,
    name_of,
    scope_cancelled_in_body,
    scope_cancelled_while_waiting,
)

from offline_adk import OfflineAgent, answer, open_runner, start_turn, two_agents
from streamguard import CleanupTimeoutError, EndReason, GuardedStream, guarded_stream

pytestmark = pytest.mark.anyio


def find_order(number: str) -> str:
    """Finds an order by its number."""
    return "lost in the mail"


@pytest.fixture(params=["llm_agent", "base_agent"])
async def turn(request: pytest.FixtureRequest) -> AsyncIterator[Turn]:
    """A turn of two LlmAgents with a tool, or of one BaseAgent without a model."""
    probe = Probe()
    if request.param == "llm_agent":
        agent, speaker = two_agents(probe, find_order), "refunds"
    else:
        reply = answer("It", "is on", "its way.")
        agent, speaker = OfflineAgent(name="talker", wire=probe, reply=reply), "talker"
    runner = await open_runner(agent)

    def is_final(event: Event) -> bool:
        return event.author == speaker and event.is_final_response()

    def is_late(piece: LlmResponse) -> bool:
        return piece.content.parts[0].text == "is on"

    turn = Turn(lambda: start_turn(runner), is_final, is_late, probe)
    yield turn
    await turn.tidy()


@pytest.mark.parametrize("way", WAYS, ids=name_of)
async def test_guarded(turn: Turn, way: Way) -> None:
    """Nothing is left, the model's cleanup is complete, and the outcome is the consumer's own."""
    leaving = await way.take(turn, guarded)
    assert leaving.left == []
    assert leaving.open_calls == 0
    assert turn.probe.opened > 0
    assert leaving.outcome == way.outcome
    assert leaving.end.reason is way.reason


@pytest.mark.parametrize("way", FROM_THE_BODY, ids=name_of)
async def test_bare_loop(turn: Turn, way: Way) -> None:
    """A loop of its own leaves the agents' generators, and the model's cleanup for later."""
    leaving = await way.take(turn, bare)
    assert any("run_async" in line for line in leaving.left)
    assert leaving.open_calls == 1


@pytest.mark.parametrize(
    "take",
    [
        cancel_twice_in_body,
        cancel_twice_while_waiting,
        scope_cancelled_in_body,
        scope_cancelled_while_waiting,
    ],
)
async def test_aclosing_is_cut(turn: Turn, take: Callable[[Turn, Opener], Any]) -> None:
    """What `contextlib.aclosing` closes is cut by the next cancellation, a scope's at once."""
    leaving = await take(turn, aclosed)
    assert leaving.open_calls == 1


@pytest.mark.parametrize("turn", ["llm_agent"], indirect=True)
async def test_aclosing_loses_the_cancellation(turn: Turn) -> None:
    """Cancelled while `contextlib.aclosing` closes it, ADK keeps the cancellation for itself."""
    leaving = await cancel_while_closing(turn, aclosed)
    assert leaving.outcome == "returned"


async def time_out_while_closing(turn: Turn, opener: Opener) -> bool:
    """Whether a time limit around the block fires that passes while the turn is being closed."""
    try:
        async with asyncio.timeout(None) as limit:
            async with opener(turn) as events:
                async for event in events:
                    if turn.is_final(event):
                        turn.probe.may_close.clear()
                        release = asyncio.create_task(_pass_then_release(turn.probe, limit))
                        break
    except TimeoutError:
        return True
    finally:
        await release
    return False


async def _pass_then_release(probe: Probe, limit: asyncio.Timeout) -> None:
    await probe.closing.wait()
    limit.reschedule(0)
    while not limit.expired():
        await asyncio.sleep(0)
    await anyio.wait_all_tasks_blocked()
    probe.may_close.set()


async def test_timeout_while_closing(turn: Turn) -> None:
    """A time limit around the block that passes while the turn is closed fires, and the cleanup is complete by then."""
    assert await time_out_while_closing(turn, guarded)
    assert turn.probe.open_calls == 0


@pytest.mark.parametrize("turn", ["llm_agent"], indirect=True)
async def test_aclosing_loses_the_timeout(turn: Turn) -> None:
    """With `contextlib.aclosing` ADK keeps the cancellation by which a time limit ends the block."""
    assert not await time_out_while_closing(turn, aclosed)


def break_wire_at_the_end(turn: Turn) -> None:
    """Lets the cleanup of the model call that is open at the final response raise."""
    is_final = turn.is_final

    def breaks(event: Event) -> bool:
        if is_final(event):
            turn.probe.close_error = ConnectionError("the wire broke")
        return is_final(event)

    turn.is_final = breaks


@pytest.mark.parametrize("turn", ["llm_agent"], indirect=True)
async def test_cleanup_error(turn: Turn) -> None:
    """ADK hangs for ever when a model's cleanup raises; the guard ends it at its deadline and says where it hangs."""
    break_wire_at_the_end(turn)

    def guarded_shortly(turn: Turn) -> GuardedStream[Event]:
        return guarded_stream(turn.open_source(), cleanup_timeout=0.05)

    leaving = await leave_at_final_response(turn, guarded_shortly)
    error = leaving.task.exception()
    assert isinstance(error, CleanupTimeoutError)
    assert "_cleanup_root_task" in str(error)
    assert leaving.left == []


@pytest.mark.parametrize("turn", ["llm_agent"], indirect=True)
async def test_aclosing_hangs(turn: Turn) -> None:
    """With `contextlib.aclosing` only a cancellation ends that, and ADK keeps it for itself."""
    break_wire_at_the_end(turn)

    async def consume() -> None:
        async with aclosed(turn) as events:
            async for event in events:
                if turn.is_final(event):
                    break

    task = asyncio.create_task(consume())
    with anyio.fail_after(30):
        while turn.probe.closed < 3:  # a tool may be at work in a thread, where no task shows it
            await anyio.sleep(0.01)
    await anyio.wait_all_tasks_blocked()
    assert turn.probe.opened == turn.probe.closed == 3
    assert not task.done()
    task.cancel()
    await asyncio.wait([task])
    assert not task.cancelled()


@pytest.mark.parametrize("turn", ["base_agent"], indirect=True)
async def test_cleanup_error_of_an_agent(turn: Turn) -> None:
    """What a BaseAgent's cleanup raises leaves the block, bare."""
    break_wire_at_the_end(turn)
    leaving = await leave_at_final_response(turn, guarded)
    assert leaving.task.exception() is turn.probe.close_error
    assert leaving.left == []


async def test_to_the_end(turn: Turn) -> None:
    """A turn that is read to its end ends as it would without the guard, with the answer last."""
    async with guarded_stream(turn.open_source(), cleanup_timeout=5) as stream:
        events = [event async for event in stream]
    assert stream.end.reason is EndReason.EXHAUSTED
    assert stream.end.last is events[-1]
    assert events[-1].is_final_response()
    assert turn.probe.open_calls == 0


async def test_never_iterated(turn: Turn) -> None:
    """A turn that nobody reads does not start."""
    async with guarded_stream(turn.open_source(), cleanup_timeout=5):
        pass
    assert turn.probe.opened == 0
