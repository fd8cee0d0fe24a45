"""Agents of one turn that write down what happens to them, and the chain that they are members of."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel

from recording import Fault
from spies import this_task
from streamguard import EndReason, GuardedChain, StreamEnd, guarded_chain


class CleanupFault(Exception):
    """What a cleanup raises."""


class Turn:
    """What happened to the members of one chain, in order."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.ends: list[StreamEnd[str]] = []
        """What the tail was given."""
        self.tasks: dict[str, set[object]] = {}
        """In which tasks each member ran."""
        self.holding = anyio.Event()
        """A member waits, for ever."""
        self.closing = anyio.Event()
        """A member is in its cleanup."""
        self.may_close = anyio.Event()
        """What a cleanup that is held waits for."""

    async def agent(
        self,
        name: str,
        items: int = 2,
        *,
        hold_after: int | None = None,
        fail_after: int | None = None,
        hold_close: bool = False,
        cleanup_error: BaseException | None = None,
    ) -> AsyncGenerator[str, None]:
        """Some items, with a cleanup that awaits several times."""
        self._here(name)
        self.log.append(f"start {name}")
        try:
            for number in range(1, items + 1):
                yield f"{name}{number}"
                self._here(name)
                if number == hold_after:
                    self.holding.set()
                    await anyio.sleep_forever()
                if number == fail_after:
                    raise Fault(name)
        finally:
            self.closing.set()
            if hold_close:
                await self.may_close.wait()
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
            self._here(name)
            self.log.append(f"closed {name}")
            if cleanup_error is not None:
                raise cleanup_error

    def _here(self, name: str) -> None:
        self.tasks.setdefault(name, set()).add(this_task())

    async def tail(self, end: StreamEnd[str]) -> None:
        self.ends.append(end)
        await anyio.lowlevel.checkpoint()
        self.log.append("tail")

    def chain(self, *members: Any, **options: Any) -> GuardedChain[str]:
        """A chain with the tail that is recorded."""
        return guarded_chain(*members, tail=self.tail, **options)


class Closable:
    """An iterator that is no generator: its cleanup is no part of its last step, but all in its close."""

    def __init__(
        self,
        turn: Turn,
        name: str,
        items: int = 2,
        *,
        hold_close: bool = False,
        error: BaseException | None = None,
    ) -> None:
        self._turn = turn
        self._name = name
        self._items = items
        self._read = 0
        self._hold_close = hold_close
        self._error = error
        self.closes = 0

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        if self._read == 0:
            self._turn.log.append(f"start {self._name}")
        if self._read == self._items:
            raise StopAsyncIteration
        self._read += 1
        return f"{self._name}{self._read}"

    async def aclose(self) -> None:
        self.closes += 1
        self._turn.closing.set()
        if self._hold_close:
            await self._turn.may_close.wait()
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        self._turn.log.append(f"closed {self._name}")
        if self._error is not None:
            raise self._error


def reasons(chain: GuardedChain[Any]) -> list[EndReason]:
    """How each member ended, in order."""
    return [end.reason for end in chain.end.members]


async def read_all(chain: AsyncIterator[str]) -> list[str]:
    return [item async for item in chain]
