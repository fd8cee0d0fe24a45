"""What was done to the streams of one program, and whether that keeps the promise.

A `Witness` makes what sources hold, and what guards call, so that it sees each of them opened, closed, cut or called.
`Witness.broken_promises` says what is wrong once the program is over; nothing, if the promise was kept.
"""

import asyncio
import contextvars
import itertools
import logging
import sys
import weakref
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.lowlevel
import trio

from nothing_left import LOGGERS, tasks
from spies import this_task
from streamguard import EndReason, StreamEnd
from turns import CleanupFault

var: contextvars.ContextVar[str] = contextvars.ContextVar("var", default="outside")


def backend() -> str:
    return "trio" if trio.lowlevel.in_trio_task() else "asyncio"


def call_soon(function: Callable[[], object]) -> None:
    """Have the event loop call this at its next turn."""
    if backend() == "trio":
        trio.lowlevel.current_trio_token().run_sync_soon(function)
    else:
        asyncio.get_running_loop().call_soon(function)


pace: contextvars.ContextVar[Callable[[], float]] = contextvars.ContextVar("pace", default=lambda: 0.0)
"""How many seconds the next pause takes; 0 for one turn of the loop."""


CLEANUP = 0.1
"""How much quicker a cleanup is: a close is patient for a second, then it hurries on what was dropped."""


HURRIED = "streamguard: the close of"
"""What the task is called that does this."""


async def pause(share: float = 1) -> None:
    """Wait for something that comes at the next turn of the loop, or after a while."""
    if seconds := pace.get()() * share:
        await anyio.sleep(seconds)
        return
    event = anyio.Event()
    call_soon(event.set)
    await event.wait()


def leaves_of(error: BaseException | None) -> Iterator[BaseException]:
    """An error, or those in a group, with what they were raised from."""
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for member in error.exceptions:
                yield from leaves_of(member)
        error = error.__cause__


