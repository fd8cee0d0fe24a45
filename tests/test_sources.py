"""What can be guarded: each shape of source is opened, stepped and closed by one task, and closed once."""

import asyncio
import functools
import inspect
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio
import wrapt

from nothing_left import Watch
from spies import on_asyncio, on_trio, spawned_tasks, this_task
from stories import Run, Story, generator, read_in_vain
from streamguard import Aclosing, CleanupError, EndReason, GuardedStream, guarded_stream

pytestmark = pytest.mark.anyio


class Bare:
    """An async iterator with nothing to close."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.number = 0

    def __aiter__(self) -> "Bare":
        return self

    async def __anext__(self) -> int:
        self.number += 1
        return await self.story.item(self.number)


class NextOnly:
    """An async iterator that has no ``__aiter__``."""

    def __init__(self, story: Story) -> None:
        self.inner = Bare(story)

    def __anext__(self) -> Awaitable[int]:
        return self.inner.__anext__()


class WithAclose(Bare):
    async def aclose(self) -> None:
        await self.story.close("aclose")


class WithSyncAclose(Bare):
    def aclose(self) -> None:
        self.story.note("aclose")


class WithClose(Bare):
    async def close(self) -> None:
        await self.story.close("close")


class WithSyncClose(Bare):
    def close(self) -> None:
        self.story.note("close")


class WithBoth(WithAclose):
    async def close(self) -> None:
        await self.story.close("close")


class Iterable:
    """An async iterable that makes a fresh iterator."""

    def __init__(self, story: Story) -> None:
        self.story = story

    def __aiter__(self) -> AsyncIterator[int]:
        self.story.note("iter")
        return generator(self.story)


class IterableByGenerator:
    """An async iterable whose ``__aiter__`` is an async generator method."""

    def __init__(self, story: Story) -> None:
        self.story = story

    async def __aiter__(self) -> AsyncIterator[int]:
        async with aclosing(generator(self.story)) as numbers:
            async for number in numbers:
                yield number


class IterableWithAclose(Iterable):
    async def aclose(self) -> None:
        await self.story.close("iterable aclose")


class IterableWithClose(Iterable):
    """Shaped like a file or a websocket."""

    async def close(self) -> None:
        await self.story.close("iterable close")


class Context:
    """An async context manager that is not iterable; what it gives closes itself by it."""

    def __init__(self, story: Story) -> None:
        self.story = story

    async def __aenter__(self) -> Bare:
        self.story.note("enter")
        return Bare(self.story)

    async def __aexit__(self, *details: object) -> None:
        await self.story.close("exit")


@asynccontextmanager
async def context_of_generator(story: Story) -> AsyncIterator[AsyncIterator[int]]:
    story.note("enter")
    try:
        yield generator(story)
    finally:
        await story.close("exit")


@asynccontextmanager
async def context_of_iterable(story: Story) -> AsyncIterator[Iterable]:
    story.note("enter")
    try:
        yield Iterable(story)
    finally:
        await story.close("exit")


async def coroutine(story: Story) -> AsyncIterator[int]:
    await anyio.lowlevel.checkpoint()
    story.note("awaited")
    return generator(story)


class CustomAwaitable:
    def __init__(self, story: Story) -> None:
        self.story = story

    def __await__(self) -> Generator[Any, Any, WithClose]:
        yield from anyio.lowlevel.checkpoint().__await__()
        self.story.note("awaited")
        return WithClose(self.story)


def function(story: Story) -> Callable[[], AsyncIterator[int]]:
    def make() -> AsyncIterator[int]:
        story.note("called")
        return generator(story)

    return make


class CallableObject:
    def __init__(self, story: Story) -> None:
        self.story = story

    async def __call__(self, items: int = 3) -> WithAclose:
        await anyio.lowlevel.checkpoint()
        self.story.note("called")
        return WithAclose(self.story)


SHAPES: dict[str, tuple[Callable[[Story], Any], list[str], list[str]]] = {
    # name: how it is made, what opening it logs, what closing it logs
    "guard": (lambda story: guarded_stream(generator(story)), [], ["closed"]),
    "guard of a callable": (lambda story: guarded_stream(function(story)), ["called"], ["closed"]),
    "run": (Run, [], ["closed"]),
    "generator": (generator, [], ["closed"]),
    "iterator with aclose": (WithAclose, [], ["aclose"]),
    "iterator with sync aclose": (WithSyncAclose, [], ["aclose"]),
    "iterator with aclose and close": (WithBoth, [], ["aclose"]),
    "iterator with close": (WithClose, [], ["close"]),
    "iterator with sync close": (WithSyncClose, [], ["close"]),
    "iterable": (Iterable, ["iter"], ["closed"]),
    "iterable by generator": (IterableByGenerator, [], ["closed"]),
    "iterable with aclose": (IterableWithAclose, ["iter"], ["closed", "iterable aclose"]),
    "iterable with close": (IterableWithClose, ["iter"], ["closed"]),
    "context": (Context, ["enter"], ["exit"]),
    "context of a generator": (context_of_generator, ["enter"], ["closed", "exit"]),
    "context of an iterable": (context_of_iterable, ["enter", "iter"], ["closed", "exit"]),
    "contextlib.aclosing": (lambda story: aclosing(generator(story)), [], ["closed"]),
    "Aclosing": (lambda story: Aclosing(generator(story)), [], ["closed"]),
    "coroutine": (coroutine, ["awaited"], ["closed"]),
    "awaitable": (CustomAwaitable, ["awaited"], ["close"]),
    "bare iterator": (Bare, [], []),
    "iterator without __aiter__": (NextOnly, [], []),
    "function": (function, ["called"], ["closed"]),
    "generator function": (lambda story: functools.partial(generator, story), [], ["closed"]),
    "coroutine function": (lambda story: functools.partial(coroutine, story), ["awaited"], ["closed"]),
    "callable object": (CallableObject, ["called"], ["aclose"]),
    "callable that makes a run": (lambda story: lambda: Run(story), [], ["closed"]),
    "callable that makes a context": (lambda story: lambda: Context(story), ["enter"], ["exit"]),
    "callable that makes a guard": (lambda story: lambda: guarded_stream(generator(story)), [], ["closed"]),
    "coroutine that makes a context": (
        lambda story: _awaited_context(story),
        ["enter"],
        ["exit"],
    ),
    "proxy of a generator": (lambda story: wrapt.AutoObjectProxy(generator(story)), [], ["closed"]),
    "proxy of an iterator": (lambda story: wrapt.AutoObjectProxy(WithClose(story)), [], ["close"]),
    "proxy of an iterable": (
        lambda story: wrapt.AutoObjectProxy(IterableWithAclose(story)),
        ["iter"],
        ["closed", "iterable aclose"],
    ),
    "proxy of a context": (lambda story: wrapt.ObjectProxy(Context(story)), ["enter"], ["exit"]),
    "proxy of a run": (lambda story: wrapt.ObjectProxy(Run(story)), [], ["closed"]),
    "proxy of a coroutine": (lambda story: wrapt.AutoObjectProxy(coroutine(story)), ["awaited"], ["closed"]),
    "proxy of a function": (lambda story: wrapt.CallableObjectProxy(function(story)), ["called"], ["closed"]),
    "proxy of a bare iterator": (lambda story: wrapt.AutoObjectProxy(Bare(story)), [], []),
    "proxy of a guard": (lambda story: wrapt.AutoObjectProxy(guarded_stream(generator(story))), [], ["closed"]),
    "traced iterator": (lambda story: Traced(WithClose(story)), [], ["close"]),
}


async def _awaited_context(story: Story) -> Context:
    return Context(story)


class Traced(wrapt.ObjectProxy):  # type: ignore[misc]
    """A proxy as instrumentation writes them: the reading is its own, the rest is passed on."""

    def __aiter__(self) -> "Traced":
        return self

    async def __anext__(self) -> int:
        return await self.__wrapped__.__anext__()  # type: ignore[no-any-return]


each_shape = pytest.mark.parametrize("shape", SHAPES)


# -- each shape, each way out


async def break_off(source: Any, story: Story) -> EndReason:
    async with guarded_stream(source) as stream:
        async for item in stream:
            assert item == 1
            break
    return stream.end.reason


async def exhaust(source: Any, story: Story) -> EndReason:
    async with guarded_stream(source) as stream:
        assert [item async for item in stream] == [1, 2, 3]
    return stream.end.reason


async def fail_in_the_body(source: Any, story: Story) -> EndReason:
    error = ValueError("body")
    with pytest.raises(ValueError, match=r"^body$") as caught:
        async with guarded_stream(source) as stream:
            async for _ in stream:
                raise error
    assert caught.value is error
    assert not hasattr(error, "__notes__")
    return stream.end.reason


async def fail_in_the_source(source: Any, story: Story) -> EndReason:
    story.second = "fail"
    with pytest.raises(OSError, match=r"^source$"):
        async with guarded_stream(source) as stream:
            async for _ in stream:
                pass
    assert stream.end.cleanup_errors == ()
    return stream.end.reason


async def catch_the_error_of_the_source(source: Any, story: Story) -> EndReason:
    story.second = "fail"
    async with guarded_stream(source) as stream:
        assert await anext(stream) == 1
        with pytest.raises(OSError, match=r"^source$"):
            await anext(stream)
    assert stream.end.cleanup_errors == ()
    return stream.end.reason


async def cancel_the_body(source: Any, story: Story) -> EndReason:
    with anyio.CancelScope() as scope:
        async with guarded_stream(source) as stream:
            async for _ in stream:
                scope.cancel()
                await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    return stream.end.reason


async def cancel_while_the_source_awaits(source: Any, story: Story) -> EndReason:
    story.second = "wait"
    guard = guarded_stream(source)
    async with anyio.create_task_group() as group:

        async def read() -> None:
            async with guard as stream:
                async for _ in stream:
                    pass

        group.start_soon(read)
        await story.waits.wait()
        group.cancel_scope.cancel()
    return guard.end.reason


WAYS_OUT = {
    break_off: EndReason.LEFT,
    exhaust: EndReason.EXHAUSTED,
    fail_in_the_body: EndReason.FAILED,
    fail_in_the_source: EndReason.FAILED,
    catch_the_error_of_the_source: EndReason.FAILED,
    cancel_the_body: EndReason.CANCELLED,
    cancel_while_the_source_awaits: EndReason.CANCELLED,
}


@each_shape
async def test_every_way_out(shape: str) -> None:
    """A source of any shape is opened, stepped and closed by one task, to the end and once, on every way out."""
    make, opens, closes = SHAPES[shape]
    for way_out, reason in WAYS_OUT.items():
        story = Story()
        assert await way_out(make(story), story) is reason, way_out
        story.check(*opens, *closes)


async def test_two_streams_of_one_shape() -> None:
    """Two streams that are read in turn have a task each."""
    first, second = Story(), Story()
    async with guarded_stream(generator(first)) as outer, guarded_stream(generator(second)) as inner:
        assert [await anext(outer), await anext(inner), await anext(outer), await anext(inner)] == [1, 1, 2, 2]
    first.check("closed")
    second.check("closed")
    assert first.tasks != second.tasks


# -- never iterated

NOT_READ: dict[str, list[str]] = {
    "guard": [],
    "guard of a callable": [],
    "run": [],
    "generator": [],
    "iterator with aclose": ["aclose"],
    "iterator with sync aclose": ["aclose"],
    "iterator with aclose and close": ["aclose"],
    "iterator with close": ["close"],
    "iterator with sync close": ["close"],
    "iterable": [],
    "iterable by generator": [],
    "iterable with aclose": ["iterable aclose"],
    "iterable with close": [],
    "context": [],
    "context of a generator": [],
    "coroutine": [],
    "awaitable": [],
    "bare iterator": [],
    "iterator without __aiter__": [],
    "function": [],
    "generator function": [],
    "coroutine function": [],
    "callable object": [],
    "proxy of a generator": [],
    "proxy of an iterator": ["close"],
    "proxy of an iterable": ["iterable aclose"],
    "proxy of a context": [],
    "proxy of a run": [],
    "proxy of a coroutine": [],
    "proxy of a function": [],
    "proxy of a bare iterator": [],
    "proxy of a guard": [],
    "traced iterator": ["close"],
}


@pytest.mark.parametrize("shape", NOT_READ)
async def test_never_iterated(shape: str) -> None:
    """A source that nobody read is closed all the same, in a task of its own, and is neither called nor entered."""
    make, closes = SHAPES[shape][0], NOT_READ[shape]
    story = Story()
    async with guarded_stream(make(story)) as stream:
        pass
    assert story.log == closes
    assert this_task() not in story.tasks
    assert stream.end.reason is EndReason.LEFT
    assert stream.end.items == 0


async def test_never_iterated_starts_no_task() -> None:
    """A source that nobody read costs no task if closing it needs no waiting."""
    for shape, closes in NOT_READ.items():
        if closes or "guard" in shape or "run" in shape:
            continue
        with spawned_tasks() as names:
            async with guarded_stream(SHAPES[shape][0](Story())):
                pass
        assert names == [], shape


async def test_never_iterated_and_cancelled() -> None:
    """A source that nobody read is closed to the end although the block is left cancelled."""
    story = Story()
    with anyio.CancelScope() as scope:
        async with guarded_stream(WithAclose(story)):
            scope.cancel()
            await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    story.check("aclose")


async def test_unread_generator_cannot_be_read_later() -> None:
    """A generator that was guarded and never read is closed, not only let go."""
    numbers = generator(Story())
    async with guarded_stream(numbers):
        pass
    assert numbers.ag_frame is None
    with pytest.raises(StopAsyncIteration):
        await anext(numbers)


async def test_unread_coroutine_is_closed() -> None:
    """A coroutine that was guarded and never read is closed: no "never awaited" warning."""
    made = coroutine(Story())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with guarded_stream(made):
            pass
    with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
        await made


async def test_failing_close_of_an_unread_source() -> None:
    """The error of closing a source that nobody read leaves the block, bare."""

    class Failing(Bare):
        async def aclose(self) -> None:
            await anyio.lowlevel.checkpoint()
            raise OSError("close")

    with pytest.raises(OSError, match=r"^close$") as caught:
        async with guarded_stream(Failing(Story())) as stream:
            pass
    assert stream.end.cleanup_errors == (caught.value,)


# -- generators that somebody else has advanced


async def test_advanced_generator_is_read_on() -> None:
    """A generator that somebody has advanced goes on from there, and is closed by the owner."""
    story = Story()
    numbers = generator(story)
    assert await anext(numbers) == 1
    story.tasks.clear()
    async with guarded_stream(numbers) as stream:
        assert [item async for item in stream] == [2, 3]
    story.check("closed")


async def test_advanced_generator_never_read() -> None:
    """A generator that somebody has advanced is closed though nobody read it through the guard."""
    story = Story()
    numbers = generator(story)
    await anext(numbers)
    story.tasks.clear()
    with spawned_tasks() as names:
        async with guarded_stream(numbers):
            pass
    story.check("closed")
    assert len(names) == 1


async def test_finished_generator() -> None:
    """A generator that has ended already is an empty stream."""
    story = Story()
    numbers = generator(story)
    assert [item async for item in numbers] == [1, 2, 3]
    async with guarded_stream(numbers) as stream:
        assert [item async for item in stream] == []
    assert story.log == ["closed"]


async def test_finished_generator_never_read() -> None:
    """A generator that has ended already is not closed again, and costs no task."""
    numbers = generator(Story())
    assert [item async for item in numbers] == [1, 2, 3]
    with spawned_tasks() as names:
        async with guarded_stream(numbers):
            pass
    assert names == []


async def test_generator_at_work_elsewhere(watch: Watch) -> None:
    """A generator that another task is inside of gives Python's error; the other task is not disturbed."""
    go_on = anyio.Event()
    got: list[int] = []

    async def waiting() -> AsyncGenerator[int, None]:
        await go_on.wait()
        yield 1

    numbers = waiting()

    async def read() -> None:
        got.append(await anext(numbers))

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(RuntimeError, match="already running"):
            async with guarded_stream(numbers) as stream:
                await anext(stream)
        go_on.set()
    assert got == [1]
    watch.claim("already running")  # it could not be closed either
    await numbers.aclose()


