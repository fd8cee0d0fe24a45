"""Where something can happen to a program: before and after every step of its tasks, and at every turn of the loop.

`Points` counts them, and acts at those that it is asked to. Between two points nothing of the program runs, so whatever
else goes on in the event loop at the time of a cancellation, one of the points is as good as it.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import trio

Action = Callable[[], object]


class Points(trio.abc.Instrument):
    """Counts the points that a program passes, and does at each what is asked for."""

    def __init__(self, actions: Mapping[int, list[Action]]) -> None:
        self.passed = 0
        self._actions = dict(actions)
        self._here: object = None

    def passing(self) -> None:
        """Another point is passed."""
        self.passed += 1
        for act in self._actions.pop(self.passed, ()):
            act()

    @contextmanager
    def steps(self) -> Iterator[None]:
        """Count the steps of all tasks that are made meanwhile."""
        if trio.lowlevel.in_trio_task():
            self._here = trio.lowlevel.current_task()
            trio.lowlevel.add_instrument(self)
            try:
                yield
            finally:
                trio.lowlevel.remove_instrument(self)
            return
        loop = asyncio.get_running_loop()
        before = loop.get_task_factory()
        loop.set_task_factory(self._make_task)
        try:
            yield
        finally:
            loop.set_task_factory(before)

    @contextmanager
    def turns(self) -> Iterator[None]:
        """Count the turns of asyncio's loop, at each of which all that is ready gets its step."""
        loop = asyncio.get_running_loop()
        running = True

        def turn() -> None:
            if running:
                loop.call_soon(turn)
                self.passing()

        loop.call_soon(turn)
        try:
            yield
        finally:
            running = False

    # on asyncio: a task factory

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        return asyncio.Task(Counted(coroutine, self.passing), loop=loop, **options)

    # on trio: an instrument

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is not self._here:
            self.passing()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is not self._here:
            self.passing()


class Counted(Coroutine[Any, Any, Any]):
    """A coroutine that tells before and after each of its steps."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], passing: Callable[[], None]) -> None:
        self._coroutine = coroutine
        self._passing = passing
        # The loop's finaliser makes a task of a bare `aclose()`, which has no name.
        self.__qualname__ = getattr(coroutine, "__qualname__", "aclose")
        self.__name__ = getattr(coroutine, "__name__", "aclose")

    def send(self, value: Any) -> Any:
        self._passing()
        try:
            return self._coroutine.send(value)
        finally:
            self._passing()

    def throw(self, *error: Any) -> Any:
        self._passing()
        try:
            return self._coroutine.throw(*error)
        finally:
            self._passing()

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield from self._coroutine.__await__())
