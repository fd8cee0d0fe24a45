"""The two loops that step a source, at the pace of its reader or ahead of it: what each item costs.

The rule kept here: nothing is called or awaited for an item that it can do without, and whatever a source does at a
stretch, others get their turn. How a source is opened and closed is the owner's (`_owner`).
"""

from __future__ import annotations

import enum
import inspect
from typing import TypeVar

from ._generators import AnyGenerator
from ._handoff import Handoff
from ._options import Options
from ._sources import Source, describe

T = TypeVar("T")

STEPS_PER_TURN = 100
"""How many items the owner may make at a stretch (skipped, or ahead of the reader) before others get their turn."""


class State(enum.Enum):
    """Where the owner is."""

    NEW = enum.auto()
    SPAWNED = enum.auto()
    IDLE = enum.auto()
    RUNNING = enum.auto()
    ANSWERING = enum.auto()
    CLOSING = enum.auto()
    DONE = enum.auto()


# Read for every item: a name of the module is cheaper than one of the enumeration.
_IDLE, _RUNNING = State.IDLE, State.RUNNING


class Stepper(Handoff[T]):
    """The part of an owner that is at work while a stream is read."""

    __slots__ = ("_picky", "_until", "_where", "closing", "draining", "dropped", "exhausted", "source", "state")

    def __init__(self, source: Source, options: Options[T], dropped: list[AnyGenerator]) -> None:
        super().__init__(describe(source.opened), options.prefetch)
        self.source = source
        self.dropped = dropped
        """The generators that the source dropped, and the owner has to close."""
        self.state = State.NEW
        self.closing = False
        """Whether the guard has asked for the close; for good."""
        self.draining = False
        """Whether items are dropped until the source ends by itself."""
        self.exhausted = False
        """Whether the source came to its own end."""
        self._until = options.until
        self._where = options.where
        self._picky = options.until is not None or options.where is not None

    async def close_dropped(self) -> None:
        """Close what the source has dropped."""
        raise NotImplementedError

    async def wait_until_asked(self) -> None:
        """Before the first step, or one after an answer: close what was dropped, wait until an item is asked for."""
        self.state = _IDLE
        await self.close_dropped()
        while not (self.wanted or self.draining or self.closing):
            await self.park()

    async def run(self) -> None:
        """Step the source, and hand out what it makes as it is asked for, until its end or the close.

        A cancellation that is raised in state ``IDLE`` hit our wait; all else that is raised, the source did.
        """
        dropped, picky = self.dropped, self._picky
        steps = STEPS_PER_TURN
        self.state = _RUNNING
        async for item in self.source.items:
            if not self.over and (not picky or self._picks(item)):
                self.offer(item)
            if self.wanted or self.draining:
                steps -= 1
                if steps and not dropped:
                    continue
                await self._pause()
                steps = STEPS_PER_TURN
            item = None  # the reader's now
            self.state = _IDLE
            while not (self.wanted or self.draining or self.closing):
                await self.park()
                if dropped and not self.closing:
                    await self.close_dropped()
            if self.closing:
                return
            self.state = _RUNNING
        self.end()

    async def run_ahead(self) -> None:
        """The same for a source that runs ahead of its reader."""
        ahead, dropped, picky = self.ahead, self.dropped, self._picky
        room = self._room()
        steps = STEPS_PER_TURN
        self.state = _RUNNING
        async for item in self.source.items:
            if self.calm:
                ahead.append(item)
                room -= 1
                if room > 0 and not dropped:
                    continue
                self.wanted = len(ahead) < self.prefetch
            elif self.over or (picky and not self._picks(item)):
                steps -= 1
                if steps and not dropped and (self.wanted or self.draining):
                    continue
            else:
                ahead.append(item)
                if self.reader is not None:
                    self.notify()
                self.calm = not picky
                room -= 1
                if room > 0 and not (dropped or (picky and self.matching)):
                    continue
                self.wanted = len(ahead) < self.prefetch and not self.matching
            # If what was made is less than may stand ahead, the reader has taken some: others had their turn.
            if (self.wanted or self.draining) and (dropped or not steps or self.prefetch > STEPS_PER_TURN):
                await self._pause()
            if not (self.wanted or self.draining):  # at once, or since the pause
                item = None  # the reader's now
                self.resting = True
                self.state = _IDLE
                while not (self.wanted or self.draining or self.closing):
                    await self.park()
                    if dropped and not self.closing:
                        await self.close_dropped()
            if self.closing:
                return
            self.state = _RUNNING
            room = self._room()
            steps = STEPS_PER_TURN
        self.end()

    def _room(self) -> int:
        return min(self.prefetch - len(self.ahead), STEPS_PER_TURN)

    async def _pause(self) -> None:
        """Let others have their turn, between two items that are made at a stretch; who is closing may come then."""
        self.state = _IDLE
        await self.let_others_run()
        # Idle all the while: what waits now is a cleanup, which a close that comes meanwhile must not cut.
        await self.close_dropped()

    def _picks(self, item: T) -> bool:
        """Whether the reader gets this item; notes whether it is the last one."""
        predicate = self._where
        try:
            if predicate is not None:
                verdict = predicate(item)
                if verdict is False or (verdict is not True and not _truth(predicate, verdict)):
                    return False
            predicate = self._until
            if predicate is not None:
                self.matching = self.resting = _truth(predicate, predicate(item))
        except StopAsyncIteration as error:
            raise RuntimeError(f"{describe(predicate)} raised StopAsyncIteration") from error
        return not self.over  # a predicate may have stopped the stream

    def end(self) -> None:
        """Note that the source came to its end."""
        self.exhausted = True
        self.offer_end()


def _truth(predicate: object, verdict: object) -> bool:
    if inspect.isawaitable(verdict):
        if inspect.iscoroutine(verdict):
            verdict.close()
        raise TypeError(f"{describe(predicate)} returned an awaitable; `until` and `where` are plain functions")
    return bool(verdict)
