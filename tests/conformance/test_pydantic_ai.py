"""Runs of pydantic-ai, which come as async context managers, left by every way out."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import pytest
from pydantic_ai import Agent, AgentRunResultEvent, PartDeltaEvent
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel
from ways_out import (
    FROM_THE_BODY,
    FROM_THE_SOURCE,
    WAYS,
    Leaving,
    Probe,
    Turn,
    Way,
    cancel_twice_in_body,
    cancel_while_closing,
    cancel_while_waiting,
    guarded,
    leave_at_first_event,
    name_of,
)

from nothing_left import Watch, collect_until_quiet
from streamguard import EndReason, guarded_stream

pytestmark = pytest.mark.anyio

PIECES = ["It ", "is on ", "its way."]


def make_agent(probe: Probe) -> Agent[None, str]:
    """An agent whose model gives the pieces one by one, or all at once, over a wire that it closes itself."""

    async def stream(*_: object) -> AsyncIterator[str]:
        probe.open()
        try:
            for piece in PIECES:
                await probe.receive(piece)
                yield piece
        finally:
            await probe.close()

    async def respond(*args: object) -> ModelResponse:
        text = "".join([piece async for piece in stream(*args)])
        return ModelResponse([TextPart(text)])

    return Agent(FunctionModel(respond, stream_function=stream))


@pytest.fixture
async def events() -> AsyncIterator[Turn]:
    """A run that is read event by event."""
    probe = Probe()
    agent = make_agent(probe)
    turn = Turn(
        lambda: agent.run_stream_events("Where is my money?"),
        lambda event: isinstance(event, PartDeltaEvent),
        lambda piece: piece == PIECES[-1],
        probe,
    )
    yield turn
    await tidy(turn)


@pytest.fixture
async def nodes() -> AsyncIterator[Turn]:
    """A run that is read node by node: the model is called between two of them."""
    probe = Probe()
    agent = make_agent(probe)
    turn = Turn(
        lambda: agent.iter("Where is my money?"),
        Agent.is_call_tools_node,
        lambda piece: piece == PIECES[-1],
        probe,
    )
    yield turn
    await tidy(turn)


async def tidy(turn: Turn) -> None:
    """Drops the run, and with it the generators that it keeps: the event loop closes them."""
    await turn.tidy()
    turn.source = None
    await anyio.wait_all_tasks_blocked()
    collect_until_quiet()
    await anyio.wait_all_tasks_blocked()


def entered(turn: Turn) -> AbstractAsyncContextManager[AsyncIterator[Any]]:
    """The run's own `async with`."""
    return turn.open_source()


def tasks_left(leaving: Leaving) -> list[str]:
    """Without the generators that the run keeps: see `test_what_a_run_keeps`."""
    return [line for line in leaving.left if not line.startswith("open: ")]


# -- run_stream_events


@pytest.mark.parametrize("way", WAYS, ids=name_of)
async def test_guarded_events(events: Turn, way: Way) -> None:
    """No task is left, the model's cleanup is complete, and the outcome is the consumer's own."""
    leaving = await way.take(events, guarded)
    assert tasks_left(leaving) == []
    assert leaving.open_calls == 0
    assert events.probe.opened == 1
    assert leaving.outcome == way.outcome
    assert leaving.end.reason is way.reason


@pytest.mark.parametrize("way", [cancel_twice_in_body, cancel_while_closing])
async def test_own_exit_is_cut(events: Turn, way: Any) -> None:
    """A cancellation that arrives during the run's own exit cuts the model's cleanup."""
    leaving = await way(events, entered)
    assert leaving.open_calls == 1


async def test_never_exited(events: Turn) -> None:
    """A run that was entered and never exited keeps three tasks and the model's call."""
    before = Watch()
    before.start("asyncio")
    run = events.open_source()
    try:
        async for _ in await run.__aenter__():
            break
        assert sum(line.startswith("task: ") for line in before.left()) == 3
        assert events.probe.open_calls == 1
    finally:
        before.stop()
        await run.__aexit__(None, None, None)


async def test_what_a_run_keeps(events: Turn) -> None:
    """After its own exit the run keeps some generators suspended, which do nothing; a guard adds none to them."""

    def kept(leaving: Leaving) -> set[str]:
        return {line.split(" at ")[0] for line in leaving.left}

    own = kept(await leave_at_first_event(events, entered))
    assert kept(await leave_at_first_event(events, guarded)) <= own


async def test_events_to_the_end(events: Turn) -> None:
    """A run that is read to its end gives its result last."""
    async with guarded_stream(events.open_source(), cleanup_timeout=5) as stream:
        received = [event async for event in stream]
    assert stream.end.reason is EndReason.EXHAUSTED
    assert isinstance(received[-1], AgentRunResultEvent)
    assert received[-1].result.output == "It is on its way."
    assert stream.end.source.result is received[-1].result
    assert events.probe.open_calls == 0


async def test_events_never_read(events: Turn) -> None:
    """A run that nobody reads does not start."""
    async with guarded_stream(events.open_source(), cleanup_timeout=5):
        pass
    assert events.probe.opened == 0


# -- iter


@pytest.mark.parametrize("way", [*FROM_THE_BODY, *FROM_THE_SOURCE], ids=name_of)
async def test_guarded_nodes(nodes: Turn, way: Way) -> None:
    """Nothing is left, and the outcome is the consumer's own."""
    leaving = await way.take(nodes, guarded)
    assert leaving.left == []
    assert leaving.outcome == way.outcome
    assert leaving.end.reason is way.reason
    # What is cancelled inside a model call: see `test_iter_cuts_its_model`.
    assert leaving.open_calls == (way in FROM_THE_SOURCE)


async def test_iter_cuts_its_model(nodes: Turn) -> None:
    """Cancelled once in a model call, `iter` cuts the call's cleanup by a scope of its own, with a guard or without."""
    leaving = await cancel_while_waiting(nodes, entered)
    assert leaving.outcome == "cancelled"
    assert leaving.open_calls == 1


async def test_nodes_to_the_end(nodes: Turn) -> None:
    """A run that is read to its end has its result."""
    async with guarded_stream(nodes.open_source(), cleanup_timeout=5) as stream:
        received = [node async for node in stream]
    assert Agent.is_end_node(received[-1])
    assert stream.end.source.result.output == "It is on its way."
    assert nodes.probe.opened == nodes.probe.closed == 1


async def test_stream_of_a_node(nodes: Turn) -> None:
    """The stream of one node, inside a run, can be guarded on its own: the call is closed, the run goes on."""
    async with nodes.open_source() as run:
        async for node in run:
            if Agent.is_model_request_node(node):
                async with guarded_stream(node.stream(run.ctx), cleanup_timeout=5) as stream:
                    async for _ in stream:
                        break
                assert nodes.probe.opened == nodes.probe.closed == 1
                break
