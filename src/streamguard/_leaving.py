"""Leaving a guarded block: what is called and closed, in order.

The rule kept here: everything runs to its end or its limit, whatever fails or cancels meanwhile.
"""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from . import _closing
from ._end import EndReason, Facts, StreamEnd
from ._errors import without_traceback
from ._options import Options
from ._outcome import Outcome
from ._owner import Owner
from ._release import release_with
from ._sources import NO_DETAILS, Details
from ._stepping import State
from ._task import Limit

T = TypeVar("T")

# A ``cancel`` may close the stream: it must not wait for itself. What it starts inherits this.
_inside: contextvars.ContextVar[object] = contextvars.ContextVar("streamguard_inside_cancel", default=None)


async def close_stream(
    owner: Owner[T], options: Options[T], outcome: Outcome, details: Details, *, leaving: bool = True
) -> None:
    """Drain or cancel a source, as the options say, and close it; ``leaving`` if the block itself is left."""
    owner.check_loop()
    if leaving and options.on_early_exit == "drain" and outcome.body is None:
        await _closing.drain(owner, limit(owner, options), outcome.remembered)
    owner.stop(EndReason.LEFT)
    if options.cancel is not None:
        await call_cancel(owner, options, outcome.remembered)
    if owner.state is not State.DONE or owner.closed is not None:
        await _closing.close(owner, details, limit(owner, options), outcome.remembered)
    owner.details = NO_DETAILS  # a traceback holds the owner
    outcome.unread = owner.take_failure()
    outcome.ended_by = outcome.unread or owner.take_given_failure()
    if owner.overtaken is not None:
        outcome.overtaken.append(owner.overtaken)
        owner.overtaken = None


async def call_cancel(owner: Owner[Any], options: Options[Any], remembered: list[BaseException]) -> None:
    """Call the user's ``cancel``, once, unless the source came to its own end; who comes second waits for that."""
    if owner.cancelling is not None:
        if _inside.get() is not owner.cancelling:
            await owner.cancelling.join(None, remembered)
        return
    if options.cancel is None or owner.exhausted:
        return
    owner.cancelling = cancelling = owner.make_task()
    token = _inside.set(cancelling)
    try:
        await call(owner, options, remembered, options.cancel, (), f"the cancel of {owner.name}")
    finally:
        _inside.reset(token)
        cancelling.finish()


def facts(owner: Owner[T], outcome: Outcome) -> Facts[T]:
    """How a stream ended, as far as it is known by now."""
    return (
        outcome.reason(owner.reason),
        outcome.error or outcome.ended_by,
        outcome.others(),
        owner.items,
        owner.last,
        owner.source.opened,
    )


def release(end: StreamEnd[T], outcome: Outcome) -> StreamEnd[T]:
    """Let the run go of its agents; the record holds none any more."""
    try:
        report, last = release_with(end.source, end.last)
    except Exception as error:
        outcome.errors.append(error)
        return without_frames(end)
    return without_frames(replace(end, release=report, last=last))


def without_frames(end: StreamEnd[T]) -> StreamEnd[T]:
    """The same record with copies of the errors: the frames in their tracebacks hold agents."""
    return replace(
        end,
        error=None if end.error is None else without_traceback(end.error),
        cleanup_errors=tuple(without_traceback(error) for error in end.cleanup_errors),
    )


async def run_tail(owner: Owner[Any], options: Options[T], outcome: Outcome, end: StreamEnd[T]) -> None:
    """Call the tail, and await what it returns, protected like the close."""
    assert options.tail is not None
    await call(owner, options, outcome.remembered, options.tail, (end,), f"the tail of {owner.name}")


async def call(
    owner: Owner[Any],
    options: Options[Any],
    remembered: list[BaseException],
    function: Callable[..., object],
    arguments: tuple[object, ...],
    what: str,
) -> None:
    """Call something of the user's in this task; await what it returns in a fresh one."""
    try:
        result = function(*arguments)
    except BaseException as error:
        owner.add_cleanup_error(error, what)
        return
    if inspect.isawaitable(result):
        await _closing.call(owner, result, what, limit(owner, options), remembered)


def limit(owner: Owner[Any], options: Options[Any]) -> Limit:
    """The time limit that begins now."""
    return Limit(options.cleanup_timeout, owner.clock)
