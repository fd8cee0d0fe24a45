"""Serving streams with Starlette and FastAPI: a response that closes its body.

The rule kept here: a response ends, for the server and for the client, when nothing of its stream is left.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar, cast

import anyio
from anyio.lowlevel import RunVar

from ._client import Client
from ._closing import nudge
from ._end import EndReason, StreamEnd
from ._finally import in_finally
from ._guard import make_owner
from ._options import Options
from ._sources import Given, describe, has, kind_of
from ._stepping import State
from ._stream import GuardedStream, guarded_stream
from ._threads import InThreads

try:
    from starlette.background import BackgroundTask
    from starlette.responses import StreamingResponse
    from starlette.types import Receive, Scope, Send
except ModuleNotFoundError as _missing:
    _HINT = 'streamguard.starlette needs Starlette: pip install "streamguard-aio[starlette]"'
    raise ModuleNotFoundError(_HINT, name=_missing.name) from _missing

T = TypeVar("T")

__all__ = ["GuardedStreamingResponse", "close_responses"]

_clients: RunVar[set[Client]] = RunVar("streamguard: clients of responses that are being sent")


class GuardedStreamingResponse(StreamingResponse):
    """A streaming response that closes its body, whether the client reads it to its end or goes away.

    It takes the place of Starlette's ``StreamingResponse``. When the client goes away, while the body awaits or while
    sending to it does, the body is closed and its cleanup has ended before the response ends; `StreamEnd.reason` is
    then ``LEFT``. At the end of the body, too, the close and the tail come before the end of the response, and the
    background task after it.

    The status and the headers are sent with the first item: what the body raises before it is answered as if the
    endpoint had raised it. ``HEAD`` is answered with the headers; the body is closed without having been run.

    Args:
        content: What `guarded_stream` takes, or an iterable, which is stepped in worker threads. Its items are ``str``,
            bytes, or a ``ServerSentEvent`` of sse-starlette.
        status_code: As in ``StreamingResponse``.
        headers: As in ``StreamingResponse``.
        media_type: As in ``StreamingResponse``.
        background: As in ``StreamingResponse``; it runs after a client that went away as well.
        until: As in `guarded_stream`, and so are those that follow.
        where: As in `guarded_stream`.
        cancel: As in `guarded_stream`.
        on_early_exit: As in `guarded_stream`: with ``"drain"`` the body runs to its own end without its client.
        cleanup_timeout: As in `guarded_stream`.
        tail: As in `guarded_stream`.
        prefetch: As in `guarded_stream`.
        release_agents: As in `guarded_stream`.

    Raises:
        TypeError: If the content is nothing to stream, or an option is of the wrong type; when the response is sent, if
            the body yields what cannot be.
        ValueError: As in `guarded_stream`.

    Example:
        >>> from starlette.applications import Starlette
        >>> from starlette.routing import Route
        >>> async def words():
        ...     try:
        ...         yield "hello "
        ...         yield "world"
        ...     finally:
        ...         print("closed")
        >>> async def greet(request):
        ...     return GuardedStreamingResponse(words(), media_type="text/plain")
        >>> app = Starlette(routes=[Route("/", greet)])
    """

    stream: GuardedStream[object]
    """The guard of the body: ``stop()`` ends the response early, ``end`` says how it ended.

    Whoever makes a response and does not send it, awaits ``stream.aclose()``."""

    def __init__(
        self,
        content: Given[T] | Iterable[T],
        status_code: int = 200,
        headers: Mapping[str, str] | None = None,
        media_type: str | None = None,
        background: BackgroundTask | None = None,
        *,
        until: Callable[[T], bool] | None = None,
        where: Callable[[T], bool] | None = None,
        cancel: Callable[[], object] | None = None,
        on_early_exit: Literal["close", "drain"] = "close",
        cleanup_timeout: float | None = 10.0,
        tail: Callable[[StreamEnd[T]], object] | None = None,
        prefetch: int = 0,
        release_agents: bool = False,
    ) -> None:
        options = Options(until, where, cancel, on_early_exit, cleanup_timeout, tail, prefetch, release_agents)
        self.stream = cast("GuardedStream[object]", _Body(_source_of(content), options))
        self._guards: list[GuardedStream[Any]] = [self.stream]
        self._cleanup_timeout = cleanup_timeout
        super().__init__(cast("Any", self.stream), status_code, headers, media_type, background)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, and close its body."""
        if scope["type"] != "http":
            await self.stream.aclose()
            raise RuntimeError(f"{self.stream!r} answers HTTP requests; this is one of type {scope['type']!r}")
        head = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        client = Client(receive, send, head, self._is_cleaning_up, self._cleanup_timeout)
        with _known(client):
            await self._answer(client, with_body=scope.get("method") != "HEAD")
        if self.background is not None:
            await self.background()

    async def _answer(self, client: Client, *, with_body: bool) -> None:
        failure: BaseException | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(client.listen)
            try:
                await self._serve(client, with_body=with_body)
            except BaseException as error:
                failure = error  # raised below, since the group would wrap it
            group.cancel_scope.cancel()
        failure = client.failure if failure is None else failure
        if failure is not None:
            raise failure

    async def _serve(self, client: Client, *, with_body: bool) -> None:
        async with self.stream:
            if with_body:
                await self._send_body(client)
        await client.finish(whole=self.stream.end.reason is not EndReason.LEFT)

    def _is_cleaning_up(self) -> bool:
        """Whether what is read is in the ``finally`` of its own end, where a cancellation would cut it."""
        owners = [guard._owner for guard in self._guards]
        return any(owner and owner.state is State.RUNNING and in_finally(owner.task.coroutine) for owner in owners)

    async def _send_body(self, client: Client) -> None:
        if cast("object", self.body_iterator) is self.stream:
            await self._send_items(self.stream, client)
            return
        # Somebody has wrapped the body; nobody but us will close the wrapper.
        async with guarded_stream(self.body_iterator, cleanup_timeout=self._cleanup_timeout) as wrapped:
            self._guards.append(wrapped)
            await self._send_items(wrapped, client)

    async def _send_items(self, stream: GuardedStream[Any], client: Client) -> None:
        with client.present():
            async for item in stream:
                await client.send(self._encode(item))
                if client.gone:
                    return

    def _encode(self, item: object) -> bytes:
        if isinstance(item, str):
            return item.encode(self.charset)
        if isinstance(item, bytes):
            return item
        if isinstance(item, bytearray | memoryview):
            return bytes(item)  # a copy: the body may fill the same buffer again
        if _is_event(item):
            return cast("bytes", item.encode())  # type: ignore[attr-defined]
        kind = f"{type(item).__module__}.{type(item).__qualname__}"
        raise TypeError(
            f"{self.stream!r} yielded {_shortened(item)} ({kind}), which cannot be sent; "
            "yield str, bytes, or a ServerSentEvent of sse-starlette"
        )


