"""A server on the loopback that sends events, waits in the middle, and knows who hung up."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager


class Server:
    """Answers each request with its events: the first ones at once, the rest when the test says so."""

    def __init__(self, first: Iterable[str], rest: Iterable[str]) -> None:
        self.url = ""
        self.requests = 0
        self.go_on = asyncio.Event()
        self.aborted = asyncio.Event()
        """A client hung up in the middle of its answer."""
        self._first = [event.encode() for event in first]
        self._rest = [event.encode() for event in rest]
        self._connections: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def run(self) -> AsyncIterator["Server"]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}"
        try:
            yield self
        finally:
            server.close()
            # What the clients have closed ends by itself.
            if self._connections:
                await asyncio.wait(self._connections)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await _request(reader):
                self.requests += 1
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
                )
                for event in self._first:
                    writer.write(_chunk(event))
                if await self._is_hung_up(reader):
                    self.aborted.set()
                    return
                for event in [*self._rest, b""]:
                    writer.write(_chunk(event))
        finally:
            writer.close()

    async def _is_hung_up(self, reader: asyncio.StreamReader) -> bool:
        hung_up = asyncio.create_task(reader.read(1))
        going_on = asyncio.create_task(self.go_on.wait())
        await asyncio.wait([hung_up, going_on], return_when=asyncio.FIRST_COMPLETED)
        for task in (hung_up, going_on):
            task.cancel()
        await asyncio.wait([hung_up, going_on])
        return not hung_up.cancelled()


async def _request(reader: asyncio.StreamReader) -> bool:
    """Reads a request; false if the client has hung up instead."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        for line in head.lower().splitlines():
            if line.startswith(b"content-length:"):
                await reader.readexactly(int(line.partition(b":")[2]))
    except asyncio.IncompleteReadError:
        return False
    return True


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
