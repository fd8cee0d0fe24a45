"""The owner on trio: a system task, parked and rescheduled; one edge of cancellation out of two scopes."""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio
from trio.lowlevel import Abort, RaiseCancelT

from . import _owner
from ._closing import nudge
from ._options import Options
from ._sources import Source

T = TypeVar("T")

LOOK_UP = 0.25
"""Seconds between two looks whether the run is ending, while a shield hides it."""


@trio.lowlevel.disable_ki_protection
async def _unprotected(function: Callable[..., Awaitable[Any]], *args: object) -> Any:
    return await function(*args)


class Task:
    """See `_task.Task`."""

    __slots__ = ("_inner", "_outer", "_task", "_waiters", "cut", "done")

    def __init__(self) -> None:
        self.done = False
        self.cut = False
        self._waiters: tuple[trio.Event, ...] = ()
        self._task: trio.lowlevel.Task
        self._outer: trio.CancelScope
        self._inner: trio.CancelScope

    def start(
        self, main: Callable[[], Awaitable[None]], context: contextvars.Context, name: str, lost: Callable[[], None]
    ) -> None:
        # trio gives every task its first step, so that none is lost.
        self._outer, self._inner = trio.CancelScope(), trio.CancelScope()
        self._task = trio.lowlevel.spawn_system_task(self._run, main, name=name, context=context)

    async def _run(self, main: Callable[[], Awaitable[None]]) -> None:
        with self._outer, self._inner:
            await main()

    def finish(self) -> None:
        self.done = True
        for waiter in self._waiters:
            waiter.set()

    async def join(self, seconds: float | None, remembered: list[BaseException]) -> bool:
        # Most closes need not wait, and a scope costs more than two turns. With 0 seconds these are all they get.
        for _ in range(2):
            if self.done:
                return True
            await trio.lowlevel.cancel_shielded_checkpoint()
        if self.done:
            return True
        waiter = trio.Event()
        self._waiters += (waiter,)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _or_inf(seconds)):
            while not self.done:
                try:
                    await waiter.wait()
                except KeyboardInterrupt as interrupt:
                    remembered.append(interrupt)
        return self.done

    def interrupt(self) -> bool:
        self._inner.shield = True
        self._outer.cancel()
        before = trio.lowlevel.current_statistics().tasks_runnable
        # One instant: what waits now is woken with a cancellation, what waits later is not.
        self._inner.shield = False
        self._inner.shield = True
        return trio.lowlevel.current_statistics().tasks_runnable > before

    def force(self) -> None:
        self.cut = True
        self._outer.cancel()
        self._inner.shield = False

    @property
    def disturbed(self) -> bool:
        return False

    def forget(self) -> None:
        pass

    @property
    def coroutine(self) -> object:
        return self._task.coro

    def is_current(self) -> bool:
        return trio.lowlevel.current_task() is self._task

    def wake(self) -> None:
        trio.lowlevel.reschedule(self._task)


def _or_inf(seconds: float | None) -> float:
    return float("inf") if seconds is None else seconds


class Owner(_owner.Owner[T]):
    """See `_owner.Owner`."""

    __slots__ = ("_parked", "_token")

    cancelled = trio.Cancelled
    closes_dropped = True  # trio's finaliser would cut their cleanup

    task: Task
    reader: trio.lowlevel.Task | None

    def __init__(self, source: Source, options: Options[T]) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._parked = False
        super().__init__(source, options)

    def make_task(self) -> Task:
        return Task()

    def park(self) -> Awaitable[None]:
        self._parked = True
        return trio.lowlevel.wait_task_rescheduled(self._abort_park)  # noqa: ASYNC105 - the caller awaits it

    def _abort_park(self, _: RaiseCancelT) -> Abort:
        self._parked = False
        return Abort.SUCCEEDED

    async def park_shielded(self) -> None:
        # The run ends by a cancellation that the shield hides: look up now and then, else trio.run() would hang.
        with trio.move_on_after(LOOK_UP):
            await self.park()

    def unpark(self) -> None:
        if self._parked:
            self._parked = False
            self.task.wake()

    def let_others_run(self) -> Awaitable[None]:
        return trio.lowlevel.checkpoint()  # noqa: ASYNC105 - the caller awaits it

    async def ask(self) -> None:
        # One coroutine up to the wait: whoever is interrupted between the two would be woken without waiting.
        if self._parked:
            self._parked = False
            self.task.wake()
        self.reader = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abort_read)

    def _abort_read(self, _: RaiseCancelT) -> Abort:
        self.reader = None
        return Abort.SUCCEEDED

    def notify(self) -> None:
        reader, self.reader = self.reader, None
        if reader is not None:
            trio.lowlevel.reschedule(reader)

    def offer(self, item: T) -> None:
        self.ahead.append(item)
        self.wanted = False
        reader = self.reader
        if reader is not None:
            self.reader = None
            trio.lowlevel.reschedule(reader)

    def foreign(self, function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        # System tasks are protected from Ctrl-C; what is not ours must stay interruptible.
        return functools.partial(_unprotected, function)

    def ending(self) -> bool:
        nursery = trio.lowlevel.current_task().parent_nursery
        return nursery is not None and nursery.cancel_scope.cancel_called

    def clock(self) -> float:
        return trio.current_time()

    def check_loop(self) -> None:
        try:
            here = trio.lowlevel.current_trio_token() is self._token
        except RuntimeError:
            here = False
        if not here:
            raise RuntimeError(f"the stream of {self.name} belongs to another event loop; use it where it was entered")

    def nudge_from_anywhere(self) -> None:
        with contextlib.suppress(trio.RunFinishedError):  # nothing can run there any more
            self._token.run_sync_soon(nudge, self)


def _set_protection() -> None:
    """Say where Ctrl-C may strike: in the source, not in what closes it or hands out its items."""
    from ._chain import GuardedChain
    from ._guard import Block
    from ._stream import GuardedStream

    # They step the source. Around their own waits nothing is lost: an error there counts as one of the source.
    trio.lowlevel.disable_ki_protection(Owner.run)
    trio.lowlevel.disable_ki_protection(Owner.run_ahead)
    ours: list[Callable[..., object]] = [Owner.offer, Owner.notify, Owner.end, Owner.park, Owner.close_dropped]
    ours += [Owner.start, Owner.ask]
    # While something is closed it has to wait until the close itself waits: elsewhere it would cut it.
    ours += [GuardedStream.__aexit__, GuardedChain.__aexit__, Block.aclose, GuardedChain._close_current]
    for function in ours:
        trio.lowlevel.enable_ki_protection(function)


_set_protection()
