"""openai-agents runs, left by every way out before their tool should run."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from agents import RunResultStreaming, set_tracing_disabled
from agents.items import TResponseStreamEvent
from ways_out import (
    FROM_THE_BODY,
    FROM_THE_CLOSE,
    FROM_THE_SOURCE,
    WAYS,
    BoomError,
    Probe,
    Turn,
    Way,
    aclosed,
    bare,
    error_in_body,
    guarded,
    leave_at_final_response,
    name_of,
)

from nothing_left import Watch
from offline_openai import is_whole_message, start_run
from streamguard import EndReason, guarded_stream

pytestmark = pytest.mark.anyio
set_tracing_disabled(True)


class ToolRun(Probe):
    """The wire of the model, which also knows whether the tool was executed."""

    charged = False

    async def charge_card(self) -> str:
        """Charges the card."""
        self.charged = True
        return "charged"


@pytest.fixture
async def turn() -> AsyncIterator[Turn]:
    """The model says a whole message, then lets the reader wait, then asks for the tool."""
    probe = ToolRun()

    def is_late(piece: TResponseStreamEvent) -> bool:
        return piece.type == "response.output_item.added" and piece.item.type == "function_call"

    probe.hold_at = is_late
    turn = Turn(lambda: start_run(probe, probe.charge_card), is_whole_message, is_late, probe)
    yield turn
    await turn.tidy()


@pytest.mark.parametrize("way", WAYS, ids=name_of)
async def test_guarded(turn: Turn, way: Way) -> None:
    """Given the run handle, nothing is left, the cleanup is complete, the tool never runs."""
    leaving = await way.take(turn, guarded)
    assert leaving.left == []
    assert leaving.open_calls == 0
    assert leaving.outcome == way.outcome
    assert leaving.end.reason is way.reason
    assert leaving.end.source is turn.source
    await turn.tidy()
    assert not turn.probe.charged


@pytest.mark.parametrize("way", FROM_THE_BODY, ids=name_of)
async def test_bare_loop(turn: Turn, way: Way) -> None:
    """Behind a loop of its own the run goes on to its end, and its tool with it."""
    leaving = await way.take(turn, bare)
    assert any(line.startswith("task: ") for line in leaving.left)
    await turn.tidy()
    assert turn.probe.charged


@pytest.mark.parametrize("way", FROM_THE_SOURCE, ids=name_of)
async def test_bare_loop_while_waiting(turn: Turn, way: Way) -> None:
    """A loop that is cancelled while it waits ends before its run does."""
    leaving = await way.take(turn, bare)
    assert any(line.startswith("task: ") for line in leaving.left)
    assert leaving.open_calls == 1


async def test_aclosing(turn: Turn) -> None:
    """`contextlib.aclosing` waits until the run has come to its end, and its tool was executed."""
    leaving = asyncio.create_task(leave_at_final_response(turn, aclosed))
    await anyio.wait_all_tasks_blocked()
    assert not leaving.done()
    turn.probe.go_on.set()
    assert (await leaving).outcome == "returned"
    assert turn.probe.charged


async def test_second_cancel(turn: Turn) -> None:
    """Why a guard cancels a run only once: the next `cancel()` cuts the model's cleanup."""
    events = turn.open_events()
    async for event in events:
        if is_whole_message(event):
            break
    turn.probe.may_close.clear()
    turn.source.cancel()
    await turn.probe.closing.wait()
    turn.source.cancel()
    await turn.tidy()
    assert turn.probe.open_calls == 1


@pytest.mark.parametrize("way", [*FROM_THE_SOURCE, *FROM_THE_CLOSE], ids=name_of)
async def test_cancelled_once(turn: Turn, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard calls `cancel()` of the run once, whatever happens to the consumer meanwhile."""
    calls = []
    cancel = RunResultStreaming.cancel
    monkeypatch.setattr(RunResultStreaming, "cancel", lambda run: calls.append(cancel(run)))
    await way.take(turn, guarded)
    assert len(calls) == 1


async def test_cancelled_by_the_user(turn: Turn) -> None:
    """A run that the body has cancelled itself is not cancelled again, and ends clean."""
    async with guarded_stream(turn.open_source(), cleanup_timeout=5) as stream:
        async for event in stream:
            if is_whole_message(event):
                turn.probe.may_close.clear()
                turn.source.cancel()
                await turn.probe.closing.wait()
                turn.probe.may_close.set()
                break
    assert turn.probe.open_calls == 0
    assert turn.source.run_loop_task.done()


async def test_never_iterated(turn: Turn) -> None:
    """A run starts eagerly: even if nobody reads, it is stopped, and its model's cleanup is complete."""
    async with guarded_stream(turn.open_source(), cleanup_timeout=5):
        await turn.probe.holding.wait()
    assert turn.probe.opened == turn.probe.closed == 1
    assert turn.source.run_loop_task.done()
    await turn.tidy()
    assert not turn.probe.charged


async def test_to_the_end(turn: Turn) -> None:
    """A run that is read to its end is not cancelled, and keeps its output."""
    turn.probe.go_on.set()
    async with guarded_stream(turn.open_source(), cleanup_timeout=5) as stream:
        events = [event async for event in stream]
    assert stream.end.reason is EndReason.EXHAUSTED
    assert stream.end.items == len(events)
    assert turn.source.final_output == "Your card was charged."
    assert turn.probe.charged


async def test_silent_cleanup_error(turn: Turn) -> None:
    """Closed by hand, a run says nothing of an error in the model's cleanup: it only stores it."""
    turn.probe.close_error = ConnectionError("the wire broke")
    async with aclosed(turn) as events:
        async for event in events:
            if is_whole_message(event):
                turn.source.cancel()
                break
    assert turn.source.run_loop_exception is turn.probe.close_error


@pytest.mark.parametrize("way", [leave_at_final_response, error_in_body])
async def test_cleanup_error(turn: Turn, way: Any, watch: Watch) -> None:
    """What the model's cleanup raises is only stored by the run; the guard brings it out."""
    turn.probe.close_error = ConnectionError("the wire broke")
    leaving = await way(turn, guarded)
    error = leaving.task.exception()
    if way is leave_at_final_response:
        assert error is turn.probe.close_error
    else:
        assert isinstance(error, BoomError)
        assert leaving.end.cleanup_errors == (turn.probe.close_error,)
        watch.claim("the wire broke")
    assert leaving.left == []
