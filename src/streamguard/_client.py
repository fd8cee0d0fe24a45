"""The client's end of an ASGI request: what is sent to it for as long as it is there.

The rule kept here: a client that goes away is no error, whether the server tells by `receive` or by an `OSError` of
`send`. It ends what waits for the client, nothing else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import anyio

Message: TypeAlias = MutableMapping[str, Any]

PATIENCE = 1.0
"""Seconds to tell whoever stands between us and a client that is gone how the response ends."""
PULSE = 0.01
"""Seconds until a body that is in its cleanup is looked at again."""


class Client:
    """Whoever waits for a response."""

    def __init__(
        self,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
        head: Message,
        is_cleaning_up: Callable[[], bool],
        limit: float | None,
    ) -> None:
        self._receive = receive
        self._send = send
        self._head: Message | None = head
        """The status and the headers, until they are sent."""
        self._is_cleaning_up = is_cleaning_up
        self._limit = limit
        self._scope: anyio.CancelScope | None = None
        self._is_left = False
        self.gone = False
        self.failure: Exception | None = None
        """What listening raised."""
        self.ended = anyio.Event()
        """Nothing is sent any more, and nothing is left of what was."""

    async def listen(self) -> None:
        """Wait until the client goes away."""
        try:
            while (await self._receive())["type"] != "http.disconnect":
                pass  # what is left of the request
        except Exception as error:  # raised by whoever sends: a task group would wrap it
            self.failure = error
        await self.leave()

    async def leave(self) -> None:
        """Let what waits for the client go on without it; a body that is in its own cleanup, after that."""
        self.gone = True
        with anyio.move_on_after(self._limit):
            while self._is_cleaning_up():  # noqa: ASYNC110 - there is nothing that tells
                await anyio.sleep(PULSE)
        self._is_left = True
        if self._scope is not None:
            self._scope.cancel()

    @contextmanager
    def present(self) -> Iterator[None]:
        """A block that ends, without an error, when the client has gone away."""
        with anyio.CancelScope() as self._scope:
            if self._is_left:
                self._scope.cancel()
            yield

    async def send(self, body: bytes) -> None:
        """Send a part of the body; the first one goes behind the headers."""
        if not self.gone:
            await self._put(body, more=True)

    async def finish(self, *, whole: bool) -> None:
        """End the response; without a client, if that was all, or nothing was sent."""
        if not self.gone:
            with self.present():
                await self._put(b"", more=False)
        elif whole or self._head is not None:
            # A middleware that is given no response at all takes that for a fault of the application.
            with anyio.move_on_after(PATIENCE):
                await self._put(b"", more=False)

    async def _put(self, body: bytes, *, more: bool) -> None:
        try:
            if self._head is not None:
                # Never twice, also if it fails or is cut.
                head, self._head = self._head, None
                await self._send(head)
            await self._send({"type": "http.response.body", "body": body, "more_body": more})
        except OSError:
            self.gone = True
