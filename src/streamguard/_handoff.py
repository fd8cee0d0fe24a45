"""How one item gets from the owner task to the reader, and how each wakes the other.

The rule kept here: an item goes through a slot, never through the reader's wait: a reader whose wait is cancelled just
leaves, and the item stands for the next one. How tasks wait and wake is the backend's (`_asyncio`, `_trio`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable
from typing import Any, Generic, NoReturn, TypeVar

from ._end import EndReason

T = TypeVar("T")

EMPTY: Any = object()


_NOTHING_AHEAD: deque[Any] = deque(maxlen=0)


class Handoff(Generic[T]):
    """The slot between one reader and the owner."""

    __slots__ = (
        "_ahead",
        "_failure",
        "_given_failure",
        "_prefetch",
        "_slot",
        "items",
        "last",
        "matching",
        "name",
        "over",
        "overtaken",
        "reader",
        "reading",
        "reason",
        "started",
        "wanted",
    )

    cancelled: type[BaseException]
    """The backend's cancellation."""

    def __init__(self, name: str, prefetch: int) -> None:
        self.name = name
        """What is read, for messages."""
        self.reader: Any = None
        """What wakes the waiting reader, until it is woken; the backend's."""
        self.reading = False
        """Whether a reader is at work, so that another one is refused."""
        self.started = False
        """Whether the owner was started."""
        self.wanted = False
        """Whether the source is to make another item."""
        self.over = False
        """Whether no further item is taken in; those that stand are handed out, unless they were dropped."""
        self.matching = False
        """Whether the item that came in last is the last one."""
        self.reason: EndReason | None = None
        """What ended the stream, if something did before the block was left."""
        self.items = 0
        self.last: T | None = None
        self.overtaken: BaseException | None = None
        """The source's error that stood behind items which nobody read."""
        self._prefetch = prefetch
        self._slot: T = EMPTY
        self._ahead: deque[T] = deque() if prefetch else _NOTHING_AHEAD
        self._failure: BaseException | None = None
        self._given_failure: BaseException | None = None

    # -- what a backend brings

    def park(self) -> Awaitable[None]:
        """Wait, in the owner task, for `unpark`."""
        raise NotImplementedError

    def unpark(self) -> None:
        """Wake the owner if it is parked."""
        raise NotImplementedError

    def let_others_run(self) -> Awaitable[None]:
        """Wait, in the owner task, until all others had their turn."""
        raise NotImplementedError

    def ask(self) -> Awaitable[None]:
        """Wake the owner, and wait, in the reader's task, for `notify`; sets `reader` meanwhile."""
        raise NotImplementedError

    def notify(self) -> None:
        """Wake the reader if one waits."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the owner, which makes an item if one is wanted."""
        raise NotImplementedError

    # -- the reader's side

    async def pull(self) -> T:
        """Hand out the next item."""
        if self.reading:
            self._refuse()
        if self._slot is EMPTY and not self.over and self._failure is None:
            self.wanted = True
            if not self.started:
                self.start()
            # A task that starts eagerly may have brought the outcome already.
            if self.wanted:
                self.reading = True
                try:
                    await self.ask()
                finally:
                    self.reading = False
        item = self._slot
        if item is EMPTY:
            self._end_of_reading()
        self._slot = EMPTY
        self.items += 1
        self.last = item
        if self.matching:
            self._match()
        return item

    async def pull_ahead(self) -> T:
        """Hand out the next item of a source that runs ahead of the reader."""
        ahead = self._ahead
        if self.reading or not ahead:
            await self._wait_for_some()
        item = ahead.popleft()
        self.items += 1
        self.last = item
        if not self.wanted:
            self._go_on()
        return item

    async def _wait_for_some(self) -> None:
        if self.reading:
            self._refuse()
        if self._is_dry():
            self.wanted = True
            if not self.started:
                self.start()
            if self._is_dry():
                self.reading = True
                try:
                    await self.ask()
                finally:
                    self.reading = False
        if not self._ahead:
            self._end_of_reading()

    def _is_dry(self) -> bool:
        return not self._ahead and not self.over and self._failure is None

    def _go_on(self) -> None:
        """Have the source fill up again what was taken, if it is not at its end."""
        if self.matching:
            if not self._ahead:
                self._match()
        elif not self.over and self._failure is None:
            self.wanted = True
            self.unpark()

    def _refuse(self) -> NoReturn:
        raise RuntimeError(
            f"the stream of {self.name} is being read by another task; "
            "let one task read it, or open one stream for each"
        )

    def _match(self) -> None:
        self.over = True
        self.reason = self.reason or EndReason.MATCHED

    def _end_of_reading(self) -> NoReturn:
        if self.over or self._failure is None:
            raise StopAsyncIteration
        failure, self._failure = self._failure, None
        self.over = True
        self._given_failure = failure
        try:
            raise failure
        finally:
            del failure  # its traceback holds this frame

    def stop(self, reason: EndReason = EndReason.STOPPED) -> None:
        """End the reader's loop; what nobody read is dropped. The source is closed when the block is left."""
        if self._ahead:
            self._ahead.clear()
            self.reason = reason  # it may have come to its end, the reader did not
            self.overtaken, self._failure = self._failure, None
        if not self.over:
            self.over = True
            self.reason = self.reason or reason
        self._slot = EMPTY
        self.wanted = False
        self.notify()

    # -- the owner's side

    def offer(self, item: T) -> None:
        """Put an item where the reader finds it."""
        if self._prefetch:
            self._ahead.append(item)
            self.wanted = not self.matching and len(self._ahead) < self._prefetch
        else:
            self._slot = item
            self.wanted = False
        if self.reader is not None:
            self.notify()

    def offer_end(self) -> None:
        """Let the reader know that the source came to its end."""
        self.reason = self.reason or EndReason.EXHAUSTED
        self.over = True
        self.wanted = False
        self.notify()

    def offer_failure(self, error: BaseException) -> None:
        """Have an error of the source raised at the next read."""
        self.reason = self.reason or EndReason.FAILED
        self._failure = error
        self.wanted = False
        self.notify()

    def end_of_task(self) -> None:
        """Let the reader know that nothing more will come."""
        self.over = self.over or self._failure is None
        self.wanted = False
        self.notify()

    # -- for whoever leaves the block

    def is_known(self, error: BaseException) -> bool:
        """Whether this is the error that ended the source, which is told elsewhere."""
        return error is self._failure or error is self._given_failure or error is self.overtaken

    def take_failure(self) -> BaseException | None:
        """The source's error that nobody read."""
        failure, self._failure = self._failure, None
        return failure

    def take_given_failure(self) -> BaseException | None:
        """The source's error that the reader was given; forgotten here, since its traceback holds the owner."""
        failure, self._given_failure = self._given_failure, None
        return failure
