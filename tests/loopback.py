"""A real server on the loopback, in the event loop of the test, and a client that reads only what it is told to."""

import asyncio
import logging
import socket
import struct
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

LIMIT = 60.0
"""Seconds after which a test has hung."""


class Server(uvicorn.Server):
    """Serves until it is told to end; notes in its log when a request has ended, and what was said to be an error."""

    def __init__(self, app: Callable[..., Any], log: list[str], **options: Any) -> None:
        self._app = app
        self.log = log
        self.errors: list[str] = []
        self.ended = asyncio.Event()
        """A request has ended."""
        self.leaving = asyncio.Event()
        config = uvicorn.Config(self._answer, interface="asgi3", log_config=None, access_log=False, **options)
        config.load()  # fails here, if it does
        super().__init__(config)
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _answer(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        try:
            await self._app(scope, receive, send)
        finally:
            if scope["type"] == "http":
                self.log.append("ended")
                self.ended.set()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.leaving.wait()  # not ten times a second

    @asynccontextmanager
    async def run(self, limit: float = LIMIT) -> AsyncIterator["Server"]:
        """Serves while the block is open; then all connections and requests have ended."""
        handler = _Errors(self.errors)
        logger = logging.getLogger("uvicorn.error")
        logger.addHandler(handler)
        serving = asyncio.create_task(self.serve([self._socket]))
        try:
            async with asyncio.timeout(limit):
                # Connections wait in the socket until it serves.
                self._socket.listen()
                yield self
                self.leaving.set()
                await serving
                if requests := set(self.server_state.tasks):
                    await asyncio.wait(requests)
        finally:
            logger.removeHandler(handler)
            await self._give_up(serving)
        assert not self.server_state.connections
        assert not self.server_state.tasks

    async def _give_up(self, serving: asyncio.Task[None]) -> None:
        """End what a test that failed has left; else there is nothing."""
        for connection in self.server_state.connections:
            connection.transport.abort()
        for server in self.servers:
            server.close()
        tasks = {serving, *self.server_state.tasks}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


class _Errors(logging.Handler):
    def __init__(self, errors: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._errors = errors

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._errors.append(f"{record.getMessage().strip()}: {error!r}" if error else record.getMessage())


class Client:
    """A connection that is read by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, server: Server) -> "Client":
        # A small buffer, so that what is not read is soon felt by the server.
        return cls(*await asyncio.open_connection("127.0.0.1", server.port, limit=1024))

    def ask(
        self,
        path: str = "/",
        *,
        method: str = "GET",
        version: str = "1.1",
        headers: str = "",
        content: bytes = b"",
    ) -> None:
        self._writer.write(f"{method} {path} HTTP/{version}\r\nHost: test\r\n{headers}\r\n".encode() + content)

    async def read_until(self, text: bytes) -> bytes:
        return await self._reader.readuntil(text)

    async def read_head(self) -> int:
        """The status."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        return int(head.split(b" ", 2)[1])

    async def read_to_the_end(self) -> bytes:
        """All up to the close of the connection by the server."""
        return await self._reader.read()

    def leave(self, *, reset: bool = False) -> None:
        """Hang up; with a reset as somebody whose power fails."""
        if reset:
            connection = self._writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()
