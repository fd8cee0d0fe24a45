"""Agent turns of real SDKs, served over real connections to clients that go away."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from agents import RunResultStreaming, set_tracing_disabled
from starlette.responses import Response, StreamingResponse
from ways_out import Probe

from loopback import Client, Server
from offline_adk import open_runner, start_turn, two_agents
from offline_openai import is_whole_message, start_run
from streamguard import guarded_stream
from streamguard.starlette import GuardedStreamingResponse

pytestmark = pytest.mark.anyio
set_tracing_disabled(True)

FULL = b"x" * 20_000_000
"""More than any buffer takes in."""


@dataclass
class Served(Probe):
    """A turn, the wire of its model, and what there was when its request had ended."""

    charged: bool = False
    open_at_the_end: int = -1
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    async def charge_card(self) -> str:
        """Charges the card."""
        self.charged = True
        return "charged"

    def find_order(self, number: str) -> str:
        """Finds an order by its number."""
        return "lost in the mail"

    async def adk(self, opened: Callable[[Any], Any], pieces: list[bytes]) -> AsyncIterator[bytes]:
        """The body of a response that tells of an ADK turn; nothing in it looks after the turn."""
        runner = await open_runner(two_agents(self, self.find_order))
        async for event in start_turn(runner):
            if event.author == "refunds":
                for piece in pieces:
                    yield piece

    async def openai(self, opened: Callable[[Any], Any], pieces: list[bytes]) -> AsyncIterator[bytes]:
        """The body of a response that tells of an openai-agents run."""
        async with opened(start_run(self, self.charge_card)) as events:
            async for event in events:
                if is_whole_message(event):
                    for piece in pieces:
                        yield piece


def bare(run: RunResultStreaming) -> AbstractAsyncContextManager[AsyncIterator[Any]]:
    return nullcontext(run.stream_events())


def is_on(piece: Any) -> bool:
    """Whether this is a piece of the refunds agent's answer, in the middle."""
    return bool(piece.content.parts[0].text == "is on")


def is_call(piece: Any) -> bool:
    """Whether the model begins to ask for the tool."""
    return bool(piece.type == "response.output_item.added" and piece.item.type == "function_call")


async def while_the_model_waits(served: Served, client: Client) -> None:
    await client.read_until(b"x")
    await served.holding.wait()


async def while_send_waits(served: Served, client: Client) -> None:
    await client.read_until(b"x")
    await anyio.wait_all_tasks_blocked()


async def serve(served: Served, response: Response, moment: Callable[[Served, Client], Awaitable[None]]) -> Server:
    """Have the turn told to a client that goes away at that moment."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await response(scope, receive, send)
        finally:
            served.open_at_the_end = served.open_calls

    server = Server(app, served.log, lifespan="off")
    async with server.run():
        client = await Client.connect(server)
        client.ask()
        await moment(served, client)
        assert served.open_calls == 1
        client.leave()
        await server.ended.wait()
    return server


MOMENTS = {"the model waits": while_the_model_waits, "send waits": while_send_waits}
each_moment = pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS.keys())
each_sdk = pytest.mark.parametrize("sdk", ["adk", "openai"])


def turn(sdk: str, moment: Any, opened: Callable[[Any], Any]) -> tuple[Served, AsyncIterator[bytes]]:
    served = Served()
    served.hold_at = is_on if sdk == "adk" else is_call
    pieces = [b"x", FULL] if moment is while_send_waits else [b"x"]
    return served, getattr(served, sdk)(opened, pieces)


@each_sdk
@each_moment
async def test_guarded(sdk: str, moment: Any) -> None:
    """The run is stopped, its model's connection closed, before the request ends; the tool is not run."""
    served, body = turn(sdk, moment, guarded_stream)
    response = GuardedStreamingResponse(body, tail=lambda end: served.log.append(f"tail: {end.reason.value}"))
    server = await serve(served, response, moment)
    assert served.open_at_the_end == 0
    assert served.log == ["tail: left", "ended"]
    assert server.errors == []
    served.go_on.set()
    await anyio.wait_all_tasks_blocked()
    assert not served.charged


@pytest.mark.may_leave("Starlette does not close its body")
@each_sdk
@each_moment
async def test_starlette(sdk: str, moment: Any) -> None:
    """With Starlette's own response and a bare loop the model's connection is not closed when the request ends."""
    served, body = turn(sdk, moment, bare)
    await serve(served, StreamingResponse(body), moment)
    assert served.open_at_the_end == 1
    served.go_on.set()
    await anyio.wait_all_tasks_blocked()
