"""`Aclosing`: `contextlib.aclosing` that loses no error and closes what has only ``close()``.

The rule kept here: it adds nothing around the body: no task, no scope, no running loop needed.
"""

from __future__ import annotations

import asyncio
from types import AsyncGeneratorType, TracebackType
from typing import Generic, TypeVar

import anyio

from ._errors import consists_of, is_interrupt, report, without
from ._sources import find_close, settled

T = TypeVar("T")


class Aclosing(Generic[T]):
    """Close an async generator or stream when the block is left, in the task that leaves it.

    Like `contextlib.aclosing`, whose own tests it passes, with three differences: an error of the body is never
    replaced by an error of the cleanup, which becomes a note on it and a log record on logger ``streamguard``; objects
    with only ``close()``, or nothing to close, are accepted; and a group that holds only ``GeneratorExit`` counts as a
    clean close. It does not shield the cleanup from cancellation and does not reach inner generators: for that there is
    `guarded_stream`.

    Args:
        thing: What to close: by ``aclose()``, else ``close()`` (sync or async), else not at all.

    Raises:
        Exception: Whatever the cleanup raises, if the body raised nothing (or ``GeneratorExit``). After an error of the
            body only ``KeyboardInterrupt`` and ``SystemExit``, also in a group, and a native cancellation that arrives
            in the cleanup.

    Example:
        >>> async def letters():
        ...     try:
        ...         yield "a"
        ...         yield "b"
        ...     finally:
        ...         print("closed")
        >>> async def first():
        ...     async with Aclosing(letters()) as stream:
        ...         async for letter in stream:
        ...             return letter
        >>> asyncio.run(first())
        closed
        'a'
    """

    __slots__ = ("thing",)

    def __init__(self, thing: T) -> None:
        self.thing: T = thing
        """What is closed."""

    async def __aenter__(self) -> T:
        return self.thing

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        thing: object = self.thing
        failure: BaseException | None = None
        try:
            # As contextlib.aclosing: no scope around it. Whoever wants a shield and a deadline takes guarded_stream.
            if type(thing) is AsyncGeneratorType:
                await thing.aclose()  # noqa: ASYNC102
            else:
                await _close(thing)  # noqa: ASYNC102
        except BaseException as raised:
            failure = without(raised, GeneratorExit)
        if failure is None:
            return
        # Raised out here, so that the body's error is its context.
        try:
            if error is None or isinstance(error, GeneratorExit) or _outranks(failure, error):
                raise failure
            # A scope that cut the cleanup delivers its cancellation again, at the next checkpoint.
            if not consists_of(failure, _cancelled_class()):
                report(failure, error)
        finally:
            # The errors' tracebacks hold this frame: without this, a cycle.
            del failure, error, trace


async def _close(thing: object) -> None:
    """Close what is no async generator: by ``aclose()``, else ``close()``, else not at all."""
    close = find_close(thing)
    if close is not None:
        await settled(close())


def _cancelled_class() -> type[BaseException]:
    try:
        return anyio.get_cancelled_exc_class()
    except Exception:  # no loop is running here
        return asyncio.CancelledError


def _outranks(failure: BaseException, error: BaseException) -> bool:
    """Whether the failure of the cleanup leaves the block although the body raised an error."""
    if is_interrupt(failure):
        return True
    if consists_of(error, _cancelled_class()) or not isinstance(failure, asyncio.CancelledError) or _in_cut_scope():
        return False
    # A native cancellation is delivered once: dropped here, the task would never end cancelled.
    report(error, failure, of_cleanup=False)
    return True


def _in_cut_scope() -> bool:
    try:
        return anyio.current_effective_deadline() == float("-inf")
    except Exception:  # no loop is running here
        return False
