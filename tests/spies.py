"""Counting what tasks do: how many are made, and how often each one gets the processor.

Nothing here measures time, so what is counted is the same on every machine.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio

DEBUG = sys.flags.dev_mode
ASYNCIO = [
    pytest.param(("asyncio", {"debug": DEBUG, "use_uvloop": False}), id="asyncio"),
    pytest.param(("asyncio", {"debug": DEBUG, "use_uvloop": True}), id="uvloop"),
]
on_asyncio = pytest.mark.parametrize("anyio_backend", ASYNCIO)
on_trio = pytest.mark.parametrize("anyio_backend", [pytest.param(("trio", {}), id="trio")])


def this_task() -> object:
    """The task that runs."""
    if _in_trio():
        return trio.lowlevel.current_task()
    return asyncio.current_task()


def _in_trio() -> bool:
    return "trio" in sys.modules and trio.lowlevel.in_trio_task()


@contextmanager
def spawned_tasks() -> Iterator[list[str]]:
    """The names of the tasks that are made meanwhile, in order."""
    with steps() as spy:
        yield spy.made


@contextmanager
def steps() -> Iterator["Steps"]:
    """Counts the steps of the tasks that are made meanwhile."""
    spy = Steps()
    if _in_trio():
        trio.lowlevel.add_instrument(spy)
        try:
            yield spy
        finally:
            trio.lowlevel.remove_instrument(spy)
    else:
        loop = asyncio.get_running_loop()
        before = loop.get_task_factory()
        loop.set_task_factory(spy.make)  # type: ignore[arg-type]
        try:
            yield spy
        finally:
            loop.set_task_factory(before)


class Steps(trio.abc.Instrument):
    """How often each task was stepped, by the name of its coroutine's function or of the task."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.count: Counter[object] = Counter()

    @property
    def total(self) -> int:
        return self.count.total()

    # on asyncio: a task factory

    def make(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(Counted(coroutine, self.count), loop=loop, **options)
        self.made.append(coroutine.__qualname__)
        return task

    # on trio: an instrument

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self.made.append(task.name)
        self.count[task] = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task in self.count:
            self.count[task] += 1


class Counted(Coroutine[Any, Any, Any]):
    """A coroutine that counts its steps."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], count: "Counter[object]") -> None:
        self._coroutine = coroutine
        self._count = count
        self.__qualname__ = coroutine.__qualname__
        self.__name__ = coroutine.__name__

    def send(self, value: Any) -> Any:
        self._count[self] += 1
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        self._count[self] += 1
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield from self._coroutine.__await__())
