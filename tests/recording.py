"""A source that writes down what happens to it, a consumer that leaves it, and how that consumer ended."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import pytest

from spies import ASYNCIO
from streamguard import StreamEnd, guarded_stream

Body = Callable[[int], Awaitable[bool]]
Opener = Callable[[AsyncGenerator[int, None]], AbstractAsyncContextManager[AsyncIterator[int]]]

# Native cancellation is asyncio's: on trio there are only scopes.
only_asyncio = pytest.mark.parametrize(
    "anyio_backend",
    ASYNCIO,
)


class Fault(Exception):
    """What the body or the source raises."""


def kind_of(error: BaseException) -> str:
    """The name of an error; one name for the cancellations of all backends."""
    return "cancelled" if isinstance(error, anyio.get_cancelled_exc_class()) else type(error).__name__


class Recording:
    """What happened to one stream, in order, and in which tasks its source ran."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.tasks: set[int] = set()
        self.end: StreamEnd[int] | None = None
        self.ends: list[StreamEnd[int]] = []
        """What the tail was given."""
        self.generator: AsyncGenerator[int, None] | None = None
        self.working = anyio.Event()
        """The body works, for ever."""
        self.holding = anyio.Event()
        """The source waits, for ever."""
        self.closing = anyio.Event()
        self.may_close = anyio.Event()
        self.may_close.set()

    def hold_the_close(self) -> None:
        self.may_close = anyio.Event()

    async def numbers(
        self, count: int = 3, *, hold_after: int | None = None, fail_after: int | None = None
    ) -> AsyncGenerator[int, None]:
        """The numbers from 1, with a cleanup that awaits several times."""
        self._here()
        try:
            for number in range(1, count + 1):
                yield number
                self._here()
                if number == hold_after:
                    self.holding.set()
                    await anyio.sleep_forever()
                if number == fail_after:
                    raise Fault
        except BaseException as error:
            self.log.append(kind_of(error))
            raise
        finally:
            self.log.append("closing")
            self.closing.set()
            await self.may_close.wait()
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
            self._here()
            self.log.append("closed")

    def _here(self) -> None:
        self.tasks.add(anyio.get_current_task().id)

    async def tail(self, end: StreamEnd[int]) -> None:
        self.ends.append(end)
        self.log.append("tail")

    def open(self, source: object = None, **options: Any) -> Any:
        """A guard around the source, with the tail that is recorded."""
        return guarded_stream(self.numbers() if source is None else source, tail=self.tail, **options)

    async def consume(self, body: Body, source: object = None, **options: Any) -> None:
        """A guarded loop: whether the body returns true, it breaks."""
        stream = self.open(source, **options)
        try:
            async with stream:
                async for number in stream:
                    if await body(number):
                        break
        finally:
            self.log.append("left")
            self.end = stream.end

    async def consume_by(self, opener: Opener, body: Body, **options: Any) -> None:
        """The same loop in a block of another kind. The reference that is kept keeps an unclosed source open."""
        self.generator = self.numbers(**options)
        try:
            async with opener(self.generator) as stream:
                async for number in stream:
                    if await body(number):
                        break
        finally:
            self.log.append("left")

    async def work(self, _: int) -> bool:
        """A body that works for ever."""
        self.working.set()
        await anyio.sleep_forever()
        return False


async def go_on(_: int) -> bool:
    """A body that only reads on."""
    return False


async def leave(_: int) -> bool:
    """A body that breaks at the first item."""
    return True


async def fail(_: int) -> bool:
    """A body that raises at the first item."""
    raise Fault


def outcome_of(task: "asyncio.Task[Any]") -> str:
    """How a native task ended."""
    if task.cancelled():
        return "cancelled"
    error = task.exception()
    return "returned" if error is None else type(error).__name__