# -- opening


async def test_nothing_is_opened_before_the_first_read() -> None:
    """A callable is called, a coroutine awaited, a context entered at the first read, not before."""
    story = Story()

    def make() -> Awaitable[AsyncIterator[int]]:
        story.note("called")
        return coroutine(story)

    async with guarded_stream(make) as stream:
        await anyio.wait_all_tasks_blocked()
        assert story.log == []
        assert await anext(stream) == 1
        assert story.log == ["called", "awaited"]
    story.check("called", "awaited", "closed")


async def test_end_has_the_opened_source() -> None:
    """`StreamEnd.source` is what the callable made, not the callable."""
    made: list[Run] = []

    def make() -> Run:
        made.append(Run(Story()))
        return made[0]

    async with guarded_stream(make) as stream:
        await anext(stream)
    assert stream.end.source is made[0]


@pytest.mark.parametrize("awaited", [False, True])
async def test_error_while_opening(awaited: bool) -> None:
    """What a callable raises, or the coroutine that it returns, arrives at the first read, bare."""

    def fail() -> AsyncIterator[int]:
        raise OSError("opening")

    async def fail_later() -> AsyncIterator[int]:
        await anyio.lowlevel.checkpoint()
        raise OSError("opening")

    async with guarded_stream(fail_later if awaited else fail) as stream:
        with pytest.raises(OSError, match=r"^opening$"):
            await anext(stream)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_error_on_entering() -> None:
    """What a context manager raises when it is entered arrives at the first read; it is not exited."""

    class Failing(Context):
        async def __aenter__(self) -> Bare:
            raise OSError("entering")

    story = Story()
    with pytest.raises(OSError, match=r"^entering$"):
        async with guarded_stream(Failing(story)) as stream:
            await anext(stream)
    assert story.log == []


