"""The limit of a close: what is left of it, how much of it a source has to itself, and what it says of what hangs."""

import types
from collections.abc import AsyncIterator, Generator
from typing import Any

import pytest

from streamguard._task import Limit


class Hand:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_is_left() -> None:
    """A limit runs from the moment it is made, several waits share it, and it never falls below nothing."""
    clock = Hand()
    limit = Limit(3.0, clock)
    assert (limit.left(), limit.left(at_most=1.0), limit.left(at_most=5.0)) == (3.0, 1.0, 3.0)
    clock.now += 2.5
    assert (limit.left(), limit.left(at_most=1.0)) == (0.5, 0.5)
    clock.now += 2.5
    assert (limit.left(), limit.left(at_most=1.0)) == (0.0, 0.0)


def test_no_limit() -> None:
    """Without a limit there is none, but for what a single wait may take at most."""
    clock = Hand()
    limit = Limit(None, clock)
    clock.now += 1e9
    assert (limit.left(), limit.left(at_most=1.0)) == (None, 1.0)


@pytest.mark.parametrize(
    ("seconds", "soft"), [(None, 1.0), (10.0, 1.0), (2.0, 1.0), (1.0, 0.5), (0.1, 0.05), (0.0, 0.0)]
)
def test_soft_wait(seconds: float | None, soft: float) -> None:
    """A source has one second to end by itself; of a limit under two seconds it has half."""
    assert Limit(seconds, Hand()).soft() == soft


def test_soft_wait_near_the_end() -> None:
    """Nor does it get more than what is left."""
    clock = Hand()
    limit = Limit(10.0, clock)
    clock.now += 9.75
    assert limit.soft() == 0.25


class Stubborn:
    """A task that does not end by itself, and after a cancellation only if it obeys."""

    done = cut = disturbed = False
    arrives = KeyboardInterrupt()
    """What arrives in each wait for it."""

    def __init__(self, coroutine: object, *, obeys: bool) -> None:
        self.coroutine = coroutine
        self.log: list[object] = []
        self._obeys = obeys

    async def join(self, seconds: float | None, remembered: list[BaseException]) -> bool:
        self.log.append(seconds)
        remembered.append(self.arrives)
        return self._obeys and "force" in self.log

    def force(self) -> None:
        self.log.append("force")

    def finish(self) -> None:
        self.log.append("finish")


@types.coroutine
def forever() -> Generator[None, None, None]:
    yield


async def hanging() -> AsyncIterator[int]:
    await forever()
    yield 1


def enforced(task: Any, *others: object) -> str:
    """What the error says of a limit of half a second."""
    remembered: list[BaseException] = []
    waits = Limit(0.5, Hand()).enforce(task, "the close of it", remembered, others)
    with pytest.raises(StopIteration) as caught:
        waits.send(None)
    assert remembered == [task.arrives, task.arrives]
    return str(caught.value.value)


def started() -> tuple[AsyncIterator[int], Any, str]:
    """A generator that hangs, what holds it there, and how the place reads."""
    generator = hanging()
    step = generator.__anext__()
    step.send(None)
    lines = f'  File "{__file__}", line {hanging.__code__.co_firstlineno + 1}, in hanging\n    await forever()\n'
    line = forever.__code__.co_firstlineno + 2
    return generator, step, f'{lines}  File "{__file__}", line {line}, in forever\n    yield'


@pytest.mark.parametrize(
    ("obeys", "fate"),
    [(True, "It was cancelled"), (False, "It did not obey a cancellation and was abandoned")],
    ids=["obeys", "does not obey"],
)
def test_what_hangs_is_told(obeys: bool, fate: str) -> None:
    """What does not end is cancelled, given a moment, and given up; the error tells its fate and its place."""
    generator, step, place = started()
    task = Stubborn(generator, obeys=obeys)
    assert enforced(task) == f"the close of it did not end within 0.5 s. {fate}; it was waiting at\n{place}"
    assert task.log == [0.5, "force", 0.25, "finish"]
    step.close()


def test_others_that_hang_are_told() -> None:
    """If it waits for others, the error tells where each of these hangs, and not where it waits for them."""
    first, first_step, place = started()
    second, second_step, _ = started()
    message = enforced(Stubborn(None, obeys=True), first, second)
    assert message.endswith(f"It was cancelled; it was waiting at\n{place}\n{place}")
    first_step.close()
    second_step.close()