async def close_responses() -> None:
    """Close the body of every response that is being sent in this event loop, and wait until all are closed.

    For the end of a ``lifespan``: a server that waits no longer for open streams cancels them, and ends its event loop
    without waiting for what they clean up.

    Example:
        >>> from contextlib import asynccontextmanager
        >>> @asynccontextmanager
        ... async def lifespan(app):
        ...     yield
        ...     await close_responses()
    """
    while clients := list(_clients.get(set())):
        async with anyio.create_task_group() as group:
            for client in clients:
                group.start_soon(client.leave)
        for client in clients:
            await client.ended.wait()


class _Body(GuardedStream[T]):
    """The guard in a response. Its block is entered when the response is sent."""

    __slots__ = ()

    def __del__(self) -> None:
        # No attribute: what was given was no source.
        if getattr(self, "_home", self) is None and not self._left:
            self._left = True
            self._close_unsent()
            place, line = self._place
            warnings.warn(
                f"the response of {self!r}, made at {place}:{line}, was never sent; "
                "if something else is sent in its place, await response.stream.aclose()",
                ResourceWarning,
                stacklevel=1,
                source=self,
            )
        super().__del__()

    def _close_unsent(self) -> None:
        """Ask for the close; nobody waits for it."""
        with contextlib.suppress(RuntimeError):  # no event loop runs here
            nudge(make_owner(self._source, self._options))


def _source_of(content: object) -> object:
    """What a guard takes; an iterable is stepped in threads."""
    if isinstance(content, str | bytes | bytearray | memoryview | Mapping):
        raise TypeError(f"{describe(content)} is not a stream; send it with starlette.responses.Response")
    try:
        kind_of(content)
    except TypeError:
        if not has(content, "__iter__"):
            raise
        return InThreads(cast("Iterable[object]", content))
    return content


def _is_event(item: object) -> bool:
    """Whether this is a ServerSentEvent of sse-starlette, which has moved from module to module."""
    return any(
        base.__name__ == "ServerSentEvent" and base.__module__.partition(".")[0] == "sse_starlette"
        for base in type(item).__mro__
    )


def _shortened(item: object) -> str:
    text = repr(item)
    return text if len(text) <= 80 else text[:77] + "..."


@contextlib.contextmanager
def _known(client: Client) -> Iterator[None]:
    clients = _clients.get(None)
    if clients is None:
        clients = set()
        _clients.set(clients)
    clients.add(client)
    try:
        yield
    finally:
        clients.discard(client)
        client.ended.set()