async def test_error_in_aiter() -> None:
    """An iterable that fails to make its iterator is closed all the same."""

    class Failing(IterableWithAclose):
        def __aiter__(self) -> AsyncIterator[int]:
            raise OSError("iter")

    story = Story()
    with pytest.raises(OSError, match=r"^iter$"):
        async with guarded_stream(Failing(story)) as stream:
            await anext(stream)
    story.check("iterable aclose")


async def test_cancelled_while_opening() -> None:
    """A coroutine that is cancelled while it opens the source runs its own cleanup to the end."""
    story = Story()

    async def opening() -> AsyncIterator[int]:
        try:
            story.waits.set()
            await anyio.sleep_forever()
        finally:
            await story.close("not opened")
        return generator(story)

    async with anyio.create_task_group() as group:

        async def read() -> None:
            async with guarded_stream(opening()) as stream:
                await anext(stream)

        group.start_soon(read)
        await story.waits.wait()
        group.cancel_scope.cancel()
    story.check("not opened")


async def test_opened_in_spite_of_a_cancellation() -> None:
    """A source that a coroutine makes although it was cancelled is closed."""
    story = Story()

    async def stubborn() -> AsyncIterator[int]:
        story.waits.set()
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            pass
        return WithAclose(story)

    async with anyio.create_task_group() as group:

        async def read() -> None:
            async with guarded_stream(stubborn()) as stream:
                await anext(stream)

        group.start_soon(read)
        await story.waits.wait()
        group.cancel_scope.cancel()
    story.check("aclose")


