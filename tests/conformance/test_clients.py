"""The streams of HTTP clients, left early: the server sees it, and the connection is closed or back in the pool."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import anthropic
import anyio
import httpx
import httpx2
import openai
import pytest
from sse_server import Server

from nothing_left import collect_until_quiet
from streamguard import EndReason, guarded_stream

pytestmark = pytest.mark.anyio

WORDS = ["It", "is on", "its way."]
LAST_BEFORE_THE_WAIT = "is on"


def _event(data: object, name: str = "") -> str:
    text = data if isinstance(data, str) else json.dumps(data)
    return f"event: {name}\ndata: {text}\n\n" if name else f"data: {text}\n\n"


def _openai_chunk(word: str) -> str:
    choice = {"index": 0, "delta": {"role": "assistant", "content": word}, "finish_reason": None}
    return _event(
        {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "offline", "choices": [choice]},
    )


def _anthropic_event(name: str, **data: object) -> str:
    return _event({"type": name, **data}, name)


def _anthropic_delta(word: str) -> str:
    return _anthropic_event("content_block_delta", index=0, delta={"type": "text_delta", "text": word})


OPENAI = [*map(_openai_chunk, WORDS), _event("[DONE]")]
ANTHROPIC = [
    _anthropic_event(
        "message_start",
        message={
            "id": "1",
            "type": "message",
            "role": "assistant",
            "model": "offline",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        },
    ),
    _anthropic_event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    *map(_anthropic_delta, WORDS),
    _anthropic_event("content_block_stop", index=0),
    _anthropic_event(
        "message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage={"output_tokens": 3}
    ),
    _anthropic_event("message_stop"),
]
LINES = [f"{word}\n" for word in WORDS]


class Client:
    """A client with a server of its own, and the pool of its connections."""

    def __init__(self, server: Server, http: Any) -> None:
        self.server = server
        self.http = http

    @property
    def connections(self) -> list[str]:
        """The state of each connection that the client holds."""
        connections = self.http._transport._pool.connections
        return [
            "idle" if connection.is_idle() else "closed" if connection.is_closed() else "busy"
            for connection in connections
        ]

    def create(self) -> Any:
        """A coroutine that gives a stream."""
        raise NotImplementedError

    def manage(self) -> Any:
        """The stream as an async context manager."""
        raise NotImplementedError


class OpenAI(Client):
    """Its stream has `close()` and `aclose()`."""

    events = OPENAI
    library = httpx2

    def __init__(self, server: Server, http: httpx2.AsyncClient) -> None:
        super().__init__(server, http)
        client = openai.AsyncOpenAI(api_key="none", base_url=server.url, http_client=http, max_retries=0)
        self._completions = client.chat.completions

    def create(self) -> Any:
        return self._completions.create(model="offline", messages=[{"role": "user", "content": "?"}], stream=True)

    def manage(self) -> Any:
        return self._completions.stream(model="offline", messages=[{"role": "user", "content": "?"}])


class Anthropic(Client):
    """Its stream has only `close()`."""

    events = ANTHROPIC
    library = httpx2

    def __init__(self, server: Server, http: httpx2.AsyncClient) -> None:
        super().__init__(server, http)
        client = anthropic.AsyncAnthropic(api_key="none", base_url=server.url, http_client=http, max_retries=0)
        self._messages = client.messages

    def create(self) -> Any:
        return self._messages.create(
            model="offline", max_tokens=9, messages=[{"role": "user", "content": "?"}], stream=True
        )

    def manage(self) -> Any:
        return self._messages.stream(model="offline", max_tokens=9, messages=[{"role": "user", "content": "?"}])


class Lines(Client):
    """The lines of a response, by a generator that everybody writes."""

    events = LINES
    library = httpx

    async def lines(self) -> AsyncIterator[str]:
        async with self.http.stream("GET", self.server.url) as response:
            async for line in response.aiter_lines():
                yield line


class Lines2(Lines):
    """The same with the other httpx."""

    library = httpx2


async def made(client: Client) -> Any:
    return await client.create()


async def unawaited(client: Client) -> Any:
    return client.create()


async def called(client: Client) -> Any:
    return client.create


async def managed(client: Client) -> Any:
    return client.manage()


async def generated(client: Client) -> Any:
    return client.lines()


Giver = Callable[[Client], Any]
SOURCES = [
    *((kind, give) for kind in (OpenAI, Anthropic) for give in (made, unawaited, called, managed)),
    *((kind, generated) for kind in (Lines, Lines2)),
]
ALL_SOURCES = [pytest.param(kind, give, id=f"{kind.__name__}-{give.__name__}") for kind, give in SOURCES]
all_sources = pytest.mark.parametrize(("client", "give"), ALL_SOURCES, indirect=["client"])
both_apis = pytest.mark.parametrize("client", [OpenAI, Anthropic], indirect=True)


@pytest.fixture
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    kind = request.param
    split = next(number for number, event in enumerate(kind.events, 1) if LAST_BEFORE_THE_WAIT in event)
    with anyio.fail_after(20):
        async with Server(kind.events[:split], kind.events[split:]).run() as server:
            # Certificates take a while to load, and none is needed on the loopback.
            async with kind.library.AsyncClient(trust_env=False, verify=False) as http:
                yield kind(server, http)
            # A stream keeps its generators suspended; when it goes, the event loop closes one of them a turn.
            collect_until_quiet()
            for _ in range(9):
                await anyio.wait_all_tasks_blocked()


@all_sources
async def test_left_early(client: Client, give: Giver) -> None:
    """After a break the connection is gone, and the server sees that its client hung up."""
    async with guarded_stream(await give(client), cleanup_timeout=5) as stream:
        async for _ in stream:
            assert client.connections == ["busy"]
            break
    assert client.connections == []
    await client.server.aborted.wait()
    assert client.server.requests == 1
    assert stream.end.reason is EndReason.LEFT


@all_sources
async def test_to_the_end(client: Client, give: Giver) -> None:
    """After the last event the connection is back in the pool, and serves the next request."""
    client.server.go_on.set()
    for _ in range(2):
        async with guarded_stream(await give(client), cleanup_timeout=5) as stream:
            items = [item async for item in stream]
        assert client.connections == ["idle"]
        assert stream.end.reason is EndReason.EXHAUSTED
        assert any(WORDS[-1] in str(item) for item in items)
    assert client.server.requests == 2
    assert not client.server.aborted.is_set()


@all_sources
@pytest.mark.parametrize("by", ["task", "scope"])
async def test_cancelled_while_waiting(client: Client, give: Giver, by: str) -> None:
    """Cancelled while it waits for the server, natively or by a scope, the connection is gone as well."""
    arrived = asyncio.Event()
    scope = anyio.CancelScope()
    source = await give(client)

    async def read() -> None:
        with scope:
            try:
                async with guarded_stream(source, cleanup_timeout=5) as stream:
                    async for item in stream:
                        if LAST_BEFORE_THE_WAIT in str(item):
                            arrived.set()
            finally:
                # At once, without an await.
                assert client.connections == []
                assert stream.end.reason is EndReason.CANCELLED

    task = asyncio.create_task(read())
    await arrived.wait()
    await anyio.wait_all_tasks_blocked()
    assert not task.done()
    if by == "task":
        task.cancel()
    else:
        scope.cancel()
    await asyncio.wait([task])
    assert task.cancelled() == (by == "task")
    assert task.cancelled() or task.exception() is None
    await client.server.aborted.wait()


@pytest.mark.parametrize(
    ("client", "give"),
    # A context manager that the clients make holds a coroutine, and complains by itself if it is not entered.
    [source for source in ALL_SOURCES if source.values[1] is not managed],
    indirect=["client"],
)
async def test_never_read(client: Client, give: Giver) -> None:
    """What nobody reads is closed; a request that was not made yet is never made."""
    async with guarded_stream(await give(client), cleanup_timeout=5):
        pass
    assert client.connections == []
    assert client.server.requests == (give is made)
    if give is made:
        await client.server.aborted.wait()


@both_apis
async def test_bare_loop(client: Client) -> None:
    """Behind a loop of its own the connection stays open as long as the stream does."""
    stream = await client.create()
    async for _ in stream:
        break
    assert client.connections == ["busy"]
    await stream.close()
    await client.server.aborted.wait()


@pytest.mark.parametrize("client", [Anthropic], indirect=True)
async def test_no_aclose(client: Client) -> None:
    """`contextlib.aclosing` cannot close a stream that has only `close()`."""
    stream = await client.create()
    with pytest.raises(AttributeError, match="aclose"):
        async with aclosing(stream):
            pass
    assert client.connections == ["busy"]
    await stream.close()
