"""Guarded responses in applications, served by a real server to real clients."""

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Annotated, Any

import httpx
import pytest
from fastapi import BackgroundTasks, Depends, FastAPI
from sse_starlette.sse import ServerSentEvent
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from asgi import Body
from loopback import LIMIT, Client, Server
from streamguard.starlette import GuardedStreamingResponse

pytestmark = pytest.mark.anyio

Make = Callable[[], Response]
CLOSED = ["closing", "closed"]


def app_with(make: Make, **options: Any) -> Starlette:
    """An application that answers every request with a new response."""

    async def endpoint(request: Request) -> Response:
        return make()

    return Starlette(routes=[Route("/", endpoint)], **options)


# -- what a client gets


async def test_to_the_end(http: str) -> None:
    """A client that reads to the end has all of it, and then nothing is left; its connection is used again."""
    body = Body([])
    app = app_with(lambda: GuardedStreamingResponse(body.items("a", "b"), tail=body.tail, media_type="text/plain"))
    async with Server(app, body.log, http=http).run() as server, httpx.AsyncClient(base_url=server.url) as client:
        for _ in range(3):
            response = await client.get("/")
            assert (response.status_code, response.text) == (200, "ab")
            assert response.headers["content-type"] == "text/plain; charset=utf-8"
            body.log.append("read")
        assert len(server.server_state.connections) == 1
    assert body.log[:4] == [*CLOSED, "tail: exhausted", "ended"]
    assert body.log.count("tail: exhausted") == 3
    assert server.errors == []


async def test_httpx_leaves(http: str) -> None:
    """A client that leaves the block of its response ends the body."""
    body = Body([])
    app = app_with(lambda: GuardedStreamingResponse(body.items("a", wait_at=1), tail=body.tail))
    async with Server(app, body.log, http=http).run() as server, httpx.AsyncClient() as client:
        async with client.stream("GET", server.url) as response:
            assert await anext(response.aiter_text()) == "a"
        await server.ended.wait()
    assert body.log == [*CLOSED, "tail: left", "ended"]
    assert server.errors == []


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_versions_of_http(http: str, version: str) -> None:
    """With HTTP/1.0 the end of the body is the end of the connection, and comes as late."""
    body = Body([])
    app = app_with(lambda: GuardedStreamingResponse(body.items("a", "b"), tail=body.tail))
    async with Server(app, body.log, http=http).run() as server:
        client = await Client.connect(server)
        client.ask(version=version, headers="Connection: close\r\n")
        text = await client.read_to_the_end()
        client.leave()
    chunked = b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n"
    # httptools sends chunks to everybody.
    expected = b"ab" if (version, http) == ("1.0", "h11") else chunked
    assert text.partition(b"\r\n\r\n")[2] == expected
    assert body.log == [*CLOSED, "tail: exhausted", "ended"]


async def test_head(http: str) -> None:
    """`HEAD` gives the headers of `GET`; the body is closed without having been run."""
    body = Body([])
    app = app_with(lambda: GuardedStreamingResponse(body.items("a"), tail=body.tail, headers={"x-one": "1"}))
    async with Server(app, body.log, http=http).run() as server, httpx.AsyncClient(base_url=server.url) as client:
        response = await client.head("/")
        assert (response.status_code, response.headers["x-one"], response.content) == (200, "1", b"")
    assert body.log == ["tail: left", "ended"]
    assert server.errors == []


async def test_server_sent_events(http: str) -> None:
    """Events of sse-starlette are encoded."""
    body = Body([])

    class Loud(ServerSentEvent):
        def encode(self) -> bytes:
            return super().encode().upper()

    events = [ServerSentEvent("one", event="word", id="1"), Loud("two"), ServerSentEvent(comment="?")]
    app = app_with(lambda: GuardedStreamingResponse(body.items(*events), media_type="text/event-stream"))
    async with Server(app, body.log, http=http).run() as server, httpx.AsyncClient() as client:
        response = await client.get(server.url)
    assert response.text.replace("\r\n", "\n") == "id: 1\nevent: word\ndata: one\n\nDATA: TWO\n\n: ?\n\n"
    assert response.headers["content-type"].startswith("text/event-stream")


