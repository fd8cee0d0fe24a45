"""The chat example, without a browser: `tests/browser` has one."""

import json
import re
from collections.abc import Iterator

import httpx
import pytest

import chat_app
from loopback import Client, Server
from streamguard import guarded_stream

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_app, "PAUSE", 0.001)


def events(text: str) -> Iterator[tuple[str, str]]:
    for kind, data in re.findall(r"event: (\w+)\ndata: (.*)\n\n", text):
        yield kind, json.loads(data)


async def test_to_the_end(http: str) -> None:
    """The answer comes in words; tool and model are closed, each when it is done."""
    app = chat_app.make_app()
    log: chat_app.Log = app.state.log
    async with Server(app, [], http=http).run() as server, httpx.AsyncClient(base_url=server.url) as client:
        page = await client.get("/")
        response = await client.post("/chat", json={"text": "where?"})
        # Had the response ended before its cleanup, not all of this would be there.
        lines = list(log.lines)
    assert "<h1>" in page.text
    words = [text for kind, text in events(response.text) if kind == "word"]
    assert "".join(words).strip() == chat_app.ANSWER
    assert lines == [
        "run 1: started with 'where?'",
        "run 1: the tool is closed",
        "run 1: the model is closed",
        f"run 1: finished, exhausted after {len(words) + 4} events",
    ]
    assert server.errors == []


async def leave_at(text: bytes, http: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The log of the server when a client has read this far, no more came, and it went away."""
    app = chat_app.make_app()
    log: chat_app.Log = app.state.log
    async with Server(app, [], http=http).run() as server:
        client = await Client.connect(server)
        content = b'{"text": "where?"}'
        headers = f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        client.ask("/chat", method="POST", headers=headers, content=content)
        await client.read_until(text)
        monkeypatch.setattr(chat_app, "PAUSE", 60)
        client.leave()
        await server.ended.wait()
        lines = list(log.lines)
    assert server.errors == []
    return lines


async def test_client_leaves_at_the_tool(http: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool at work is closed when the client goes away, although nothing in the agent does it."""
    monkeypatch.setattr(chat_app, "PAUSE", 60)
    _, *lines = await leave_at(b"asking the warehouse", http, monkeypatch)
    assert lines == ["run 1: the tool is closed", "run 1: finished, left after 1 event"]


async def test_client_leaves_at_the_answer(http: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is a model in the middle of its answer."""
    _, *lines = await leave_at(b"cities", http, monkeypatch)
    assert lines[:2] == ["run 1: the tool is closed", "run 1: the model is closed"]
    assert lines[2].startswith("run 1: finished, left after ")


async def test_log(http: str) -> None:
    """Whoever watches the log gets all of it, and what comes."""
    app = chat_app.make_app()
    log: chat_app.Log = app.state.log
    log.add("before")
    ended: list[str] = []
    async with Server(app, ended, http=http).run() as server, httpx.AsyncClient(base_url=server.url) as client:
        async with client.stream("GET", "/log") as response, guarded_stream(response.aiter_lines()) as lines:
            for line in ("before", "now"):
                if line == "now":
                    log.add(line)
                assert [await anext(lines) for _ in range(3)] == ["event: line", f'data: "{line}"', ""]
        await server.ended.wait()
    assert ended == ["ended"]
    assert server.errors == []
