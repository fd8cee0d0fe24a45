"""docs/comparison.md: what each cell says is what its tool does.

A row of the table is a question, and a probe of the same name puts it to every tool. Only what a tool does from the
outside is looked at.
"""

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext, suppress
from pathlib import Path
from typing import Any

import aioitertools
import aiostream
import anyio
import anyio.lowlevel
import asyncstdlib
import pytest
import trio
from google.adk.utils import context_utils

from spies import this_task
from stories import AgentsRun, Story
from streamguard import Aclosing, guarded_stream

# trio says this of the generators that are left to it.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator .* was garbage collected:ResourceWarning")

PAGE = Path(__file__).parents[2] / "docs" / "comparison.md"

Make = Callable[[], AsyncGenerator[int, None]]
Block = AbstractAsyncContextManager[AsyncIterator[int]]
Open = Callable[[Make], Block]


class Fault(Exception):
    """What a body raises."""


class CleanupFault(Exception):
    """What a cleanup raises."""


def same(item: int) -> int:
    return item


OPENERS: dict[str, Callable[[Any], Any]] = {
    "async for": lambda source: nullcontext(source),
    "aclosing": aclosing,
    "streamcontext": aiostream.streamcontext,
    "scoped_iter": asyncstdlib.scoped_iter,
    "aioitertools": lambda source: nullcontext(aioitertools.map(same, source)),
    "Aclosing": Aclosing,
    "guarded_stream": lambda source: guarded_stream(source, cleanup_timeout=0.1),
}
"""What opens an object; `as_safe_channel` takes only functions."""


def opener(tool: str) -> Open:
    if tool == "as_safe_channel":
        return lambda make: trio.as_safe_channel(make)()
    return lambda make: OPENERS[tool](make())


class Log(list[str]):
    """What a source did, and in which tasks."""

    def __init__(self) -> None:
        self.tasks: set[object] = set()
        self.may_close = anyio.Event()
        self.may_close.set()

    async def numbers(self) -> AsyncGenerator[int, None]:
        """Two items, and a cleanup that waits."""
        try:
            for number in (1, 2):
                self.append(f"made {number}")
                self.tasks.add(this_task())
                yield number
        finally:
            self.append("closing")
            self.tasks.add(this_task())
            await self.may_close.wait()
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            self.append("closed")


async def settle() -> None:
    """Lets the event loop finish what was left to it."""
    for _ in range(3):
        gc.collect()
        await anyio.wait_all_tasks_blocked()


# -- the questions


async def closed_at_a_break(open_: Open) -> str:
    log = Log()
    async with open_(log.numbers) as stream:
        async for _ in stream:
            break
    return outcome(log)


async def stepped_and_closed_by_one_task(open_: Open) -> str:
    log = Log()
    await leave(open_, log.numbers)
    await settle()
    assert "closing" in log
    return "yes" if len(log.tasks) == 1 else "no"


async def leave(open_: Open, make: Make) -> None:
    async with open_(make) as stream:
        async for _ in stream:
            break


async def cleanup_in_a_cancelled_scope(open_: Open) -> str:
    log = Log()
    with anyio.CancelScope() as scope:
        async with open_(log.numbers) as stream:
            async for _ in stream:
                scope.cancel()
                await anyio.lowlevel.checkpoint()
    return outcome(log)


def outcome(log: Log) -> str:
    if "closed" in log:
        return "complete"
    return "cut" if "closing" in log else "later"


async def cleanup_at_a_second_cancel(open_: Open) -> str:
    log = Log()
    log.may_close = anyio.Event()

    async def consume() -> None:
        async with open_(log.numbers) as stream:
            async for _ in stream:
                await anyio.sleep_forever()

    task = asyncio.create_task(consume())
    await anyio.wait_all_tasks_blocked()
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    log.may_close.set()
    await asyncio.wait([task])
    return outcome(log)


async def inner_generators(open_: Open) -> str:
    log = Log()

    async def outer() -> AsyncGenerator[int, None]:
        async for number in log.numbers():
            yield number

    async with open_(outer) as stream:
        async for _ in stream:
            break
    return outcome(log)


async def closed_without_a_read(open_: Callable[[Any], Block]) -> str:
    closes: list[str] = []
    async with open_(Closable(closes)):
        pass
    return "yes" if closes else "no"


class Closable:
    """An iterator with one way to close it."""

    def __init__(self, closes: list[str], close: str = "aclose") -> None:
        self.closes = closes
        setattr(self, close, self._close)

    def __aiter__(self) -> AsyncIterator[int]:
        return self

    async def __anext__(self) -> int:
        return 1

    async def _close(self) -> None:
        self.closes.append("closed")


async def only_close(open_: Callable[[Any], Block]) -> str:
    closes: list[str] = []
    with suppress(AttributeError):  # `aclosing` misses `aclose()`
        async with open_(Closable(closes, "close")) as stream:
            async for _ in stream:
                break
    return "yes" if closes else "no"


async def body_and_cleanup_error(open_: Open) -> str:
    async def numbers() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            raise CleanupFault

    expect_reports()
    try:
        async with open_(numbers) as stream:
            async for _ in stream:
                raise Fault
    except Fault:
        return "the body's"
    except CleanupFault:
        return "the cleanup's"
    except BaseExceptionGroup:
        return "a group"
    raise AssertionError


def expect_reports() -> None:
    """Asyncio's loop tells of errors in generators that it closes; here they are expected."""
    if not trio.lowlevel.in_trio_run():
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)


async def group_at_a_break(open_: Open) -> str:
    async def numbers() -> AsyncGenerator[int, None]:
        async with anyio.create_task_group():
            yield 1
            yield 2

    try:
        await leave(open_, numbers)
    except BaseExceptionGroup:
        return "raises"
    try:
        await settle()
    except asyncio.CancelledError:
        return "cancels you later"
    return "clean"


