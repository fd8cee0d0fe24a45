"""Clients and servers that go away, by real connections to a real server: what is closed when the request ends.

The same with Starlette's own response, to show what that leaves.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio
import anyio.lowlevel
import pytest
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from asgi import Body
from loopback import Client, Server
from streamguard.starlette import GuardedStreamingResponse

pytestmark = pytest.mark.anyio

BIG = b"x" * 500_000
MANY = 40
"""More of these than any buffer takes in."""


async def leave_while_the_body_waits(server: Server, client: Client, body: Body) -> None:
    await body.waiting.wait()
    client.leave()


async def reset_while_the_body_waits(server: Server, client: Client, body: Body) -> None:
    await body.waiting.wait()
    client.leave(reset=True)


async def leave_while_send_waits(server: Server, client: Client, body: Body) -> None:
    await client.read_head()
    await anyio.wait_all_tasks_blocked()  # the server has no room left
    assert 0 < body.made < MANY
    client.leave()


async def leave_while_the_body_ends(server: Server, client: Client, body: Body) -> None:
    """The client has the last chunk, and the body is in the `finally` of its own end."""
    await client.read_until(b"a")
    await body.closing.wait()
    client.leave()
    while server.server_state.connections:
        await anyio.lowlevel.checkpoint()
    await anyio.wait_all_tasks_blocked()
    body.may_close.set()


async def leave_at_the_end(server: Server, client: Client, body: Body) -> None:
    await client.read_until(b"0\r\n\r\n")
    client.leave()


async def shut_down(server: Server, client: Client, body: Body) -> None:
    """The server waits no longer for its open requests, and cancels them."""
    await body.waiting.wait()
    server.leaving.set()


@dataclass(frozen=True)
class Way:
    """How a client or the server goes away, and what it does to a body."""

    take: Callable[[Server, Client, Body], Awaitable[None]]
    items: tuple[object, ...]
    wait_at: int | None = None
    reason: str = "left"
    """What the tail is told by a guarded response."""
    starlette: str = "cut"
    """What has become of the body when the request ends, with Starlette's own response: ``cut``: its cleanup was
    cancelled at its first await; ``open``: nobody closed it."""
    starlette_behind_middleware: str = "cut"


WAYS = {
    "before the first chunk": Way(leave_while_the_body_waits, ("a",), wait_at=0),
    "the body waits": Way(leave_while_the_body_waits, ("a",), wait_at=1),
    "the body waits, reset": Way(reset_while_the_body_waits, ("a",), wait_at=1),
    "send waits": Way(leave_while_send_waits, (BIG,) * MANY, starlette_behind_middleware="open"),
    "the body ends": Way(leave_while_the_body_ends, ("a",), reason="exhausted"),
    "after the last chunk": Way(
        leave_at_the_end, ("a",), reason="exhausted", starlette="closed", starlette_behind_middleware="closed"
    ),
    "shutdown": Way(shut_down, ("a",), wait_at=1, reason="cancelled"),
}
CANCELS = "Cancel 1 running task(s), timeout graceful shutdown exceeded"
# Not the server's end behind a middleware: that of older Starlettes then leaves a generator of its own.
each_case = pytest.mark.parametrize(
    ("way", "middleware"),
    [
        pytest.param(way, behind, id=f"{name}{', behind a middleware' * behind}")
        for name, way in WAYS.items()
        for behind in (False, True)
        if not (behind and way.take is shut_down)
    ],
)


async def pass_on(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    return await call_next(request)


async def serve(way: Way, response: Response, body: Body, http: str, *, middleware: bool) -> Server:
    """Have a request answered by this response, and somebody go away."""
    if way.take is leave_while_the_body_ends:
        body.hold_the_close()
    app = BaseHTTPMiddleware(response, pass_on) if middleware else response
    patience = 0 if way.take is shut_down else None
    server = Server(app, body.log, lifespan="off", http=http, timeout_graceful_shutdown=patience)
    async with server.run():
        client = await Client.connect(server)
        client.ask()
        await way.take(server, client, body)
        await server.ended.wait()
        # Anything later is too late.
        body.log.append("looked")
        client.leave()
    return server


def fate(log: list[str]) -> str:
    """What had become of the body when the request ended."""
    before = log[: log.index("ended")]
    return "closed" if "closed" in before else "cut" if "closing" in before else "open"


@each_case
async def test_guarded(way: Way, http: str, middleware: bool) -> None:
    """The body is closed, its cleanup complete, and the tail has run, once, before the request ends.

    Nobody takes it for an error of the application.
    """
    body = Body([])
    response = GuardedStreamingResponse(body.items(*way.items, wait_at=way.wait_at), tail=body.tail)
    server = await serve(way, response, body, http, middleware=middleware)
    assert body.log == ["closing", "closed", f"tail: {way.reason}", "ended", "looked"]
    assert body.made < MANY
    if way.take is shut_down:
        assert [error.partition(":")[0] for error in server.errors] == [CANCELS, "Exception in ASGI application"]
        assert "CancelledError" in server.errors[1]
    else:
        assert server.errors == []


@pytest.mark.may_leave("Starlette does not close its body")
@each_case
async def test_starlette(way: Way, http: str, middleware: bool) -> None:
    """Starlette's own response cuts the cleanup at its first await, or leaves the body open.

    A body that does not wait by itself is run to its end when the client has gone, if the server does not tell.
    """
    body = Body([])
    kept = body.items(*way.items, wait_at=way.wait_at)
    await serve(way, StreamingResponse(kept), body, http, middleware=middleware)
    assert fate(body.log) == (way.starlette_behind_middleware if middleware else way.starlette)
    if way.take is leave_while_send_waits:
        assert (body.made == MANY) == (not middleware)
    await kept.aclose()
