"""A chat with an agent, served by FastAPI. When the client goes away, the run is closed, tool and model included.

``pip install "streamguard-aio[starlette]" fastapi uvicorn``, then ``python chat_app.py``. It needs no network and no
key: the agent is made up. The page shows the answer as it comes, and what the server has closed.
"""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from pydantic import BaseModel

from streamguard import StreamEnd
from streamguard.starlette import GuardedStreamingResponse, close_responses

PAGE = Path(__file__).with_name("chat_page.html")
PAUSE = 0.12
"""Seconds from one word of the answer to the next."""
ANSWER = (
    "Your parcel left the warehouse on Monday. It was seen in three cities since, once on a ferry, and it is now with "
    "the courier, who has eleven parcels left before yours. If nobody is at home, it goes to the shop at the corner, "
    "where it waits for a week. You need nothing but your name to pick it up."
)


class Log:
    """What happened on the server, for everybody who wants to watch."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._more = asyncio.Event()

    def add(self, line: str) -> None:
        self.lines.append(line)
        more, self._more = self._more, asyncio.Event()
        more.set()

    async def follow(self) -> AsyncIterator[str]:
        """All lines, for ever."""
        for number in itertools.count():
            while number == len(self.lines):
                await self._more.wait()
            yield self.lines[number]


# -- the agent


async def look_up_parcel(name: str, log: Log) -> AsyncIterator[str]:
    """A tool that takes its time and says how it gets on."""
    try:
        for place in ("warehouse", "ferry", "courier"):
            yield f"asking the {place}"
            await asyncio.sleep(3 * PAUSE)
    finally:
        await asyncio.sleep(0.05)  # says goodbye
        log.add(f"{name}: the tool is closed")


async def stream_answer(name: str, log: Log) -> AsyncIterator[str]:
    """A model that answers word by word, over a connection of its own."""
    try:
        for word in ANSWER.split():
            yield f"{word} "
            await asyncio.sleep(PAUSE)
    finally:
        await asyncio.sleep(0.05)  # closes the connection
        log.add(f"{name}: the model is closed")


async def run_agent(question: str, name: str, log: Log) -> AsyncIterator[tuple[str, str]]:
    """One turn. As in many agents, nothing in it closes the tool or the model if it is left in between."""
    log.add(f"{name}: started with {question!r}")
    async for step in look_up_parcel(name, log):
        yield "tool", step
    async for word in stream_answer(name, log):
        yield "word", word


# -- the server


def server_sent(kind: str, data: object) -> str:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n"


async def as_events(turn: AsyncIterator[tuple[str, str]]) -> AsyncIterator[str]:
    async for kind, text in turn:
        yield server_sent(kind, text)
    yield server_sent("end", "")


class Question(BaseModel):
    text: str


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    await close_responses()  # else the server would end in the middle of their cleanup


def make_app() -> FastAPI:
    app = FastAPI(title="Chat", lifespan=lifespan)
    app.state.log = log = Log()
    runs = itertools.count(1)
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}

    @app.get("/")
    async def page() -> HTMLResponse:
        return HTMLResponse(PAGE.read_text(encoding="utf-8"))

    @app.post("/chat")
    async def chat(question: Question) -> GuardedStreamingResponse:
        name = f"run {next(runs)}"

        def finish(end: StreamEnd[str]) -> None:
            log.add(f"{name}: finished, {end.reason.value} after {end.items} event{'s' * (end.items != 1)}")

        turn = run_agent(question.text, name, log)
        return GuardedStreamingResponse(as_events(turn), headers=headers, media_type="text/event-stream", tail=finish)

    @app.get("/log")
    async def watch() -> GuardedStreamingResponse:
        async def lines() -> AsyncIterator[str]:
            async for line in log.follow():
                yield server_sent("line", line)

        return GuardedStreamingResponse(lines(), headers=headers, media_type="text/event-stream")

    return app


app = make_app()

if __name__ == "__main__":
    # Ctrl-C: open streams have a second to end by themselves.
    uvicorn.run(app, port=8000, timeout_graceful_shutdown=1)