async def test_what_a_callable_makes_is_no_stream() -> None:
    """A callable that makes no stream gives a TypeError at the first read that names both."""

    def make_list() -> list[int]:
        return [1]

    async with guarded_stream(make_list) as stream:  # type: ignore[type-var]
        with pytest.raises(TypeError, match=r"make_list.* made no stream: list object is not an async stream"):
            await anext(stream)


async def test_what_a_coroutine_gives_is_no_stream() -> None:
    """A coroutine that gives no stream gives a TypeError at the first read that names both."""

    async def make_none() -> None:
        return None

    async with guarded_stream(make_none()) as stream:  # type: ignore[type-var]
        with pytest.raises(TypeError, match=r"make_none.* made no stream: None is not an async stream"):
            await anext(stream)


async def test_what_a_context_gives_is_no_stream() -> None:
    """A context manager that gives nothing iterable is exited; the TypeError names both."""
    story = Story()

    @asynccontextmanager
    async def context() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await story.close("exit")

    async with guarded_stream(context()) as stream:  # type: ignore[type-var]
        with pytest.raises(TypeError, match=r"ContextManager object gave int object, which is no async iterable"):
            await anext(stream)
    story.check("exit")


async def test_aiter_returns_no_iterator() -> None:
    """An iterable whose ``__aiter__`` returns no iterator gives a TypeError that names both."""

    class Odd:
        def __aiter__(self) -> object:
            return 1

    async with guarded_stream(Odd()) as stream:  # type: ignore[type-var]
        with pytest.raises(TypeError, match=r"Odd.*__aiter__ returned int object, which has no __anext__"):
            await anext(stream)


