"""What was left is told once, to whoever takes it, whatever happens meanwhile."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from types import FrameType

import pytest

from streamguard._tracker import Tracker


async def numbers() -> AsyncGenerator[int, None]:
    yield 1
    yield 2


async def leave() -> None:
    async for _ in numbers():
        break


def name_of_the_caller(frame: FrameType) -> str:
    return frame.f_code.co_name


@pytest.fixture
def tracker() -> Iterator[Tracker]:
    """Tags what is left with the name of the function that left it."""
    tracker = Tracker(tag_of=name_of_the_caller)
    tracker.start()
    yield tracker
    tracker.stop()


def test_taken_once(tracker: Tracker) -> None:
    """What was found, and then taken, is not found again."""
    asyncio.run(leave())
    assert list(tracker.found().values()) == [1]
    taken = tracker.take(lambda tag: tag == "leave")
    assert [(tag, leak.name, count) for (tag, _, leak), count in taken.items()] == [("leave", "numbers", 1)]
    assert not tracker.found()
    assert not tracker.take(lambda tag: tag == "leave")


def test_others_are_not_taken(tracker: Tracker) -> None:
    """What has another tag stays for whoever asks for that, also when it was found before."""
    asyncio.run(leave())
    assert tracker.found()
    assert not tracker.take(lambda tag: tag == "somebody else")
    assert tracker.take(lambda tag: tag == "leave")


def test_taken_while_it_is_taken(tracker: Tracker) -> None:
    """A call in the middle of another one, as from a finaliser, takes the rest; all is taken once."""
    for _ in range(3):
        asyncio.run(leave())
    inner: list[int] = []

    def which(tag: object) -> bool:
        if not inner:
            inner.append(tracker.take(lambda tag: tag == "leave").total())
        return tag == "leave"

    assert tracker.take(which).total() == 1
    assert inner == [2]
    assert not tracker.found()
