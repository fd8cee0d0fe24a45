"""The driver for asyncio: eager tasks and other people's task factories."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import uvloop

from spies import on_asyncio, this_task
from stories import Log, numbers
from streamguard import guarded_stream

pytestmark = pytest.mark.anyio


@pytest.fixture
def task_factory() -> Any:
    """Sets a task factory for the rest of the test."""
    loops: list[asyncio.AbstractEventLoop] = []

    def use(factory: Any) -> None:
        loops.append(asyncio.get_running_loop())
        loops[0].set_task_factory(factory)

    yield use
    if loops:
        loops[0].set_task_factory(None)


@pytest.fixture
def eager(task_factory: Any) -> Callable[[], None]:
    """Has the loop make eager tasks."""

    def use() -> None:
        if sys.version_info < (3, 12):
            pytest.skip("Python 3.12 brought the eager task factory")
        if sys.version_info >= (3, 13) and "uvloop" in type(asyncio.get_running_loop()).__module__:
            pytest.skip("uvloop 0.23 cannot make eager tasks on Python 3.13")
        task_factory(asyncio.eager_task_factory)

    return use


@on_asyncio
@pytest.mark.parametrize("way_out", ["break", "exhaust", "error", "cancel", "source error", "not read"])
async def test_eager_tasks(way_out: str, eager: Callable[[], None]) -> None:
    """Under asyncio's eager task factory everything is as without it (only asyncio has one)."""
    eager()
    log = Log()

    async def source() -> AsyncGenerator[int, None]:
        try:
            log.tasks.add(this_task())
            yield 1
            if way_out == "source error":
                raise OSError("source")
            yield 2
            await anyio.lowlevel.checkpoint()
            yield 3
        finally:
            await anyio.lowlevel.checkpoint()
            log.note("closed")

    async def consume() -> list[int]:
        got: list[int] = []
        async with guarded_stream(source()) as stream:
            if way_out == "not read":
                return got
            async for item in stream:
                got.append(item)
                if way_out == "break":
                    break
                if way_out == "error":
                    raise ValueError("body")
                if way_out == "cancel":
                    asyncio.current_task().cancel()  # type: ignore[union-attr]
                    await anyio.lowlevel.checkpoint()
        return got

    task = asyncio.create_task(consume())
    await asyncio.wait([task])
    match way_out:
        case "break":
            assert task.result() == [1]
        case "exhaust":
            assert task.result() == [1, 2, 3]
        case "error":
            assert isinstance(task.exception(), ValueError)
        case "source error":
            assert isinstance(task.exception(), OSError)
        case "cancel":
            assert task.cancelled()
        case "not read":
            assert task.result() == []
    assert log == ([] if way_out == "not read" else ["closed"])
    assert task not in log.tasks


@on_asyncio
async def test_eager_source_that_ends_at_once(eager: Callable[[], None]) -> None:
    """An eager owner may have come to its end before the first read waits (only asyncio has eager tasks)."""
    eager()

    async def empty() -> AsyncGenerator[int, None]:
        return
        yield 1

    async def failing() -> AsyncGenerator[int, None]:
        raise OSError("at once")
        yield 1

    async with guarded_stream(empty()) as stream:
        assert [item async for item in stream] == []
    with pytest.raises(OSError, match="at once"):
        async with guarded_stream(failing()) as stream:
            await anext(stream)
    async with guarded_stream(numbers(Log()), where=lambda item: item == 3) as stream:
        assert [item async for item in stream] == [3]


@on_asyncio
async def test_eager_prefetch(eager: Callable[[], None]) -> None:
    """An eager owner that runs ahead gives every item, in order (only asyncio has eager tasks)."""
    eager()
    log = Log()
    async with guarded_stream(numbers(log, 5), prefetch=2) as stream:
        assert [item async for item in stream] == [1, 2, 3, 4, 5]
    assert log == ["closed"]


@on_asyncio
async def test_eager_source_that_stops_its_stream(eager: Callable[[], None]) -> None:
    """An eager source may stop its stream in its very first step (only asyncio has eager tasks)."""
    eager()
    log = Log()

    async def source() -> AsyncGenerator[int, None]:
        try:
            stream.stop()
            yield 1
        finally:
            log.note("closed")

    async with guarded_stream(source()) as stream:
        assert [item async for item in stream] == []
    assert log == ["closed"]
    assert stream.end.items == 0


@on_asyncio
async def test_eager_source_that_reads_itself(eager: Callable[[], None]) -> None:
    """An eager source that reads its own stream is refused like any second reader (only asyncio has eager tasks)."""
    eager()
    refused: list[str] = []

    async def source() -> AsyncGenerator[int, None]:
        try:
            async with asyncio.timeout(1):
                await anext(stream)
        except (RuntimeError, TimeoutError) as error:
            refused.append(type(error).__name__)
        yield 1

    async with guarded_stream(source()) as stream:
        # It would wait for ever if it were not refused.
        async with asyncio.timeout(2):
            assert await anext(stream) == 1
    assert refused == ["RuntimeError"]


@on_asyncio
async def test_task_factory_of_others(task_factory: Any) -> None:
    """A task factory that knows only a loop and a coroutine will do, if the loop calls it so."""
    made: list[str] = []

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any) -> asyncio.Task[Any]:
        made.append(coroutine.__qualname__)
        return asyncio.Task(coroutine, loop=loop)

    if "uvloop" in type(asyncio.get_running_loop()).__module__:
        pytest.skip("uvloop itself gives a context to every factory")
    task_factory(factory)
    log = Log()
    async with guarded_stream(numbers(log)) as stream:
        async for _ in stream:
            break
    assert log == ["closed"]
    assert len(made) == 1


@on_asyncio
async def test_tasks_of_others(task_factory: Any) -> None:
    """A task factory may make tasks that know nothing of names."""

    class Nameless(asyncio.Task):  # type: ignore[type-arg]
        def __init__(self, coroutine: Any, *, loop: Any, **_: Any) -> None:
            super().__init__(coroutine, loop=loop)

    task_factory(lambda loop, coroutine, **options: Nameless(coroutine, loop=loop, **options))
    log = Log()
    async with guarded_stream(numbers(log)) as stream:
        assert [item async for item in stream] == [1, 2, 3]
    assert log == ["closed"]


async def _read(log: Log) -> None:
    async with guarded_stream(numbers(log)) as stream:
        log.extend([str(item) async for item in stream])


def test_tasks_that_take_no_name_under_uvloop() -> None:
    """Tasks that cannot be named will do, in a loop that takes them (uvloop; asyncio itself names what it is given)."""

    class Nameless(asyncio.Task):  # type: ignore[type-arg]
        @property
        def set_name(self) -> None:  # type: ignore[override]
            raise AttributeError("set_name")

    log = Log()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.get_loop().set_task_factory(lambda loop, coroutine, **_: Nameless(coroutine, loop=loop))
        runner.run(_read(log))
    assert log == ["closed", "1", "2", "3"]
