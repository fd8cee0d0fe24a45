"""A sync iterable as a stream: stepped and closed in worker threads.

The rule kept here: never in two threads at once. A thread cannot be cancelled, so the close waits for the step.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, Generic, Self, TypeVar

from anyio import to_thread

T = TypeVar("T")

_END: Any = object()


class InThreads(Generic[T]):
    """Steps an iterable as Starlette does, and closes it."""

    def __init__(self, iterable: Iterable[T]) -> None:
        self.__qualname__ = getattr(iterable, "__qualname__", type(iterable).__qualname__)  # for messages
        self._iterator = iter(iterable)
        self._turn = threading.Lock()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        item = await to_thread.run_sync(self._step)
        if item is _END:
            raise StopAsyncIteration
        return item

    async def aclose(self) -> None:
        if callable(getattr(self._iterator, "close", None)):
            await to_thread.run_sync(self._close)

    def _step(self) -> T:
        with self._turn:
            return next(self._iterator, _END)

    def _close(self) -> None:
        with self._turn:
            self._iterator.close()  # type: ignore[attr-defined]
