"""What a guarded stream and a guarded chain do, as simply as it can be said: no task, no event loop, no waiting.

A source is a plain generator here, which gives items, and `GATE` where it would wait; Python's own rules for closing
and throwing hold for it. What waits in the real thing is a generator as well: a pending read is one that has yielded.
"""

from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field

GATE = -1
"""What a source gives instead of an item while it waits."""
FROM_THE_SCOPE = 99
FROM_THE_CLEANUP = 98


@dataclass(frozen=True)
class Script:
    """What one source does: its steps, what comes after its scope was cancelled around them, and its cleanup."""

    steps: tuple[str, ...] = ("item",)
    scope: str = ""
    cleanup: str = ""


@dataclass(frozen=True)
class Options:
    """Of the guard; items are told by their number inside their source."""

    until: int | None = None
    skipped: int | None = None
    prefetch: int = 0
    drains: bool = False


class Problem(Exception):
    """An error, by its name."""


class End(Exception):
    """The reader's loop ends."""


class Misuse(Exception):
    """A RuntimeError that says what to do instead."""


class Fired(Exception):
    """The cancellation of the source's own scope."""


class Cut(BaseException):
    """The cancellation by which a source is closed that waits."""


@dataclass
class Ended:
    """How a stream ended."""

    reason: str
    items: int
    last: int | None
    cleanup_errors: list[str]
    left_by: str | None = None
    members: "list[Ended]" = field(default_factory=list)


@dataclass
class Outcome:
    """What went wrong, and what of it leaves the block."""

    body: str | None = None
    unread: str | None = None
    errors: list[str] = field(default_factory=list)
    overtaken: list[str] = field(default_factory=list)

    @property
    def leaving(self) -> str | None:
        return next((error for error in (self.body, self.unread, *self.errors) if error), None)

    def reason(self, ended: str | None) -> str:
        if self.leaving:
            return "CANCELLED" if self.leaving == "cancelled" else "FAILED"
        return ended or "LEFT"

    def others(self) -> list[str]:
        displaced = [error for error in (self.unread, *self.overtaken) if error and error != self.leaving]
        return displaced + self.errors


