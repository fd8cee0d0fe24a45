"""How an async generator is closed: one that never ran, and one that yields while it closes.

The rule kept here: what a generator did is told by its state, never by the words of Python's errors.
"""

from __future__ import annotations

import inspect
import opcode
import sys
from types import AsyncGeneratorType
from typing import Any, TypeAlias

from ._errors import CleanupError

AnyGenerator: TypeAlias = AsyncGeneratorType[Any, Any]

STEPS_ON = 16
"""How often a generator that yields while it is closed is stepped on."""


async def close_generator(generator: AnyGenerator) -> None:
    """Close a generator; if it yields meanwhile, step it on so that its cleanup finishes, and say so."""
    try:
        await generator.aclose()
    except RuntimeError as error:
        # It has yielded if it is still there and not at work.
        if (frame := generator.ag_frame) is None or generator.ag_running:
            raise
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        raise _yielded(generator, place, *await _step_on(generator)) from error


async def _step_on(generator: AnyGenerator) -> tuple[bool, BaseException | None]:
    """Whether the generator came to its end, and the error by which it did."""
    for _ in range(STEPS_ON):
        try:
            await generator.__anext__()
        except StopAsyncIteration:
            return True, None
        except BaseException as error:
            return True, error
    return False, None


def _yielded(generator: AnyGenerator, place: str, ended: bool, further: BaseException | None) -> BaseException:
    name = generator.__qualname__
    fate = "it was stepped on to its end" if ended else f"it still yields after {STEPS_ON} more steps"
    error = CleanupError(
        f"async generator {name!r} yielded at {place} while it was closed, so its cleanup did not finish there; "
        f"{fate}. Take the yield out of its finally, and let GeneratorExit pass"
    )
    return error if further is None else BaseExceptionGroup(f"{name!r} did not close as it must", [error, further])


def close_unstarted(generator: AnyGenerator) -> bool:
    """Close a generator that never ran, or is at its end: nothing has to be awaited. False if it did run."""
    if generator.ag_frame is not None and not _is_unstarted(generator):
        return False
    try:
        generator.aclose().send(None)
    except StopIteration:
        return True
    raise AssertionError(f"async generator {generator.__qualname__!r} never ran, but waits while it closes")


if sys.version_info >= (3, 12):

    def _is_unstarted(generator: AnyGenerator) -> bool:
        return inspect.getasyncgenstate(generator) == inspect.AGEN_CREATED

else:

    def _is_unstarted(generator: AnyGenerator) -> bool:
        # Python 3.11 does not tell; the frame still stands at the instruction that made the generator.
        frame = generator.ag_frame
        return frame.f_code.co_code[frame.f_lasti] == opcode.opmap["RETURN_GENERATOR"]
