"""`@guarded`: an async generator function whose callers have to write `async with`."""

import asyncio
import functools
import gc
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from recording import Fault, only_asyncio
from streamguard import EndReason, GuardedStream, StreamEnd, guarded, guarded_chain, guarded_stream

pytestmark = pytest.mark.anyio


@guarded
async def letters(first: str, *, last: str = "z") -> AsyncIterator[str]:
    """Two letters."""
    yield first
    yield last


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    async def numbers(self, count: int = 3) -> AsyncIterator[int]:
        try:
            for number in range(1, count + 1):
                yield number
        finally:
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
            self.lines.append("closed")


# -- what it makes


async def test_call_gives_a_guard() -> None:
    """A call gives a guard, with the arguments passed on; nothing has run yet."""
    stream = letters("a", last="c")
    assert isinstance(stream, GuardedStream)
    async with stream:
        assert [letter async for letter in stream] == ["a", "c"]


async def test_each_call_gives_a_new_guard() -> None:
    """Each call gives a guard of its own, that can be entered once."""
    async with letters("a") as one, letters("b") as two:
        assert await anext(one) == "a"
        assert await anext(two) == "b"
    with pytest.raises(RuntimeError, match="entered before"):
        await one.__aenter__()


async def test_closed_at_a_break() -> None:
    """A break has the generator closed, its cleanup complete, before the block is left."""
    log = Log()

    @guarded
    async def numbers() -> AsyncIterator[int]:
        async for number in log.numbers():
            yield number

    async with numbers() as stream:
        async for _ in stream:
            break
    assert log.lines == ["closed"]
    assert stream.end.reason is EndReason.LEFT


async def test_with_options() -> None:
    """The options of a guard hold for every call."""
    ends: list[StreamEnd[int]] = []

    @guarded(
        until=lambda number: number == 6,
        where=lambda number: number % 2 == 0,
        tail=ends.append,
        prefetch=1,
        cleanup_timeout=1.0,
        on_early_exit="drain",
        cancel=lambda: None,
    )
    async def numbers(start: int) -> AsyncIterator[int]:
        for number in range(start, 10):
            yield number

    async with numbers(1) as one:
        assert [number async for number in one] == [2, 4, 6]
    async with numbers(5) as two:
        assert [number async for number in two] == [6]
    assert [end.items for end in ends] == [3, 1]


async def test_with_empty_parentheses() -> None:
    """`@guarded()` is `@guarded`."""

    @guarded()
    async def numbers() -> AsyncIterator[int]:
        yield 1

    async with numbers() as stream:
        assert [number async for number in stream] == [1]


async def test_plain_function_that_returns_a_stream() -> None:
    """A plain function that returns an async iterator can be decorated as well."""
    log = Log()

    @guarded
    def numbers() -> AsyncIterator[int]:
        return log.numbers()

    async with numbers() as stream:
        async for _ in stream:
            break
    assert log.lines == ["closed"]


async def test_partial() -> None:
    """A partial of an async generator function can be decorated, although it has no name."""

    async def numbers(start: int, stop: int) -> AsyncIterator[int]:
        for number in range(start, stop):
            yield number

    up_to = guarded(functools.partial(numbers, 1))
    async with up_to(3) as stream:
        assert [number async for number in stream] == [1, 2]


# -- methods


class Agent:
    name = "agent"

    def __init__(self) -> None:
        self.name = "instance"

    @guarded
    async def method(self, word: str) -> AsyncIterator[str]:
        """Says a word."""
        yield f"{self.name} {word}"

    @guarded(cleanup_timeout=1.0)
    async def method_with_options(self, word: str) -> AsyncIterator[str]:
        yield f"{self.name} {word}"

    @classmethod
    @guarded
    async def class_outside(cls, word: str) -> AsyncIterator[str]:
        yield f"{cls.name} {word}"

    @guarded
    @classmethod
    async def class_inside(cls, word: str) -> AsyncIterator[str]:
        yield f"{cls.name} {word}"

    @guarded(cleanup_timeout=1.0)
    @classmethod
    async def class_inside_with_options(cls, word: str) -> AsyncIterator[str]:
        yield f"{cls.name} {word}"

    @staticmethod
    @guarded
    async def static_outside(word: str) -> AsyncIterator[str]:
        yield f"static {word}"

    @guarded
    @staticmethod
    async def static_inside(word: str) -> AsyncIterator[str]:
        yield f"static {word}"

    @guarded(cleanup_timeout=1.0)
    @staticmethod
    async def static_inside_with_options(word: str) -> AsyncIterator[str]:
        yield f"static {word}"