async def test_run_handle_without_iterator() -> None:
    """A run handle whose ``stream_events`` returns no iterator gives a TypeError that names it."""

    class Odd:
        def stream_events(self) -> list[int]:
            return [1]

    async with guarded_stream(Odd()) as stream:  # type: ignore[type-var]
        with pytest.raises(TypeError, match="Odd object gave list object, which is no async iterable"):
            await anext(stream)


async def test_special_methods_count_on_the_type() -> None:
    """A special method that is only on the object makes no stream, as in Python's own ``async for``."""

    class Odd:
        pass

    odd = Odd()
    odd.__anext__ = odd.__aiter__ = Bare(Story()).__anext__  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="Odd object is not an async stream"):
        guarded_stream(odd)  # type: ignore[type-var]


async def test_close_counts_on_the_object() -> None:
    """``aclose`` is looked up on the object, since instrumentation puts it there."""
    story = Story()
    bare = Bare(story)
    bare.aclose = functools.partial(story.close, "aclose")  # type: ignore[attr-defined]
    async with guarded_stream(bare) as stream:
        await anext(stream)
    story.check("aclose")


# -- context managers


def _seen(details: tuple[Any, ...]) -> tuple[Any, ...]:
    kind, error, trace = details
    assert (trace is None) == (error is None)
    return kind, error


