"""Telling from outside whether something that waits is in a ``finally``."""

from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from streamguard._finally import in_finally


class Wait:
    """Waits once, for whoever steps the coroutine by hand."""

    def __await__(self) -> Generator[None, None, None]:
        yield


def work() -> None:
    pass


async def in_the_body() -> None:
    try:
        await Wait()
    finally:
        work()


async def at_the_end() -> None:
    try:
        work()
    finally:
        await Wait()


async def on_several_lines() -> None:
    try:
        work()
    finally:
        if at_the_end:
            await Wait()


async def after_an_error() -> None:
    try:
        raise OSError
    finally:
        await Wait()


async def after_the_cleanup() -> None:
    try:
        work()
    finally:
        work()
    await Wait()


async def in_an_except_clause() -> None:
    try:
        raise OSError
    except OSError:
        await Wait()


async def in_a_condition() -> None:
    while await Wait() is not None:  # compiled twice, as a `finally` is
        work()


async def in_a_group() -> None:
    try:
        raise ExceptionGroup("several", [OSError()])
    except* OSError:
        work()
    finally:
        await Wait()


async def inside_of_a_finally() -> None:
    try:
        work()
    finally:
        await in_the_body()


async def around_a_finally() -> None:
    await at_the_end()


async def items() -> AsyncIterator[int]:
    try:
        yield 1
    finally:
        await Wait()


async def reading_to_the_end() -> None:
    async for _ in items():
        pass


@asynccontextmanager
async def connection() -> AsyncIterator[None]:
    try:
        yield
    finally:
        await Wait()


async def leaving_a_context() -> None:
    async with connection():
        work()


class Method:
    @staticmethod
    async def of_a_class() -> None:
        try:
            work()
        finally:
            await Wait()


CLEANING_UP = [
    at_the_end,
    on_several_lines,
    after_an_error,
    in_a_group,
    inside_of_a_finally,
    around_a_finally,
    reading_to_the_end,
    leaving_a_context,
    Method.of_a_class,
]
AT_WORK = [in_the_body, after_the_cleanup, in_an_except_clause, in_a_condition]


def told_of(function: Callable[[], Any]) -> bool:
    """What is told when the function waits."""
    coroutine = function()
    coroutine.send(None)
    try:
        return in_finally(coroutine)
    finally:
        with pytest.raises((StopIteration, OSError)):
            coroutine.send(None)


@pytest.mark.parametrize("function", CLEANING_UP, ids=lambda function: function.__name__)
def test_cleaning_up(function: Callable[[], Awaitable[None]]) -> None:
    """It, or what it waits for, is in a `finally`."""
    assert told_of(function)


@pytest.mark.parametrize("function", AT_WORK, ids=lambda function: function.__name__)
def test_at_work(function: Callable[[], Awaitable[None]]) -> None:
    """It waits elsewhere."""
    assert not told_of(function)


def test_without_text() -> None:
    """Of code that has no text nothing is known: it is at work."""
    names: dict[str, Any] = {"Wait": Wait}
    exec("async def at_the_end():\n  try:\n    pass\n  finally:\n    await Wait()", names)
    assert not told_of(names["at_the_end"])


def test_no_coroutine() -> None:
    """What has no frames is at work."""
    assert not in_finally(Wait())
    assert not in_finally(None)
