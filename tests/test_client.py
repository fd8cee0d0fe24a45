"""The client's end of a request, by itself; `test_starlette` has it in a response."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from asgi import Exchange
from streamguard._client import Client

pytestmark = pytest.mark.anyio

HEAD = {"type": "http.response.start", "status": 200, "headers": []}


def client_of(exchange: Exchange, *, is_cleaning_up: Callable[[], bool] = lambda: False, limit: float = 10) -> Client:
    return Client(exchange.receive, exchange.send, dict(HEAD), is_cleaning_up, limit)


async def test_headers_come_with_the_first_item() -> None:
    """The headers wait for the body, and are sent once."""
    exchange = Exchange()
    client = client_of(exchange)
    assert exchange.log == []
    await client.send(b"a")
    await client.send(b"b")
    await client.finish(whole=True)
    assert exchange.log == ["head", "b'a'", "b'b'", "end"]


async def test_gone_before_somebody_waits() -> None:
    """Who begins to wait for a client that has left waits no longer."""
    client = client_of(Exchange())
    await client.leave()
    with client.present():
        await anyio.sleep_forever()


async def test_gone_while_somebody_waits() -> None:
    """What waits for the client goes on when it leaves."""
    exchange = Exchange()
    client = client_of(exchange)
    async with anyio.create_task_group() as group:
        group.start_soon(client.listen)
        exchange.gone.set()
        with client.present():
            await anyio.sleep_forever()
    assert client.gone
    await client.send(b"a")
    assert exchange.log == []


@pytest.mark.parametrize("sent", [False, True], ids=["before the headers", "behind them"])
@pytest.mark.parametrize("whole", [False, True], ids=["in part", "whole"])
async def test_end_without_a_client(sent: bool, whole: bool) -> None:
    """What was all is ended, and what had not begun, for whoever stands between; a part is not made to look whole."""
    exchange = Exchange()
    client = client_of(exchange)
    if sent:
        await client.send(b"a")
    await client.leave()
    await client.finish(whole=whole)
    begun = ["head", "b'a'"] if sent else []
    assert exchange.log == begun + ([] if sent and not whole else ["end"] if sent else ["head", "end"])


async def test_nobody_takes_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever stands between and takes nothing any more is given up."""
    monkeypatch.setattr("streamguard._client.PATIENCE", 0.01)
    exchange = Exchange()
    exchange.stalls_at = b""
    client = client_of(exchange)
    await client.leave()
    await client.finish(whole=True)
    assert exchange.log == ["head"]


async def test_cleanup_is_waited_for() -> None:
    """While the body is in its cleanup, what waits for it goes on waiting; then no longer."""
    looks = iter([True, True, False])
    client = client_of(Exchange(), is_cleaning_up=lambda: next(looks))
    async with anyio.create_task_group() as group:
        group.start_soon(client.leave)
        with client.present():
            await anyio.sleep_forever()
    assert list(looks) == []


async def test_cleanup_has_a_limit() -> None:
    """A cleanup that does not end is waited for no longer than that."""
    client = client_of(Exchange(), is_cleaning_up=lambda: True, limit=0.02)
    async with anyio.create_task_group() as group:
        group.start_soon(client.leave)
        with client.present():
            await anyio.sleep_forever()


async def test_listening_fails() -> None:
    """A server that fails to listen has no client any more, and what it raised is kept."""
    error = OSError("of the server")

    async def receive() -> Any:
        raise error

    exchange = Exchange()
    client = Client(receive, exchange.send, dict(HEAD), lambda: False, None)
    await client.listen()
    assert client.gone
    assert client.failure is error


async def test_sending_fails() -> None:
    """A connection that is lost is no error, and nothing more of the body is sent over it."""
    exchange = Exchange()
    exchange.breaks_at = b"a"
    client = client_of(exchange)
    await client.send(b"a")
    assert client.gone
    await client.send(b"b")
    assert exchange.log == ["head", "broken"]