class Member:
    """One stream: its source, what it has made and nobody read, and what ended it."""

    def __init__(self, script: Script, index: int, options: Options, stop: Callable[[], None]) -> None:
        self.script = script
        self.index = index
        self.options = options
        self.gates_open = 0
        self.ahead: deque[int] = deque()
        self.wanted = False
        self.reading = False
        self.stopped_while_read = False
        self.over = False
        self.matching = False
        self.exhausted = False
        self.closed = False
        self.reason: str | None = None
        self.failure: str | None = None
        self.items = 0
        self.last: int | None = None
        self.outcome = Outcome()
        self._source = self._behave()
        self._started = False
        self._ended = False
        self._waits = False
        self._in_scope = False
        self._draining = False
        self._stop = stop

    @property
    def state(self) -> tuple[object, ...]:
        """Where it is; what a test may count."""
        standing = (len(self.ahead), self.wanted, self.reading, self.over, self.matching, self.failure is not None)
        return (*standing, self.closed, self.reason, self._started, self._ended, self._waits, self._in_scope)

    # -- the source

    def _behave(self) -> Generator[int, None, None]:
        try:
            try:
                yield from self._step()
            finally:
                if self.script.cleanup == "yields":
                    yield FROM_THE_CLEANUP
        finally:
            if self.script.cleanup == "fails":
                raise Problem(f"CleanupFault {self.index}.source")

    def _step(self) -> Generator[int, None, None]:
        self._in_scope = bool(self.script.scope)
        try:
            gates = 0
            for number, step in enumerate(self.script.steps):
                match step:
                    case "gate":
                        gates += 1
                        while self.gates_open < gates:
                            yield GATE
                    case "fail":
                        raise Problem(f"Fault {self.index}.{number}")
                    case "stop":
                        self._stop()
                    case _:
                        yield number
        except Fired:
            self._in_scope = False
            if self.script.scope == "fails":
                raise Problem(f"Fault {self.index}.scope") from None
            if self.script.scope == "goes on":
                yield FROM_THE_SCOPE
        finally:
            self._in_scope = False

    def _advance(self, resume: Callable[[], int] | None = None) -> None:
        """Let the source make one item, come to its end, or wait."""
        self._started = True
        self._waits = False
        try:
            item = (resume or self._source.__next__)()
        except StopIteration:
            self._close_down()
            self.exhausted = self.over = True
            self.reason = self.reason or "EXHAUSTED"
        except Problem as problem:
            self._close_down()
            if self._draining or self.closed:
                self.outcome.errors.append(str(problem))
                return
            self.reason = self.reason or "FAILED"
            self.failure = str(problem)
        else:
            if item == GATE:
                self._waits = True
            elif not self.over and item != self.options.skipped:
                self.matching = item == self.options.until
                self.ahead.append(100 * self.index + item)
                self.wanted = len(self.ahead) < self.options.prefetch and not self.matching

    def _close_down(self) -> None:
        self.wanted = False
        self._ended = True

    def _run(self) -> None:
        """Step the source as long as items are wanted, unless it waits."""
        while (self.wanted or self._draining) and not self._ended and not self._waits:
            self._advance()

    # -- what happens to it

    def open_gate(self) -> None:
        self.gates_open += 1
        if self._waits:
            self._advance()
            self._run()

    def fire(self) -> None:
        """Cancel the scope inside the source."""
        if not self._started or self._ended or not self._in_scope:
            return
        waited = self._waits
        self._advance(lambda: self._source.throw(Fired()))
        if waited:
            self._run()
        else:
            self.wanted = False  # one outcome stands ahead, until the next read

    def stop(self, reason: str = "STOPPED") -> None:
        self.stopped_while_read = self.reading
        if self.ahead:
            self.ahead.clear()
            self.reason = reason
            if self.failure:
                self.outcome.overtaken.append(self.failure)
                self.failure = None
        if not self.over:
            self.over = True
            self.reason = self.reason or reason
        self.wanted = False

    def read(self) -> Generator[None, None, int]:
        """Read one item; yields as long as it waits."""
        if self.reading:
            raise Misuse
        self.stopped_while_read = False
        if not (self.ahead or self.over or self.failure):
            self.reading = True
            try:
                self.wanted = True
                self._run()
                while not (self.ahead or self.over or self.failure):
                    yield
            finally:
                self.reading = False
        if not self.ahead:
            if self.over or not self.failure:
                raise End
            failure, self.failure = self.failure, None
            self.over = True
            raise Problem(failure)
        item = self.ahead.popleft()
        self.items += 1
        self.last = item
        if self.matching and not self.ahead:
            self.over = True
            self.reason = self.reason or "MATCHED"
        elif self.options.prefetch and not (self.matching or self.over or self.failure):
            self.wanted = len(self.ahead) < self.options.prefetch
            self._run()
        return item

    def drain(self) -> None:
        if self._started and not self.closed and not self._ended:
            self._draining = True
            self.stop("LEFT")
            self._run()
            self._draining = False

    def close(self, reason: str) -> None:
        """Close the source, once."""
        self.stop(reason)
        if self.closed:
            return
        self.closed = True
        if not self._started or self._ended:
            return
        try:
            if self._waits:
                self._step_on(self._source.throw(Cut()))
            else:
                self._source.close()
        except RuntimeError:  # it yields while it is closed
            self._step_on(FROM_THE_CLEANUP)
        except Problem as problem:
            self.outcome.errors.append(str(problem))
        except (Cut, StopIteration):
            pass

    def _step_on(self, _: int) -> None:
        self.outcome.errors.append("CleanupError")
        with suppress(Cut, GeneratorExit):
            for _item in self._source:
                pass


class Stream:
    """A guarded stream."""

    def __init__(self, script: Script, options: Options) -> None:
        self.options = options
        self.member = Member(script, 0, options, self.stop)
        self.end: Ended | None = None

    @property
    def members(self) -> list[Member]:
        return [self.member]

    def read(self) -> Generator[None, None, int]:
        return self.member.read()

    def stop(self) -> None:
        self.member.stop()

    def aclose(self) -> None:
        if self.end is None:
            self.member.close("STOPPED")

    def leave(self, body: str | None) -> None:
        """Leave the block."""
        self.end = close_member(self.member, body, drains=self.options.drains)