class Specialist(Agent):
    name = "specialist"

    @guarded
    async def method(self, word: str) -> AsyncIterator[str]:
        async with super().method(word) as stream:
            async for said in stream:
                yield f"{said}, special"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Agent().method, "instance word"),
        (lambda: Agent().method_with_options, "instance word"),
        (lambda: functools.partial(Agent.method, Agent()), "instance word"),
        (lambda: Specialist().method, "instance word, special"),
        (lambda: Agent.class_outside, "agent word"),
        (lambda: Agent().class_outside, "agent word"),
        (lambda: Specialist.class_outside, "specialist word"),
        (lambda: Agent.class_inside, "agent word"),
        (lambda: Specialist().class_inside, "specialist word"),
        (lambda: Specialist.class_inside_with_options, "specialist word"),
        (lambda: Agent.static_outside, "static word"),
        (lambda: Agent().static_outside, "static word"),
        (lambda: Agent.static_inside, "static word"),
        (lambda: Agent().static_inside, "static word"),
        (lambda: Agent.static_inside_with_options, "static word"),
    ],
)
async def test_methods(call: Callable[[], Callable[[str], GuardedStream[str]]], said: str) -> None:
    """Methods, class methods and static methods, in either order of the decorators, called on class and instance."""
    async with call()("word") as stream:
        assert [word async for word in stream] == [said]


async def test_method_of_an_instance_that_is_let_go() -> None:
    """A bound guarded method keeps its instance while the stream is read, and not longer."""
    async with Agent().method("word") as stream:
        gc.collect()
        assert [word async for word in stream] == ["instance word"]


# -- what is kept


@pytest.mark.parametrize("decorate", [guarded, guarded(cleanup_timeout=1.0)], ids=["plain", "options"])
async def test_name_and_docstring(decorate: Any) -> None:
    """Name, qualified name, module, docstring, annotations and what it wraps are kept."""

    async def speak(word: str, *, times: int = 1) -> AsyncIterator[str]:
        """Say a word."""
        yield word

    decorated = decorate(speak)
    for name in ("__name__", "__qualname__", "__module__", "__doc__", "__annotations__"):
        assert getattr(decorated, name) == getattr(speak, name)
    assert decorated.__wrapped__ is speak


async def test_signature() -> None:
    """The signature is the function's; a bound method's lacks `self`, a class method's `cls`."""
    assert list(inspect.signature(letters).parameters) == ["first", "last"]
    assert list(inspect.signature(Agent().method).parameters) == ["word"]
    assert list(inspect.signature(Agent.class_inside).parameters) == ["word"]
    assert list(inspect.signature(Agent.static_inside).parameters) == ["word"]
    assert Agent().method.__doc__ == "Says a word."


async def test_attributes_are_kept() -> None:
    """What other decorators have noted on the function is still there."""

    async def speak() -> AsyncIterator[str]:
        yield "word"

    speak.tool = True  # type: ignore[attr-defined]
    assert guarded(speak).tool is True  # type: ignore[attr-defined]


async def test_is_no_async_generator_function_any_more() -> None:
    """Frameworks that ask whether to iterate the result bare are told that it is a plain function."""
    assert not inspect.isasyncgenfunction(letters)
    assert not inspect.iscoroutinefunction(letters)


async def test_wrong_arguments() -> None:
    """Wrong arguments are the function's own TypeError, at the call."""
    with pytest.raises(TypeError, match=r"letters\(\) missing 1 required positional argument: 'first'"):
        letters()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'middle'"):
        letters("a", middle="m")  # type: ignore[call-arg]


# -- without `async with`


async def test_bare_loop() -> None:
    """A bare loop over a call is a RuntimeError that names the function and says what to write."""
    with pytest.warns(ResourceWarning, match="never entered"):
        with pytest.raises(RuntimeError, match=r'letters.* is read outside its block; use "async with"'):
            async for _ in letters("a"):
                pass
        gc.collect()


async def test_call_that_is_dropped() -> None:
    """A call whose result is dropped is warned of, with the line of the call, not one inside the decorator."""
    with pytest.warns(ResourceWarning, match=r"test_decorator\.py:\d+") as caught:
        letters("a")
        gc.collect()
    assert f"{inspect.currentframe().f_lineno - 2}," in str(caught[0].message)  # type: ignore[union-attr]


async def test_bare_sync_use() -> None:
    """It is no sync iterable and no sync context manager."""
    stream = letters("a")
    with pytest.raises(TypeError):
        iter(stream)  # type: ignore[call-overload]
    with pytest.raises(TypeError), ExitStack() as stack:
        stack.enter_context(stream)  # type: ignore[type-var, arg-type]
    await stream.aclose()


# -- bad use


async def coroutine_function() -> AsyncIterator[int]:
    raise AssertionError


def generator_function() -> Any:
    yield 1