async def test_iterator_that_can_be_entered_and_closed() -> None:
    """An iterator that has a close is not entered, though it could be: as clients of APIs give them."""

    class Both(WithClose):
        async def __aenter__(self) -> AsyncIterator[int]:
            self.story.note("enter")
            return self

        async def __aexit__(self, *details: object) -> None:
            self.story.note("exit")

    story = Story()
    async with guarded_stream(Both(story)) as stream:
        assert await anext(stream) == 1
    story.check("close")


async def test_context_that_gives_an_iterator_with_a_close() -> None:
    """What a context manager gives it closes itself, when it is left: we do not."""

    class Giving(Context):
        async def __aenter__(self) -> Bare:
            return WithAclose(self.story)

    story = Story()
    async with guarded_stream(Giving(story)) as stream:
        assert await anext(stream) == 1
    story.check("exit")


async def test_proxy_of_a_generator_that_yields_in_its_finally() -> None:
    """A proxy of a generator is closed as the generator is: stepped on, and told by its name."""
    log: list[str] = []

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            yield 2
            log.append("closed")

    with pytest.raises(CleanupError, match=r"^async generator '.*source' yielded at .*test_sources\.py:\d+ while"):
        async with guarded_stream(Traced(source())) as stream:
            assert await anext(stream) == 1
    assert log == ["closed"]


async def test_run_whose_events_are_an_iterator() -> None:
    """The events of a run are closed also if they are no generator."""

    class Events(Run):
        def stream_events(self) -> WithAclose:  # type: ignore[override]
            return WithAclose(self.story)

    story = Story()
    async with guarded_stream(Events(story)) as stream:
        assert await anext(stream) == 1
    story.check("aclose")


class Exits(Context):
    """Keeps what it was exited with."""

    def __init__(self, story: Story) -> None:
        super().__init__(story)
        self.seen: list[tuple[Any, ...]] = []

    async def __aexit__(self, *details: Any) -> None:
        self.seen.append(_seen(details))
        await super().__aexit__(*details)


async def test_context_is_told_of_the_error_of_the_body() -> None:
    """A context manager is exited with the details of the body's error, as if it had been entered there."""
    context = Exits(Story())
    error = ValueError("body")
    with pytest.raises(ValueError, match="body"):
        async with guarded_stream(context) as stream:
            await anext(stream)
            raise error
    assert context.seen == [(ValueError, error)]


async def test_context_is_told_of_nothing_at_a_break() -> None:
    """A context manager is exited without details when the block is left by a break."""
    context = Exits(Story())
    async with guarded_stream(context) as stream:
        async for _ in stream:
            break
    assert context.seen == [(None, None)]


async def test_context_is_told_of_the_cancellation() -> None:
    """A context manager is exited with the very cancellation that leaves the body."""
    context = Exits(Story())
    with anyio.CancelScope() as scope:
        async with guarded_stream(context) as stream:
            await anext(stream)
            scope.cancel()
            try:
                await anyio.lowlevel.checkpoint()
            except BaseException as error:
                cancellation = error
                raise
    assert context.seen == [(type(cancellation), cancellation)]
    context.story.check("enter", "exit")


@on_asyncio
async def test_context_that_turns_the_cancellation_into_another() -> None:
    """A context manager that is given a cancellation may raise a new one: nothing is wrong with its cleanup."""

    class Cancelling(Context):
        async def __aexit__(self, kind: Any, *details: object) -> None:  # type: ignore[override]
            await super().__aexit__(kind, *details)
            raise asyncio.CancelledError("another")

    story = Story()
    working = anyio.Event()

    async def consume() -> None:
        async with stream:
            await anext(stream)
            working.set()
            await anyio.sleep_forever()

    stream = guarded_stream(Cancelling(story))
    task = asyncio.create_task(consume())
    await working.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert stream.end.cleanup_errors == ()
    story.check("enter", "exit")


