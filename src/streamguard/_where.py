"""Where a task hangs: the frames of what it waits for, outermost first."""

from __future__ import annotations

import gc
import inspect
import linecache
import os.path
from types import FrameType

_OURS = os.path.dirname(__file__)
_AT_MOST = 50
_LOOPS = ("asyncio", "anyio", "trio", "uvloop")


def hanging_at(coroutine: object) -> str:
    """The lines at which a suspended coroutine waits, without our own frames, as in a traceback."""
    theirs = [frame for frame in frames(coroutine) if os.path.dirname(frame.f_code.co_filename) != _OURS]
    # What waits in the end is always the event loop's; the line that called it tells more.
    while len(theirs) > 1 and str(theirs[-1].f_globals.get("__name__")).partition(".")[0] in _LOOPS:
        del theirs[-1]
    lines = [_line(frame) for frame in theirs]
    return "\n".join(lines) or "  (no Python frame)"


def frames(awaitable: object) -> list[FrameType]:
    """The frames of a suspended coroutine and of all that it waits for."""
    found: list[FrameType] = []
    for _ in range(_AT_MOST):
        frame, inner = _look_into(awaitable)
        if frame is not None:
            found.append(frame)
        if inner is None:
            break
        awaitable = inner
    return found


def _look_into(awaitable: object) -> tuple[FrameType | None, object]:
    if inspect.iscoroutine(awaitable):
        return awaitable.cr_frame, awaitable.cr_await
    if inspect.isasyncgen(awaitable):
        return awaitable.ag_frame, awaitable.ag_await
    if inspect.isgenerator(awaitable):
        return awaitable.gi_frame, awaitable.gi_yieldfrom
    # A running asend() or aclose() tells only the collector which generator it drives.
    for held in gc.get_referents(awaitable):
        if inspect.isasyncgen(held) or inspect.iscoroutine(held):
            return None, held
    return None, None


def _line(frame: FrameType) -> str:
    code, number = frame.f_code, frame.f_lineno
    text = linecache.getline(code.co_filename, number).strip()
    return f'  File "{code.co_filename}", line {number}, in {code.co_qualname}' + (f"\n    {text}" if text else "")