@pytest.mark.parametrize(
    "function",
    [1, "a", ["a"], Agent, coroutine_function, staticmethod(coroutine_function), classmethod(generator_function)],
    ids=["number", "string", "list", "class", "coroutine function", "static coroutine function", "generator function"],
)
@pytest.mark.parametrize("decorate", [guarded, guarded(cleanup_timeout=1.0)], ids=["plain", "options"])
async def test_what_is_no_async_generator_function(function: Any, decorate: Any) -> None:
    """What makes no async iterator is refused when it is decorated, by name."""
    with pytest.raises(TypeError, match="is no async generator function; decorate one"):
        decorate(function)


async def test_call_instead_of_the_function() -> None:
    """Decorating a generator, that is a call instead of the function, is refused; it is untouched."""
    log = Log()
    generator = log.numbers(1)
    with pytest.raises(TypeError, match="numbers' is no async generator function"):
        guarded(generator)  # type: ignore[call-overload]
    assert [number async for number in generator] == [1]


async def test_function_that_returns_no_stream() -> None:
    """A function that returns no async stream is a TypeError at the call, that names what it returned."""

    @guarded
    def numbers() -> Any:
        return [1]

    with pytest.raises(TypeError, match="list object is not an async stream"):
        numbers()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"cleanup_timeout": -1}, ValueError),
        ({"prefetch": -1}, ValueError),
        ({"on_early_exit": "leave"}, ValueError),
        ({"tail": 1}, TypeError),
        ({"unknown": 1}, TypeError),
    ],
    ids=str,
)
async def test_bad_options(options: dict[str, Any], error: type[Exception]) -> None:
    """Options are checked when the function is decorated; the message names the option."""
    with pytest.raises(error, match=next(iter(options))):
        guarded(**options)


async def test_several_unknown_options() -> None:
    """Options that there are not are all named."""
    with pytest.raises(TypeError, match=r"^guarded\(\) has no option 'other', 'unknown'$"):
        guarded(unknown=1, other=2)  # type: ignore[call-overload]


async def test_options_of_a_static_method() -> None:
    """Above `@staticmethod` or `@classmethod` the options count as well, and the kind of method stays."""

    class Agent:
        @guarded(until=lambda item: item == 1)
        @staticmethod
        async def static() -> AsyncIterator[int]:
            yield 1
            yield 2

        @guarded(until=lambda item: item == 1)
        @classmethod
        async def of_the_class(cls) -> AsyncIterator[int]:
            assert cls is Agent
            yield 1
            yield 2

    for call in (Agent.static, Agent().static, Agent.of_the_class, Agent().of_the_class):
        async with call() as stream:
            assert [item async for item in stream] == [1]


async def test_options_by_position() -> None:
    """Options are given by keyword only."""
    with pytest.raises(TypeError):
        guarded(lambda: None, 1.0)  # type: ignore[call-overload]


# -- its result in other places


async def test_in_a_guard() -> None:
    """Its result can be guarded again: entered, read and left by the outer guard."""
    log = Log()
    numbers = guarded(log.numbers)
    async with guarded_stream(numbers()) as stream:
        async for _ in stream:
            break
        log.lines.append("break")
    assert log.lines == ["break", "closed"]


async def test_as_the_callable_of_a_guard() -> None:
    """The decorated function itself can be given to a guard, which calls it at the first read."""
    log = Log()
    async with guarded_stream(guarded(log.numbers)) as stream:
        assert [number async for number in stream] == [1, 2, 3]
    assert log.lines == ["closed"]


async def test_in_a_chain() -> None:
    """Its results are members of a chain, given or made by a callable."""
    async with guarded_chain(letters("a"), lambda end: letters(end.last or "")) as chain:
        assert [letter async for letter in chain] == ["a", "z", "z", "z"]


async def test_decorated_function_as_the_callable_of_a_chain() -> None:
    """A decorated function of one argument can itself be the callable of a chain."""

    @guarded
    async def after(end: StreamEnd[str]) -> AsyncIterator[str]:
        yield f"after {end.last}"

    async with guarded_chain(letters("a"), after) as chain:
        assert [letter async for letter in chain] == ["a", "z", "after z"]


async def test_in_an_exit_stack() -> None:
    """Its results can be entered by an exit stack, which closes them in reverse order."""
    log = Log()

    def noting(name: str) -> Callable[[StreamEnd[int]], None]:
        return lambda end: log.lines.append(name)

    async with AsyncExitStack() as stack:
        for name in ("one", "two"):
            stream = await stack.enter_async_context(guarded(tail=noting(name))(log.numbers)())
            await anext(stream)
    assert log.lines == ["closed", "two", "closed", "one"]