@on_asyncio
async def test_task_group_in_the_exit_of_a_cancelled_source() -> None:
    """That we have cancelled a source does not stay in the task: Python 3.13 would cancel it again behind a group."""

    async def fail() -> None:
        raise OSError("child")

    class Grouping(Context):
        async def __aenter__(self) -> Any:
            return generator(self.story)

        async def __aexit__(self, *details: object) -> None:
            with pytest.RaisesGroup(OSError):
                async with asyncio.TaskGroup() as group:
                    group.create_task(fail())
                    await anyio.sleep_forever()
            await self.story.close("exit")

    story = Story("wait")
    async with guarded_stream(Grouping(story)) as stream:
        await anext(stream)
        await read_in_vain(stream)
    story.check("closed", "exit")


async def test_context_that_suppresses_the_error() -> None:
    """The body's error leaves the block although the context manager would suppress it."""

    class Suppressing(Context):
        async def __aexit__(self, *details: object) -> bool:  # type: ignore[override]
            await super().__aexit__(*details)
            return True

    story = Story()
    with pytest.raises(ValueError, match=r"^body$"):
        async with guarded_stream(Suppressing(story)) as stream:
            await anext(stream)
            raise ValueError("body")
    story.check("enter", "exit")


async def test_context_that_raises_the_error_on() -> None:
    """A generator-made context manager that lets the body's error through adds nothing to it."""
    story = Story()
    error = ValueError("body")
    with pytest.raises(ValueError, match=r"^body$") as caught:
        async with guarded_stream(context_of_generator(story)) as stream:
            await anext(stream)
            raise error
    assert caught.value is error
    assert not hasattr(error, "__notes__")
    assert stream.end.cleanup_errors == ()


async def test_context_that_turns_the_error_into_another(watch: Watch) -> None:
    """The body's error stays the one that leaves, the context manager's is reported on it."""

    @asynccontextmanager
    async def translating() -> AsyncIterator[AsyncIterator[int]]:
        try:
            yield generator(Story())
        except ValueError as error:
            raise OSError("translated") from error

    with pytest.raises(ValueError, match=r"^body") as caught:
        async with guarded_stream(translating()) as stream:
            await anext(stream)
            raise ValueError("body")
    assert "OSError: translated" in caught.value.__notes__[0]
    assert [type(error) for error in stream.end.cleanup_errors] == [OSError]
    watch.claim("translated")


async def test_context_with_a_task_group() -> None:
    """A context manager that holds a task group is entered and exited by one task, also when the body is cancelled."""
    story = Story()

    @asynccontextmanager
    async def context() -> AsyncIterator[AsyncIterator[int]]:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            yield generator(story)
            group.cancel_scope.cancel()

    with anyio.CancelScope() as scope:
        async with guarded_stream(context()) as stream:
            async for _ in stream:
                scope.cancel()
                await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    story.check("closed")


@on_trio
async def test_safe_channel() -> None:
    """trio's `as_safe_channel` may be guarded (only trio has it): its generator is closed in the block."""
    story = Story()

    @trio.as_safe_channel
    async def numbers() -> AsyncGenerator[int, None]:
        try:
            for number in (1, 2, 3):
                yield number
        finally:
            story.log.append("closed")

    async with guarded_stream(numbers()) as stream:
        assert await anext(stream) == 1
    assert story.log == ["closed"]


async def test_memory_object_stream() -> None:
    """An anyio receive stream is read as the async iterator that it is, and closed."""
    send, receive = anyio.create_memory_object_stream[int](3)
    send.send_nowait(1)
    async with send:
        async with guarded_stream(receive) as stream:
            assert await anext(stream) == 1
        with pytest.raises(anyio.BrokenResourceError):
            send.send_nowait(2)


# -- the faults that these rules are for


async def test_iterable_without_any_close() -> None:
    """An async iterator without any close method needs none."""
    async with guarded_stream(Bare(Story())) as stream:
        assert await anext(stream) == 1


async def test_exit_stack_closed_by_another_task() -> None:
    """A stack with a scope in it is left by the task that entered it, whoever asks for the close."""
    story = Story()

    @asynccontextmanager
    async def client() -> AsyncIterator[AsyncIterator[int]]:
        story.note("enter")
        with anyio.CancelScope():
            yield generator(story)
        story.note("exit")

    async with anyio.create_task_group() as group:
        async with guarded_stream(client()) as stream:
            await anext(stream)
            group.start_soon(stream.aclose)
            await anyio.wait_all_tasks_blocked()
            assert story.log[-1] == "exit"
    story.check("enter", "closed", "exit")