async def test_error_before_the_headers(http: str) -> None:
    """What the body raises before its first item is an answer of status 500."""
    body = Body([])
    app = app_with(lambda: GuardedStreamingResponse(body.items(error=OSError("no model")), tail=body.tail))
    async with Server(app, body.log, http=http).run() as server, httpx.AsyncClient() as client:
        assert (await client.get(server.url)).status_code == 500
    assert body.log == [*CLOSED, "tail: failed", "ended"]
    assert server.errors == ["Exception in ASGI application: OSError('no model')"]


@pytest.mark.parametrize("bad", [OSError("no model"), {"not": "sent"}], ids=["raises", "unsendable"])
async def test_error_after_the_headers(http: str, bad: object) -> None:
    """What goes wrong behind the first item breaks the connection: the client can tell that this is not all."""
    body = Body([])
    items = body.items("a", error=bad) if isinstance(bad, Exception) else body.items("a", bad)
    app = app_with(lambda: GuardedStreamingResponse(items, tail=body.tail))
    async with Server(app, body.log, http=http).run() as server, httpx.AsyncClient() as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(server.url)
    assert body.log == [*CLOSED, "tail: failed", "ended"]
    (error,) = server.errors
    assert ("no model" if isinstance(bad, Exception) else "which cannot be sent") in error


# -- what stands between


async def test_gzip(http: str) -> None:
    """Behind GZipMiddleware the body is closed when the client goes away."""
    body = Body([])
    app = app_with(
        lambda: GuardedStreamingResponse(body.items("a" * 1000, wait_at=1), tail=body.tail),
        middleware=[Middleware(GZipMiddleware)],
    )
    async with Server(app, body.log, http=http).run() as server, httpx.AsyncClient() as client:
        async with client.stream("GET", server.url) as response:
            assert response.headers["content-encoding"] == "gzip"
            await body.waiting.wait()
        await server.ended.wait()
    assert body.log == [*CLOSED, "tail: left", "ended"]
    assert server.errors == []


async def test_mounted(http: str) -> None:
    """In a mounted application, too, errors before the first item are answered, and the body is closed."""
    body = Body([])
    inner = app_with(lambda: GuardedStreamingResponse(body.items("a"), tail=body.tail))
    app = Starlette(routes=[Mount("/inner", inner)])
    async with Server(app, body.log, http=http).run() as server, httpx.AsyncClient() as client:
        assert (await client.get(f"{server.url}/inner/")).text == "a"
    assert body.log == [*CLOSED, "tail: exhausted", "ended"]


