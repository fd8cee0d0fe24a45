"""Guards inside generators, context managers, exit stacks and each other, and hundreds at once."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from stories import Log, numbers, waiting
from streamguard import EndReason, GuardedStream, guarded_stream

pytestmark = pytest.mark.anyio


async def test_in_an_async_generator() -> None:
    """A guard inside an async generator is left by whoever closes that one, also from another task."""
    log = Log()

    async def doubled() -> AsyncGenerator[int, None]:
        async with guarded_stream(numbers(log)) as stream:
            async for item in stream:
                yield 2 * item

    outer = doubled()
    assert await anext(outer) == 2
    async with anyio.create_task_group() as group:
        group.start_soon(outer.aclose)
    assert log == ["closed"]
    assert len(log.tasks) == 1


async def test_in_a_guarded_async_generator() -> None:
    """A guard inside the generator that another guard owns is left before the outer block is."""
    log = Log()

    async def doubled() -> AsyncGenerator[int, None]:
        try:
            async with guarded_stream(numbers(log)) as stream:
                async for item in stream:
                    yield 2 * item
        finally:
            log.append("outer closed")

    async with guarded_stream(doubled()) as stream:
        async for item in stream:
            assert item == 2
            break
    assert log == ["closed", "outer closed"]


async def test_in_a_guarded_generator_that_is_cancelled_while_the_inner_source_awaits() -> None:
    """Cancelled through two guards, the inner source's cleanup runs to its end."""
    log = Log()

    async def passing() -> AsyncGenerator[int, None]:
        async with guarded_stream(waiting(log)) as stream:
            async for item in stream:
                yield item

    async with anyio.create_task_group() as group:

        async def read() -> None:
            async with guarded_stream(passing()) as stream:
                async for _ in stream:
                    pass

        group.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        assert log == ["waits"]
        group.cancel_scope.cancel()
    assert log == ["waits", "closed"]
    assert len(log.tasks) == 1


async def test_in_an_asynccontextmanager() -> None:
    """A guard inside a generator-made context manager is left with it, and sees the body's error."""
    log = Log()
    guards: list[GuardedStream[int]] = []

    @asynccontextmanager
    async def opened() -> AsyncIterator[GuardedStream[int]]:
        async with guarded_stream(numbers(log)) as stream:
            guards.append(stream)
            yield stream

    with pytest.raises(ValueError, match=r"^body$"):
        async with opened() as stream:
            assert await anext(stream) == 1
            raise ValueError("body")
    assert log == ["closed"]
    assert guards[0].end.reason is EndReason.FAILED


async def test_in_an_exit_stack() -> None:
    """Guards in an exit stack are left in the reverse order."""
    log = Log()

    async def named(name: str) -> AsyncGenerator[str, None]:
        try:
            yield name
        finally:
            await anyio.lowlevel.checkpoint()
            log.note(name)

    async with AsyncExitStack() as stack:
        for name in "abc":
            stream = await stack.enter_async_context(guarded_stream(named(name)))
            assert await anext(stream) == name
    assert log == ["c", "b", "a"]


async def test_pushed_close_in_an_exit_stack() -> None:
    """`aclose` may be pushed on a stack by itself."""
    log = Log()
    async with AsyncExitStack() as stack:
        guard = guarded_stream(numbers(log))
        stack.push_async_callback(guard.aclose)
    assert guard.end.items == 0


async def test_left_in_another_task_than_entered() -> None:
    """A block may be entered in one task and left in another: the owner closes either way."""
    log = Log()
    guard = guarded_stream(numbers(log))
    stream = await guard.__aenter__()
    assert await anext(stream) == 1

    async def leave() -> None:
        await guard.__aexit__(None, None, None)

    async with anyio.create_task_group() as group:
        group.start_soon(leave)
    assert log == ["closed"]
    assert len(log.tasks) == 1


async def test_nested() -> None:
    """A guard around a guard is closed from the inside out, and each has an end of its own."""
    log = Log()
    inner = guarded_stream(numbers(log), until=lambda item: item == 2)
    async with guarded_stream(inner, where=lambda item: item != 1) as outer:
        assert [item async for item in outer] == [2]
    assert log == ["closed"]
    assert inner.end.reason is EndReason.MATCHED
    assert outer.end.reason is EndReason.EXHAUSTED


async def test_three_hundred_at_once() -> None:
    """Hundreds of streams at once do not disturb each other; each is read and closed by a task of its own."""
    logs = [Log() for _ in range(300)]
    sums: list[int] = []

    async def consume(log: Log) -> None:
        async with guarded_stream(numbers(log)) as stream:
            total = 0
            async for item in stream:
                await anyio.lowlevel.checkpoint()
                total += item
                if item == 2:
                    break
            sums.append(total)

    async with anyio.create_task_group() as group:
        for log in logs:
            group.start_soon(consume, log)
    assert sums == [3] * 300
    assert all(log == ["closed"] and len(log.tasks) == 1 for log in logs)
    assert len(set.union(*(log.tasks for log in logs))) == 300


async def test_three_hundred_cancelled_at_once() -> None:
    """Hundreds of streams that are cancelled at once, while their sources await, are all closed to the end."""
    logs = [Log() for _ in range(300)]

    async def consume(log: Log) -> None:
        async with guarded_stream(waiting(log)) as stream:
            async for _ in stream:
                pass

    async with anyio.create_task_group() as group:
        for log in logs:
            group.start_soon(consume, log)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    assert all(log == ["waits", "closed"] for log in logs)
