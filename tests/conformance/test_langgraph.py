"""A langgraph stream, left by every way out while its node works in a task of the graph."""

from collections.abc import AsyncIterator
from typing import Any, TypedDict

import anyio
import pytest
from langgraph.config import get_stream_writer
from langgraph.graph import START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from ways_out import (
    FROM_THE_BODY,
    WAYS,
    Probe,
    Turn,
    Way,
    aclosed,
    bare,
    guarded,
    leave_at_final_response,
    name_of,
    scope_cancelled_while_waiting,
)

from streamguard import EndReason, guarded_stream

pytestmark = pytest.mark.anyio

PIECES = ["It", "is on", "its way."]


class State(TypedDict):
    """What the graph works on."""

    reply: str


def make_graph(probe: Probe) -> CompiledStateGraph[State]:
    """A graph with one node, which writes the pieces of its reply as they come."""

    async def talker(state: State) -> State:
        write = get_stream_writer()
        probe.open()
        try:
            for piece in PIECES:
                await probe.receive(piece)
                write(piece)
        finally:
            await probe.close()
        return {"reply": " ".join(PIECES)}

    graph = StateGraph(State)
    graph.add_node("talker", talker)
    graph.add_edge(START, "talker")
    return graph.compile()


@pytest.fixture
async def turn() -> AsyncIterator[Turn]:
    """The node runs ahead of its reader, so it is held before its last piece."""
    probe = Probe()
    graph = make_graph(probe)

    def is_last_but_one(event: Any) -> bool:
        return event == ("custom", "is on")

    def is_late(piece: str) -> bool:
        return piece == "its way."

    probe.hold_at = is_late
    turn = Turn(
        lambda: graph.astream({"reply": ""}, stream_mode=["custom", "updates"]),
        is_last_but_one,
        is_late,
        probe,
    )
    yield turn
    await turn.tidy()
    await anyio.wait_all_tasks_blocked()


@pytest.mark.parametrize("way", WAYS, ids=name_of)
async def test_guarded(turn: Turn, way: Way) -> None:
    """Nothing is left, the node's cleanup is complete, and the outcome is the consumer's own."""
    leaving = await way.take(turn, guarded)
    assert leaving.left == []
    assert leaving.open_calls == 0
    assert turn.probe.opened == 1
    assert leaving.outcome == way.outcome
    assert leaving.end.reason is way.reason


@pytest.mark.parametrize("way", FROM_THE_BODY, ids=name_of)
async def test_bare_loop(turn: Turn, way: Way) -> None:
    """A loop of its own leaves the graph's generators, its tasks, and the node at work."""
    leaving = await way.take(turn, bare)
    assert any("Pregel.astream" in line for line in leaving.left)
    assert any(line.startswith("task: ") for line in leaving.left)
    assert leaving.open_calls == 1


async def test_aclosing(turn: Turn) -> None:
    """What the loop left at an event, `contextlib.aclosing` closes completely."""
    leaving = await leave_at_final_response(turn, aclosed)
    assert leaving.left == []
    assert leaving.open_calls == 0


async def test_aclosing_is_cut(turn: Turn) -> None:
    """Under a cancelled scope `contextlib.aclosing` leaves the graph's tasks and the node at work."""
    leaving = await scope_cancelled_while_waiting(turn, aclosed)
    assert any(line.startswith("task: ") for line in leaving.left)
    assert leaving.open_calls == 1


async def test_to_the_end(turn: Turn) -> None:
    """A graph that is read to its end gives all that it wrote, and the update last."""
    turn.probe.go_on.set()
    async with guarded_stream(turn.open_source(), cleanup_timeout=5) as stream:
        events = [event async for event in stream]
    assert events == [
        *(("custom", piece) for piece in PIECES),
        ("updates", {"talker": {"reply": "It is on its way."}}),
    ]
    assert stream.end.reason is EndReason.EXHAUSTED