async def test_decorated_function_inside_another() -> None:
    """Guarded functions inside each other are all closed, inner ones first, before the outermost block is left."""
    lines: list[str] = []

    @guarded(tail=lambda end: lines.append(f"inner {end.reason.value}"))
    async def inner() -> AsyncIterator[int]:
        yield 1
        yield 2

    @guarded(tail=lambda end: lines.append(f"outer {end.reason.value}"))
    async def outer() -> AsyncIterator[int]:
        async with inner() as stream:
            async for number in stream:
                yield number

    async with outer() as stream:
        async for _ in stream:
            break
    assert lines == ["inner left", "outer left"]


async def test_recursive() -> None:
    """A guarded function may call itself."""

    @guarded
    async def countdown(number: int) -> AsyncIterator[int]:
        yield number
        if number:
            async with countdown(number - 1) as rest:
                async for lower in rest:
                    yield lower

    async with countdown(5) as stream:
        assert [number async for number in stream] == [5, 4, 3, 2, 1, 0]


# -- a body undisturbed by what fires inside the idle source


class Undisturbed:
    """Reads one item, works until something fired inside the source, and reads on; asserted after the block."""

    def __init__(self) -> None:
        self.fired = anyio.Event()
        self.went_on = False
        self.items: list[int] = []

    async def consume(self, stream: GuardedStream[int]) -> None:
        async with stream:
            async for item in stream:
                self.items.append(item)
                if item == 1:
                    await self.fired.wait()
                    for _ in range(5):
                        await anyio.lowlevel.checkpoint()
                    self.went_on = True


async def fails_soon() -> None:
    await anyio.wait_all_tasks_blocked()
    raise Fault


def by_fail_after(case: Undisturbed) -> Callable[[], AsyncGenerator[int, None]]:
    async def source() -> AsyncGenerator[int, None]:
        try:
            with anyio.fail_after(0.01):
                yield 1
                await anyio.sleep_forever()
        finally:
            case.fired.set()

    return source


def by_group(case: Undisturbed) -> Callable[[], AsyncGenerator[int, None]]:
    async def source() -> AsyncGenerator[int, None]:
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(fails_soon)
                yield 1
                await anyio.sleep_forever()
        finally:
            case.fired.set()

    return source


def by_asyncio_timeout(case: Undisturbed) -> Callable[[], AsyncGenerator[int, None]]:
    async def source() -> AsyncGenerator[int, None]:
        try:
            async with asyncio.timeout(0.01):
                yield 1
                await anyio.sleep_forever()
        finally:
            case.fired.set()

    return source


def by_asyncio_group(case: Undisturbed) -> Callable[[], AsyncGenerator[int, None]]:
    async def source() -> AsyncGenerator[int, None]:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fails_soon())
                yield 1
                await anyio.sleep_forever()
        finally:
            case.fired.set()

    return source


async def check_undisturbed(make: Any, error: type[BaseException]) -> None:
    case = Undisturbed()
    decorated = guarded(make(case))
    with pytest.raises(error):
        await case.consume(decorated())
    assert case.went_on
    assert case.items == [1]


@pytest.mark.parametrize(
    ("make", "error"), [(by_fail_after, TimeoutError), (by_group, BaseExceptionGroup)], ids=["fail_after", "group"]
)
async def test_body_is_undisturbed(make: Any, error: type[BaseException]) -> None:
    """What fires inside an idle source leaves the body alone: it works to its end, and is told at the next read."""
    await check_undisturbed(make, error)


@only_asyncio
@pytest.mark.parametrize(
    ("make", "error"),
    [(by_asyncio_timeout, TimeoutError), (by_asyncio_group, BaseExceptionGroup)],
    ids=["asyncio.timeout", "asyncio.TaskGroup"],
)
async def test_body_is_undisturbed_by_asyncio(make: Any, error: type[BaseException]) -> None:
    """What of asyncio fires inside an idle source leaves the body alone, too."""
    await check_undisturbed(make, error)


async def test_source_that_handles_what_fires() -> None:
    """A source that handles its own timeout goes on: the item that it yields then is the next one."""
    fired = anyio.Event()

    @guarded
    async def heartbeat() -> AsyncIterator[int]:
        with anyio.move_on_after(0.01):
            yield 1
            await anyio.sleep_forever()
        fired.set()
        yield 2

    went_on = False
    numbers = []
    async with heartbeat() as stream:
        async for number in stream:
            numbers.append(number)
            if number == 1:
                await fired.wait()
                await anyio.lowlevel.checkpoint()
                went_on = True
    assert went_on
    assert numbers == [1, 2]


async def test_bare_body_is_disturbed() -> None:
    """Without a guard the same timeout cancels the body: what Python cannot do about a scope over a `yield`."""
    went_on = False

    async def source() -> AsyncGenerator[int, None]:
        with anyio.move_on_after(0.01):
            yield 1

    with anyio.CancelScope():
        generator = source()
        async for _ in generator:
            try:
                await anyio.sleep_forever()
                went_on = True
            except anyio.get_cancelled_exc_class():
                break
        await generator.aclose()
    assert not went_on