async def test_exit_stack_as_the_owner_of_guards() -> None:
    """A guard in an exit stack may be closed by a task that is not the one which entered it."""
    story = Story()
    stack = AsyncExitStack()
    stream = await stack.enter_async_context(guarded_stream(generator(story)))
    assert await anext(stream) == 1
    async with anyio.create_task_group() as group:
        group.start_soon(stack.aclose)
    story.check("closed")


async def test_transport_fails() -> None:
    """When the consumer of a body fails, its error leaves and the body is closed."""
    story = Story()

    async def transport(body: AsyncIterator[int]) -> None:
        async with guarded_stream(body) as stream:
            async for _ in stream:
                raise BrokenPipeError("send")

    with pytest.raises(BrokenPipeError, match=r"^send$"):
        await transport(generator(story))
    story.check("closed")


async def test_close_is_called_once_however_often_asked() -> None:
    """An object with ``close()`` is closed once, though the guard is closed, stopped and left."""
    story = Story()
    async with guarded_stream(WithClose(story)) as stream:
        await anext(stream)
        await stream.aclose()
        await stream.aclose()
        stream.stop()
    await stream.aclose()
    story.check("close")


async def test_iterator_is_closed_before_its_iterable() -> None:
    """The iterator is closed first, then the iterable that made it."""
    story = Story()
    async with guarded_stream(IterableWithAclose(story)) as stream:
        await anext(stream)
    story.check("iter", "closed", "iterable aclose")


async def test_failing_iterator_does_not_keep_the_iterable_open() -> None:
    """The iterable is closed although closing its iterator failed; the first error leaves."""
    story = Story()

    class Failing(IterableWithAclose):
        async def __aiter__(self) -> AsyncIterator[int]:  # type: ignore[override]
            try:
                yield 1
            finally:
                raise OSError("iterator")

    with pytest.raises(OSError, match=r"^iterator$"):
        async with guarded_stream(Failing(story)) as stream:
            await anext(stream)
    story.check("iterable aclose")


async def test_guard_type() -> None:
    """`guarded_stream` makes a `GuardedStream`, whatever the source."""
    guard = guarded_stream(generator(Story()))
    assert isinstance(guard, GuardedStream)
    await guard.aclose()


class EnteredIterator:
    """An async iterator that can only be left, not closed."""

    def __init__(self) -> None:
        self.log: list[str] = []

    async def __aenter__(self) -> "EnteredIterator":
        self.log.append("entered")
        return self

    async def __aexit__(self, *details: object) -> None:
        await anyio.lowlevel.checkpoint()
        self.log.append("left")

    def __aiter__(self) -> "EnteredIterator":
        return self

    async def __anext__(self) -> int:
        self.log.append("read")
        return 1


async def test_iterator_that_can_only_be_left() -> None:
    """An iterator without a close that is a context manager as well is entered and left: nothing else cleans it up."""
    source = EnteredIterator()
    async with guarded_stream(source) as stream:
        async for _ in stream:
            break
    assert source.log == ["entered", "read", "left"]


class Pending:
    """An awaitable of somebody else's that can be cancelled, and is no future."""

    def __init__(self, story: Story) -> None:
        self.story = story

    def __await__(self) -> Generator[Any, Any, AsyncIterator[int]]:
        yield from anyio.lowlevel.checkpoint().__await__()
        return generator(self.story)

    def cancel(self) -> None:
        self.story.log.append("cancelled")


async def test_awaitable_that_can_be_cancelled() -> None:
    """An awaitable that nobody waited for is cancelled; one that was awaited is not, its source is closed."""
    story = Story()
    async with guarded_stream(Pending(story)):
        pass
    assert story.log == ["cancelled"]
    async with guarded_stream(Pending(story)) as stream:
        assert await anext(stream) == 1
    assert story.log == ["cancelled", "closed"]


async def test_builtin_that_tells_no_signature() -> None:
    """A callable whose arguments cannot be looked at is taken at its word, and called at the first read."""
    story = Story()
    make = functools.partial(getattr, object(), "events", Run(story))
    with pytest.raises(ValueError, match="signature"):
        inspect.signature(make)
    async with guarded_stream(make) as stream:
        assert await anext(stream) == 1
    story.check("closed")
