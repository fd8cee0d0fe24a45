"""What type checkers make of each source shape, option and public name. Checked by mypy and pyright, never run."""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from typing import Any, Protocol, Self, assert_type

from streamguard import (
    Aclosing,
    CleanupError,
    CleanupTimeoutError,
    EndReason,
    GuardedChain,
    GuardedStream,
    StreamEnd,
    guarded,
    guarded_chain,
    guarded_stream,
)
from streamguard.starlette import GuardedStreamingResponse, close_responses

# -- sources, as people annotate them


async def iterator_function() -> AsyncIterator[int]:
    yield 1


async def generator_function() -> AsyncGenerator[int, None]:
    yield 1


async def needs_arguments(prompt: str, *, model: str = "") -> AsyncIterator[int]:
    yield 1


async def coroutine_function() -> AsyncIterator[int]:
    return iterator_function()


async def coroutine_of_a_stream() -> "WithClose":
    return WithClose()


async def coroutine_of_a_context() -> AbstractAsyncContextManager[AsyncIterator[int]]:
    return context()


@asynccontextmanager
async def context() -> AsyncGenerator[AsyncIterator[int], None]:
    yield iterator_function()


@asynccontextmanager
async def context_of_an_iterable() -> AsyncGenerator["Iterable", None]:
    yield Iterable()


class WithAclose:
    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> int:
        return 1

    async def aclose(self) -> None: ...


class WithClose:
    def __aiter__(self) -> AsyncIterator[int]:
        return self

    async def __anext__(self) -> int:
        return 1

    def close(self) -> None: ...


class NextOnly:
    def __anext__(self) -> Coroutine[Any, Any, int]:
        raise NotImplementedError


class Iterable:
    def __aiter__(self) -> AsyncIterator[int]:
        return iterator_function()


class IterableByGenerator:
    async def __aiter__(self) -> AsyncIterator[int]:
        yield 1


class Run:
    final_output: str = ""

    def stream_events(self) -> AsyncIterator[int]:
        return iterator_function()


class Workflow:
    """A run handle that can be awaited for its result, which is no stream."""

    def stream_events(self, expose_internal: bool = False) -> AsyncGenerator[int, None]:
        return generator_function()

    def __await__(self) -> Generator[Any, Any, str]:
        raise NotImplementedError


class OwnAwaitable:
    def __await__(self) -> Generator[Any, Any, AsyncIterator[int]]:
        raise NotImplementedError


class OwnContext:
    async def __aenter__(self) -> AsyncIterator[int]:
        return iterator_function()

    async def __aexit__(self, *details: object) -> None: ...


class OwnCallable:
    def __call__(self) -> AsyncIterator[int]:
        return iterator_function()


class Event(Protocol):
    author: str


def start_run() -> Run:
    return Run()


# -- guarded_stream: the item's type comes from every shape


def guard() -> GuardedStream[int]:
    return guarded_stream(iterator_function())


def chain() -> GuardedChain[int]:
    return guarded_chain(iterator_function())


assert_type(guarded_stream(guard()), GuardedStream[int])
assert_type(guarded_stream(chain()), GuardedStream[int])
assert_type(guarded_stream(Run()), GuardedStream[int])
assert_type(guarded_stream(Workflow()), GuardedStream[int])
assert_type(guarded_stream(iterator_function()), GuardedStream[int])
assert_type(guarded_stream(generator_function()), GuardedStream[int])
assert_type(guarded_stream(WithAclose()), GuardedStream[int])
assert_type(guarded_stream(WithClose()), GuardedStream[int])
assert_type(guarded_stream(NextOnly()), GuardedStream[int])
assert_type(guarded_stream(Iterable()), GuardedStream[int])
assert_type(guarded_stream(IterableByGenerator()), GuardedStream[int])
assert_type(guarded_stream(context()), GuardedStream[int])
assert_type(guarded_stream(context_of_an_iterable()), GuardedStream[int])
assert_type(guarded_stream(OwnContext()), GuardedStream[int])
assert_type(guarded_stream(aclosing(generator_function())), GuardedStream[int])
assert_type(guarded_stream(Aclosing(generator_function())), GuardedStream[int])
assert_type(guarded_stream(coroutine_function()), GuardedStream[int])
assert_type(guarded_stream(coroutine_of_a_stream()), GuardedStream[int])
assert_type(guarded_stream(coroutine_of_a_context()), GuardedStream[int])
assert_type(guarded_stream(OwnAwaitable()), GuardedStream[int])
assert_type(guarded_stream(iterator_function), GuardedStream[int])
assert_type(guarded_stream(generator_function), GuardedStream[int])
assert_type(guarded_stream(coroutine_function), GuardedStream[int])
assert_type(guarded_stream(start_run), GuardedStream[int])
assert_type(guarded_stream(context), GuardedStream[int])
assert_type(guarded_stream(OwnCallable()), GuardedStream[int])
assert_type(guarded_stream(lambda: needs_arguments("hello")), GuardedStream[int])
assert_type(guarded_stream(lambda: Run()), GuardedStream[int])
assert_type(guarded_stream(partial(needs_arguments, "hello")), GuardedStream[int])


