"""A response, called as a server calls it: what it sends, and what is left when it ends."""

import asyncio
import gc
import io
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from sse_starlette.sse import ServerSentEvent
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from asgi import Body, Exchange
from recording import Fault, only_asyncio
from streamguard import EndReason
from streamguard.starlette import GuardedStreamingResponse, close_responses

pytestmark = pytest.mark.anyio


@pytest.fixture
def exchange() -> Exchange:
    return Exchange()


@pytest.fixture
def body(exchange: Exchange) -> Body:
    return Body(exchange.log)


def guarded(body: Body, source: object, **options: Any) -> GuardedStreamingResponse:
    return GuardedStreamingResponse(source, tail=body.tail, **options)


def app_with(response: Response, **options: Any) -> Starlette:
    """An application that answers with this."""

    async def endpoint(request: Request) -> Response:
        return response

    return Starlette(routes=[Route("/", endpoint)], **options)


async def pass_through(items: AsyncIterator[object]) -> AsyncIterator[object]:
    """What many bodies are: they do not look after what they read."""
    async for item in items:
        yield item


async def leave_and_look(exchange: Exchange, body: Body, app: Any) -> None:
    """Have a client go away while the body waits."""
    async with anyio.create_task_group() as group:
        group.start_soon(exchange.leave_when, body.waiting)
        await exchange.answer(app)


# -- to the end


async def test_to_the_end(exchange: Exchange, body: Body) -> None:
    """The body is closed, and the tail has run, before the response ends."""
    await exchange.answer(guarded(body, body.items("a", "b"), status_code=201))
    assert exchange.log == ["head", "b'a'", "b'b'", "closing", "closed", "tail: exhausted", "end", "ended"]
    assert exchange.status == 201
    assert body.ends[0].items == 2


async def test_no_items(exchange: Exchange, body: Body) -> None:
    """A body without items is a response without a body."""
    await exchange.answer(guarded(body, body.items()))
    assert exchange.log == ["closing", "closed", "tail: exhausted", "head", "end", "ended"]


async def test_parameters_of_starlette() -> None:
    """What a StreamingResponse is given makes the same headers, by position as well."""
    given = (202, {"x-one": "1"}, "text/event-stream")
    ours, theirs = (kind(iter(["a"]), *given) for kind in (GuardedStreamingResponse, StreamingResponse))
    assert isinstance(ours, StreamingResponse)
    assert ours.raw_headers == theirs.raw_headers
    assert (ours.status_code, ours.media_type, ours.background) == (202, "text/event-stream", None)
    await ours.stream.aclose()


async def test_options_of_the_guard(exchange: Exchange, body: Body) -> None:
    """`where`, `until`, `prefetch` and `cancel` do what they do for a guarded stream."""
    response = guarded(
        body,
        body.items("a", "b", "c", "d"),
        where=lambda item: item != "b",
        until=lambda item: item == "c",
        cancel=lambda: body.log.append("cancel"),
        prefetch=1,
    )
    await exchange.answer(response)
    sent = ["head", "b'a'", "b'c'"]
    assert exchange.log == [*sent, "cancel", "closing", "closed", "tail: matched", "end", "ended"]


async def test_stop(exchange: Exchange, body: Body) -> None:
    """`stop()` from elsewhere ends the response as if the body had ended; the client is there to read that."""
    response = guarded(body, body.items("a", wait_at=1))
    async with anyio.create_task_group() as group:
        group.start_soon(exchange.answer, response)
        await body.waiting.wait()
        response.stream.stop()
    assert exchange.log == ["head", "b'a'", "closing", "closed", "tail: stopped", "end", "ended"]
    assert response.stream.end.reason is EndReason.STOPPED


async def test_callable(exchange: Exchange, body: Body) -> None:
    """A run given as a callable starts when the response is sent."""

    def start() -> AsyncIterator[str]:
        exchange.log.append("started")
        return body.items("a")

    response = guarded(body, start)
    assert exchange.log == []
    await exchange.answer(response)
    assert exchange.log[:3] == ["started", "head", "b'a'"]


async def test_head() -> None:
    """`HEAD` is answered with the headers; the body does not run, and is closed."""
    exchange = Exchange(method="HEAD")
    body = Body(exchange.log)
    await exchange.answer(guarded(body, body.items("a"), headers={"x-one": "1"}))
    assert exchange.log == ["tail: left", "head", "end", "ended"]


# -- the client goes away


