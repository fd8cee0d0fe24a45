"""The owner: the one task that opens, steps and closes a source, for its whole life.

The rules kept here: only the owner task touches the source; it advances when a reader asks (or `prefetch` allows); it
is closed exactly once, by that task; no scope of ours is open over a ``yield`` that the source resumes.
"""

from __future__ import annotations

import contextvars
import enum
import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
import anyio.lowlevel

from ._errors import CleanupError, consists_of, report, without
from ._generators import AnyGenerator, SeveralError
from ._handoff import Handoff
from ._hooks import Members, collect_young
from ._options import Options
from ._sources import NO_DETAILS, Details, Source, describe
from ._task import Task

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


class Owner(Handoff[T]):
    """What a guard and its owner task share. It knows no guard, so that an abandoned guard is noticed."""

    __slots__ = (
        "_context",
        "_held",
        "_until",
        "_where",
        "abandoned",
        "asked",
        "cancel_called",
        "cleanup_errors",
        "closing",
        "details",
        "draining",
        "exhausted",
        "members",
        "source",
        "state",
        "task",
    )

    def __init__(self, source: Source, options: Options[T]) -> None:
        super().__init__(describe(source.opened), options.prefetch)
        self.source = source
        self.state = State.NEW
        self.closing = False
        """Whether the guard has asked for the close; for good."""
        self.draining = False
        """Whether items are dropped until the source ends by itself."""
        self.exhausted = False
        """Whether the source came to its own end."""
        self.asked = False
        """Whether we cancelled the source: a cancellation that comes out is no error."""
        self.abandoned = False
        """Whether nobody will leave the block, so that errors have to be told here."""
        self.cancel_called = False
        """Whether the user's ``cancel`` was called."""
        self.details: Details = NO_DETAILS
        """The body's error, for context managers."""
        self.cleanup_errors: list[BaseException] = []
        self._context = contextvars.copy_context()
        self._until = options.until
        self._where = options.where
        self._held: BaseException | None = None
        self.members = Members(keeps_all=self.closes_dropped)
        """The generators that were started for the source."""
        self.task: Task = self.make_task()

    # -- what a backend brings

    closes_dropped: bool
    """Whether the owner closes generators that are dropped while the source runs (else the event loop does)."""

    def make_task(self) -> Task:
        """A task that is not started."""
        raise NotImplementedError

    def foreign(self, function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """The same function, prepared for code that is not ours."""
        return function

    def park_shielded(self) -> Awaitable[None]:
        """Park where no cancellation of the whole event loop arrives; may return early."""
        return self.park()

    def recancel(self) -> None:
        """Cancel the owner task at its next await, if the backend's cancellations come only once."""

    def ending(self) -> bool:
        """Whether the event loop is cancelling all that is left because its main task is done."""
        return False

    def check_loop(self) -> None:
        """A RuntimeError if the caller runs in another event loop."""
        raise NotImplementedError

    def clock(self) -> float:
        """The backend's time."""
        raise NotImplementedError

    def cut_others(self) -> None:
        """Cancel the event loop's own closing of what the source dropped, if the backend leaves that to the loop."""

    def nudge_from_anywhere(self) -> None:
        """Ask an abandoned guard's owner to close, from any thread, without waiting."""
        raise NotImplementedError

    # -- the task

    def runs_here(self) -> bool:
        """Whether the caller is the owner task."""
        return self.state not in (State.NEW, State.DONE) and self.task.is_current()

    def start(self) -> None:
        self.reading = True  # an eager task runs the source at once, which may read as well
        try:
            self.spawn()
        finally:
            self.reading = False

    def spawn(self) -> None:
        """Start the task; it closes the source at once if that was asked for."""
        self.started = True
        self.state = State.SPAWNED
        self.task.start(self._main, self._context, f"streamguard: {self.name}", self._lost)

    def _lost(self) -> None:
        """The task was cancelled before its first step, so that nothing of it ran."""
        if self.closing:
            self.spawn()
        else:
            self.started = False
            self.state = State.NEW
            self._fail(self.cancelled())

    async def _main(self) -> None:
        self.state = State.RUNNING
        self.members.start()
        try:
            if self.closing:
                self.source.give_up()
            else:
                await self._serve()
            self.state = State.CLOSING
            self.members.closing = True
            self.task.forget()
            await self._close_source()
            await self._close_dropped()
        except GeneratorExit as error:
            self.offer_failure(error)
        except BaseException as error:  # nothing may escape: trio would end the whole run
            self._note_cleanup_error(error, asked=self.asked)
        finally:
            self.members.stop()
            self.state = State.DONE
            if self.abandoned:
                self.report()
            self.end_of_task()
            self.task.finish()

    async def _serve(self) -> None:
        """Open the source and hand out its items, up to its end or the close."""
        try:
            if not self.source.open_at_once():
                await self.foreign(self.source.open)()
        except BaseException as error:
            return await self._fail_and_linger(error)  # noqa: ASYNC102 - ended by whoever leaves the block
        while not self.closing:
            try:
                await self._run()
            except StopAsyncIteration:
                return self._end()
            except self.cancelled as cancellation:
                if self.state is not State.IDLE:
                    return await self._fail_and_linger(cancellation)  # noqa: ASYNC102 - the same
                if not await self._answer(cancellation):
                    return None
            except BaseException as error:
                return await self._fail_and_linger(error)  # noqa: ASYNC102 - the same
        return None

    async def _run(self) -> None:
        """Step the source, and hand out what it makes as it is asked for, until the close."""
        # One coroutine for all items, and few calls: this is what each item costs.
        step, dropped = self.source.step, self.members.dropped
        picky = self._until is not None or self._where is not None
        steps = 0
        self.state = _RUNNING
        while not self.closing:
            if dropped:
                await self._close(dropped)
            item = await step()
            if not self.over and (not picky or self._picks(item)):
                self.offer(item)
            if self.wanted or self.draining:
                steps += 1
                if steps < STEPS_PER_TURN:
                    continue
                steps = 0
                self.state = _IDLE
                await self.let_others_run()
            item = None  # the reader's now
            self.state = _IDLE
            while not (self.wanted or self.closing or self.draining):
                await self.park()
            self.state = _RUNNING

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
                self.matching = _truth(predicate, predicate(item))
        except StopAsyncIteration as error:
            raise RuntimeError(f"{describe(predicate)} raised StopAsyncIteration") from error
        return not self.over  # a predicate may have stopped the stream

    def _end(self) -> None:
        self.exhausted = True
        self.offer_end()

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, GeneratorExit) and not self._is_running():
            raise error  # the loop is gone and takes the task down: nothing can be awaited any more
        if self.closing or self.draining:
            # Whoever else cancelled the owner, a loop that ends for example, has asked for it as well.
            self._note_cleanup_error(error, asked=self.asked or self.task.disturbed)
        else:
            self.offer_failure(error)

    def _is_running(self) -> bool:
        try:
            return self.task.is_current()
        except RuntimeError:
            return False

    async def _fail_and_linger(self, error: BaseException) -> None:
        """Wait, after an error, for the close: whoever leaves the block may have something to cancel before it."""
        self._fail(error)
        cancelled_by_others = self.task.disturbed and consists_of(error, self.cancelled)
        del error  # its traceback holds this frame
        if cancelled_by_others:
            return  # a loop that ends cancels its tasks once and waits for them
        self.state = State.IDLE
        try:
            while not (self.closing or self.draining):
                await self.park()
        except self.cancelled:
            return  # nothing is left to cancel but this wait: the close is what a cancellation asks for

    # -- what fires inside an idle source

    async def _answer(self, cancellation: BaseException) -> bool:
        """Hand a cancellation that hit the idle owner to the source; whether stepping goes on.

        It is the source's own timeout or task group, or somebody cancelled the owner: the source knows its own by the
        very object.
        """
        while not self.closing:
            self.state = State.ANSWERING
            if self.source.throw is not None and not await self._throw(self.source.throw, cancellation):
                return False
            await self._hold()
            if self.ending():
                self._fail(self._held or cancellation)
                return False
            if self.source.throw is None:
                self.recancel()
                break
            if self._held is None:
                break
            cancellation, self._held = self._held, None
        return not self.closing

    async def _throw(self, throw: Callable[..., Awaitable[Any]], cancellation: BaseException) -> bool:
        try:
            item = await self.foreign(throw)(cancellation)
            if not self.over and self._picks(item):
                self.offer(item)
        except StopAsyncIteration:
            self._end()
            return False
        except BaseException as error:
            self._fail(error)
            return False
        return True

    async def _hold(self) -> None:
        """Wait for the next read with one outcome standing ahead; a further cancellation is kept for then."""
        self.state = State.IDLE
        # Without the shield a scope that stays cancelled would wake this wait for ever.
        with anyio.CancelScope(shield=True):
            while not (self.wanted or self.closing or self.draining or self.ending()):
                try:
                    await self.park_shielded()
                except self.cancelled as cancellation:
                    self._held = self._held or cancellation
        if self._held is None and not self.closing:
            # A scope that was cancelled meanwhile could not tell so through the shield.
            try:
                await anyio.lowlevel.checkpoint_if_cancelled()
            except self.cancelled as cancellation:
                self._held = cancellation

    # -- the close, in the owner task

    async def _close_source(self) -> None:
        closers = self.source.closers
        while closers:
            await self._run_closer(closers.pop())
            await self._close(self.members.dropped)

    async def _close_dropped(self) -> None:
        """Close, or see closed, all that the source dropped."""
        members = self.members
        if not self.task.cut:
            await self.wait_for_others()
        if members.suspended():
            # The event loop may hold the last frame until this task has yielded once more.
            await anyio.lowlevel.cancel_shielded_checkpoint()
            await self._close(members.dropped)
        if members.suspended():
            collect_young()
            await self._close(members.dropped)

    async def wait_for_others(self) -> None:
        """Wait for the generators that others close; there is nothing that tells of it."""
        pause = 0.0
        while self.members.left_to_others and not self.members.others_are_done():
            await anyio.sleep(pause)
            pause = min(pause + 0.001, 0.01)

    async def _close(self, dropped: deque[AnyGenerator]) -> None:
        while dropped:
            await self._run_closer(self.source.closer_of(dropped.popleft()))

    async def _run_closer(self, closer: Callable[[Details], object]) -> None:
        try:
            await self.foreign(self._call_closer)(closer)
        except SeveralError as several:
            for error in several.errors:
                self._note_cleanup_error(error, asked=self.asked)
        except BaseException as error:
            self._note_cleanup_error(error, asked=self.asked)

    async def _call_closer(self, closer: Callable[[Details], object]) -> None:
        result = closer(self.details)
        if inspect.isawaitable(result):
            await result

    def _note_cleanup_error(self, error: BaseException, *, asked: bool) -> None:
        """Keep what a close raised, less what closing is bound to raise."""
        # Only a context manager is given the body's error, and may raise it again.
        given = self.details[1] if self.source.is_entered else None
        asked = asked or self.task.cut or consists_of(given, self.cancelled)
        rest = without(error, (GeneratorExit, self.cancelled) if asked else GeneratorExit)
        if rest is not None and rest is not given and not self.is_known(rest):
            self.add_cleanup_error(rest, self.name)

    def report(self) -> None:
        """Tell of every error, since none will leave a block."""
        failure = self.take_failure()
        for error in (failure, *self.cleanup_errors):
            if error is not None and not consists_of(error, self.cancelled):
                report(error, None)

    def add_cleanup_error(self, error: BaseException, what: str) -> None:
        """Keep an error of the close, of a ``cancel`` or of a tail."""
        if consists_of(error, self.cancelled):
            unasked = CleanupError(f"{what} raised a cancellation that nobody asked for")
            unasked.__cause__ = error
            error = unasked
        self.cleanup_errors.append(error)


def _truth(predicate: object, verdict: object) -> bool:
    if inspect.isawaitable(verdict):
        if inspect.iscoroutine(verdict):
            verdict.close()
        raise TypeError(f"{describe(predicate)} returned an awaitable; `until` and `where` are plain functions")
    return bool(verdict)
