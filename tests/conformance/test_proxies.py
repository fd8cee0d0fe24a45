"""Instrumentation puts proxies around what the SDKs return: guarded, they are closed as what they stand for."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest
import wrapt
from agents import set_tracing_disabled
from pydantic_ai import Agent, PartDeltaEvent
from pydantic_ai.models.function import FunctionModel
from ways_out import (
    Probe,
    Turn,
    Way,
    cancel_twice_in_body,
    guarded,
    leave_at_final_response,
    name_of,
    scope_cancelled_while_waiting,
)

from nothing_left import collect_until_quiet
from offline_adk import OfflineAgent, answer, open_runner, start_turn
from offline_openai import is_whole_message, start_run
from streamguard import EndReason

pytestmark = pytest.mark.anyio
set_tracing_disabled(True)

PIECES = ["It", "is on", "its way."]
WAYS = [
    Way(leave_at_final_response, "returned", EndReason.LEFT),
    Way(cancel_twice_in_body, "cancelled", EndReason.CANCELLED),
    Way(scope_cancelled_while_waiting, "caught", EndReason.CANCELLED),
]


class TracedGenerator(wrapt.ObjectProxy):
    """Counts the items of an async iterator, as instrumentation does in its spans."""

    def __init__(self, wrapped: Any) -> None:
        super().__init__(wrapped)
        self._self_items = 0

    def __aiter__(self) -> "TracedGenerator":
        return self

    async def __anext__(self) -> Any:
        item = await self.__wrapped__.__anext__()
        self._self_items += 1
        return item


class TracedRun(wrapt.ObjectProxy):
    """Counts the events of a run handle."""

    def __init__(self, wrapped: Any) -> None:
        super().__init__(wrapped)
        self._self_items = 0

    def stream_events(self) -> TracedGenerator:
        self._self_events = TracedGenerator(self.__wrapped__.stream_events())
        return self._self_events


class TracedContext(wrapt.ObjectProxy):
    """Counts the events of what an async context manager gives."""

    def __init__(self, wrapped: Any) -> None:
        super().__init__(wrapped)
        self._self_exits = 0

    async def __aenter__(self) -> TracedGenerator:
        return TracedGenerator(await self.__wrapped__.__aenter__())

    async def __aexit__(self, *details: Any) -> Any:
        self._self_exits += 1
        return await self.__wrapped__.__aexit__(*details)


class ToolRun(Probe):
    """The wire of the model, which also knows whether the tool was executed."""

    charged = False

    async def charge_card(self) -> str:
        """Charges the card."""
        self.charged = True
        return "charged"


async def adk(proxy: Callable[[Any], Any]) -> Turn:
    probe = Probe()
    runner = await open_runner(OfflineAgent(name="talker", wire=probe, reply=answer(*PIECES)))
    return Turn(
        lambda: proxy(start_turn(runner)),
        lambda event: event.is_final_response(),
        lambda piece: piece.content.parts[0].text == PIECES[1],
        probe,
    )


async def openai_agents(proxy: Callable[[Any], Any]) -> Turn:
    probe = ToolRun()

    def is_late(piece: Any) -> bool:
        return piece.type == "response.output_item.added" and piece.item.type == "function_call"

    probe.hold_at = is_late
    return Turn(lambda: proxy(start_run(probe, probe.charge_card)), is_whole_message, is_late, probe)


async def pydantic_ai(proxy: Callable[[Any], Any]) -> Turn:
    probe = Probe()

    async def stream(*_: object) -> AsyncIterator[str]:
        probe.open()
        try:
            for piece in PIECES:
                await probe.receive(piece)
                yield piece
        finally:
            await probe.close()

    agent = Agent(FunctionModel(stream_function=stream))
    return Turn(
        lambda: proxy(agent.run_stream_events("Where is my money?")),
        lambda event: isinstance(event, PartDeltaEvent),
        lambda piece: piece == PIECES[-1],
        probe,
    )


PROXIES = [
    pytest.param((adk, TracedGenerator), id="adk"),
    pytest.param((openai_agents, TracedRun), id="openai-agents"),
    pytest.param((pydantic_ai, TracedContext), id="pydantic-ai"),
    pytest.param((adk, wrapt.AutoObjectProxy), id="adk-auto"),
    pytest.param((openai_agents, wrapt.AutoObjectProxy), id="openai-agents-auto"),
    pytest.param((pydantic_ai, wrapt.AutoObjectProxy), id="pydantic-ai-auto"),
]


@pytest.fixture(params=PROXIES)
async def turn(request: pytest.FixtureRequest) -> AsyncIterator[Turn]:
    open_turn, proxy = request.param
    turn = await open_turn(proxy)
    yield turn
    await turn.tidy()
    # pydantic-ai's run keeps generators, which the event loop closes when it goes.
    turn.source = None
    collect_until_quiet()
    await anyio.wait_all_tasks_blocked()


@pytest.mark.parametrize("way", WAYS, ids=name_of)
async def test_guarded(turn: Turn, way: Way) -> None:
    """Behind a proxy no task is left, the model's cleanup is complete, and the outcome is the consumer's own."""
    leaving = await way.take(turn, guarded)
    # Not the generators that pydantic-ai keeps suspended itself.
    assert [line for line in leaving.left if "StreamedResponse" not in line] == []
    assert leaving.open_calls == 0
    assert turn.probe.opened == 1
    assert leaving.outcome == way.outcome
    assert leaving.end.reason is way.reason
    assert not getattr(turn.probe, "charged", False)


@pytest.mark.parametrize("turn", PROXIES[:3], indirect=True)
async def test_read_through_the_proxy(turn: Turn) -> None:
    """The items go through the proxy, which counts them, and its own exit is used."""
    leaving = await leave_at_final_response(turn, guarded)
    source = turn.source
    traced = getattr(source, "_self_events", leaving.end.source)
    assert traced._self_items == leaving.end.items > 0
    assert getattr(source, "_self_exits", 1) == 1