@pytest.mark.parametrize("wait_at", [0, 1], ids=["before the first item", "behind an item"])
async def test_client_leaves_while_the_body_waits(exchange: Exchange, body: Body, wait_at: int) -> None:
    """The body is closed, with the awaits of its cleanup, before the response ends; that is no error."""
    response = guarded(body, body.items("a", wait_at=wait_at))
    await leave_and_look(exchange, body, response)
    sent = ["head", "b'a'"][: wait_at * 2]
    # A response was begun, for whoever stands between.
    begun = ["head", "end"] if wait_at == 0 else []
    assert exchange.log == [*sent, "closing", "closed", "tail: left", *begun, "ended"]
    assert (body.ends[0].error, body.ends[0].cleanup_errors) == (None, ())


async def test_client_leaves_while_it_does_not_read(exchange: Exchange, body: Body) -> None:
    """The body stands at its `yield` and the response waits in `send`: the body is closed as well."""
    exchange.stalls_at = b"b"
    async with anyio.create_task_group() as group:
        group.start_soon(exchange.leave_when, exchange.stalled)
        await exchange.answer(guarded(body, body.items("a", "b", "c")))
    assert exchange.log == ["head", "b'a'", "closing", "closed", "tail: left", "ended"]
    assert body.ends[0].items == 2


async def test_client_leaves_after_the_last_item(exchange: Exchange, body: Body) -> None:
    """When all is closed and only the end of the response is not sent, nothing happens twice."""
    exchange.stalls_at = b""
    async with anyio.create_task_group() as group:
        group.start_soon(exchange.leave_when, exchange.stalled)
        await exchange.answer(guarded(body, body.items("a")))
    assert exchange.log == ["head", "b'a'", "closing", "closed", "tail: exhausted", "ended"]


@pytest.mark.parametrize("inner", [False, True], ids=["the body", "what it reads"])
async def test_client_leaves_while_the_body_ends(exchange: Exchange, body: Body, inner: bool) -> None:
    """A client that has the last item goes away, and the body is in its own `finally` just then: that is not cut."""
    body.hold_the_close()
    items = body.items("a")
    async with anyio.create_task_group() as group:
        group.start_soon(exchange.answer, guarded(body, pass_through(items) if inner else items))
        group.start_soon(exchange.leave_when, body.closing)
        await exchange.gone.wait()
        await anyio.wait_all_tasks_blocked()
        exchange.log.append("gone")
        body.may_close.set()
    assert exchange.log == ["head", "b'a'", "closing", "gone", "closed", "tail: exhausted", "end", "ended"]


async def test_client_leaves_a_body_that_hangs_at_its_end(exchange: Exchange, body: Body) -> None:
    """A `finally` that does not end is cut when its time is over."""
    body.hold_the_close()
    async with anyio.create_task_group() as group:
        group.start_soon(exchange.leave_when, body.closing)
        await exchange.answer(guarded(body, body.items("a"), cleanup_timeout=0.05))
    assert exchange.log == ["head", "b'a'", "closing", "tail: left", "ended"]


async def test_client_leaves_a_body_that_goes_on_after_a_finally(exchange: Exchange, body: Body) -> None:
    """A body that leaves its `finally` and waits for something else is closed then."""
    cleaning, may_go_on = anyio.Event(), anyio.Event()

    async def items() -> AsyncIterator[object]:
        try:
            yield "a"
        finally:
            cleaning.set()
            await may_go_on.wait()
            exchange.log.append("cleaned up")
        async for item in body.items("b", wait_at=0):
            yield item

    async with anyio.create_task_group() as group:
        group.start_soon(exchange.answer, guarded(body, items()))
        group.start_soon(exchange.leave_when, cleaning)
        await exchange.gone.wait()
        may_go_on.set()
    assert exchange.log == ["head", "b'a'", "cleaned up", "closing", "closed", "tail: left", "ended"]


async def test_client_is_gone_from_the_start(exchange: Exchange, body: Body) -> None:
    """A client that went away before anybody looked: the body is closed."""
    exchange.gone.set()
    await exchange.answer(guarded(body, body.items("a", wait_at=0)))
    assert exchange.log == ["closing", "closed", "tail: left", "head", "end", "ended"]


@pytest.mark.parametrize("breaks_at", [b"b", b""], ids=["at an item", "at the end"])
async def test_send_raises(breaks_at: bytes) -> None:
    """A server that tells by an OSError (ASGI 2.4) that the client is gone tells of no error of the application."""
    exchange = Exchange(spec_version="2.4")
    body = Body(exchange.log)
    exchange.breaks_at = breaks_at
    await exchange.answer(guarded(body, body.items("a", "b", "c")))
    if breaks_at:
        assert exchange.log == ["head", "b'a'", "broken", "closing", "closed", "tail: left", "ended"]
    else:
        assert exchange.log[-5:] == ["closing", "closed", "tail: exhausted", "broken", "ended"]


