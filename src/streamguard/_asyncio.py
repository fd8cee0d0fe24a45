"""The owner on asyncio (and uvloop): plain futures and native cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import gc
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, cast

import anyio

from . import _owner
from ._closing import nudge
from ._options import Options
from ._sources import Source

T = TypeVar("T")

# asyncio holds its tasks weakly: without this an idle owner would be collected with an abandoned guard, unclosed.
_alive: set[Task] = set()


class Task:
    """See `_task.Task`."""

    __slots__ = ("_edges", "_loop", "_lost", "_waiters", "asyncio_task", "cut", "done")

    def __init__(self) -> None:
        self.done = False
        self.cut = False
        self._lost: Callable[[], None] = _nothing
        self._loop = asyncio.get_running_loop()
        self.asyncio_task: asyncio.Task[None] | None = None
        self._waiters: tuple[asyncio.Future[None], ...] = ()
        self._edges = 0

    def start(
        self, main: Callable[[], Awaitable[None]], context: contextvars.Context, name: str, lost: Callable[[], None]
    ) -> None:
        coroutine: Any = main()
        if sys.version_info >= (3, 12) and self._loop.get_task_factory() is None:
            # At its first step at once: no turn of the loop, and none in which a cancellation could lose it.
            self.asyncio_task = asyncio.Task(coroutine, loop=self._loop, name=name, context=context, eager_start=True)
        else:
            self._start_by_loop(coroutine, context, name, lost)
        if not self.done:
            _alive.add(self)

    def _start_by_loop(
        self, coroutine: Coroutine[Any, Any, None], context: contextvars.Context, name: str, lost: Callable[[], None]
    ) -> None:
        self._lost = lost
        # Not create_task(context=..., name=...): other people's task factories may not take them.
        self.asyncio_task = task = context.run(self._loop.create_task, coroutine)
        if hasattr(task, "set_name"):
            task.set_name(name)
        if not self.done:  # their task may be eager, too, and at its end
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        _alive.discard(self)
        if not self.done:
            self._lost()

    def finish(self) -> None:
        self.done = True
        _alive.discard(self)
        self._lost = _nothing  # the loop holds us for one more turn; not the owner, and with it the source
        waiters, self._waiters = self._waiters, ()
        for waiter in waiters:
            _resolve(waiter)

    async def join(self, seconds: float | None, remembered: list[BaseException]) -> bool:
        if self.done:
            return True
        expired = False
        waiter: asyncio.Future[None] | None = None
        timer: asyncio.Handle | None = None

        def expire() -> None:
            nonlocal expired
            expired = True
            _resolve(waiter)

        def begin(seconds: float) -> None:
            nonlocal timer
            if not self.done:
                timer = self._loop.call_later(seconds, expire)

        if seconds is not None:
            # Most closes end at the owner's next step: what is to be called then costs less than a timer.
            timer = self._loop.call_soon(begin, seconds)
        try:
            with _scope_class()(shield=True):
                while not (self.done or expired):
                    waiter = self._loop.create_future()
                    self._waiters += (waiter,)
                    try:
                        await waiter
                    except asyncio.CancelledError as cancellation:
                        # Obeyed when everything is closed. Never uncancelled: timeouts around the block count on it.
                        remembered.append(cancellation)
        finally:
            if timer is not None:
                timer.cancel()
        return self.done

    def interrupt(self) -> bool:
        self._edges += 1
        self._task().cancel()
        return True

    def force(self) -> None:
        self.cut = True
        self.interrupt()

    @property
    def disturbed(self) -> bool:
        return self._task().cancelling() > self._edges

    def forget(self) -> None:
        while self._edges:
            self._edges -= 1
            self._task().uncancel()

    @property
    def coroutine(self) -> object:
        return self._task().get_coro()

    def is_current(self) -> bool:
        return asyncio.current_task() is self._task()

    def _task(self) -> asyncio.Task[Any]:
        # An eager task takes its first step before anybody knows it.
        return self.asyncio_task or asyncio.current_task()  # type: ignore[return-value]


@functools.cache
def _scope_class() -> type[anyio.CancelScope]:
    # anyio looks up the backend for each scope it makes, which takes longer than the rest of it.
    return type(anyio.CancelScope())


def _nothing() -> None:
    """What is called when there is nothing to tell."""


def _resolve(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


class Owner(_owner.Owner[T]):
    """See `_owner.Owner`."""

    __slots__ = ("_loop", "_new_future", "_wake")

    cancelled = asyncio.CancelledError
    closes_dropped = False

    reader: asyncio.Future[None] | None

    def __init__(self, source: Source, options: Options[T]) -> None:
        self._loop = asyncio.get_running_loop()
        self._new_future = self._loop.create_future
        self._wake: asyncio.Future[None] | None = None
        super().__init__(source, options)

    def make_task(self) -> Task:
        return Task()

    def park(self) -> Awaitable[None]:
        self._wake = future = self._new_future()
        return future

    def unpark(self) -> None:
        wake, self._wake = self._wake, None
        _resolve(wake)

    def let_others_run(self) -> Awaitable[None]:
        return asyncio.sleep(0)

    def ask(self) -> Awaitable[None]:
        wake = self._wake
        if wake is not None:
            self._wake = None
            try:  # noqa: SIM105 - for every item: a context manager costs more than the rest
                wake.set_result(None)
            except asyncio.InvalidStateError:
                pass  # cancelled, and so awake
        self.reader = future = self._new_future()
        return future

    def notify(self) -> None:
        reader = self.reader
        if reader is not None:
            self.reader = None
            try:  # noqa: SIM105 - the same
                reader.set_result(None)
            except asyncio.InvalidStateError:
                pass

    def offer(self, item: T) -> None:
        self.ahead.append(item)
        self.wanted = False
        reader = self.reader
        if reader is not None:
            self.reader = None
            try:  # noqa: SIM105 - the same
                reader.set_result(None)
            except asyncio.InvalidStateError:
                pass

    def ending(self) -> bool:
        # asyncio.run() ends by starting the loop anew, to cancel all tasks, once, and wait for them.
        return self.task.disturbed and self.members.loop_was_restarted()

    def cut_others(self) -> None:
        generators = self.members.open_at_others()
        for task in asyncio.all_tasks(self._loop):
            # The loop's finaliser runs a bare aclose(), which tells only the collector what it closes.
            held = gc.get_referents(task.get_coro())
            if any(generator is thing for generator in generators for thing in held):
                task.cancel()

    def recancel(self) -> None:
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        task.uncancel()
        task.cancel()

    def clock(self) -> float:
        return self._loop.time()

    def check_loop(self) -> None:
        if asyncio._get_running_loop() is not self._loop:
            raise RuntimeError(f"the stream of {self.name} belongs to another event loop; use it where it was entered")

    def nudge_from_anywhere(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing can run there any more
            self._loop.call_soon_threadsafe(nudge, self)