class Resource:
    """What a source holds while it is open: left once, in the task that entered it, and not cut meanwhile."""

    def __init__(
        self, witness: "Witness", name: str, turns: int = 2, *, fails: bool = False, dropped: bool = False
    ) -> None:
        self.name = name
        self.cleanups = 0
        self.closed = False
        self.by_itself = False
        """Whether the source left it of its own: such a cleanup is part of a step, which may be cancelled."""
        self.ended = False
        """Whether the source left it without an error: at its own end, most of the time."""
        self.at_its_end = False
        """Whether its source has said that nothing follows, and so may be closed at once."""
        self.cut = False
        self._witness = witness
        self._turns = turns
        self._fails = fails
        self.dropped = dropped
        """Whether its source is dropped while another one runs: asyncio's loop closes such a one itself."""

    async def __aenter__(self) -> Self:
        self._task = this_task()
        self._witness.resources.append(self)
        self._witness.log.append(f"open {self.name}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cleanups += 1
        self.by_itself = error is None or not isinstance(error, GeneratorExit | anyio.get_cancelled_exc_class())
        if not (self.by_itself or self.at_its_end or self.dropped):
            self._witness.log.append(f"closing {self.name}")
        self.ended = error is None
        self._check_task()
        try:
            for _ in range(self._turns):
                await pause(CLEANUP)
        except BaseException:
            self.cut = True
            if self.by_itself:
                self._witness.displaced += leaves_of(error)
            raise
        self._check_task()
        self.closed = True
        self._witness.log.append(f"closed {self.name}")
        if self._fails:
            self._witness.eats_cancellations |= _is_cancellation(error)
            fault = CleanupFault(self.name)
            fault.__cause__ = error if self.by_itself else None
            self._witness.fail(fault)

    def _check_task(self) -> None:
        task: Any = this_task()
        if task is self._task or (self.dropped and backend() == "asyncio"):
            return
        name = task.name if backend() == "trio" else task.get_name()
        if self._witness.is_in_a_crowd and name.startswith(HURRIED):
            self._witness.hurried += 1
        else:
            self._witness.note(f"{self.name} is closed in another task")

    def faults(self, *, may_cut: bool) -> Iterator[str]:
        if self.cleanups != 1:
            yield f"{self.name} was cleaned up {self.cleanups} times"
        elif self.cut and not (may_cut or self.by_itself):
            yield f"the cleanup of {self.name} was cut"
        elif not (self.closed or self.cut):
            yield f"the cleanup of {self.name} has not ended"


class Witness:
    """Of one program: what its sources hold, its tail, what left the block, what was logged."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.items: list[int] = []
        self.resources: list[Resource] = []
        self.raised: list[BaseException] = []
        """What the body, a source, a cleanup raised on purpose."""
        self.displaced: list[BaseException] = []
        """Errors of a source whose own cleanup was cancelled, as part of a step: Python keeps only the cancellation."""
        self.records: list[logging.LogRecord] = []
        self.ends: list[StreamEnd[int]] = []
        """What the tail was given."""
        self.tail_failed = False
        self.end: StreamEnd[int] | None = None
        self.entered = False
        self.has_left = False
        self.body: BaseException | None = None
        """What the body raised."""
        self.left_by: BaseException | None = None
        self.at_its_end = False
        """Whether nothing follows but one last checkpoint."""
        self.may_skip = False
        """Whether the source makes one item less if its fuse is lit."""
        self.eats_cancellations = False
        """Whether a cleanup has failed while a cancellation passed: in the reader's own task, that one is gone."""
        self.cancels: list[tuple[object, ...]] = []
        """What the guard's `cancel` was called with: a chain's with the source."""
        self.fuse: Callable[[], object] = lambda: None
        """Sets off what the source has prepared."""
        self.lock = anyio.Lock()
        self.asked_to_close = anyio.Event()
        self.stream: Any = None
        self.read_scope: anyio.CancelScope | None = None
        self._faults: list[str] = []
        self._handler = _Handler(self.records)
        self._others: set[object] | None = None
        """Tasks that are not left behind; in a crowd none is looked at."""
        self.hurried = 0
        """How often, in a crowd, a close was so late that what was dropped was closed in another task."""
        self._generators: list[weakref.ref[AsyncGenerator[Any, Any]]] = []

    @property
    def is_in_a_crowd(self) -> bool:
        """Whether others run beside it, so that this one was not started."""
        return self._others is None

    def note(self, fault: str) -> None:
        """Something is wrong."""
        self._faults.append(fault)

    def fail(self, error: BaseException) -> None:
        """Raise an error that must not be lost."""
        self.raised.append(error)
        raise error

    # -- what a program is made of

    def resource(self, name: str, turns: int = 2, *, fails: bool = False, dropped: bool = False) -> Resource:
        return Resource(self, name, turns, fails=fails, dropped=dropped)

    async def cancel(self, *source: object) -> None:
        self.cancels.append(source)
        self.log.append("cancelling")
        await pause()
        self.log.append("cancel")

    async def tail(self, end: StreamEnd[int]) -> None:
        self.ends.append(end)
        await pause()
        self.log.append("tail")

    def cancel_at_once(self, *source: object) -> None:
        self.cancels.append(source)
        self.log.append("cancel")

    def tail_at_once(self, end: StreamEnd[int]) -> None:
        self.ends.append(end)
        self.log.append("tail")

    def see_closed(self) -> None:
        """Somebody was told that all is closed."""
        open_ones = [resource.name for resource in self.resources if not (resource.closed or resource.cut)]
        if open_ones:
            self.note(f"aclose() returned before {open_ones} were closed")

    def leave(self, error: BaseException | None) -> None:
        """The block has been left: look at once at what is there."""
        self.has_left = True
        self.left_by = error
        self._faults += [f"left behind: {thing}" for thing in self._left()]
        if var.get() != "outside":
            self.note("a context variable leaked")
        if self.lock.locked():
            self.note("the lock is held")

    # -- around it

    def start(self) -> None:
        self._others = set(tasks(backend()))
        # Tuples: the collector cannot see into what Python returns here.
        self._hooks = firstiter, finalizer = tuple(sys.get_asyncgen_hooks())
        self._tell_loop = firstiter or _nothing
        sys.set_asyncgen_hooks(self._firstiter, finalizer)
        for name in LOGGERS:
            logging.getLogger(name).addHandler(self._handler)
        sys.unraisablehook = self._on_unraisable
        if backend() == "asyncio":
            asyncio.get_running_loop().set_exception_handler(self._on_loop_error)

    def expect(self, task: object) -> None:
        """This task is the program's own."""
        if self._others is not None:
            self._others.add(task)

    def stop(self) -> None:
        if sys.get_asyncgen_hooks() != (self._firstiter, self._hooks[1]):
            self.note("the hooks for async generators are not those before")
        sys.set_asyncgen_hooks(*self._hooks)
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(self._handler)
        sys.unraisablehook = sys.__unraisablehook__
        if backend() == "asyncio":
            asyncio.get_running_loop().set_exception_handler(None)

    def started(self, generator: AsyncGenerator[Any, Any]) -> None:
        """A generator of the program is iterated for the first time."""
        self._generators.append(weakref.ref(generator))

    def _firstiter(self, generator: AsyncGenerator[Any, Any]) -> None:
        self.started(generator)
        self._tell_loop(generator)

    def _on_unraisable(self, unraisable: Any) -> None:
        self.note(f"unraisable: {unraisable.err_msg} {unraisable.exc_value!r} in {unraisable.object!r}")

    def _on_loop_error(self, _: object, context: dict[str, Any]) -> None:
        self.note(f"the loop: {context['message']} {context.get('exception')!r}")

    def _left(self) -> Iterator[object]:
        if self._others is not None:
            for task in tasks(backend()):
                if task not in self._others and task is not this_task():
                    yield task
        for reference in self._generators:
            generator = reference()
            if generator is not None and generator.ag_frame is not None:  # type: ignore[attr-defined]
                yield generator

    # -- the promise

    def broken_promises(
        self, reasons: set[EndReason], *, may_raise: tuple[type[BaseException], ...] = (), bare: bool = False
    ) -> list[str]:
        """What is wrong; `bare` for an `Aclosing`, which promises less."""
        faults = self.wrong_resources(may_cut=bare)
        if not self.entered:
            return faults
        if not self.has_left:
            return [*faults, "the block was not left"]
        faults += self._wrong_errors(may_raise)
        if not bare:
            faults += self.wrong_calls()
            faults += self._wrong_end(reasons)
            if not self.cancels and not self._came_to_its_end():
                faults.append("cancel was not called")
        return faults

    def wrong_resources(self, *, may_cut: bool = False) -> list[str]:
        """What is wrong with what the sources held, and whatever was seen meanwhile."""
        faults = list(self._faults)
        for resource in self.resources:
            faults += resource.faults(may_cut=may_cut)
        return faults

    def _wrong_errors(self, may_raise: tuple[type[BaseException], ...]) -> Iterator[str]:
        left = self.left_by
        if left is not None and not _is_cancellation(left):
            known = [error for error in leaves_of(left) if any(error is raised for raised in self.raised)]
            if not known and not isinstance(left, may_raise):
                yield f"{left!r} left the block"
        kept = self._kept_errors()
        for error in self.raised:
            seen = any(error is other for other in leaves_of(left))
            seen = seen or any(error is other for other in self.displaced)
            if not seen and not any(error is other for one in kept for other in leaves_of(one)):
                yield f"{error!r} was lost"
        logged: Counter[int] = Counter()
        for record in self.records:
            secondary = record.exc_info[1] if record.exc_info else None
            if secondary is None or all(secondary is not error for error in kept):
                yield f"logged: {record.getMessage()}"
            logged[id(secondary)] += 1
        for error in kept:
            times = logged[id(error)]
            if times > 1 or (times == 0 and all(error is not other for other in leaves_of(left))):
                yield f"{error!r} was logged {times} times"

    def _kept_errors(self) -> list[BaseException]:
        """What is told in another way than by leaving the block."""
        if self.end is None:  # an Aclosing only logs
            logged = [record.exc_info[1] for record in self.records if record.exc_info]
            return [error for error in self.raised if any(error is other for other in logged)]
        return [error for error in self.end.cleanup_errors if error is not self.left_by]

    def wrong_calls(self) -> Iterator[str]:
        """What is wrong with what is called once: `cancel`, the tail, the cleanup of a member before the next one."""
        if any(before == after for before, after in itertools.combinations(self.cancels, 2)):
            yield f"cancel was called {len(self.cancels)} times, with {self.cancels}"
        if self.log.count("cancel") != len(self.cancels):
            yield "cancel was cut"
        yield from self._closed_before_cancel()
        if self.log.count("tail") != 1 or len(self.ends) != 1:
            yield f"the tail was called {len(self.ends)} times and ended {self.log.count('tail')} times"
        elif self.log[-1] != "tail":
            yield f"the tail was not the last: {self.log}"
        members = list(dict.fromkeys(resource.name.partition(".")[0] for resource in self.resources))
        for member, following in itertools.pairwise(members):
            last = max(at for at, entry in enumerate(self.log) if _is_of(entry, member))
            first = min(at for at, entry in enumerate(self.log) if _is_of(entry, following))
            if last > first:
                yield f"{following} began before {member} was closed: {self.log}"

    def _last_member(self) -> list[Resource]:
        """What the member held that was opened last, less what it dropped."""
        last = self.resources[-1].name.partition(".")[0]
        return [one for one in self.resources if one.name.partition(".")[0] == last and not one.dropped]

    def _came_to_its_end(self) -> bool:
        """Whether the stream, or the running member of a chain, may have ended by itself; or there was none."""
        members = self.end.members if self.end is not None else ()
        if not self.resources or (members and all(member.reason is EndReason.UNSTARTED for member in members)):
            return True  # nothing was stepped; a background run may have begun by itself
        return all(one.ended or one.at_its_end for one in self._last_member())

    def wrong_drain(self) -> Iterator[str]:
        """What is wrong if a stream had all the time to come to its own end."""
        if self.resources and self.left_by is None:
            for one in self._last_member():
                if not (one.by_itself or one.at_its_end):
                    yield f"{one.name} was closed and not drained"

    def _closed_before_cancel(self) -> Iterator[str]:
        """Nothing of a member is closed, but what it closes itself, before `cancel` has ended, if that is called."""
        member, closing, cancelling, cancelled = "", "", False, False
        for entry in self.log:
            word, _, name = entry.partition(" ")
            match word:
                case "open" if name.partition(".")[0] != member:
                    member, closing, cancelled = name.partition(".")[0], "", False
                case "closing":
                    closing = name
                case "cancelling":
                    cancelling = True
                case "cancel":
                    cancelling, cancelled, closing = False, True, ""
            if closing and cancelling and not cancelled:
                yield f"{closing} was closed before cancel had ended: {self.log}"
                return

    def _wrong_end(self, reasons: set[EndReason]) -> Iterator[str]:
        end = self.end
        if end is None:
            yield "there is no end"
            return
        left = self.left_by
        if left is not None:
            reasons = {EndReason.CANCELLED if _is_cancellation(left) else EndReason.FAILED}
            if end.error is not left:
                yield f"{left!r} left the block, and {end.error!r} is in the end"
        if end.reason not in reasons:
            yield f"the reason is {end.reason}, not {reasons}"
        for told in self.ends:
            # A cancellation may come while the tail runs, too late for it.
            too_late = end.reason is EndReason.CANCELLED and not (self.body and _is_cancellation(self.body))
            too_late |= self.tail_failed and end.reason is EndReason.FAILED
            if (told.reason is not end.reason and not too_late) or (told.items, told.last) != (end.items, end.last):
                yield f"the tail was told {told.reason}, {told.items}, and the end is {end.reason}, {end.items}"
        for before, item in itertools.pairwise([0, *self.items]):
            if item not in (1, before + 1) and not (self.may_skip and item == before + 2):
                yield f"an item was lost or came twice: {self.items}"
        if end.items != len(self.items) or end.last != (self.items[-1] if self.items else None):
            yield f"{self.items} were read, and the end says {end.items}, {end.last}"
        if end.reason is EndReason.EXHAUSTED and self.cancels and not end.members:
            yield "cancel was called although the source came to its end"


def _nothing(_: object) -> None:
    pass


def _is_cancellation(error: BaseException | None) -> bool:
    return isinstance(error, anyio.get_cancelled_exc_class())


def _is_of(entry: str, member: str) -> bool:
    return entry.partition(" ")[2].partition(".")[0] == member


class _Handler(logging.Handler):
    def __init__(self, records: list[logging.LogRecord]) -> None:
        super().__init__(logging.WARNING)
        self._records = records

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append(record)
