"""The options of a guard, checked when it is made, before the source is touched."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from ._end import StreamEnd
from ._sources import describe

T = TypeVar("T")


@dataclass(slots=True)
class Options(Generic[T]):
    """What a guard was asked for."""

    until: Callable[[T], bool] | None = None
    where: Callable[[T], bool] | None = None
    cancel: Callable[[], object] | None = None
    on_early_exit: Literal["close", "drain"] = "close"
    cleanup_timeout: float | None = 10.0
    tail: Callable[[StreamEnd[T]], object] | None = None
    prefetch: int = 0
    release_agents: bool = False

    def __post_init__(self) -> None:
        if self.until is not None:
            check_function("until", self.until, plain=True)
        if self.where is not None:
            check_function("where", self.where, plain=True)
        if self.cancel is not None:
            check_function("cancel", self.cancel, takes=())
        if self.tail is not None:
            check_function("tail", self.tail, takes=("the StreamEnd",))
        if self.on_early_exit not in ("close", "drain"):
            raise ValueError(f'on_early_exit={self.on_early_exit!r}; use "close" or "drain"')
        _check_seconds(self.cleanup_timeout)
        _check_count(self.prefetch)
        if not isinstance(self.release_agents, bool):
            raise TypeError(f"release_agents={self.release_agents!r}; give True or False")


def check_function(name: str, function: object, *, plain: bool = False, takes: tuple[str, ...] | None = None) -> None:
    if not callable(function):
        raise TypeError(f"{name}={function!r} is not callable; give a function, or None")
    if plain and inspect.iscoroutinefunction(function):
        raise TypeError(f"{name}: {describe(function)} is async; it is asked for every item, make it a plain function")
    if takes is not None:
        _check_arguments(name, function, takes)


def _check_arguments(name: str, function: Callable[..., object], takes: tuple[str, ...]) -> None:
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        return  # builtins and other callables may tell no signature, or a wrong one
    try:
        inspect.signature(function).bind(*takes)
    except TypeError as error:
        how = "with one argument, " + takes[0] if takes else "without arguments"
        raise TypeError(f"{name}: {describe(function)} cannot be called {how} ({error})") from None


def _check_seconds(seconds: object) -> None:
    if seconds is None or (type(seconds) is float and seconds >= 0):
        return
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"cleanup_timeout={seconds!r}; give seconds as a number, or None for no limit")
    try:
        fits = float(seconds) >= 0  # NaN does not
    except OverflowError:
        fits = False
    if not fits:
        raise ValueError(f"cleanup_timeout={seconds!r}; give seconds from 0 up, or None for no limit")


def _check_count(prefetch: object) -> None:
    if isinstance(prefetch, bool) or not isinstance(prefetch, int):
        raise TypeError(f"prefetch={prefetch!r}; give the number of items the source may run ahead, or 0")
    if prefetch < 0:
        raise ValueError(f"prefetch={prefetch!r}; give the number of items the source may run ahead, from 0 up")
