"""The close, as whoever leaves a block sees it: which way a source is brought to its end, step by step.

The rule kept here: gentle first. What is at a ``yield`` is closed, what waits is cancelled by one edge so that the
awaits of its cleanup run, what was told to stop is left alone; only the deadline is hard.
"""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import Awaitable
from typing import Any, TypeVar

from ._end import EndReason
from ._errors import consists_of
from ._owner import Owner
from ._runs import Run
from ._sources import Details, describe
from ._stepping import State
from ._task import GRACE, Limit, Task

T = TypeVar("T")

PULSE = 0.01
"""Seconds until a cancellation that hit nothing is tried again."""


async def close(owner: Owner[T], details: Details, limit: Limit, remembered: list[BaseException]) -> None:
    """Close the source and wait until it is closed; any number of tasks may call this."""
    owner.stop(EndReason.LEFT)
    if owner.closed is not None:
        # Not for the source alone: whoever closes it may have to tell that it ran out of time.
        await owner.closed.join(None, remembered)
        return
    if owner.state is State.DONE or owner.task.done:
        return
    owner.closed = owner.make_task()
    try:
        await _close(owner, details, limit, remembered)
    finally:
        owner.closed.finish()


async def _close(owner: Owner[T], details: Details, limit: Limit, remembered: list[BaseException]) -> None:
    owner.details = details
    owner.closing = owner.members.closing = True
    owner.draining = False
    if owner.state is State.NEW and owner.source.close_unopened():
        owner.state = State.DONE
        return
    if owner.source.run is not None and owner.state is not State.CLOSING:  # there it came to its own end
        await _stop_run(owner, owner.source.run, limit, remembered)
    if owner.state is State.NEW:
        owner.spawn()
    owner.unpark()
    if _is_answering(owner):
        await owner.task.join(limit.soft(), remembered)
    await _interrupt(owner, limit, remembered)
    if await owner.task.join(limit.soft(), remembered):
        return
    helpers = _free_dropped(owner)
    await owner.task.join(limit.left(), remembered)
    errors_before = len(owner.cleanup_errors)
    others = owner.members.open_at_others()
    error = await limit.enforce(owner.task, f"the close of {owner.name}", remembered, others)
    if error is not None:
        owner.cleanup_errors.insert(errors_before, error)
        await _cut_others(owner, helpers, remembered)


def _is_answering(owner: Owner[T]) -> bool:
    """Whether the source is at work on a cancellation already: its own timeout's, or somebody else's."""
    return owner.state is State.ANSWERING or (owner.state is State.RUNNING and owner.task.disturbed)


async def _stop_run(owner: Owner[T], run: Run, limit: Limit, remembered: list[BaseException]) -> None:
    result = _tell_to_stop(owner, run)
    if inspect.isawaitable(result):
        await call(owner, result, f"the cancel of {owner.name}", limit, remembered)


def _tell_to_stop(owner: Owner[T], run: Run) -> object:
    try:
        return run.stop()
    except BaseException as error:  # an interrupt as well: the source has to be closed first
        owner.add_cleanup_error(error, f"the cancel of {owner.name}")
        return None


async def _interrupt(owner: Owner[T], limit: Limit, remembered: list[BaseException]) -> None:
    """Cancel a source that is inside its own await, by one edge."""
    # A run that was told to stop ends by itself; a second cancellation would cut the cleanup of its model.
    run = owner.source.run
    while owner.state in (State.RUNNING, State.ANSWERING) and not (run is not None and run.is_ending):
        owner.asked = owner.source.cancelled = True
        if owner.task.interrupt():
            return
        # Nothing waited: it is in a thread, in a shield, or about to run. Never again once it came back to the owner.
        if await owner.task.join(limit.left(PULSE), remembered) or limit.left() == 0:
            return


def _free_dropped(owner: Owner[T]) -> list[Task]:
    """Close in other tasks what the source dropped and now, it seems, waits for: a lock, a connection."""
    helpers: list[Task] = []
    members = owner.members
    while members.dropped:
        generator = members.dropped.pop(0)
        members.leave_to_others(generator)
        closing = owner.run_closer(owner.source.closer_of(generator))
        helpers.append(_start_call(owner, closing, f"the close of {describe(generator)}"))
    return helpers


async def _cut_others(owner: Owner[T], helpers: list[Task], remembered: list[BaseException]) -> None:
    """At the deadline, cancel as well what closes for the owner elsewhere, and give it a moment."""
    for helper in helpers:
        helper.force()
    owner.cut_others()
    waiting = _start_call(owner, owner.wait_for_others(), "the wait for others")
    if not await waiting.join(GRACE, remembered):
        waiting.force()
        await waiting.join(GRACE, remembered)


async def drain(owner: Owner[T], limit: Limit, remembered: list[BaseException]) -> None:
    """Let the source run to its own end, dropping what it yields, at most as long as the limit."""
    if owner.closing or owner.state in (State.NEW, State.DONE):
        return
    owner.draining = True
    owner.stop(EndReason.LEFT)
    owner.unpark()
    await owner.task.join(limit.left(), remembered)
    owner.draining = False


async def call(
    owner: Owner[T], awaitable: Awaitable[object], what: str, limit: Limit, remembered: list[BaseException]
) -> None:
    """Await something in a task of its own, so that no cancellation of the caller cuts it; its errors are kept."""
    error = await limit.enforce(_start_call(owner, awaitable, what), what, remembered)
    if error is not None:
        owner.cleanup_errors.append(error)


def _start_call(owner: Owner[Any], awaitable: Awaitable[object], what: str) -> Task:
    task = owner.make_task()
    _Call(owner, awaitable, what, task).start()
    return task


class _Call:
    """An awaitable that runs in a task of its own."""

    # Not closures: one that starts itself again holds itself.
    __slots__ = ("_awaitable", "_owner", "_task", "_what")

    def __init__(self, owner: Owner[Any], awaitable: Awaitable[object], what: str, task: Task) -> None:
        self._owner = owner
        self._awaitable = awaitable
        self._what = what
        self._task = task

    def start(self) -> None:
        main = self._owner.foreign(self._main)
        self._task.start(main, contextvars.copy_context(), f"streamguard: {self._what}", self.start)

    async def _main(self) -> None:
        try:
            await self._awaitable
        except BaseException as error:
            if not (self._task.cut and consists_of(error, self._owner.cancelled)):
                self._owner.add_cleanup_error(error, self._what)
        finally:
            self._task.finish()


def nudge(owner: Owner[T]) -> None:
    """Ask the owner of an abandoned guard to close; nobody waits for it."""
    owner.abandoned = True
    if owner.closing or owner.state is State.DONE:
        owner.report()
        return
    owner.stop(EndReason.LEFT)
    owner.closing = owner.members.closing = True
    run = owner.source.run
    if run is not None and owner.state is not State.CLOSING:
        stopping = _tell_to_stop(owner, run)
        if inspect.isawaitable(stopping):
            _start_call(owner, stopping, f"the cancel of {owner.name}")
    if owner.state is State.NEW:
        if owner.source.close_unopened():
            owner.report()
        else:
            owner.spawn()
    elif owner.state not in (State.RUNNING, State.ANSWERING):
        owner.unpark()
    elif run is None or not run.is_ending:
        owner.asked = owner.source.cancelled = True
        owner.task.interrupt()