async def yields_in_its_finally(open_: Open) -> str:
    log: list[str] = []

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            yield 2
            log.append("cleaned up")

    expect_reports()
    with suppress(Exception):
        await leave(open_, numbers)
    return "yes" if log else "no"


async def limit_around_a_read(open_: Open) -> str:
    go_on = anyio.Event()

    async def numbers() -> AsyncGenerator[int, None]:
        yield 1
        await go_on.wait()
        yield 2

    items: list[int] = []
    async with open_(numbers) as stream:
        items.append(await anext(stream))
        with anyio.move_on_after(0.01):
            items.append(await anext(stream))
        go_on.set()
        async for number in stream:
            items.append(number)
    return "nothing" if items == [1, 2] else "the rest"


async def hung_cleanup(open_: Open) -> str:
    log = Log()
    log.may_close = anyio.Event()
    left: list[str] = []
    has_left = anyio.Event()

    async def consume() -> None:
        with suppress(TimeoutError):
            await leave(open_, log.numbers)
        left.append("cut at once" if "closing" in log else "does not wait")
        has_left.set()

    async with anyio.create_task_group() as group:
        group.start_soon(consume)
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        if not left:
            with anyio.move_on_after(1):
                await has_left.wait()
            left.insert(0, "its own" if left else "none")
        log.may_close.set()
    return left[0]


async def ended_by_another_task(open_: Open) -> str:
    ends: list[str] = []

    async def waits() -> AsyncGenerator[int, None]:
        yield 1
        await anyio.sleep_forever()

    async def consume(stream: AsyncIterator[int]) -> None:
        try:
            async for _ in stream:
                pass
        except Exception as error:
            ends.append(type(error).__name__)
        else:
            ends.append("ended")

    with suppress(Exception):
        async with open_(waits) as stream, anyio.create_task_group() as group:
            group.start_soon(consume, stream)
            await anyio.wait_all_tasks_blocked()
            try:
                await stream.aclose()
            except Exception as error:
                ends.append(type(error).__name__)
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
    return "yes" if ends == ["ended"] else "no"


async def run_in_the_background(open_: Callable[[Any], Block]) -> str:
    run = AgentsRun(Story())

    async def consume() -> None:
        async with open_(run if open_ is OPENERS["guarded_stream"] else run.stream_events()) as stream:
            async for _ in stream:
                break

    task = asyncio.create_task(consume())
    await anyio.wait_all_tasks_blocked()
    left, over = task.done(), run.run_loop_task.done()
    run.may_call_tool.set()
    await asyncio.wait([task, run.run_loop_task])
    if not left:
        return "waited for"
    return "stopped" if over else "goes on"


# -- the table

OF_A_FUNCTION = {
    "after a `break` its cleanup is": closed_at_a_break,
    "stepped and closed by one task": stepped_and_closed_by_one_task,
    "under a cancelled scope its cleanup is": cleanup_in_a_cancelled_scope,
    "cancelled again, its cleanup is": cleanup_at_a_second_cancel,
    "the cleanup of one inside it is": inner_generators,
    "body and cleanup fail: what leaves": body_and_cleanup_error,
    "a `break` from a task group in it": group_at_a_break,
    "it yields in its `finally`: the rest runs": yields_in_its_finally,
    "limit for a cleanup that hangs": hung_cleanup,
    "a time limit around one read loses": limit_around_a_read,
    "another task can end it": ended_by_another_task,
}
OF_AN_OBJECT = {
    "closed if nobody read it": closed_without_a_read,
    "one with only `close()` is closed": only_close,
    "a run in the background is": run_in_the_background,
}
RUNS_ON = "runs on"


def cells() -> list[tuple[str, str, str]]:
    """Question, tool and answer of every cell of the page."""
    header, _, *rows = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    _, *tools = columns(header)
    return [
        (question, tool, answer)
        for question, *answers in map(columns, rows)
        for group, answer in zip(tools, answers, strict=True)
        for tool in group.split(", ")
    ]


def columns(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize(("question", "tool", "answer"), cells())
def test_cell(question: str, tool: str, answer: str) -> None:
    """What the table says of a tool is what it does."""
    if question == RUNS_ON:
        assert answer == runs_on(tool)
    elif question in OF_A_FUNCTION and answer != "-":
        assert answer == anyio.run(OF_A_FUNCTION[question], opener(tool), backend=backend_of(tool))
    elif question in OF_AN_OBJECT and answer != "-":
        assert answer == anyio.run(OF_AN_OBJECT[question], OPENERS[tool])
    else:
        assert (answer, tool) == ("-", "as_safe_channel")  # it takes only functions; trio cancels by scopes


def backend_of(tool: str) -> str:
    return "trio" if tool == "as_safe_channel" else "asyncio"


def runs_on(tool: str) -> str:
    """The backends on which a loop over the tool can be left."""

    async def leave_once() -> None:
        await leave(opener(tool), Log().numbers)

    backends = []
    for backend in ("asyncio", "trio"):
        with suppress(RuntimeError):
            anyio.run(leave_once, backend=backend)
            backends.append(backend)
    return "both" if len(backends) == 2 else backends[0]


def test_every_question_is_in_the_table() -> None:
    """No probe is without its row."""
    assert {*OF_A_FUNCTION, *OF_AN_OBJECT, RUNS_ON} <= {question for question, _, _ in cells()}


def test_aclosing_of_adk() -> None:
    """ADK's `Aclosing` needs no column of its own."""
    assert context_utils.Aclosing is aclosing
