"""How one item gets from the owner task to the reader, and how each wakes the other.

The rule kept here: an item goes through a queue, never through the reader's wait: a reader whose wait is cancelled just
leaves, and the item stands for the next one. How tasks wait and wake is the backend's (`_asyncio`, `_trio`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable
from typing import Any, Generic, NoReturn, TypeVar

from ._end import EndReason

T = TypeVar("T")


class Handoff(Generic[T]):
    """What stands between one reader and the owner."""

    __slots__ = (
        "_given_failure",
        "ahead",
        "calm",
        "failure",
        "items",
        "last",
        "matching",
        "name",
        "over",
        "overtaken",
        "prefetch",
        "reader",
        "reading",
        "reason",
        "resting",
        "started",
        "wanted",
    )

    cancelled: type[BaseException]
    """The backend's cancellation."""

    def __init__(self, name: str, prefetch: int) -> None:
        self.name = name
        """What is read, for messages."""
        self.prefetch = prefetch
        """How many items may stand ahead of the reader without having been asked for."""
        self.ahead: deque[T] = deque()
        """What the reader has not taken yet; at most one item if nothing is prefetched."""
        self.calm = False
        """Whether the next item has only to be put ahead: nobody waits for it, none is picked, nobody has stopped."""
        self.reader: Any = None
        """What wakes the waiting reader, until it is woken; the backend's."""
        self.reading = False
        """Whether a reader is at work, so that another one is refused."""
        self.started = False
        """Whether the owner was started."""
        self.wanted = False
        """Whether the source is to make another item."""
        self.resting = False
        """Whether there is something to do once the reader has taken an item: have more made, or end."""
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
        self.failure: BaseException | None = None
        """The source's error, until the reader is given it."""
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

    def offer(self, item: T) -> None:
        """Put an item where the reader finds it, and `notify`; in one call, since it is done for every item."""
        raise NotImplementedError

    def start(self) -> bool:
        """Start the owner, which makes an item if one is wanted; whether the reader has to wait for it."""
        raise NotImplementedError

    # -- the reader's side

    def refuse(self) -> NoReturn:
        """Tell a second reader."""
        raise RuntimeError(
            f"the stream of {self.name} is being read by another task; "
            "let one task read it, or open one stream for each"
        )

    def go_on(self) -> None:
        """Have the source make up for what was taken, or end with the item that matched."""
        if not self.matching:
            # What came of a timeout inside the source stands beside what it had made: first room, then more.
            if len(self.ahead) < self.prefetch and not self.over and self.failure is None:
                self.resting = False
                self.wanted = True
                self.unpark()
        elif not self.ahead:
            self.over = True
            self.reason = self.reason or EndReason.MATCHED

    def end_of_reading(self) -> NoReturn:
        """Give the reader the source's error, or its end."""
        if self.over or self.failure is None:
            raise StopAsyncIteration
        failure, self.failure = self.failure, None
        self.over = True
        self._given_failure = failure
        try:
            raise failure
        finally:
            del failure  # its traceback holds this frame

    def stop(self, reason: EndReason = EndReason.STOPPED) -> None:
        """End the reader's loop; what nobody read is dropped. The source is closed when the block is left."""
        if self.ahead:
            self.ahead.clear()
            self.reason = reason  # it may have come to its end, the reader did not
            self.overtaken, self.failure = self.failure, None
        if not self.over:
            self.over = True
            self.reason = self.reason or reason
        self.wanted = self.calm = False
        self.notify()

    # -- the owner's side

    def offer_end(self) -> None:
        """Let the reader know that the source came to its end."""
        self.reason = self.reason or EndReason.EXHAUSTED
        self.over = True
        self.wanted = False
        self.notify()

    def offer_failure(self, error: BaseException) -> None:
        """Have an error of the source raised at the next read."""
        self.reason = self.reason or EndReason.FAILED
        self.failure = error
        self.wanted = False
        self.notify()

    def end_of_task(self) -> None:
        """Let the reader know that nothing more will come."""
        self.over = self.over or self.failure is None
        self.wanted = False
        self.notify()

    # -- for whoever leaves the block

    def is_known(self, error: BaseException) -> bool:
        """Whether this is the error that ended the source, which is told elsewhere."""
        return error is self.failure or error is self._given_failure or error is self.overtaken

    def take_failure(self) -> BaseException | None:
        """The source's error that nobody read."""
        failure, self.failure = self.failure, None
        return failure

    def take_given_failure(self) -> BaseException | None:
        """The source's error that the reader was given; forgotten here, since its traceback holds the owner."""
        failure, self._given_failure = self._given_failure, None
        return failure


class Reader(Generic[T]):
    """The reader's side, as part of what the user holds: one coroutine for each item, nothing around it."""

    __slots__ = ()

    _owner: Handoff[T] | None
    """Of the source that is being read."""

    async def __anext__(self) -> T:
        """Hand out the next item."""
        owner = self._owner
        if owner is None:
            raise RuntimeError(f'{self!r} is read outside its block; use "async with" around the loop that reads it')
        del self  # an error of the source holds this frame
        if owner.reading:
            owner.refuse()
        if not owner.ahead:
            if not owner.over and owner.failure is None:
                owner.wanted = True
                owner.calm = False
                if owner.started or owner.start():
                    owner.reading = True
                    try:
                        await owner.ask()
                    finally:
                        owner.reading = False
            if not owner.ahead:
                owner.end_of_reading()
        item = owner.ahead.popleft()
        owner.items += 1
        owner.last = item
        if owner.resting:
            owner.go_on()
        return item
