"""A server and its client, played by a test: what is sent, and a client that stalls or goes away."""

from collections.abc import AsyncGenerator, Callable, MutableMapping
from typing import Any

import anyio
import anyio.lowlevel

from streamguard import StreamEnd

Message = MutableMapping[str, Any]


class Exchange:
    """One request, with everything that happens to its response, in order."""

    def __init__(self, method: str = "GET", spec_version: str = "2.3") -> None:
        self.scope: Message = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": spec_version},
            "http_version": "1.1",
            "method": method,
            "path": "/",
            "raw_path": b"/",
            "root_path": "",
            "query_string": b"",
            "headers": [],
        }
        self.log: list[str] = []
        self.status = 0
        self.gone = anyio.Event()
        self.stalls_at: bytes | None = None
        """The body at which the client stops to read."""
        self.breaks_at: bytes | None = None
        """The body at which the connection turns out to be broken."""
        self.stalled = anyio.Event()
        self._requested = False

    async def answer(self, app: Callable[..., Any]) -> None:
        """Have the request answered."""
        try:
            await app(self.scope, self.receive, self.send)
        finally:
            self.log.append("ended")

    async def receive(self) -> Message:
        if not self._requested:
            self._requested = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await anyio.lowlevel.checkpoint()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.log.append("head")
            return
        body = message["body"]
        assert type(body) is bytes  # a server may keep it for a while, and know nothing else
        if body == self.stalls_at:
            self.stalled.set()
            await anyio.sleep_forever()
        if body == self.breaks_at:
            self.log.append("broken")
            raise OSError("connection lost")
        self.log.append(repr(body) if message.get("more_body") else "end")

    async def leave_when(self, event: anyio.Event) -> None:
        """The client goes away at the event, once everybody waits."""
        await event.wait()
        await anyio.wait_all_tasks_blocked()
        self.gone.set()


class Body:
    """A body that says what happens to it."""

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.ends: list[StreamEnd[object]] = []
        """What the tail was given."""
        self.waiting = anyio.Event()
        """The body waits, for ever."""
        self.closing = anyio.Event()
        """The body is in its cleanup."""
        self.may_close = anyio.Event()
        """What a cleanup that is held waits for."""
        self.may_close.set()
        self.made = 0
        """How many items the body has made."""

    async def items(
        self, *items: object, wait_at: int | None = None, error: BaseException | None = None
    ) -> AsyncGenerator[Any, None]:
        """Gives the items; waits before one of them, or raises behind the last one. Its cleanup awaits."""
        try:
            for number, item in enumerate(items):
                if number == wait_at:
                    await self._wait()
                self.made += 1
                yield item
            if wait_at == len(items):
                await self._wait()
            if error is not None:
                raise error
        finally:
            self.log.append("closing")
            self.closing.set()
            await self.may_close.wait()
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
            self.log.append("closed")

    def hold_the_close(self) -> None:
        self.may_close = anyio.Event()

    async def _wait(self) -> None:
        self.waiting.set()
        await anyio.sleep_forever()

    async def tail(self, end: StreamEnd[object]) -> None:
        await anyio.lowlevel.checkpoint()
        self.ends.append(end)
        self.log.append(f"tail: {end.reason.value}")
