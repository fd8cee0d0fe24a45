"""Hearing of every async generator that is started or dropped, in every thread and event loop.

The rule kept here: the program sees the hooks that it, or its loop, has installed, and they are called as before. So
`sys.set_asyncgen_hooks`, which every loop calls at its start, puts a tap around what it is given, and
`sys.get_asyncgen_hooks` looks behind it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import AsyncGenerator, Callable
from types import AsyncGeneratorType, CodeType
from typing import Any, Protocol, TypeVar

from ._generators import AnyGenerator, finalize
from ._hooks import Hook

Function = TypeVar("Function", bound=Callable[..., None])


class Listener(Protocol):
    """Who hears of generators; called from anywhere, the garbage collector included, so it takes no lock."""

    def started(self, generator: AnyGenerator) -> None:
        """A generator is about to be iterated for the first time, by the caller of the caller."""

    def dropped(self, generator: AnyGenerator) -> None:
        """A generator that has not ended was dropped; its event loop has not heard of it yet."""


# Replaced, never changed: other threads iterate it.
_listeners: tuple[Listener, ...] = ()
_lock = threading.Lock()
_python = (sys.get_asyncgen_hooks, sys.set_asyncgen_hooks)


def _out_of_sight(function: Function) -> Function:
    """Hide a function from whoever warns its caller: trio does, of each dropped generator, with the line to blame."""
    # Frames of files that are named like this are Python's own, to `warnings`.
    code: CodeType = function.__code__
    code = code.replace(co_filename="<streamguard, hidden like importlib._bootstrap>")
    function.__code__ = code
    return function


class _Tap:
    """Our hooks around others; called, it is the ``firstiter`` hook. Generators may call it long after the last one."""

    __slots__ = ("around",)

    def __init__(self, around: tuple[Hook | None, Hook | None]) -> None:
        self.around = around

    def __call__(self, generator: AsyncGenerator[Any, Any]) -> None:
        # What Cython makes calls the hooks, too, but has no frame to tell of.
        if isinstance(generator, AsyncGeneratorType):
            for listener in _listeners:
                listener.started(generator)
        if (firstiter := self.around[0]) is not None:
            try:
                firstiter(generator)
            except BaseException as error:
                _leave(error)
                raise

    @_out_of_sight
    def finalizer(self, generator: AsyncGenerator[Any, Any]) -> None:  # pragma: no cover - it is, under another name
        _tell_dropped(generator)
        try:
            (self.around[1] or finalize)(generator)
        except BaseException as error:
            _leave(error)
            raise


def _leave(error: BaseException) -> None:
    """Take our frames out of the traceback of an error that passes: whoever reads it looks for a fault of theirs."""
    # A bare `raise` adds no frame, so the traceback begins with the one that called the hook.
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_globals.get("__package__") == __package__:
        traceback = traceback.tb_next
    error.__traceback__ = traceback


def _tell_dropped(generator: AsyncGenerator[Any, Any]) -> None:
    if isinstance(generator, AsyncGeneratorType):
        for listener in _listeners:
            listener.dropped(generator)


def listen(listener: Listener) -> None:
    """Let somebody hear of all generators that are first iterated from now on."""
    global _listeners, _python
    with _lock:
        if not _listeners:
            _python = (sys.get_asyncgen_hooks, sys.set_asyncgen_hooks)
            sys.get_asyncgen_hooks, sys.set_asyncgen_hooks = _get_hooks, _set_hooks
        _listeners = (*_listeners, listener)
        _tap()


def unlisten(listener: Listener) -> None:
    """Stop that. Loops that still run in other threads keep their tap, which only passes on."""
    global _listeners
    with _lock:
        _listeners = tuple(one for one in _listeners if one is not listener)
        if _listeners:
            return
        _untap()
        # Whoever patched these on top of ours calls ours, and ours only passes on.
        if sys.get_asyncgen_hooks is _get_hooks:
            sys.get_asyncgen_hooks = _python[0]
        if sys.set_asyncgen_hooks is _set_hooks:
            sys.set_asyncgen_hooks = _python[1]


def _get_hooks() -> Any:
    """As `sys.get_asyncgen_hooks`: the hooks that the program knows."""
    tapped = _untap()
    try:
        return _python[0]()
    finally:
        if tapped:
            _tap()


def _set_hooks(*args: Any, **hooks: Any) -> None:
    """As `sys.set_asyncgen_hooks`: a hook that is not given stays what the program knows."""
    _untap()
    try:
        _python[1](*args, **hooks)
    except BaseException as error:
        _leave(error)
        raise
    finally:
        if _listeners:
            _tap()


def _tap() -> None:
    firstiter, finalizer = _python[0]()
    if not isinstance(firstiter, _Tap):
        tap = _Tap((firstiter, finalizer))
        _python[1](tap, tap.finalizer)


def _untap() -> bool:
    tap = _python[0]()[0]
    if not isinstance(tap, _Tap):
        return False
    _python[1](*tap.around)
    return True