def abstract_shapes(
    iterator: AsyncIterator[str],
    iterable: AsyncIterable[str],
    generator: AsyncGenerator[str, int],
    awaitable: Awaitable[AsyncIterator[str]],
    manager: AbstractAsyncContextManager[AsyncIterator[str]],
    maker: Callable[[], AsyncIterator[str]],
    later: Callable[[], Awaitable[AsyncIterable[str]]],
    events: AsyncGenerator[Event, None],
) -> None:
    assert_type(guarded_stream(iterator), GuardedStream[str])
    assert_type(guarded_stream(iterable), GuardedStream[str])
    assert_type(guarded_stream(generator), GuardedStream[str])
    assert_type(guarded_stream(awaitable), GuardedStream[str])
    assert_type(guarded_stream(manager), GuardedStream[str])
    assert_type(guarded_stream(maker), GuardedStream[str])
    assert_type(guarded_stream(later), GuardedStream[str])
    assert_type(guarded_stream(events, where=lambda event: event.author == "writer"), GuardedStream[Event])


# -- the options


def note_end(end: StreamEnd[int]) -> None: ...


async def note_end_later(end: StreamEnd[int]) -> None: ...


async def stop_producer() -> bool:
    return True


assert_type(guarded_stream(iterator_function(), until=lambda item: item > 1), GuardedStream[int])
assert_type(guarded_stream(iterator_function(), where=lambda item: item > 1), GuardedStream[int])
assert_type(guarded_stream(iterator_function(), cancel=print), GuardedStream[int])
assert_type(guarded_stream(iterator_function(), cancel=stop_producer), GuardedStream[int])
assert_type(guarded_stream(iterator_function(), on_early_exit="drain"), GuardedStream[int])
assert_type(guarded_stream(iterator_function(), cleanup_timeout=None), GuardedStream[int])
assert_type(guarded_stream(iterator_function(), cleanup_timeout=1), GuardedStream[int])
assert_type(guarded_stream(iterator_function(), tail=note_end), GuardedStream[int])
assert_type(guarded_stream(iterator_function(), tail=note_end_later), GuardedStream[int])
assert_type(guarded_stream(iterator_function(), tail=lambda end: end.last), GuardedStream[int])
assert_type(guarded_stream(iterator_function(), prefetch=2), GuardedStream[int])
assert_type(
    guarded_stream(
        lambda: Run(),
        until=lambda item: item > 2,
        where=lambda item: item > 1,
        cancel=None,
        on_early_exit="close",
        cleanup_timeout=0.5,
        tail=note_end,
        prefetch=0,
    ),
    GuardedStream[int],
)

# -- what is no source is refused by the checkers as well