@pytest.mark.parametrize("readers", [0, 1, 2])
async def test_request_with_a_body(http: str, readers: int) -> None:
    """A request with a body, read by the endpoint or by middleware on the way: the client is missed all the same."""
    body = Body([])

    async def read(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        await request.body()
        return await call_next(request)

    async def endpoint(request: Request) -> Response:
        assert len(await request.body()) == 100_000
        return GuardedStreamingResponse(body.items("a", wait_at=1), tail=body.tail)

    app = Starlette(
        routes=[Route("/", endpoint, methods=["POST"])],
        middleware=[Middleware(BaseHTTPMiddleware, dispatch=read)] * readers,
    )
    async with Server(app, body.log, http=http).run() as server, httpx.AsyncClient() as client:
        async with client.stream("POST", server.url, content=b"x" * 100_000) as response:
            assert await anext(response.aiter_text()) == "a"
        await server.ended.wait()
    assert body.log == [*CLOSED, "tail: left", "ended"]
    assert server.errors == []


async def test_upload_that_goes_on(http: str) -> None:
    """A client that has not sent all of its request is answered to the end."""
    body = Body([])
    app = app_with(lambda: GuardedStreamingResponse(body.items("a"), tail=body.tail))
    async with Server(app, body.log, http=http).run() as server:
        client = await Client.connect(server)
        client.ask(headers="Content-Length: 100000\r\n", content=b"not all")
        await client.read_until(b"0\r\n\r\n")
        client.leave()
    assert body.log == [*CLOSED, "tail: exhausted", "ended"]
    assert server.errors == []


@pytest.mark.filterwarnings("ignore:The anyio.abc.BlockingPortal alias:DeprecationWarning")  # Starlette's, before 1.0
def test_test_client() -> None:
    """Starlette's TestClient gets it all."""
    from starlette.testclient import TestClient

    body = Body([])
    client = TestClient(app_with(lambda: GuardedStreamingResponse(body.items("a", "b"), tail=body.tail)))
    assert client.get("/").text == "ab"
    assert body.log == [*CLOSED, "tail: exhausted"]


# -- FastAPI


class Database:
    """What a dependency gives, for as long as the request lasts."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    async def connect(self) -> AsyncIterator["Database"]:
        self.log.append("connected")
        try:
            yield self
        finally:
            await asyncio.sleep(0)
            self.log.append("disconnected")


@pytest.mark.parametrize("leaves", [False, True], ids=["reads", "leaves"])
async def test_fastapi(http: str, leaves: bool) -> None:
    """What a dependency yields is there for the cleanup of the body; background tasks come behind it."""
    body = Body([])
    database = Database(body.log)
    app = FastAPI()

    @app.get("/")
    async def chat(
        connection: Annotated[Database, Depends(database.connect)], background: BackgroundTasks
    ) -> GuardedStreamingResponse:
        assert connection is database
        background.add_task(partial(body.log.append, "background"))
        return GuardedStreamingResponse(body.items("a", wait_at=1 if leaves else None), tail=body.tail)

    async with Server(app, body.log, http=http).run() as server, httpx.AsyncClient() as client:
        async with client.stream("GET", server.url) as response:
            assert await anext(response.aiter_text()) == "a"
            if leaves:
                await body.waiting.wait()
        await server.ended.wait()
    reason = "left" if leaves else "exhausted"
    assert body.log == ["connected", *CLOSED, f"tail: {reason}", "background", "disconnected", "ended"]
    assert server.errors == []


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_fastapi_response_class(http: str, sync: bool) -> None:
    """It serves as the response class of a path operation that yields."""
    log: list[str] = []
    app = FastAPI()

    async def words() -> AsyncIterator[str]:
        try:
            yield "a"
            yield "b"
        finally:
            await asyncio.sleep(0)
            log.append("closed")

    def words_in_a_thread() -> Iterator[str]:
        try:
            yield "a"
            yield "b"
        finally:
            log.append("closed")

    app.get("/", response_class=GuardedStreamingResponse)(words_in_a_thread if sync else words)
    async with Server(app, log, http=http).run() as server, httpx.AsyncClient() as client:
        assert (await client.get(server.url)).text == "ab"
    assert log == ["closed", "ended"]
    assert "responses" in app.openapi()["paths"]["/"]["get"]


# -- the end of the server

PROGRAM = """
import asyncio, contextlib, socket, sys
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route
from streamguard.starlette import GuardedStreamingResponse, close_responses

async def body():
    try:
        print("waiting", flush=True)
        await asyncio.sleep(60)
        yield "a"
    finally:
        print("closing", flush=True)
        await asyncio.sleep(float(sys.argv[2]))
        print("closed", flush=True)

def tail(end):
    print("tail:", end.reason.value, flush=True)

async def endpoint(request):
    return GuardedStreamingResponse(body(), tail=tail)

@contextlib.asynccontextmanager
async def lifespan(app):
    yield
    if sys.argv[3] == "close":
        await close_responses()
    print("shut down", flush=True)

app = Starlette(routes=[Route("/", endpoint)], lifespan=lifespan)
config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=0)
asyncio.run(uvicorn.Server(config).serve([socket.socket(fileno=int(sys.argv[1]))]))
"""


@pytest.mark.parametrize("closes", [True, False], ids=["close_responses", "nothing"])
def test_shutdown(closes: bool) -> None:
    """A server that ends cancels its requests, and waits for the application, but for none of them.

    With `close_responses` the application waits until the cleanup of what was open is complete.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:
        # Without a wait even a long cleanup delays nothing.
        arguments = ["0.1", "close"] if closes else ["60", "nothing"]
        program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(listening.fileno()), *arguments],
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[listening.fileno()],
        )
        try:
            with socket.create_connection(listening.getsockname(), timeout=LIMIT) as client:
                client.sendall(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n")
                assert program.stdout is not None
                assert program.stdout.readline() == "waiting\n"
                program.send_signal(signal.SIGTERM)
                rest, _ = program.communicate(timeout=LIMIT)
        finally:
            program.kill()
            program.wait()
    if closes:
        assert rest.split() == ["closing", "closed", "tail:", "cancelled", "shut", "down"]
    else:
        assert "shut down" in rest
        assert "closed" not in rest
