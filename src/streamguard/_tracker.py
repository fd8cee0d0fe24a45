"""Which async generators were started and then left suspended, where, and how they ended.

The rule kept here: what is yours is what your code iterates. A generator that a library iterates is the library's, also
if you wrote it; what streamguard guards is nobody's leak. Everything here may be called by the garbage collector: no
lock, nothing that raises, and containers change by one atomic step at a time.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from types import AsyncGeneratorType, CoroutineType, FrameType
from typing import TypeAlias

from . import _lives, _taps
from ._generators import AnyGenerator, is_unstarted
from ._hooks import is_guarded
from ._lives import Life
from ._yours import Yours

TagOf: TypeAlias = Callable[[FrameType], object]
AtWork: TypeAlias = Callable[[Life], bool]
Found: TypeAlias = "tuple[object, bool, Leak]"

_KEPT_AT_LEAST = 1000


class How(StrEnum):
    """How an async generator ended that was left suspended."""

    DROPPED = "dropped"
    """Nobody held it any more; the event loop closed it later, in another task and context, or, without one, Python."""
    OPEN = "still open"
    """It was still open when its event loop ended, which closed it then; or when the tracking ended."""
    UNFINALISED = "never finalised"
    """Nothing closed it, since its event loop was gone. Its ``finally`` did not run to the end."""


@dataclass(frozen=True, slots=True)
class Leak:
    """One line that left async generators suspended."""

    name: str
    """The qualified name of the generator."""
    file: str
    """The file of the ``yield`` at which it was left."""
    line: int
    """The line of that ``yield``."""
    first_file: str
    """The file in which it was first iterated."""
    first_line: int
    """The line at which it was first iterated."""
    how: How
    """How it ended."""
    count: int
    """How many generators were left like this."""


class _Started:
    """A generator that was first iterated."""

    __slots__ = ("first_file", "first_line", "is_yours", "life", "ref", "tag")

    def __init__(self, generator: AnyGenerator, frame: FrameType, *, is_yours: bool, tag: object) -> None:
        self.ref = weakref.ref(generator)
        self.first_file = frame.f_code.co_filename
        self.first_line = frame.f_lineno
        self.is_yours = is_yours
        self.life = _lives.current_life()
        self.tag = tag

    def leak(self, generator: AnyGenerator, how: How) -> Leak:
        frame, code = generator.ag_frame, generator.ag_code
        line = (frame and frame.f_lineno) or code.co_firstlineno
        return Leak(generator.__qualname__, code.co_filename, line, self.first_file, self.first_line, how, 1)


@dataclass(frozen=True, slots=True)
class _Left:
    """A generator that was left; it is held until it is closed, to know whether it ever is."""

    started: _Started
    generator: AnyGenerator
    leak: Leak

    @property
    def is_settled(self) -> bool:
        return self.generator.ag_frame is None

    def found(self) -> Found:
        leak = self.leak
        if not self.is_settled and self.started.life.is_over:
            leak = replace(leak, how=How.UNFINALISED)
        return self.started.tag, self.started.is_yours, leak


class Tracker:
    """Notes what is started and left between `start` and `stop`."""

    def __init__(self, packages: Iterable[str] = (), tag_of: TagOf | None = None) -> None:
        self._is_yours = Yours(packages)
        self._tag_of = tag_of
        self._open: dict[int, _Started] = {}
        self._prune_at = _KEPT_AT_LEAST
        self._left: deque[_Left] = deque()
        self._settle_at = _KEPT_AT_LEAST
        self._settled: Counter[Found] = Counter()

    def start(self) -> None:
        """Begin to note."""
        _lives.listen(self._loop_ends)
        _taps.listen(self)

    def stop(self) -> None:
        """Judge what is still open, and stop."""
        self.judge(lambda _: True, at_work=lambda life: life.is_running)
        _taps.unlisten(self)
        _lives.unlisten(self._loop_ends)

    def __contains__(self, tag: object) -> bool:
        """Whether a generator of this tag is suspended."""
        return self._has_open(lambda found: found == tag)

    def judge(self, which: Callable[[object], bool], *, at_work: AtWork = lambda life: not life.is_over) -> None:
        """Take what has a tag like this, is suspended, and is held by nothing that may still read it, for left.

        Args:
            which: Which tags.
            at_work: In which lives a task may still be at work on an item.
        """
        if self._has_open(which):
            gc.collect()
            self._judge(lambda started: which(started.tag), at_work)

    def _has_open(self, which: Callable[[object], bool]) -> bool:
        return any(which(started.tag) and _suspended(started.ref()) for started in self._open.copy().values())

    def found(self) -> Counter[Found]:
        """What was left, by tag and whether it is yours, so far."""
        self._settle()
        return self._settled + Counter(left.found() for left in list(self._left))

    def take(self, which: Callable[[object], bool]) -> Counter[Found]:
        """The same for some tags; not to be found again."""
        found = Counter(left.found() for left in self._pop_left(lambda left: which(left.started.tag)))
        for key in [key for key in self._settled if which(key[0])]:
            found[key] += self._settled.pop(key)
        return found

    # -- called by the hooks

    def started(self, generator: AnyGenerator) -> None:
        key = id(generator)
        if is_guarded():
            self._open.pop(key, None)
            return
        frame = sys._getframe(1).f_back or sys._getframe()
        first, is_yours = self._who_iterates(frame)
        tag = None if self._tag_of is None else self._tag_of(frame)
        self._open[key] = _Started(generator, first, is_yours=is_yours, tag=tag)
        if len(self._open) >= self._prune_at:
            self._prune()

    def dropped(self, generator: AnyGenerator) -> None:
        # By id: weak references are dead by now. An id that is taken again was noted anew.
        started = self._open.pop(id(generator), None)
        if started is not None and not is_unstarted(generator):
            self._leave(started, generator, How.DROPPED)

    def _who_iterates(self, frame: FrameType) -> tuple[FrameType, bool]:
        """The frame that iterates, and whether it is yours; an iterator that wraps a generator is looked through."""
        looked_at = frame
        while not self._is_yours(looked_at.f_code.co_filename):
            if looked_at.f_code.co_name != "__anext__" or looked_at.f_back is None:
                return frame, False
            looked_at = looked_at.f_back
        return looked_at, True

    def _leave(self, started: _Started, generator: AnyGenerator, how: How) -> None:
        self._left.append(_Left(started, generator, started.leak(generator, how)))
        if len(self._left) >= self._settle_at:
            self._settle()

    def _loop_ends(self, life: Life) -> None:
        self._judge(lambda started: started.life is life, lambda _: False)

    # -- what is still open

    def _judge(self, which: Callable[[_Started], bool], at_work: AtWork) -> None:
        suspended = {
            key: (started, generator)
            for key, started in self._open.copy().items()
            if which(started) and _suspended(generator := started.ref()) and generator is not None
        }
        if not suspended:
            return
        # Whoever leaves or closes the outer generator decides what becomes of the inner one.
        held = _held_by(AsyncGeneratorType)
        may_be_read = any(at_work(started.life) for started, _ in suspended.values())
        read = _held_by(CoroutineType) if may_be_read else set[int]()
        for key, (started, generator) in suspended.items():
            is_somebodys = key in held or (key in read and at_work(started.life))
            if not is_somebodys and self._open.pop(key, None) is started:
                self._leave(started, generator, How.OPEN)

    # -- no more memory than what is open needs

    def _prune(self) -> None:
        for key, started in self._open.copy().items():
            generator = started.ref()
            if (generator is None or generator.ag_frame is None) and self._open.get(key) is started:
                del self._open[key]
        self._prune_at = max(_KEPT_AT_LEAST, 2 * len(self._open))

    def _settle(self) -> None:
        self._settled.update(left.found() for left in self._pop_left(lambda left: left.is_settled))
        self._settle_at = max(_KEPT_AT_LEAST, 2 * len(self._left))

    def _pop_left(self, which: Callable[[_Left], bool]) -> list[_Left]:
        # One by one: the garbage collector may add to it, and another call of this take from it, at any time.
        popped: list[_Left] = []
        for _ in range(len(self._left)):
            try:
                left = self._left.popleft()
            except IndexError:
                break
            (popped if which(left) else self._left).append(left)
        return popped


def _suspended(generator: AnyGenerator | None) -> bool:
    """Whether it stands at a ``yield``; one that is being read is somebody's."""
    if generator is None or generator.ag_frame is None or generator.ag_running:
        return False
    return not is_unstarted(generator)


def _held_by(kind: type) -> set[int]:
    """What suspended frames of this kind hold, by id: their variables and what they iterate."""
    holders = [thing for thing in gc.get_objects() if type(thing) is kind]
    return {id(held) for holder in holders for held in gc.get_referents(holder)}
