"""The generators inside a source: which were started for it, and which of them it dropped.

``async for x in inner(): yield x`` passes no close on: `inner()` is dropped, and the event loop would close it later,
in another task and context. The rule kept here: what is dropped while its source closes is handed to the owner; what is
merely suspended is never touched, it may be a connection that the agent keeps. Hooks of others are always called on,
and are back in place when the last owner of a thread is done.
"""

from __future__ import annotations

import contextvars
import gc
import sys
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeAlias

from ._generators import AnyGenerator, finalize

Hook: TypeAlias = Callable[[AsyncGenerator[Any, Any]], None]

COLLECT_EVERY = 1.0
"""Seconds between two collections of young cycles, at the least."""
FEW = 8
"""How many generators that others close are worth no look which of them are closed."""
# In 3.14 generation 1 is a share of the old ones, and such a collection may do no more than mark.
_YOUNG = 1 if sys.version_info < (3, 14) else 0

# Child tasks inherit it, so their generators count as well.
_started_for: contextvars.ContextVar[Members | None] = contextvars.ContextVar("streamguard_members", default=None)
# By id: weak references are dead by the time a finaliser runs. An id that is taken again is noted anew.
_members_of: dict[int, Members] = {}
_last_collection = 0.0


class Members:
    """The generators that were first iterated in the context of one owner."""

    __slots__ = ("_keeps_all", "_layer", "_many", "_started", "closing", "dropped", "left_to_others")

    def __init__(self, *, keeps_all: bool) -> None:
        self._keeps_all = keeps_all
        self._layer: _Layer | None = None
        """The hooks that tell of them, while they do."""
        self._started: dict[int, weakref.ref[AnyGenerator]] = {}
        self.closing = False
        """Whether what is dropped from now on is closed by the owner."""
        self.dropped: list[AnyGenerator] = []
        """What the owner has to close."""
        self.left_to_others: list[AnyGenerator] | None = None
        """What the event loop's finaliser closes, or another task of ours; some of it may be closed."""
        self._many = FEW

    def start(self) -> None:
        """Note what is started and dropped from now on, in the current context and thread."""
        _started_for.set(self)
        self._layer = _install()

    def stop(self) -> None:
        """Note nothing any more."""
        layer, self._layer = self._layer, None
        assert layer is not None
        for key in self._started:
            if _members_of.get(key) is self:
                del _members_of[key]
        self._started.clear()
        _uninstall(layer)

    def loop_was_restarted(self) -> bool:
        """Whether the event loop has come to its end since, and runs again: it sets its own hooks when it starts."""
        return self._layer is not None and sys.get_asyncgen_hooks() == self._layer.before

    def note(self, generator: Any) -> None:
        """Take a generator in at its first iteration."""
        if self._layer is None:  # a detached task goes on in the context of a stream that has ended
            return
        self._started[id(generator)] = weakref.ref(generator)
        _members_of[id(generator)] = self

    @property
    def is_open(self) -> bool:
        """Whether its owner still watches; a detached task may go on in the context of a stream that has ended."""
        return self._layer is not None

    def keep(self, generator: Any) -> bool:
        """Whether a generator that was dropped is kept for the owner, instead of left to the event loop."""
        if self._layer is None:
            return False
        if self._layer.thread == threading.get_ident() and (self.closing or self._keeps_all):
            self.dropped.append(generator)
            return True
        # It may hold a lock that the source waits for: the loop closes it at once, the owner could not.
        self.leave_to_others(generator)
        return False

    def leave_to_others(self, generator: AnyGenerator) -> None:
        """Note what others close."""
        others = self.left_to_others
        if others is None or len(others) >= self._many:
            # Not at each: a source may drop thousands at a stretch, and every look goes through all of them.
            others = self.left_to_others = self.open_at_others()
            self._many = FEW + 2 * len(others)
        others.append(generator)

    def open_at_others(self) -> list[AnyGenerator]:
        """What others close and have not closed yet."""
        return [generator for generator in self.left_to_others or () if _is_there(generator)]

    def take_back(self) -> None:
        """Have the owner close what others have begun to close, and given up: it yielded meanwhile."""
        there = self.open_at_others()
        self.dropped += [generator for generator in there if not generator.ag_running]
        self.left_to_others = [generator for generator in there if generator.ag_running]

    def others_are_done(self) -> bool:
        """Whether what others close is closed."""
        return not self.open_at_others()

    def suspended(self) -> bool:
        """Whether any generator is still suspended."""
        for started in self._started.values():
            generator = started()
            if generator is not None and _is_there(generator) and not generator.ag_running:
                return True
        return False


def _is_there(generator: AnyGenerator) -> bool:
    """Whether a generator has not ended yet. What Cython makes calls the hooks, too, but does not tell."""
    return getattr(generator, "ag_frame", None) is not None


def is_guarded() -> bool:
    """Whether what is first iterated in this context belongs to an open stream."""
    members = _started_for.get()
    return members is not None and members.is_open


def collect_young() -> None:
    """Free the young reference cycles that may hold a dropped generator; best effort."""
    global _last_collection
    now = time.monotonic()
    if gc.isenabled() and now - _last_collection >= COLLECT_EVERY:
        _last_collection = now
        gc.collect(_YOUNG)


class _Layer:
    """Our hooks, as they stand on top of others; called, it is the ``firstiter`` hook."""

    # The object itself and a bound method, not two closures: so it holds no cycle, and is known again when it is met.
    __slots__ = ("before", "thread", "users")

    def __init__(self, before: tuple[Hook | None, Hook | None]) -> None:
        self.before = before
        self.thread = threading.get_ident()
        self.users = 0

    def __call__(self, generator: AsyncGenerator[Any, Any]) -> None:
        members = _started_for.get()
        if members is not None:
            members.note(generator)
        else:
            _members_of.pop(id(generator), None)
        if (firstiter := self.before[0]) is not None:
            firstiter(generator)

    def finalizer(self, generator: AsyncGenerator[Any, Any]) -> None:
        members = _members_of.pop(id(generator), None)
        if members is not None and members.keep(generator):
            return
        (self.before[1] or finalize)(generator)


def _install() -> _Layer:
    firstiter, finalizer = sys.get_asyncgen_hooks()
    if isinstance(firstiter, _Layer) and finalizer == firstiter.finalizer:
        layer = firstiter
    else:
        # The first owner of this loop, which has reset the hooks at its start; or others put theirs on top of ours.
        layer = _Layer((firstiter, finalizer))
        sys.set_asyncgen_hooks(layer, layer.finalizer)
    layer.users += 1
    return layer


def _uninstall(layer: _Layer) -> None:
    layer.users -= 1
    if layer.users:
        return
    # A foreign hook on top of ours stays; ours, which it calls, goes on forwarding.
    firstiter, finalizer = sys.get_asyncgen_hooks()
    if firstiter is layer:
        firstiter = layer.before[0]
    if finalizer == layer.finalizer:
        finalizer = layer.before[1]
    sys.set_asyncgen_hooks(firstiter, finalizer)