def close_member(member: Member, body: str | None, *, drains: bool) -> Ended:
    """Close one stream; how it ended."""
    if drains and body is None:
        member.drain()
    member.close("LEFT")
    outcome = member.outcome
    outcome.body = body
    outcome.unread, member.failure = member.failure, None
    return Ended(outcome.reason(member.reason), member.items, member.last, outcome.others(), outcome.leaving)


class Chain:
    """A guarded chain."""

    def __init__(self, scripts: list[Script], options: Options) -> None:
        self.options = options
        self.members = [Member(script, index, options, self.stop) for index, script in enumerate(scripts)]
        """All that were ever given."""
        self.member: Member | None = None
        self.end: Ended | None = None
        self._queue = deque(self.members)
        self._hand_offs: deque[Member] = deque()
        self._replacing = False
        self._reading = False
        self._reason: str | None = None
        self._outcome = Outcome()
        self._ends: list[Ended] = []
        self._closed = False

    def then(self, script: Script) -> None:
        self._queue.append(self._given(script))

    def hand_off(self, script: Script) -> None:
        self._hand_offs.append(self._given(script))
        self._replacing = self.member is not None

    def _given(self, script: Script) -> Member:
        if self.end is not None or self._reason:
            raise Misuse
        member = Member(script, len(self.members), self.options, self.stop)
        self.members.append(member)
        return member

    def read(self) -> Generator[None, None, int]:
        if self._reading:
            raise Misuse
        self._reading = True
        try:
            while True:
                member = self.member
                if member is None or (self._replacing and member.reason != "MATCHED"):
                    member = self._advance()
                try:
                    return (yield from member.read())
                except End:
                    if self.member is not member:
                        raise
                    if not member.exhausted or member.stopped_while_read:
                        self._reason = self._reason or member.reason
                        raise
                    self._close_current()
        finally:
            self._reading = False

    def _advance(self) -> Member:
        if self.member is not None and not self._reason:
            self._close_current()
        if not self._reason and not (self._hand_offs or self._queue):
            self._reason = "EXHAUSTED"
        if self._reason:
            raise End
        self._replacing = False
        self.member = (self._hand_offs or self._queue).popleft()
        return self.member

    def _close_current(self) -> None:
        self._replacing = False
        self._close_member(None, leaving=False)

    def _close_member(self, body: str | None, *, leaving: bool) -> None:
        member = self.member
        assert member is not None
        end = close_member(member, body, drains=leaving and self.options.drains)
        if not leaving:
            end.reason = member.reason or "LEFT"
        end.left_by = None
        self.member = None
        self._ends.append(end)
        self._outcome.errors += member.outcome.errors
        self._outcome.overtaken += member.outcome.overtaken
        if not self._outcome.unread:
            self._outcome.unread = member.outcome.unread
        elif member.outcome.unread:
            self._outcome.overtaken.append(member.outcome.unread)

    def stop(self) -> None:
        if self.end is None:
            self._reason = self._reason or "STOPPED"
            if self.member is not None:
                self.member.stop()

    def aclose(self) -> None:
        if self.end is None:
            self.stop()
            self._close_all(None, leaving=False)

    def _close_all(self, body: str | None, *, leaving: bool) -> None:
        if self._closed:
            return
        self._closed = True
        if self.member is not None:
            self._close_member(body, leaving=leaving)
        while self._hand_offs or self._queue:
            (self._hand_offs or self._queue).popleft()
            self._ends.append(Ended("UNSTARTED", 0, None, []))

    def leave(self, body: str | None) -> None:
        """Leave the block."""
        self._outcome.body = body
        self._reason = self._reason or "LEFT"
        self._close_all(body, leaving=True)
        outcome = self._outcome
        lasts = [end.last for end in self._ends if end.items]
        items = sum(end.items for end in self._ends)
        self.end = Ended(
            outcome.reason(self._reason),
            items,
            lasts[-1] if lasts else None,
            outcome.others(),
            outcome.leaving,
            self._ends,
        )