guarded_stream(None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
guarded_stream(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
guarded_stream(needs_arguments)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
guarded_stream(iterator_function(), prefetch="2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# -- the guard


async def reading() -> None:
    made = guarded_stream(iterator_function())
    async with made as stream:
        assert_type(stream, GuardedStream[int])
        async for item in stream:
            assert_type(item, int)
        assert_type(await anext(stream), int)
        assert_type(await anext(stream, None), int | None)
        assert_type([item async for item in stream], list[int])
        stream.stop()
        await stream.aclose()
    takes_an_iterator(made)
    end = made.end
    assert_type(end, StreamEnd[int])
    assert_type(end.reason, EndReason)
    assert_type(end.error, BaseException | None)
    assert_type(end.cleanup_errors, tuple[BaseException, ...])
    assert_type(end.items, int)
    assert_type(end.last, int | None)
    assert_type(end.source, object)


def takes_an_iterator(stream: AsyncIterator[int]) -> None: ...


def takes_an_iterable(stream: AsyncIterable[object]) -> None: ...


def takes_a_context(manager: AbstractAsyncContextManager[GuardedStream[int]]) -> None: ...


def is_accepted() -> None:
    takes_an_iterator(guard())
    takes_an_iterable(guard())
    takes_a_context(guard())


def returns_an_iterator() -> AsyncIterator[int]:
    return guarded_stream(iterator_function())


async def in_an_exit_stack() -> None:
    async with AsyncExitStack() as stack:
        assert_type(await stack.enter_async_context(guard()), GuardedStream[int])
        assert_type(await stack.enter_async_context(chain()), GuardedChain[int])


def covariant(end: StreamEnd[bool]) -> StreamEnd[int]:
    return end


# -- Aclosing: the exact type comes back


async def aclosing_types(generator: AsyncGenerator[int, str]) -> None:
    async with Aclosing(generator) as same:
        assert_type(same, AsyncGenerator[int, str])
        assert_type(await same.asend("text"), int)
    async with Aclosing(iterator_function()) as iterator:
        assert_type(iterator, AsyncIterator[int])
        async for item in iterator:
            assert_type(item, int)
    async with Aclosing(WithClose()) as stream:
        assert_type(stream, WithClose)
    assert_type(Aclosing(generator).thing, AsyncGenerator[int, str])


async def returns_from_aclosing() -> int:
    async with Aclosing(iterator_function()) as stream:
        async for item in stream:
            return item
    return 0


# -- guarded: signatures and item types are kept


@guarded
async def decorated(prompt: str, *, times: int = 1) -> AsyncIterator[int]:
    yield times


@guarded(cleanup_timeout=1, on_early_exit="drain", prefetch=1)
async def with_options(prompt: str) -> AsyncGenerator[int, None]:
    yield 1


def is_long(item: str) -> bool:
    return len(item) > 9


@guarded(until=is_long, where=is_long)
async def with_predicates() -> AsyncIterator[str]:
    yield "text"


class Agent:
    @guarded
    async def run(self, prompt: str) -> AsyncIterator[int]:
        yield 1

    @guarded(cleanup_timeout=None)
    async def run_for(self, seconds: float) -> AsyncIterator[float]:
        yield seconds

    @staticmethod
    @guarded
    async def static(prompt: str) -> AsyncIterator[int]:
        yield 1

    @classmethod
    @guarded
    async def of_the_class(cls, prompt: str) -> AsyncIterator[int]:
        yield 1


assert_type(decorated("hello"), GuardedStream[int])
assert_type(decorated("hello", times=2), GuardedStream[int])
assert_type(with_options("hello"), GuardedStream[int])
assert_type(with_predicates(), GuardedStream[str])
assert_type(Agent().run("hello"), GuardedStream[int])
assert_type(Agent().run_for(1.0), GuardedStream[float])
assert_type(Agent.static("hello"), GuardedStream[int])
assert_type(Agent.of_the_class("hello"), GuardedStream[int])
assert_type(guarded_stream(decorated("hello")), GuardedStream[int])
decorated(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
decorated("hello", 2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


# -- guarded_chain


def factory(end: StreamEnd[int]) -> AsyncIterator[int]:
    return iterator_function()


async def factory_later(end: StreamEnd[int]) -> AsyncIterator[int]:
    return iterator_function()


def stop_member(source: object) -> None: ...


assert_type(guarded_chain(iterator_function()), GuardedChain[int])
assert_type(guarded_chain(iterator_function(), factory, factory_later), GuardedChain[int])
assert_type(guarded_chain(Run(), context(), coroutine_function(), guard()), GuardedChain[int])
assert_type(guarded_chain(iterator_function(), lambda end: needs_arguments(str(end.last))), GuardedChain[int])
assert_type(guarded_chain(iterator_function(), tail=note_end, until=lambda item: item > 1), GuardedChain[int])
assert_type(guarded_chain(iterator_function(), cancel=stop_member, prefetch=1), GuardedChain[int])


async def reading_a_chain() -> None:
    async with guarded_chain(iterator_function(), factory) as members:
        assert_type(members, GuardedChain[int])
        async for item in members:
            assert_type(item, int)
            assert_type(members.current, int)
            members.then(iterator_function())
            members.then(factory)
            members.hand_off(factory_later)
            members.hand_off(Run())
        members.stop()
        await members.aclose()
    assert_type(members.end, StreamEnd[int])


# -- serving


def note_end_of_response(end: StreamEnd[int]) -> None: ...


def is_last(item: int) -> bool:
    return item > 1


response = GuardedStreamingResponse(iterator_function(), 201, {"x-one": "1"}, "text/plain")
assert_type(response, GuardedStreamingResponse)
assert_type(response.stream, GuardedStream[object])
GuardedStreamingResponse(iterator_function(), until=is_last, where=is_last, tail=note_end_of_response, prefetch=1)
GuardedStreamingResponse(iterator_function(), until=lambda item: item > 1, on_early_exit="drain", cleanup_timeout=None)
GuardedStreamingResponse(iterator_function, cancel=lambda: None, release_agents=True)
GuardedStreamingResponse([1, 2], until=is_last)
GuardedStreamingResponse(Run())


async def closing_responses() -> None:
    assert_type(await close_responses(), None)


# -- errors


def errors(error: CleanupTimeoutError) -> tuple[CleanupError, TimeoutError, RuntimeError]:
    return error, error, error