async def test_os_error_of_the_body(exchange: Exchange, body: Body) -> None:
    """An OSError of the body itself is an error."""
    with pytest.raises(FileNotFoundError):
        await exchange.answer(guarded(body, body.items("a", error=FileNotFoundError("no such file"))))
    assert exchange.log == ["head", "b'a'", "closing", "closed", "tail: failed", "ended"]


async def test_starlette_leaves_the_body_open() -> None:
    """Starlette's own response, told by `send`: the body is open when the response ends, and the error is another."""
    exchange = Exchange(spec_version="2.4")
    body = Body(exchange.log)
    exchange.breaks_at = b"b"
    kept = body.items("a", "b", "c")
    with pytest.raises(ClientDisconnect):
        await exchange.answer(StreamingResponse(kept))
    assert exchange.log == ["head", "b'a'", "broken", "ended"]
    await kept.aclose()


async def test_drain(exchange: Exchange, body: Body) -> None:
    """With ``on_early_exit="drain"`` the body runs to its own end without its client."""
    exchange.stalls_at = b"a"
    async with anyio.create_task_group() as group:
        group.start_soon(exchange.leave_when, exchange.stalled)
        await exchange.answer(guarded(body, body.items("a", "b", "c"), on_early_exit="drain"))
    assert exchange.log == ["head", "closing", "closed", "tail: left", "ended"]


async def test_close_fails_without_a_client(exchange: Exchange, body: Body) -> None:
    """An error in the cleanup is one, whoever is there."""

    async def bad() -> AsyncIterator[str]:
        try:
            async for item in body.items("a", wait_at=1):
                yield item
        finally:
            raise Fault

    with pytest.RaisesGroup(Fault):  # the group is the test's
        await leave_and_look(exchange, body, guarded(body, bad()))
    assert exchange.log == ["head", "b'a'", "closing", "closed", "tail: failed", "ended"]


# -- the server goes away


@only_asyncio
async def test_cancelled(exchange: Exchange, body: Body) -> None:
    """A server that cancels the request, twice: the cleanup is complete, and the request ends cancelled."""
    response = guarded(body, body.items("a", wait_at=1))
    request = asyncio.create_task(exchange.answer(response))
    await body.waiting.wait()
    request.cancel()
    await anyio.lowlevel.checkpoint()
    request.cancel()
    await asyncio.wait([request])
    assert request.cancelled()
    assert exchange.log == ["head", "b'a'", "closing", "closed", "tail: cancelled", "ended"]


async def test_cancelled_scope(exchange: Exchange, body: Body) -> None:
    """The same, by a cancel scope of what calls the application."""
    response = guarded(body, body.items("a", wait_at=1))
    async with anyio.create_task_group() as group:
        group.start_soon(exchange.answer, response)
        await body.waiting.wait()
        group.cancel_scope.cancel()
    assert exchange.log == ["head", "b'a'", "closing", "closed", "tail: cancelled", "ended"]


@pytest.mark.parametrize("stalls_at", [None, b"b"], ids=["the body waits", "the client does not read"])
async def test_close_responses(exchange: Exchange, body: Body, stalls_at: bytes | None) -> None:
    """What is being sent is closed, and waited for; what has ended is of no concern."""
    exchange.stalls_at = stalls_at
    await Exchange().answer(guarded(Body([]), body.items()))
    response = guarded(body, body.items("a", "b", wait_at=1 if stalls_at is None else None))
    async with anyio.create_task_group() as group:
        group.start_soon(exchange.answer, response)
        await (body.waiting if stalls_at is None else exchange.stalled).wait()
        exchange.log.clear()
        await close_responses()
        exchange.log.append("all are closed")
    assert exchange.log[:3] == ["closing", "closed", "tail: left"]
    assert "all are closed" in exchange.log


async def test_close_responses_of_none() -> None:
    """Where nothing was ever sent there is nothing to wait for."""
    await close_responses()


async def test_close_responses_before_the_headers(exchange: Exchange, body: Body) -> None:
    """A response that has not begun is ended as well, and the client is told so."""
    async with anyio.create_task_group() as group:
        group.start_soon(exchange.answer, guarded(body, body.items("a", wait_at=0)))
        await body.waiting.wait()
        await close_responses()
    assert exchange.log == ["closing", "closed", "tail: left", "head", "end", "ended"]


