"""How an async generator is closed: one that never ran, and one that yields while it closes.

The rule kept here: what a generator did is told by its state, never by the words of Python's errors.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import opcode
import sys
from collections.abc import AsyncGenerator, Iterable
from types import AsyncGeneratorType
from typing import Any, TypeAlias

from ._errors import CleanupError

AnyGenerator: TypeAlias = AsyncGeneratorType[Any, Any]

STEPS_ON = 16
"""How often a generator that yields while it is closed is stepped on."""


class SeveralError(Exception):
    """More than one thing went wrong in one close; never leaves the library."""

    def __init__(self, *errors: BaseException) -> None:
        super().__init__(*errors)
        self.errors = errors


async def close_generator(generator: AnyGenerator, *, cancelled: bool) -> None:
    """Close a generator; if it yields meanwhile, step it on so that its cleanup finishes, and say so.

    Args:
        generator: What to close.
        cancelled: Whether it was cancelled before; its cleanup may have begun, and yielded.

    Raises:
        CleanupError: If it yielded in its cleanup.
        SeveralError: If its cleanup failed as well.
    """
    if not isinstance(generator, AsyncGeneratorType):  # what Cython makes calls the hooks, too, but tells no state
        await generator.aclose()
        return
    if cancelled and _unwinds(generator):
        raise await _step_on(generator, _place(generator), None)
    try:
        await generator.aclose()
    except (RuntimeError, StopAsyncIteration) as error:
        # It has yielded if it is still there and not at work. StopAsyncIteration: others had begun to close it.
        if generator.ag_frame is None or generator.ag_running:
            raise
        raise await _step_on(generator, _place(generator), error) from error


def _unwinds(generator: AnyGenerator) -> bool:
    """Whether a suspended generator has yielded while a cancellation was passing through it."""
    frame = generator.ag_frame
    if frame is None:
        return False
    # Python shows what a suspended frame handles to the collector alone, together with its variables.
    return _cancellations(gc.get_referents(generator)) > _cancellations(frame.f_locals.values())


def _cancellations(things: Iterable[object]) -> int:
    return sum(isinstance(thing, BaseException) and not isinstance(thing, Exception) for thing in things)


def _place(generator: AnyGenerator) -> str:
    frame = generator.ag_frame
    assert frame is not None
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


async def _step_on(generator: AnyGenerator, place: str, cause: Exception | None) -> BaseException:
    """Step a generator that yields while it closes; the error to raise for it."""
    further: BaseException | None = None
    fate = f"it still yields after {STEPS_ON} more steps"
    try:
        for _ in range(STEPS_ON):
            await generator.__anext__()
    except StopAsyncIteration:
        fate = "it was stepped on to its end"
    except BaseException as error:
        fate = "it was stepped on to its end"
        further = error
    yielded = CleanupError(
        f"async generator {generator.__qualname__!r} yielded at {place} while it was closed, so its cleanup did not "
        f"finish there; {fate}. Take the yield out of its finally, and let GeneratorExit pass"
    )
    yielded.__cause__ = cause
    return yielded if further is None else SeveralError(yielded, further)


def close_unstarted(generator: AnyGenerator) -> bool:
    """Close a generator that never ran, or is at its end: nothing has to be awaited. False if it did run."""
    if generator.ag_frame is not None and not is_unstarted(generator):
        return False
    with contextlib.suppress(StopIteration):
        generator.aclose().send(None)
    return True


def finalize(generator: AsyncGenerator[Any, Any]) -> None:
    """Close a dropped generator that no event loop knows, as Python does if there is no hook."""
    try:
        generator.aclose().__await__().send(None)
    except StopIteration:
        return
    raise RuntimeError("async generator ignored GeneratorExit")


if sys.version_info >= (3, 12):

    def is_unstarted(generator: AnyGenerator) -> bool:
        return inspect.getasyncgenstate(generator) == inspect.AGEN_CREATED

else:

    def is_unstarted(generator: AnyGenerator) -> bool:  # pragma: no cover - measured on a later Python
        # Python 3.11 does not tell; the frame still stands at the instruction that made the generator.
        frame = generator.ag_frame
        assert frame is not None
        return frame.f_code.co_code[frame.f_lasti] == opcode.opmap["RETURN_GENERATOR"]
