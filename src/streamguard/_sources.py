"""What can be guarded: how each kind of source is opened, stepped and closed.

The rule kept here: nothing of a source is entered, awaited, called, stepped or closed but by the owner task, through
`Source`; what is recognised is the shape, so that no framework is imported.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
)
from contextlib import AbstractAsyncContextManager
from types import AsyncGeneratorType, TracebackType
from typing import Any, Protocol, Self, TypeAlias, TypeVar, cast

from ._generators import AnyGenerator, close_generator, close_unstarted
from ._runs import Run

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class RunHandle(Protocol[T_co]):
    """A run that goes on in the background and hands out its events by ``stream_events()``."""

    def stream_events(self) -> AsyncIterator[T_co]: ...


class BareIterator(Protocol[T_co]):
    """An async iterator that does not say so by ``__aiter__``."""

    def __anext__(self) -> Awaitable[T_co]: ...


Opened: TypeAlias = RunHandle[T] | AsyncIterable[T] | BareIterator[T] | AbstractAsyncContextManager[AsyncIterable[T]]
Made: TypeAlias = Opened[T] | Awaitable[Opened[T]]
Given: TypeAlias = Made[T] | Callable[[], Made[T]]

Details: TypeAlias = tuple[type[BaseException] | None, BaseException | None, TracebackType | None]
NO_DETAILS: Details = (None, None, None)


class Guard:
    """The mark of a guard of ours: to be entered and left, not only iterated."""

    __slots__ = ()


class Kind(enum.Enum):
    """The shapes of a source, in the order in which they are tried."""

    GUARD = enum.auto()
    RUN = enum.auto()
    ITERATOR = enum.auto()
    ITERABLE = enum.auto()
    CONTEXT = enum.auto()
    AWAITABLE = enum.auto()
    CALLABLE = enum.auto()


def has(thing: object, dunder: str) -> bool:
    """Whether an object has a special method, which counts on its type."""
    # A proxy has them all on its own type; what it stands for tells which are real.
    return hasattr(type(thing), dunder) and hasattr(thing.__class__, dunder)


def kind_of(thing: object, *arguments: object) -> Kind:
    """The shape of a source, or a TypeError that names it and the fix; a callable has to take the arguments."""
    if type(thing) is AsyncGeneratorType:
        return Kind.ITERATOR  # what comes most often
    if isinstance(thing, Guard):
        return Kind.GUARD
    if not isinstance(thing, type) and callable(getattr(thing, "stream_events", None)):
        return Kind.RUN
    is_manager = has(thing, "__aenter__") and has(thing, "__aexit__")
    if has(thing, "__anext__"):
        # One that cannot be closed but can be left: else its cleanup would never run.
        return Kind.CONTEXT if is_manager and find_close(thing) is None else Kind.ITERATOR
    if has(thing, "__aiter__"):
        return Kind.ITERABLE
    if is_manager:
        return Kind.CONTEXT
    if has(thing, "__await__"):
        return Kind.AWAITABLE
    if callable(thing):
        _check_call(thing, arguments)
        return Kind.CALLABLE
    if has(thing, "__iter__"):
        hint = "wrap it in an async generator, or use a plain `for`"
    else:
        hint = "give it an async generator or iterator, a run handle, or a callable that makes one"
    raise TypeError(f"{describe(thing)} is not an async stream; {hint}")


def _check_call(function: Callable[..., object], arguments: tuple[object, ...]) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # a builtin that tells no signature
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        how = "with one argument, the previous member's StreamEnd" if arguments else "without arguments"
        raise TypeError(
            f"{describe(function)} cannot be called {how} ({error}); call it yourself, or wrap the call in a lambda"
        ) from None


def describe(thing: object) -> str:
    """A name for messages: what it is and what it is called."""
    name = getattr(thing, "__qualname__", None)
    if name is None:
        return f"{type(thing).__qualname__} object" if thing is not None else "None"
    kind = "async generator" if isinstance(thing, AsyncGeneratorType) else type(thing).__name__
    return f"{kind} {name!r}"


def find_close(thing: object) -> Callable[[], object] | None:
    """How a stream is closed: ``aclose``, else ``close``, else not at all."""
    # Looked up on the object: instrumentation wraps streams in proxies.
    for name in ("aclose", "close"):
        close = getattr(thing, name, None)
        if callable(close):
            return cast("Callable[[], object]", close)
    return None


async def settled(result: object) -> object:
    """The result itself, or what awaiting it gives."""
    return await result if inspect.isawaitable(result) else result


async def _settle(function: Callable[[], object]) -> None:
    await settled(function())


class _Items:
    """An async iterator, whether or not it says so by ``__aiter__``; iterated on where it stands."""

    __slots__ = ("_step", "athrow")

    def __init__(self, iterator: object) -> None:
        self.athrow = getattr(iterator, "athrow", None)
        # Bound by hand: dunder methods count on the type, not on the object.
        self._step = type(iterator).__anext__.__get__(iterator)  # type: ignore[attr-defined]

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[Any]:
        return self._step()  # type: ignore[no-any-return]


class Source:
    """One source, from what the user gave to what is stepped and closed."""

    __slots__ = ("_arguments", "cancelled", "closers", "items", "kind", "opened", "run")

    def __init__(self, given: object, *arguments: object) -> None:
        self.kind = kind_of(given, *arguments)
        self.opened = given
        """What was given, then what a callable or an awaitable made of it, or entering it gave."""
        self._arguments = arguments
        self.run = Run(given) if self.kind is Kind.RUN else None
        """The background run, once it is known."""
        self.cancelled = False
        """Whether the owner was cancelled while it waited for the source."""
        self.items: AsyncIterator[Any]
        """What is iterated; may be iterated again after an error that was thrown into it."""
        self.closers: list[Callable[[Details], Awaitable[object]]] = []
        """What closes it, last one first."""

    def open_at_once(self) -> bool:
        """Open what can be stepped as it is; False if it has to be awaited, called or entered first."""
        if self.kind is Kind.ITERATOR:
            self._iterate(self.opened)
            self._close_iterator(self.opened)
        return self.kind is Kind.ITERATOR

    async def open(self) -> None:
        """Await, call, enter: up to an iterator that can be stepped."""
        while self.kind in (Kind.AWAITABLE, Kind.CALLABLE):
            maker = self.opened
            self.opened = await self._make(maker)
            try:
                self.kind = kind_of(self.opened)
            except TypeError as error:
                raise TypeError(f"{describe(maker)} made no stream: {error}") from None
        opened = cast("Any", self.opened)
        match self.kind:
            case Kind.RUN:
                self.run = self.run or Run(opened)
                self.closers.append(self._settle_run)
                self._iterate_made(opened.stream_events(), opened, owned=True)
            case Kind.ITERATOR:
                self.open_at_once()
            case Kind.ITERABLE:
                # A file or websocket with a plain close() is not ours.
                self._close_by(getattr(opened, "aclose", None))
                self._iterate_fresh(opened)
            case _:
                self.opened = await self._enter(opened)
                self._iterate_made(self.opened, opened, owned=False)

    async def _make(self, maker: Any) -> object:
        if self.kind is Kind.AWAITABLE:
            return await maker
        arguments, self._arguments = self._arguments, ()
        return maker(*arguments)

    async def _enter(self, manager: AbstractAsyncContextManager[object]) -> object:
        entered = await type(manager).__aenter__(manager)
        self.closers.append(lambda details: settled(type(manager).__aexit__(manager, *details)))
        return entered

    def _iterate(self, iterator: object) -> None:
        self.items = iterator if type(iterator) is AsyncGeneratorType else _Items(iterator)

    @property
    def throw(self) -> Callable[[BaseException], Awaitable[Any]] | None:
        """Throws into the source at its ``yield``; ``None`` for iterators that are no generators."""
        # Bound when it is needed: it seldom is, and every open stream would hold it.
        return getattr(self.items, "athrow", None)

    def _iterate_made(self, made: object, maker: object, *, owned: bool) -> None:
        if has(made, "__anext__"):
            self._iterate(made)
            # A context manager closes what it made; a bare generator it may have left to its user.
            if owned or inspect.isasyncgen(made):
                self._close_iterator(made)
        elif has(made, "__aiter__"):
            self._iterate_fresh(made)
        else:
            raise TypeError(f"{describe(maker)} gave {describe(made)}, which is no async iterable")

    def _iterate_fresh(self, iterable: object) -> None:
        iterator = type(iterable).__aiter__(iterable)  # type: ignore[attr-defined]
        if not has(iterator, "__anext__"):
            raise TypeError(
                f"{describe(iterable)}: its __aiter__ returned {describe(iterator)}, which has no __anext__"
            )
        self._iterate(iterator)
        self._close_iterator(iterator)

    def _close_by(self, close: Callable[[], object] | None) -> None:
        if close is not None:
            self.closers.append(lambda _details: _settle(close))

    def _close_iterator(self, iterator: object) -> None:
        """Have what is iterated closed."""
        if iterator is self.items:  # a generator
            # Every open stream holds this method; a lambda takes five times the memory.
            self.closers.append(self._close_items)
        elif inspect.isasyncgen(iterator):  # a proxy of one
            self.closers.append(self.closer_of(iterator))
        else:
            self._close_by(find_close(iterator))

    def _close_items(self, _details: Details) -> Awaitable[object]:
        generator: Any = self.items
        return close_generator(generator, cancelled=self.cancelled)

    def forget_items(self) -> None:
        """Spare the close of a generator that has come to its own end."""
        if self.closers and self.closers[-1] == self._close_items:
            self.closers.pop()

    def closer_of(self, generator: AnyGenerator) -> Callable[[Details], Awaitable[object]]:
        """What closes a generator of the source."""
        return lambda _details: close_generator(generator, cancelled=self.cancelled)

    # -- never opened

    def close_unopened(self) -> bool:
        """Close what was never opened, if that needs no waiting; else say by False that an owner has to."""
        opened = cast("Any", self.opened)
        match self.kind:
            case Kind.ITERATOR:
                if find_close(opened) is None:
                    return True
                return inspect.isasyncgen(opened) and close_unstarted(opened)
            case Kind.ITERABLE:
                return not hasattr(opened, "aclose")
            case Kind.AWAITABLE:
                if inspect.iscoroutine(opened):
                    opened.close()
                return not callable(getattr(opened, "cancel", None))
            case Kind.CONTEXT | Kind.CALLABLE:
                return True
            case _:
                return False

    def give_up(self) -> None:
        """Name what closes a source that was never opened, for the owner to run."""
        if self.close_unopened():
            return
        opened = cast("Any", self.opened)
        match self.kind:
            case Kind.GUARD:
                self.closers.append(lambda _details: self._enter_and_leave(opened))
            case Kind.RUN:
                self.closers.append(self._settle_run)
            case Kind.AWAITABLE:
                self.closers.append(self._give_up_future)
            case Kind.ITERABLE:
                self._close_by(opened.aclose)
            case _:
                self.open_at_once()

    async def _give_up_future(self, _details: Details) -> None:
        """Cancel what was awaited for a source; if it has made one all the same, close that."""
        future = cast("asyncio.Future[object]", self.opened)
        future.cancel()
        if not asyncio.isfuture(future):
            return
        await asyncio.wait([future])
        if not future.cancelled():
            await self._give_up_made(future.result())

    async def _give_up_made(self, made: object) -> None:
        self.kind, self.opened = kind_of(made), made
        if self.kind is Kind.RUN:
            self.run = Run(made)
            await settled(self.run.stop())
        self.give_up()

    @property
    def is_entered(self) -> bool:
        """Whether the source is given the body's error when it is closed."""
        return self.kind in (Kind.CONTEXT, Kind.GUARD)

    async def _settle_run(self, _details: Details) -> None:
        assert self.run is not None
        await self.run.settle()

    async def _enter_and_leave(self, guard: AbstractAsyncContextManager[object]) -> None:
        async with guard:
            pass
