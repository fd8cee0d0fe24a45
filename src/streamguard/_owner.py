"""The owner: the one task that opens, steps and closes a source, for its whole life.

The rules kept here: only the owner task touches the source; it advances when a reader asks (or `prefetch` allows); it
is closed exactly once, by that task; no scope of ours is open over a ``yield`` that the source resumes.
"""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
import anyio.lowlevel

from ._errors import CleanupError, consists_of, report, without
from ._generators import SeveralError
from ._hooks import Members, collect_young
from ._options import Options
from ._sources import NO_DETAILS, Details, Source
from ._stepping import State, Stepper
from ._task import Task

T = TypeVar("T")

PATIENCE = 0.004
"""Seconds between two looks at what others close from which on they have surely begun: each look gave them a turn."""


class Owner(Stepper[T]):
    """What a guard and its owner task share. It knows no guard, so that an abandoned guard is noticed."""

    __slots__ = (
        "_context",
        "_held",
        "abandoned",
        "asked",
        "cancelling",
        "cleanup_errors",
        "closed",
        "details",
        "members",
        "task",
    )

    def __init__(self, source: Source, options: Options[T]) -> None:
        self.members = Members(keeps_all=self.closes_dropped)
        """The generators that were started for the source."""
        super().__init__(source, options, self.members.dropped)
        self.asked = False
        """Whether we cancelled the source: a cancellation that comes out is no error."""
        self.abandoned = False
        """Whether nobody will leave the block, so that errors have to be told here."""
        self.cancelling: Task | None = None
        """The call of the user's ``cancel``, once there was one: never started, only waited for and finished."""
        self.closed: Task | None = None
        """The close by whoever asked for it first; the same."""
        self.details: Details = NO_DETAILS
        """The body's error, for context managers."""
        self.cleanup_errors: list[BaseException] = []
        self._context = contextvars.copy_context()
        self._held: BaseException | None = None
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
        raise NotImplementedError

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

    def start(self) -> bool:
        self.reading = True  # an eager task runs the source at once, which may read as well
        try:
            self.spawn()
        finally:
            self.reading = False
        return self.wanted and not self.ahead

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
            if self.members.left_to_others or self.members.suspended():
                await self._close_rest()
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
                if self.dropped or not (self.wanted or self.draining):
                    await self.wait_until_asked()
                    continue
                return await (self.run_ahead() if self.prefetch else self.run())
            except self.cancelled as cancellation:
                if self.state is not State.IDLE:
                    return await self._fail_and_linger(cancellation)  # noqa: ASYNC102 - the same
                if not await self._answer(cancellation):
                    return None
            except BaseException as error:
                return await self._fail_and_linger(error)  # noqa: ASYNC102 - the same
        return None

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
            self.end()
            return False
        except BaseException as error:
            self._fail(error)
            return False
        return True

    async def _hold(self) -> None:
        """Wait for the next read with one outcome standing ahead; a further cancellation is kept for then."""
        self.resting = True  # if it may run ahead, it goes on as soon as there is room
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
        if self.exhausted:
            self.source.forget_items()
            if self.dropped:
                await self.close_dropped()
        while closers:
            await self.run_closer(closers.pop())
            if self.dropped:
                await self.close_dropped()

    async def _close_rest(self) -> None:
        """Close, or see closed, all that the source dropped."""
        members = self.members
        if not self.task.cut:
            await self.wait_for_others()
        # What others closed may have dropped more; being dropped, it is known here alone, and not among the suspended.
        await self.close_dropped()
        if members.suspended():
            # The event loop may hold the last frame until this task has yielded once more.
            await anyio.lowlevel.cancel_shielded_checkpoint()
            await self.close_dropped()
        if members.suspended():
            collect_young()
            await self.close_dropped()

    async def wait_for_others(self) -> None:
        """Wait for the generators that others close; there is nothing that tells of it."""
        pause = 0.0
        while self.members.left_to_others and not self.members.others_are_done():
            await anyio.sleep(pause)
            pause = min(pause + 0.001, 0.01)
            if pause > PATIENCE:
                self.members.take_back()

    async def close_dropped(self) -> None:
        while self.dropped:
            await self.run_closer(self.source.closer_of(self.dropped.pop(0)))

    async def run_closer(self, closer: Callable[[Details], Awaitable[object]]) -> None:
        """Call what closes the source or a part of it; its errors are kept."""
        # Between two steps a scope that is open in the source may cut it, as it cuts what the source itself closes.
        asked = self.asked or self.state is State.IDLE
        try:
            await self.foreign(closer)(self.details)
        except SeveralError as several:
            for error in several.errors:
                self._note_cleanup_error(error, asked=asked)
        except BaseException as error:
            self._note_cleanup_error(error, asked=asked)

    def _note_cleanup_error(self, error: BaseException, *, asked: bool) -> None:
        """Keep what a close raised, less what closing is bound to raise."""
        # Only a context manager is given the body's error, and may raise it again.
        given = self.details[1] if self.source.is_entered else None
        asked = asked or self.task.cut or self._others_were_told() or consists_of(given, self.cancelled)
        rest = without(error, (GeneratorExit, self.cancelled) if asked else GeneratorExit)
        if rest is not None and rest is not given and not self.is_known(rest):
            self.add_cleanup_error(rest, self.name)

    def _others_were_told(self) -> bool:
        """Whether a run was told to stop: the source may wait for it, and so get its cancellation."""
        run = self.source.run
        return self.cancelling is not None or (run is not None and run.was_told)

    def report(self) -> None:
        """Tell of every error, since none will leave a block."""
        failure = self.take_failure()
        for error in (failure, *self.cleanup_errors):
            if error is not None and not consists_of(error, self.cancelled):
                report(error, None)
        self.cleanup_errors.clear()

    def add_cleanup_error(self, error: BaseException, what: str) -> None:
        """Keep an error of the close, of a ``cancel`` or of a tail."""
        if consists_of(error, self.cancelled):
            unasked = CleanupError(f"{what} raised a cancellation that nobody asked for")
            unasked.__cause__ = error
            error = unasked
        self.cleanup_errors.append(error)
