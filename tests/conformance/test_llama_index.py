"""Workflow runs of llama-index: handles that a coroutine stops, and whose last event says how they ended."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import anyio
import pytest
from ways_out import FROM_THE_BODY, FROM_THE_SOURCE, Probe, Turn, Way, bare, guarded, name_of
from workflows import Context, Workflow, step
from workflows.events import Event, StartEvent, StopEvent

from streamguard import EndReason, guarded_stream

pytestmark = pytest.mark.anyio

PIECES = ["It", "is on", "its way."]


class Piece(Event):
    """A piece of the reply."""

    text: str


class Talker(Workflow):
    """Writes a reply in one step, over a wire that the step closes itself."""

    def __init__(self, probe: Probe, error: Exception | None = None) -> None:
        super().__init__(timeout=None)
        self.probe = probe
        self.error = error

    @step
    async def reply(self, context: Context, _: StartEvent) -> StopEvent:
        self.probe.open()
        try:
            for piece in PIECES:
                await self.probe.receive(piece)
                context.write_event_to_stream(Piece(text=piece))
            if self.error:
                raise self.error
        finally:
            await self.probe.close()
        return StopEvent(result=" ".join(PIECES))


@pytest.fixture
async def turn() -> AsyncIterator[Turn]:
    """The step runs ahead of its reader, so it is held before its last piece."""
    probe = Probe()

    def is_last_but_one(event: Event) -> bool:
        return isinstance(event, Piece) and event.text == PIECES[1]

    def is_late(piece: str) -> bool:
        return piece == PIECES[-1]

    probe.hold_at = is_late
    turn = Turn(Talker(probe).run, is_last_but_one, is_late, probe)
    yield turn
    await turn.tidy()
    # What a loop without a guard has left goes on to its end.
    if turn.source is not None:
        await asyncio.wait([turn.source._result_task])
    await anyio.wait_all_tasks_blocked()


@pytest.mark.parametrize("way", [*FROM_THE_BODY, *FROM_THE_SOURCE], ids=name_of)
async def test_guarded(turn: Turn, way: Way) -> None:
    """The run is stopped and has ended, its step's cleanup is complete, and the outcome is the consumer's own."""
    leaving = await way.take(turn, guarded)
    assert leaving.left == []
    assert leaving.open_calls == 0
    assert turn.probe.opened == 1
    assert leaving.outcome == way.outcome
    assert leaving.end.reason is way.reason
    assert type(turn.source._result_task.exception()).__name__ == "WorkflowCancelledByUser"
    assert leaving.end.cleanup_errors == ()


@pytest.mark.parametrize("way", FROM_THE_BODY, ids=name_of)
async def test_bare_loop(turn: Turn, way: Way) -> None:
    """Behind a loop of its own the run goes on to its end."""
    leaving = await way.take(turn, bare)
    assert any(line.startswith("task: ") for line in leaving.left)
    assert leaving.open_calls == 1
    turn.probe.go_on.set()
    assert await turn.source == "It is on its way."


async def test_aclosing(turn: Turn) -> None:
    """`contextlib.aclosing` around the events stops nothing."""
    async with aclosing(turn.open_events()) as events:
        async for _ in events:
            break
    assert not turn.source.is_done()
    assert turn.probe.open_calls == 1


async def test_to_the_end(turn: Turn, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is read to its end is waited for, not stopped, and keeps its result."""
    turn.probe.go_on.set()
    run = turn.open_source()
    stops: list[Any] = []
    monkeypatch.setattr(type(run), "cancel_run", lambda run: stops.append(run))
    async with guarded_stream(run, cleanup_timeout=5) as stream:
        events = [event async for event in stream]
    assert stops == []
    assert run._result_task.done()
    assert [event.text for event in events[:-1]] == PIECES
    assert isinstance(events[-1], StopEvent)
    assert stream.end.reason is EndReason.EXHAUSTED
    assert await run == "It is on its way."


async def test_never_read(turn: Turn) -> None:
    """A run starts eagerly: even if nobody reads, it is stopped and its step's cleanup is complete."""
    async with guarded_stream(turn.open_source(), cleanup_timeout=5):
        await turn.probe.holding.wait()
    assert turn.source.is_done()
    assert turn.probe.opened == turn.probe.closed == 1


async def test_failed_run(turn: Turn) -> None:
    """The events of a run that fails end as if nothing had happened; the guard brings its error out."""
    error = ConnectionError("the wire broke")
    turn.probe.go_on.set()
    turn.source = Talker(turn.probe, error).run()
    with pytest.raises(ConnectionError) as caught:
        async with guarded_stream(turn.source, cleanup_timeout=5) as stream:
            events = [event async for event in stream]
    assert caught.value is error
    assert type(events[-1]).__name__ == "WorkflowFailedEvent"
    assert turn.source.is_done()