# -- errors


async def test_error_before_the_headers(exchange: Exchange, body: Body) -> None:
    """An error before the first item is answered as if the endpoint had raised it."""
    app = app_with(guarded(body, body.items(error=Fault())))
    with pytest.raises(Fault):
        await exchange.answer(app)
    assert exchange.log[:4] == ["closing", "closed", "tail: failed", "head"]
    assert exchange.status == 500


async def test_http_exception_before_the_headers(exchange: Exchange, body: Body) -> None:
    """So a body can still refuse."""
    await exchange.answer(app_with(guarded(body, body.items(error=HTTPException(429)))))
    assert exchange.log[:4] == ["closing", "closed", "tail: failed", "head"]
    assert exchange.status == 429


async def test_error_after_the_headers(exchange: Exchange, body: Body) -> None:
    """An error behind the first item leaves the response unended, and leaves bare."""
    with pytest.raises(Fault) as raised:
        await exchange.answer(app_with(guarded(body, body.items("a", error=Fault()))))
    assert exchange.log == ["head", "b'a'", "closing", "closed", "tail: failed", "ended"]
    assert body.ends[0].error is raised.value


async def test_group_of_the_body(exchange: Exchange, body: Body) -> None:
    """A group that the body raises is that very group, in none of ours."""
    group = ExceptionGroup("of the body", [Fault()])
    with pytest.raises(ExceptionGroup) as raised:
        await exchange.answer(guarded(body, body.items(error=group)))
    assert raised.value is group


async def test_cancellation_of_the_body(exchange: Exchange, body: Body) -> None:
    """A CancelledError that the body raises by itself leaves, and is not taken for one of ours."""

    async def bad() -> AsyncIterator[str]:
        yield "a"
        raise asyncio.CancelledError("by itself")

    with pytest.raises(asyncio.CancelledError, match="by itself"):
        await exchange.answer(guarded(body, bad()))
    assert exchange.log[-1] == "ended"


async def test_receive_raises(exchange: Exchange, body: Body) -> None:
    """A server that fails to listen: the body is closed, and the error leaves, bare."""

    async def receive() -> Any:
        await body.waiting.wait()
        raise Fault("of the server")

    exchange.receive = receive  # type: ignore[method-assign]
    with pytest.raises(Fault, match="of the server"):
        await exchange.answer(guarded(body, body.items("a", wait_at=1)))
    assert exchange.log == ["head", "b'a'", "closing", "closed", "tail: left", "ended"]


async def test_interrupt(exchange: Exchange, body: Body) -> None:
    """An interrupt is in no group, or an event loop would not see it."""

    class Interrupt(BaseException):
        pass

    with pytest.raises(Interrupt):
        await exchange.answer(guarded(body, body.items("a", error=Interrupt())))


# -- what can be sent


@pytest.mark.parametrize(
    ("item", "sent"),
    [
        ("ä", b"\xc3\xa4"),
        (b"\x00", b"\x00"),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"abcd")[::2], b"ac"),
        ("", b""),
        (ServerSentEvent(comment="?", sep="\n"), b": ?\n\n"),
    ],
    ids=["str", "bytes", "bytearray", "memoryview", "empty", "event"],
)
async def test_items(exchange: Exchange, body: Body, item: object, sent: bytes) -> None:
    """Text and events are encoded, whatever is bytes is sent as bytes."""
    await exchange.answer(guarded(body, body.items(item)))
    assert exchange.log[1] == repr(sent)


async def test_charset(exchange: Exchange, body: Body) -> None:
    """Text is encoded as the class says."""

    class Latin(GuardedStreamingResponse):
        charset = "latin-1"

    await exchange.answer(Latin(body.items("ä")))
    assert exchange.log[1] == repr(b"\xe4")


class Lookalike:
    """Encodes, but nobody knows what for."""

    def encode(self) -> bytes:
        return b"?"

    def __repr__(self) -> str:
        return "Lookalike(" + "x" * 100 + ")"


@pytest.mark.parametrize("item", [None, 1, {"delta": "a"}, ["a"], Lookalike()], ids=lambda item: type(item).__name__)
async def test_unsendable_item(exchange: Exchange, body: Body, item: object) -> None:
    """What cannot be sent is named, together with the body; all is closed."""
    with pytest.raises(TypeError, match=r"Body\.items.* yielded .* \(.*\), which cannot be sent; yield str") as raised:
        await exchange.answer(guarded(body, body.items("a", item)))
    assert type(item).__qualname__ in str(raised.value)
    assert len(str(raised.value)) < 300
    assert exchange.log == ["head", "b'a'", "closing", "closed", "tail: failed", "ended"]


