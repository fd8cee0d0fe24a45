"""`guarded`: async generator functions whose callers have to write ``async with``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable
from dataclasses import fields
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, cast, overload

from ._end import StreamEnd
from ._options import Options
from ._sources import describe
from ._stream import GuardedStream

P = ParamSpec("P")
T = TypeVar("T")


class Guarding(Protocol):
    """What ``@guarded(...)`` is when no option knows the type of the items."""

    def __call__(self, function: Callable[P, AsyncIterator[T]], /) -> Callable[P, GuardedStream[T]]: ...


@overload
def guarded(function: Callable[P, AsyncIterator[T]], /) -> Callable[P, GuardedStream[T]]: ...


@overload
def guarded(
    *,
    cancel: Callable[[], object] | None = None,
    on_early_exit: Literal["close", "drain"] = "close",
    cleanup_timeout: float | None = 10.0,
    prefetch: int = 0,
    release_agents: bool = False,
) -> Guarding: ...


@overload
def guarded(
    *,
    until: Callable[[T], bool] | None = None,
    where: Callable[[T], bool] | None = None,
    cancel: Callable[[], object] | None = None,
    on_early_exit: Literal["close", "drain"] = "close",
    cleanup_timeout: float | None = 10.0,
    tail: Callable[[StreamEnd[T]], object] | None = None,
    prefetch: int = 0,
    release_agents: bool = False,
) -> Callable[[Callable[P, AsyncIterator[T]]], Callable[P, GuardedStream[T]]]: ...


def guarded(function: Any = None, /, **options: Any) -> Any:
    """Make an async generator function return a guarded stream.

    Its callers write ``async with`` around the loop, or get a RuntimeError that says so: the leak cannot be written.
    The shape is that of ``trio.as_safe_channel``. Signature, docstring and types are kept. Works on functions and
    methods; with ``@staticmethod`` and ``@classmethod`` in either order.

    Args:
        function: The async generator function.
        **options: Those of `guarded_stream`, the same for every call.

    Raises:
        TypeError: If this is no function that makes an async iterator, or an option is of the wrong type.
        ValueError: If an option has a value that it cannot have.

    Example:
        >>> import asyncio
        >>> @guarded
        ... async def letters(first):
        ...     yield first
        ...     yield "z"
        >>> async def main():
        ...     async with letters("a") as stream:
        ...         return [letter async for letter in stream]
        >>> asyncio.run(main())
        ['a', 'z']
    """
    unknown = options.keys() - {field.name for field in fields(Options)}
    if unknown:
        raise TypeError(f"guarded() has no option {', '.join(map(repr, sorted(unknown)))}")
    checked: Options[Any] = Options(**options)
    if function is None:
        return functools.partial(_guard, options=checked)
    return _guard(function, options=checked)


def _is_of_another_kind(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function)


def _guard(function: Any, *, options: Options[Any]) -> Any:
    if isinstance(function, staticmethod | classmethod):
        return type(function)(_guard(function.__func__, options=options))
    if not callable(function) or isinstance(function, type) or _is_of_another_kind(function):
        raise TypeError(f"guarded: {describe(function)} is no async generator function; decorate one")

    @functools.wraps(cast("Callable[..., Any]", function))
    def make(*args: Any, **kwargs: Any) -> GuardedStream[Any]:
        return GuardedStream(function(*args, **kwargs), options)

    return make
