"""When an event loop is about to close what is still open, and when it is over.

The rule kept here: nobody polls. An asyncio loop is asked to close what is open by ``shutdown_asyncgens()``, a trio run
does so when its main task has ended; both tell their life, and a life tells who listens.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias, cast

Ended: TypeAlias = Callable[["Life"], None]

# Replaced, never changed: other threads iterate it.
_listeners: tuple[Ended, ...] = ()
_lock = threading.Lock()
_loops: set[weakref.ref[asyncio.AbstractEventLoop]] = set()
_trio_life: Any = None


class Life:
    """The life of what would close a generator; this one is over from the start: there is no loop."""

    __slots__ = ("__weakref__",)

    @property
    def is_over(self) -> bool:
        """Whether nothing will be closed any more."""
        return True

    @property
    def is_running(self) -> bool:
        """Whether a task may be at work in it now."""
        return False

    def end(self) -> None:
        """Tell that what is still open is about to be closed."""
        for ended in _listeners:
            ended(self)


NO_LOOP = Life()


class _LoopLife(Life):
    """Stands in front of a loop's ``shutdown_asyncgens``; so the loop leads to its life, which does not hold it."""

    __slots__ = ("_before", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._before = vars(loop).get("shutdown_asyncgens")

    def __call__(self) -> Coroutine[Any, Any, None]:
        self.end()
        loop = cast("asyncio.AbstractEventLoop", self._loop())
        if self._before is not None:
            return cast("Coroutine[Any, Any, None]", self._before())
        return type(loop).shutdown_asyncgens(loop)

    def step_aside(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._before is not None:
            vars(loop)["shutdown_asyncgens"] = self._before
        else:
            del vars(loop)["shutdown_asyncgens"]

    @property
    def is_over(self) -> bool:
        loop = self._loop()
        return loop is None or loop.is_closed()

    @property
    def is_running(self) -> bool:
        loop = self._loop()
        return loop is not None and loop.is_running()


class _TrioLife(Life):
    """An instrument of one trio run."""

    __slots__ = ("_has_ended", "_is_over")

    def __init__(self) -> None:
        self._has_ended = self._is_over = False

    @property
    def is_over(self) -> bool:
        return self._is_over

    @property
    def is_running(self) -> bool:
        return not self._is_over

    def task_exited(self, task: Any) -> None:
        root = sys.modules["trio"].lowlevel.current_root_task()
        if self._has_ended or root is None:
            return
        # The main task is alone in the innermost nursery of the root; system tasks are in the one around it.
        self._has_ended = task.parent_nursery is root.child_nurseries[-1]
        if self._has_ended:
            self.end()

    def after_run(self) -> None:
        self._is_over = True


def current_life() -> Life:
    """The life of the event loop that runs here."""
    # First, since a trio run may be the guest of another loop.
    lowlevel = _trio_here()
    if lowlevel is not None:
        return _life_of_run(lowlevel)
    # Where no loop runs this is None; `get_running_loop` would raise, which costs more than all the rest.
    loop = asyncio._get_running_loop()
    return NO_LOOP if loop is None else _life_of(loop)


def _trio_here() -> Any:
    """The functions of trio, if a task of it runs here."""
    # The module is in there while it is imported, too.
    lowlevel = getattr(sys.modules.get("trio"), "lowlevel", None)
    return lowlevel if lowlevel is not None and lowlevel.in_trio_task() else None


def _life_of(loop: asyncio.AbstractEventLoop) -> Life:
    try:
        known = vars(loop).get("shutdown_asyncgens")
        if isinstance(known, _LoopLife):
            return known
        _loops.add(weakref.ref(loop, _loops.discard))
        life = vars(loop)["shutdown_asyncgens"] = _LoopLife(loop)
    except TypeError:  # it takes no attributes, or no weak references
        return NO_LOOP
    return life


def _life_of_run(lowlevel: Any) -> Life:
    global _trio_life
    if _trio_life is None:
        _trio_life = lowlevel.RunVar("streamguard_life", None)
    life: Life | None = _trio_life.get()
    if life is None:
        life = _TrioLife()
        _trio_life.set(life)
        lowlevel.add_instrument(life)
    return life


def listen(ended: Ended) -> None:
    """Be told of each life that comes to its end."""
    global _listeners
    with _lock:
        _listeners = (*_listeners, ended)


def unlisten(ended: Ended) -> None:
    """Stop that, and leave the loops as they were; only of a trio run in another thread is that not possible."""
    global _listeners
    with _lock:
        _listeners = tuple(one for one in _listeners if one != ended)
        if _listeners:
            return
        loops = [loop for ref in _loops.copy() if (loop := ref()) is not None]
        _loops.clear()
    for loop in loops:
        life = vars(loop).get("shutdown_asyncgens")
        if isinstance(life, _LoopLife):
            life.step_aside(loop)
    lowlevel = _trio_here()
    if lowlevel is not None and _trio_life is not None and _trio_life.get() is not None:
        lowlevel.remove_instrument(_trio_life.get())
        _trio_life.set(None)
