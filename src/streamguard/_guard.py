"""What a guarded stream and a guarded chain have in common: a block that is entered once, and left once.

The rule kept here: a guard that goes away without having been left is told, with the place where it was made.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import warnings
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio

from ._end import Facts, StreamEnd
from ._handoff import Reader
from ._options import Options
from ._owner import Owner
from ._sources import Guard, Source

T = TypeVar("T")


class Block(Guard, Reader[T]):
    """A guard, as the user holds it."""

    __slots__ = ("__weakref__", "_end", "_facts", "_home", "_left", "_owner", "_place")

    def __init__(self, depth: int) -> None:
        self._left = False
        self._end: StreamEnd[T] | None = None
        self._facts: Facts[T] | None = None
        self._home: Owner[T] | None = None
        """In whose event loop the block is, once it is entered."""
        self._owner: Owner[T] | None = None
        """Of the source that is being read."""
        frame = sys._getframe(depth)
        self._place = (frame.f_code.co_filename, frame.f_lineno)

    def __aiter__(self) -> Self:
        """Give the guard itself."""
        return self

    @property
    def end(self) -> StreamEnd[T]:
        """How it ended.

        Raises:
            RuntimeError: Before the block has been left.
        """
        if self._end is None:
            if self._facts is None:
                raise RuntimeError(f"{self!r} has not ended; read `end` after its block")
            self._end = StreamEnd(*self._facts)
            self._facts = None  # its last item may hold agents, which the record lets go of
        return self._end

    @property
    def _has_ended(self) -> bool:
        return self._end is not None or self._facts is not None

    def stop(self) -> None:
        """End the reader's loop."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Close it and wait until it is closed; any number of tasks may call this, at any time.

        A pending read ends the reader's loop; no further member of a chain is started. Errors of the close leave from
        the exit of the block. A guard that was never entered is closed for good.

        Raises:
            RuntimeError: If the source itself calls this, or a task of another event loop.
        """
        if self._home is None:
            async with self:
                return
        if self._has_ended:
            return
        self._home.check_loop()
        if self._owner is not None and self._owner.runs_here():
            raise RuntimeError(f"{self!r} cannot be closed from inside its own source; use stop()")
        self.stop()
        remembered: list[BaseException] = []
        try:
            await self._close_now(remembered)
            if remembered:
                raise remembered[0]
        finally:
            remembered.clear()  # their tracebacks hold this frame

    async def _close_now(self, remembered: list[BaseException]) -> None:
        """Close inside the block; native cancellations that arrive are remembered."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        """Enter the block, once."""
        raise NotImplementedError

    async def __aexit__(
        self, kind: type[BaseException] | None, body: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the block: nothing is left of what was guarded."""
        raise NotImplementedError

    def __del__(self) -> None:
        # No attribute: what was given was no source.
        if getattr(self, "_left", True):
            return
        # A chain has errors of its own beside those of the member that is being read.
        for owner in {owner for owner in (self._owner, self._home) if owner is not None}:
            owner.nudge_from_anywhere()
        fault = "entered, but its block was never left" if self._home is not None else "never entered"
        place, line = self._place
        message = f'{self!r}, made at {place}:{line}, was {fault}; use "async with"'
        # No stack level fits: the collector calls this from anywhere.
        warnings.warn(message, ResourceWarning, stacklevel=1, source=self)


def make_owner(source: Source, options: Options[T]) -> Owner[T]:
    """An owner for the event loop that is running."""
    trio = sys.modules.get("trio")
    # trio first: as a guest it runs inside an asyncio loop.
    if trio is not None and trio.lowlevel.in_trio_task():
        return _trio_owner()(source, options)
    asyncio.get_running_loop()
    return _asyncio_owner()(source, options)


@functools.cache
def _trio_owner() -> type[Owner[Any]]:
    from ._trio import Owner

    return Owner


@functools.cache
def _asyncio_owner() -> type[Owner[Any]]:
    from ._asyncio import Owner

    anyio.get_cancelled_exc_class()  # takes in the backend now; at the first close somebody would wait for it
    return Owner