# -- what can be streamed


@pytest.mark.parametrize("content", [None, 1, "text", b"bytes", memoryview(b""), {"a": 1}, object(), len])
async def test_no_stream(content: Any) -> None:
    """What is nothing to stream is refused at once, with the fix."""
    with pytest.raises(TypeError, match=r"is not an? (async )?stream; |cannot be called"):
        GuardedStreamingResponse(content)


async def test_bad_option() -> None:
    """Options are checked at once, before the content is touched."""
    with pytest.raises(ValueError, match="cleanup_timeout=-1"):
        GuardedStreamingResponse(None, cleanup_timeout=-1)  # type: ignore[arg-type]


async def test_iterable(exchange: Exchange, body: Body) -> None:
    """A sync generator is stepped and closed in threads."""
    threads: list[int] = []

    def items() -> Iterator[str]:
        try:
            for item in "ab":
                threads.append(threading.get_ident())
                yield item
        finally:
            threads.append(threading.get_ident())
            exchange.log.append("closed")

    await exchange.answer(guarded(body, items(), until=lambda item: item == "b"))
    assert exchange.log == ["head", "b'a'", "b'b'", "closed", "tail: matched", "end", "ended"]
    assert len(threads) == 3
    assert threading.get_ident() not in threads


async def test_client_leaves_while_a_thread_steps(exchange: Exchange, body: Body) -> None:
    """A thread cannot be cancelled: the generator is closed once its step is over."""
    stepping, may_go_on = threading.Event(), threading.Event()

    def items() -> Iterator[str]:
        try:
            yield "a"
            stepping.set()
            may_go_on.wait(10)
            yield "b"
        finally:
            exchange.log.append("closed")

    async def leave() -> None:
        await anyio.to_thread.run_sync(stepping.wait, 10)
        exchange.gone.set()
        await anyio.wait_all_tasks_blocked()
        exchange.log.append("gone")
        may_go_on.set()

    async with anyio.create_task_group() as group:
        group.start_soon(leave)
        await exchange.answer(guarded(body, items()))
    assert exchange.log == ["head", "b'a'", "gone", "closed", "tail: left", "ended"]


async def test_file(exchange: Exchange, body: Body) -> None:
    """A file is closed; a list has nothing to close."""
    file = io.BytesIO(b"one\ntwo\n")
    await exchange.answer(guarded(body, file))
    assert exchange.log == ["head", r"b'one\n'", r"b'two\n'", "tail: exhausted", "end", "ended"]
    assert file.closed
    await Exchange().answer(guarded(body, ["a"]))
    assert body.ends[1].reason is EndReason.EXHAUSTED


async def test_wrapped_body(exchange: Exchange, body: Body) -> None:
    """Whoever wraps `body_iterator`, as some middleware does, has the wrapper closed before the body."""

    async def shouting(items: AsyncIterator[Any]) -> AsyncIterator[str]:
        try:
            async for item in items:
                yield item.upper()
        finally:
            await anyio.lowlevel.checkpoint()
            exchange.log.append("wrapper closed")

    response = guarded(body, body.items("a", wait_at=1))
    response.body_iterator = shouting(response.body_iterator)
    await leave_and_look(exchange, body, response)
    assert exchange.log == ["head", "b'A'", "wrapper closed", "closing", "closed", "tail: left", "ended"]


async def test_client_leaves_while_a_wrapper_ends(exchange: Exchange, body: Body) -> None:
    """The `finally` of a wrapper is not cut either."""

    async def wrap(items: AsyncIterator[Any]) -> AsyncIterator[object]:
        async for item in items:
            yield item
        async for item in body.items():
            yield item

    body.hold_the_close()
    response = guarded(body, ["a"])
    response.body_iterator = wrap(response.body_iterator)
    async with anyio.create_task_group() as group:
        group.start_soon(exchange.answer, response)
        group.start_soon(exchange.leave_when, body.closing)
        await exchange.gone.wait()
        await anyio.wait_all_tasks_blocked()
        body.may_close.set()
    assert exchange.log == ["head", "b'a'", "closing", "closed", "tail: exhausted", "end", "ended"]


# -- around the response


