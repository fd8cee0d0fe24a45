"""A sync iterable, stepped and closed in worker threads."""

import threading
from collections.abc import Iterator

import anyio
import anyio.to_thread
import pytest

from streamguard._threads import InThreads

pytestmark = pytest.mark.anyio


async def test_items() -> None:
    """It gives what the iterable gives, and ends with it."""
    assert [item async for item in InThreads("abc")] == ["a", "b", "c"]


async def test_error() -> None:
    """What the iterable raises arrives."""

    def items() -> Iterator[int]:
        yield 1
        raise OSError("of the iterable")

    stream = InThreads(items())
    assert await anext(stream) == 1
    with pytest.raises(OSError, match="of the iterable"):
        await anext(stream)


async def test_closed_before_it_was_read() -> None:
    """What can be closed is, read or not."""

    class Items:
        closed = False

        def __iter__(self) -> "Items":
            return self

        def __next__(self) -> int:
            return 1

        def close(self) -> None:
            self.closed = True

    items = Items()
    await InThreads(items).aclose()
    assert items.closed


async def test_nothing_to_close() -> None:
    """A list has no close."""
    await InThreads([1]).aclose()


async def test_close_waits_for_the_step() -> None:
    """A generator is never closed while another thread runs it: Python would refuse."""
    log: list[str] = []
    stepping, may_go_on = threading.Event(), threading.Event()

    def items() -> Iterator[int]:
        try:
            stepping.set()
            may_go_on.wait(10)
            log.append("stepped")
            yield 1
        finally:
            log.append("closed")

    stream = InThreads(items())
    async with anyio.create_task_group() as group:
        group.start_soon(stream.__anext__)
        await anyio.to_thread.run_sync(stepping.wait, 10)
        group.start_soon(stream.aclose)
        await anyio.wait_all_tasks_blocked()
        may_go_on.set()
    assert log == ["stepped", "closed"]


def test_name() -> None:
    """In messages it goes by the name of the iterable."""

    def items() -> Iterator[int]:
        yield 1

    assert InThreads(items()).__qualname__.endswith("items")
    assert InThreads([1]).__qualname__ == "list"


def test_no_iterable() -> None:
    """What cannot be iterated is refused at once."""
    with pytest.raises(TypeError, match="not iterable"):
        InThreads(1)  # type: ignore[arg-type]