@pytest.mark.parametrize("leaves", [False, True], ids=["the client reads", "the client goes away"])
async def test_background(exchange: Exchange, body: Body, leaves: bool) -> None:
    """The background task runs last, whether the client is there or not."""
    background = BackgroundTask(partial(exchange.log.append, "background"))
    response = guarded(body, body.items("a", wait_at=1 if leaves else None), background=background)
    if leaves:
        await leave_and_look(exchange, body, response)
    else:
        await exchange.answer(response)
    end = [] if leaves else ["end"]
    reason = "left" if leaves else "exhausted"
    assert exchange.log == ["head", "b'a'", "closing", "closed", f"tail: {reason}", *end, "background", "ended"]


async def pass_on(request: Request, call_next: Any) -> Response:
    response: Response = await call_next(request)
    return response


# Not on trio: there an older BaseHTTPMiddleware leaves a generator of its own to the collector.
@only_asyncio
@pytest.mark.parametrize("wait_at", [0, 1], ids=["before the first item", "behind an item"])
async def test_behind_middleware(exchange: Exchange, body: Body, wait_at: int) -> None:
    """Behind a BaseHTTPMiddleware the body is closed when the client goes away, and nobody raises."""
    response = guarded(body, body.items("a", wait_at=wait_at))
    app = app_with(response, middleware=[Middleware(BaseHTTPMiddleware, dispatch=pass_on)])
    await leave_and_look(exchange, body, app)
    closed = ["closing", "closed", "tail: left"]
    # The middleware ends the response by itself.
    expected = [*closed, "head", "end", "ended"] if wait_at == 0 else ["head", "b'a'", *closed, "end", "ended"]
    assert exchange.log == expected


@only_asyncio
async def test_replaced_by_middleware(exchange: Exchange, body: Body) -> None:
    """A middleware that answers something else in its place: the body is closed."""

    async def replace(request: Request, call_next: Any) -> Response:
        await call_next(request)
        return PlainTextResponse("other")

    response = guarded(body, body.items("a", wait_at=1))
    app = app_with(response, middleware=[Middleware(BaseHTTPMiddleware, dispatch=replace)])
    await exchange.answer(app)
    assert exchange.log == ["head", "end", "closing", "closed", "tail: left", "ended"]


async def test_sent_twice(exchange: Exchange, body: Body) -> None:
    """A response is sent once."""
    response = guarded(body, body.items("a"))
    await exchange.answer(response)
    with pytest.raises(RuntimeError, match="was entered before"):
        await Exchange().answer(response)


async def test_websocket(exchange: Exchange, body: Body) -> None:
    """A websocket is not answered by a stream; the body is closed all the same."""
    exchange.scope["type"] = "websocket"
    with pytest.raises(RuntimeError, match="answers HTTP requests; this is one of type 'websocket'"):
        await exchange.answer(guarded(body, body.items("a")))
    assert exchange.log == ["tail: left", "ended"]


# -- never sent


class Connection:
    """A stream that holds something from the start."""

    def __init__(self) -> None:
        self.closed = anyio.Event()

    def __aiter__(self) -> "Connection":
        return self

    async def __anext__(self) -> str:
        return "a"

    async def aclose(self) -> None:
        await anyio.lowlevel.checkpoint()
        self.closed.set()


async def test_never_sent() -> None:
    """A response that nobody sends is told of, with the place where it was made, and its body is closed."""
    connection = Connection()
    with pytest.warns(ResourceWarning, match=rf"Connection object.* made at {__file__}:\d+, was never sent"):
        GuardedStreamingResponse(connection)
        gc.collect()
    await connection.closed.wait()
    await anyio.wait_all_tasks_blocked()


def test_never_sent_without_a_loop() -> None:
    """The same where no event loop runs: there is only the warning."""
    with pytest.warns(ResourceWarning, match="was never sent"):
        GuardedStreamingResponse(Body([]).items("a"))
        gc.collect()


async def test_closed_unsent(body: Body) -> None:
    """Whoever drops a response on purpose closes its stream; then there is no warning."""
    connection = Connection()
    response = guarded(body, connection)
    await response.stream.aclose()
    assert connection.closed.is_set()
    assert body.ends[0].reason is EndReason.LEFT
    del response
    gc.collect()


# -- the import


def test_needs_starlette() -> None:
    """Without Starlette the import names the extra."""
    program = "import sys; sys.modules['starlette'] = None; import streamguard, streamguard.starlette"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert 'ModuleNotFoundError: streamguard.starlette needs Starlette: pip install "streamguard-aio[starlette]"' in (
        run.stderr
    )
