"""An event loop that ends while a stream is open: by its main task, by an error, by Ctrl-C."""

import asyncio
import functools
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio
import uvloop

from nothing_left import collect_until_quiet
from recording import Fault, kind_of, only_asyncio
from streamguard import CleanupError, EndReason, _asyncio, guarded_chain, guarded_stream

PATIENCE = 5
"""Seconds until a loop that does not end is said to hang."""

RUNNERS: dict[str, Callable[[Any], object]] = {
    "asyncio": lambda main: asyncio.run(main()),
    "uvloop": lambda main: uvloop.run(main()),
    "anyio": lambda main: anyio.run(main),
    "trio": trio.run,
}
ON_ASYNCIO = ("asyncio", "uvloop", "anyio")
on_asyncio = pytest.mark.parametrize("runner", ON_ASYNCIO)
on_all = pytest.mark.parametrize("runner", RUNNERS)
POINTS = ("body", "source", "close", "tail")
at_each_point = pytest.mark.parametrize("point", POINTS)


def run_to_its_end(runner: str, main: Any) -> None:
    """Run a loop in a thread, so that one that hangs fails the test and not the whole run."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            RUNNERS[runner](main)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "the loop does not end"
    collect_until_quiet()
    if failures:
        raise failures[0]


class Turn:
    """A consumer that stays for ever at one point of its guarded block."""

    def __init__(self, point: str) -> None:
        self.point = point
        self.log: list[str] = []
        self.errors: tuple[BaseException, ...] = ()
        self.reason: EndReason | None = None
        self.there = anyio.Event()

    async def stay_at(self, point: str) -> None:
        if self.point == point:
            self.there.set()
            await anyio.sleep_forever()

    async def source(self) -> AsyncIterator[int]:
        try:
            yield 1
            await self.stay_at("source")
            yield 2
        finally:
            await self.clean_up("close")

    async def tail(self, _: object) -> None:
        await self.clean_up("tail")

    async def clean_up(self, name: str) -> None:
        self.log.append(name)
        await self.stay_at(name)
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        self.log.append(f"{name} done")

    async def consume(self) -> None:
        stream = guarded_stream(self.source(), tail=self.tail)
        try:
            async with stream:
                async for _ in stream:
                    await self.stay_at("body")
                    if self.point != "source":
                        break
        except BaseException as error:
            self.log.append(f"left: {kind_of(error)}")
            raise
        finally:
            self.errors, self.reason = stream.end.cleanup_errors, stream.end.reason


ALL_DONE = ["close", "close done", "tail", "tail done"]


# -- the main task ends while another one is inside a guarded block


async def end_with(turn: Turn) -> None:
    """A main task that ends when the other one is where it stays."""
    turn.there = anyio.Event()
    task = asyncio.create_task(turn.consume())
    await turn.there.wait()
    assert not task.done()


@on_asyncio  # on trio a main task cannot end before its children
@pytest.mark.parametrize("point", ["body", "source"])
def test_main_ends(point: str, runner: str, caplog: pytest.LogCaptureFixture) -> None:
    """A loop whose main task ends while another one is in the body, or waits for an item, closes the stream in full."""
    turn = Turn(point)
    run_to_its_end(runner, lambda: end_with(turn))
    assert turn.log == [*ALL_DONE, "left: cancelled"]
    assert turn.reason is EndReason.CANCELLED
    assert turn.errors == ()
    assert caplog.messages == []


@on_asyncio
@pytest.mark.parametrize("iterates", [False, True], ids=["generator", "iterator"])
def test_main_ends_beside_many(iterates: bool, runner: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whichever the loop cancels first, a consumer or the owner of its stream, nothing is told: both are cancelled."""
    stories: list[Kept] = []
    outcomes: list[str] = []

    async def consume() -> None:
        story = Kept()
        stories.append(story)
        try:
            async with guarded_stream(story.iterator() if iterates else story.numbers()) as stream:
                await anext(stream)
                await anyio.sleep_forever()
        except BaseException as error:
            outcomes.append(kind_of(error))
            raise

    async def main() -> None:
        tasks.extend(asyncio.create_task(consume()) for _ in range(20))
        await anyio.wait_all_tasks_blocked()

    tasks: list[object] = []
    run_to_its_end(runner, main)
    assert [story.log for story in stories] == [["close", "close done"]] * 20
    assert outcomes == ["cancelled"] * 20
    assert caplog.messages == []


@on_asyncio
def test_main_ends_in_the_close(runner: str, caplog: pytest.LogCaptureFixture) -> None:
    """A loop that ends while a source is in its own `finally` cuts it, as it cuts all; told, and the tail runs."""
    turn = Turn("close")
    run_to_its_end(runner, lambda: end_with(turn))
    assert turn.log == ["close", "tail", "tail done", "left: cancelled"]
    (error,) = turn.errors
    assert isinstance(error, CleanupError)
    (record,) = caplog.records
    assert record.name == "streamguard"


@on_asyncio
def test_main_ends_in_the_tail(runner: str, caplog: pytest.LogCaptureFixture) -> None:
    """A loop that ends while a tail waits cuts it there, as it cuts all; told, and the stream was closed before."""
    turn = Turn("tail")
    run_to_its_end(runner, lambda: end_with(turn))
    assert turn.log == ["close", "close done", "tail", "left: cancelled"]
    (error,) = turn.errors
    assert isinstance(error, CleanupError)
    (record,) = caplog.records
    assert record.name == "streamguard"


@only_asyncio
@pytest.mark.anyio
@pytest.mark.parametrize("order", [1, -1], ids=["older first", "newer first"])
@pytest.mark.parametrize("point", ["body", "source"])
async def test_all_tasks_are_cancelled(point: str, order: int) -> None:
    """In whatever order the consumer and the owner are cancelled, the close is complete and no error is told.

    A loop that ends cancels all of its tasks, in no order that is known.
    """
    turn = Turn(point)
    mine = asyncio.current_task()
    before = asyncio.all_tasks()
    task = asyncio.create_task(turn.consume(), name="0")
    await turn.there.wait()
    await anyio.wait_all_tasks_blocked()
    others = sorted(asyncio.all_tasks() - before, key=lambda other: other is not task)
    assert len(others) == 2
    assert mine not in others
    for other in others[::order]:
        other.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert turn.log == [*ALL_DONE, "left: cancelled"]
    assert turn.errors == ()


@on_all
@at_each_point
def test_main_fails(point: str, runner: str, caplog: pytest.LogCaptureFixture) -> None:
    """A run that ends by an error while a child task is inside a guarded block waits until its stream is closed."""
    turn = Turn(point if point in ("body", "source") else "")
    held = point if point in ("close", "tail") else None

    async def main() -> None:
        turn.there = there = anyio.Event()
        go_on = anyio.Event()

        async def hold(name: str) -> None:
            if name == held:
                there.set()
                await go_on.wait()
            elif name == turn.point:
                there.set()
                await anyio.sleep_forever()

        turn.stay_at = hold  # type: ignore[method-assign]
        async with anyio.create_task_group() as group:
            group.start_soon(turn.consume)
            await there.wait()
            go_on.set()
            raise Fault

    with pytest.raises(ExceptionGroup) as caught:
        run_to_its_end(runner, main)
    assert caught.group_contains(Fault)
    assert turn.log[:4] == ALL_DONE
    assert turn.errors == ()
    assert caplog.messages == []


@at_each_point
def test_main_ends_with_a_system_task(point: str, caplog: pytest.LogCaptureFixture) -> None:
    """A trio run that ends while a system task is in a guarded block ends; the source is closed, the tail called."""
    turn = Turn(point)

    async def consume() -> None:
        with suppress(CleanupError):  # trio would take it for an error of its own
            await turn.consume()

    async def main() -> None:
        turn.there = anyio.Event()
        trio.lowlevel.spawn_system_task(consume)
        await turn.there.wait()

    run_to_its_end("trio", main)
    assert [entry for entry in turn.log if entry in ("close", "tail")] == ["close", "tail"]
    assert {record.name for record in caplog.records} <= {"streamguard"}


# -- a guard that is entered, kept and never left

kept: list[Any] = []


async def read_in_vain(stream: Any) -> None:
    """A read that is cut when the source waits."""
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(_cut, scope)
            await anext(stream)


async def _cut(scope: anyio.CancelScope) -> None:
    await anyio.wait_all_tasks_blocked()
    scope.cancel()


class Kept:
    """What a source of a kept guard is, and what happens to it."""

    def __init__(self) -> None:
        self.log: list[str] = []

    async def numbers(self) -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await self.clean_up()

    async def waits(self) -> AsyncIterator[int]:
        try:
            yield 1
            await anyio.sleep_forever()
        finally:
            await self.clean_up()

    async def swallows(self) -> AsyncIterator[int]:
        """Takes every cancellation at a `yield` for a reason to go on."""
        try:
            for number in range(100):
                try:
                    yield number
                except anyio.get_cancelled_exc_class():
                    pass
        finally:
            await self.clean_up()

    async def times_out(self) -> AsyncIterator[int]:
        try:
            with anyio.move_on_after(0) as scope:
                yield 1
            assert scope.cancelled_caught
            yield 2
            yield 3
        finally:
            await self.clean_up()

    async def fails(self) -> AsyncIterator[int]:
        try:
            yield 1
            raise Fault
        finally:
            await self.clean_up()

    def iterator(self) -> AsyncIterator[int]:
        return Iterator(self)

    async def clean_up(self) -> None:
        self.log.append("close")
        await anyio.lowlevel.checkpoint()
        self.log.append("close done")


class Iterator:
    """Has no `athrow`: a cancellation cannot be thrown in where it stands."""

    def __init__(self, story: Kept) -> None:
        self._story = story

    def __aiter__(self) -> "Iterator":
        return self

    async def __anext__(self) -> int:
        return 1

    async def aclose(self) -> None:
        await self._story.clean_up()


async def _nothing_more(_: Any) -> None:
    pass


async def _until_all_wait(_: Any) -> None:
    await anyio.wait_all_tasks_blocked()


async def _read_the_error(stream: Any) -> None:
    with pytest.raises(Fault):
        await anext(stream)


STATES: dict[str, tuple[str, dict[str, Any], Any]] = {
    "at a yield": ("numbers", {}, _nothing_more),
    "at a yield, prefetch": ("numbers", {"prefetch": 1}, _until_all_wait),
    "in its await": ("waits", {}, read_in_vain),
    "in its await, prefetch": ("waits", {"prefetch": 5}, _until_all_wait),
    "an iterator": ("iterator", {}, _nothing_more),
    "swallows a cancellation": ("swallows", {}, _nothing_more),
    "timed out, unread": ("times_out", {}, _until_all_wait),
    "failed, read": ("fails", {}, _read_the_error),
    "failed, unread": ("fails", {"prefetch": 5}, _until_all_wait),
}


def _keep(runner: str, make: Callable[[Kept], Any], then: Any) -> Kept:
    story = Kept()

    async def main() -> None:
        stream = await make(story).__aenter__()
        kept.append(stream)
        await anext(stream)
        await then(stream)

    try:
        run_to_its_end(runner, main)
    finally:
        with pytest.warns(ResourceWarning, match="never left"):
            kept.clear()
            collect_until_quiet()
    return story


@on_asyncio
@pytest.mark.parametrize("state", STATES)
def test_kept_guard(state: str, runner: str, caplog: pytest.LogCaptureFixture) -> None:
    """A loop that ends with a guard that was never left ends, and its source has closed in full."""
    source, options, then = STATES[state]
    story = _keep(runner, lambda story: guarded_stream(getattr(story, source)(), **options), then)
    assert story.log == ["close", "close done"]
    assert caplog.messages == []


@on_asyncio
@pytest.mark.parametrize("state", STATES)
def test_kept_guard_beside_a_task_that_cleans_up_in_a_new_one(state: str, runner: str) -> None:
    """The same beside tasks that start further ones when they are cancelled, which the loop does not cancel."""
    source, options, then = STATES[state]
    cleaned_up: list[object] = []

    async def clean_up() -> None:
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        cleaned_up.append(True)

    async def other() -> None:
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            await asyncio.create_task(clean_up())
            raise

    others: list[object] = []

    async def with_others(stream: Any) -> None:
        await then(stream)
        others.extend(asyncio.create_task(other()) for _ in range(20))  # so that some get their turn before the owner
        await anyio.lowlevel.checkpoint()

    story = _keep(runner, lambda story: guarded_stream(getattr(story, source)(), **options), with_others)
    assert len(cleaned_up) == 20
    assert story.log == ["close", "close done"]


@on_asyncio
def test_cancellation_that_the_main_task_has_caught(runner: str) -> None:
    """A consumer that has caught a cancellation and goes on does not make a timeout of its source end the stream.

    All other tasks of the loop are being cancelled then, as far as their counts tell, as when the loop ends.
    """
    items: list[int] = []

    async def source() -> AsyncIterator[int]:
        with anyio.move_on_after(0):
            yield 1
        yield 2
        yield 3

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        assert task.cancelling() == 1
        async with guarded_stream(source()) as stream:
            items.append(await anext(stream))
            await anyio.wait_all_tasks_blocked()
            async for item in stream:
                items.append(item)

    run_to_its_end(runner, main)
    assert items == [1, 2, 3]


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("fires", [anyio.move_on_after, asyncio.timeout], ids=["anyio", "native"])
def test_loop_that_is_run_in_parts(fires: Any, make_loop: Any) -> None:
    """A loop that is stopped and run again, as notebooks and fixtures do, is not taken for one that ends.

    The source has a timeout that fires while the body works, in a later part than the one that entered the guard.
    """
    items: list[int] = []
    stream: Any = None

    async def source() -> AsyncIterator[int]:
        yield 1
        with suppress(TimeoutError):
            if fires is asyncio.timeout:
                async with asyncio.timeout(0):
                    yield 2
            else:
                with anyio.move_on_after(0):
                    yield 2
        yield 3
        yield 4

    async def enter() -> None:
        nonlocal stream
        stream = await guarded_stream(source()).__aenter__()
        items.append(await anext(stream))

    async def go_on() -> None:
        items.append(await anext(stream))
        for _ in range(3):
            await anyio.wait_all_tasks_blocked()

    async def leave() -> None:
        items.extend([item async for item in stream])
        await stream.__aexit__(None, None, None)

    loop = make_loop()
    try:
        for part in (enter, go_on, leave):
            loop.run_until_complete(asyncio.wait_for(part(), PATIENCE))
    finally:
        loop.close()
    assert items == [1, 2, 3, 4]


def test_timeouts_in_several_threads() -> None:
    """Loops in several threads do not disturb each other when timeouts fire inside of idle sources."""
    interval = sys.getswitchinterval()
    failures: list[BaseException] = []
    done = threading.Event()

    async def times_out() -> AsyncIterator[int]:
        with anyio.move_on_after(0):
            yield 1
        yield 2

    async def read_two() -> None:
        async with guarded_stream(times_out()) as stream:
            await anext(stream)
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
            await anext(stream)

    async def many_at_once() -> None:
        try:
            for _ in range(20):
                async with anyio.create_task_group() as group:
                    for _ in range(30):
                        group.start_soon(read_two)
        except BaseException as error:
            failures.append(error)
        finally:
            done.set()

    async def one_after_another() -> None:
        while not done.is_set():
            async with guarded_stream(Kept().numbers()) as stream:
                await anext(stream)

    sys.setswitchinterval(1e-6)
    try:
        threads = [
            threading.Thread(target=asyncio.run, args=(main(),))
            for main in (many_at_once, one_after_another, one_after_another)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert failures == []


@pytest.mark.parametrize("state", STATES)
def test_kept_guard_on_trio(state: str, caplog: pytest.LogCaptureFixture) -> None:
    """A trio run that ends with a guard that was never left ends; the close is begun, and cut, as trio cuts all."""
    source, options, then = STATES[state]
    story = _keep("trio", lambda story: guarded_stream(getattr(story, source)(), **options), then)
    ended_before = state.startswith("failed")
    assert story.log == (["close", "close done"] if ended_before else ["close"])
    assert caplog.messages == []


@on_all
def test_kept_chain(runner: str, caplog: pytest.LogCaptureFixture) -> None:
    """A loop that ends with a chain that was never left ends; the running member is closed, no other one starts."""
    story = _keep(runner, lambda story: guarded_chain(story.numbers(), story.numbers()), _nothing_more)
    assert story.log[:1] == ["close"]
    assert story.log.count("close") == 1
    assert caplog.messages == []


@on_all
def test_kept_guard_that_nobody_read(runner: str, caplog: pytest.LogCaptureFixture) -> None:
    """A loop that ends with a guard that was entered and never read ends, and has nothing to close."""
    story = Kept()

    async def main() -> None:
        kept.append(await guarded_stream(story.numbers()).__aenter__())

    try:
        run_to_its_end(runner, main)
    finally:
        with pytest.warns(ResourceWarning, match="never left"):
            kept.clear()
            collect_until_quiet()
    assert story.log == []
    assert caplog.messages == []


def test_kept_guard_of_a_loop_that_is_only_closed(caplog: pytest.LogCaptureFixture) -> None:
    """A guard in a loop that is stopped and closed by hand, as old programs do, does no harm when it is dropped.

    Nothing can run any more, so that Python tells of the task that it destroys, as of any other.
    """
    story = Kept()
    loop = asyncio.new_event_loop()

    async def main() -> None:
        stream = await guarded_stream(story.numbers()).__aenter__()
        kept.append(stream)
        await anext(stream)

    loop.run_until_complete(main())
    loop.close()
    with pytest.warns(ResourceWarning, match="never left"):
        kept.clear()
        collect_until_quiet()
    assert story.log == []


@pytest.mark.parametrize("state", ["at a yield", "an iterator", "failed, unread"])
def test_owner_that_is_destroyed(state: str, caplog: pytest.LogCaptureFixture) -> None:
    """At the end of the program Python closes what a closed loop has left, where nothing can be awaited any more."""
    source, options, then = STATES[state]
    story = Kept()
    loop = asyncio.new_event_loop()

    async def main() -> None:
        stream = await guarded_stream(getattr(story, source)(), **options).__aenter__()
        kept.append(stream)
        await anext(stream)
        await then(stream)

    before = set(_asyncio._alive)
    loop.run_until_complete(main())
    loop.close()
    (task,) = _asyncio._alive - before
    task.coroutine.close()
    assert kept[0]._owner.cleanup_errors == []  # a RuntimeError if it waited for anything
    assert story.log == (["close", "close done"] if state == "failed, unread" else [])
    assert task not in _asyncio._alive
    del task, loop
    with pytest.warns(ResourceWarning, match="never left"):
        kept.clear()
        collect_until_quiet()
    assert all(message.startswith("Task was destroyed but it is pending") for message in caplog.messages)


# -- Ctrl-C

AGAIN_IN_THE_CLOSE = [("body", "close"), ("source", "close"), ("close", "close")]
AGAIN_IN_THE_TAIL = [("body", "tail"), ("source", "tail"), ("close", "tail"), ("tail", "tail")]
WHERE = [*((point,) for point in POINTS), *AGAIN_IN_THE_CLOSE, *AGAIN_IN_THE_TAIL, ("skipped",)]
"""Where each loop is interrupted, once or twice."""

THROWN_IN = {"body": "GeneratorExit", "source": "cancelled", "close": "GeneratorExit", "tail": "GeneratorExit"}
"""What the source gets, by the point of the first interrupt."""

on_each_backend = pytest.mark.parametrize("backend", ["asyncio", "uvloop", "trio"])
ctrl_c_can_be_sent = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot send it to one process")


@dataclass
class Program:
    """What a program said, loop by loop, and how it ended."""

    said: dict[tuple[str, ...], list[str]]
    returncode: int
    errors: str


@functools.cache
def interrupt(backend: str) -> Program:
    """Run a program that asks for Ctrl-C again and again. One for all tests: most of its time is its start."""
    runs = [*WHERE, ("busy",) if backend == "trio" else ("busy", "busy"), ("end",)]
    program = str(Path(__file__).with_name("interrupted.py"))
    command = [sys.executable, "-W", "error", program, backend, *(",".join(points) for points in runs)]
    said: dict[tuple[str, ...], list[str]] = {}
    now: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            word = line.strip()
            if word == "ready":
                process.send_signal(signal.SIGINT)
            elif word.startswith("run "):
                now = said[tuple(word.removeprefix("run ").split(","))] = []
            else:
                now.append("cancelled" if word in ("CancelledError", "Cancelled") else word)
        errors = process.stderr.read()
    return Program(said, process.returncode, errors)


@ctrl_c_can_be_sent
@on_each_backend
@at_each_point
def test_ctrl_c(point: str, backend: str) -> None:
    """Ctrl-C at any point: the close and the tail run to their ends, once, and then KeyboardInterrupt leaves."""
    said = interrupt(backend).said[point,]
    assert said == [THROWN_IN[point], *ALL_DONE, "left", "KeyboardInterrupt"]


@ctrl_c_can_be_sent
@pytest.mark.parametrize("backend", ["asyncio", "uvloop"])
@pytest.mark.parametrize("points", AGAIN_IN_THE_CLOSE, ids=" ".join)
def test_ctrl_c_again_in_the_close(points: tuple[str, str], backend: str) -> None:
    """A second Ctrl-C, in the close, cuts it, as asyncio cuts all; the tail still runs to its end, once."""
    said = interrupt(backend).said[points]
    cut = ["close", "close cut: CancelledError", "tail", "tail done"]
    assert said == [THROWN_IN[points[0]], *cut, "left", "KeyboardInterrupt"]


@ctrl_c_can_be_sent
@pytest.mark.parametrize("backend", ["asyncio", "uvloop"])
@pytest.mark.parametrize("points", AGAIN_IN_THE_TAIL, ids=" ".join)
def test_ctrl_c_again_in_the_tail(points: tuple[str, str], backend: str) -> None:
    """A second Ctrl-C, in the tail, cuts it, as asyncio cuts all; the close has run to its end."""
    said = interrupt(backend).said[points]
    cut = ["close", "close done", "tail", "tail cut: CancelledError"]
    assert said == [THROWN_IN[points[0]], *cut, "left", "KeyboardInterrupt"]


@ctrl_c_can_be_sent
@pytest.mark.parametrize("points", [*AGAIN_IN_THE_CLOSE, *AGAIN_IN_THE_TAIL], ids=" ".join)
def test_ctrl_c_again_on_trio(points: tuple[str, str]) -> None:
    """On trio a second Ctrl-C does not cut what waits: the close and the tail run to their ends, once."""
    said = interrupt("trio").said[points]
    assert said == [THROWN_IN[points[0]], *ALL_DONE, "left", "KeyboardInterrupt"]


@pytest.fixture
def trio_takes_ctrl_c() -> Generator[None, None, None]:
    """Trio takes over only Python's own handler, which is not there in what a shell runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("trio_takes_ctrl_c")
@pytest.mark.parametrize("prefetch", [0, 2])
def test_ctrl_c_inside_the_source(prefetch: int) -> None:
    """On trio Ctrl-C that strikes while the source is at work is raised there, also if it runs ahead."""
    log: list[str] = []

    async def source() -> AsyncIterator[int]:
        yield 1
        try:
            signal.raise_signal(signal.SIGINT)
            yield 2
        except KeyboardInterrupt:
            log.append("raised in the source")
            raise

    async def main() -> None:
        async with guarded_stream(source(), prefetch=prefetch) as stream:
            async for _ in stream:
                pass

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert log == ["raised in the source"]


class InterruptedOnce(deque[int]):
    """Items that stand ahead of the reader; Ctrl-C strikes while the first one is put there."""

    struck = False

    def append(self, item: int) -> None:
        super().append(item)
        if not self.struck:
            self.struck = True
            signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("trio_takes_ctrl_c")
def test_ctrl_c_in_the_hand_off() -> None:
    """On trio Ctrl-C that strikes while an item is handed out is the reader's: the source is not cut, no item lost."""
    log: list[object] = []

    async def source() -> AsyncIterator[int]:
        for number in range(3):
            yield number

    async def main() -> None:
        async with guarded_stream(source()) as stream:
            stream._owner.ahead = InterruptedOnce()  # type: ignore[union-attr]
            while len(log) < 4:
                try:
                    log.append(await anext(stream))
                    await trio.lowlevel.checkpoint()
                except KeyboardInterrupt:
                    log.append("interrupted")

    trio.run(main)
    assert [item for item in log if item != "interrupted"] == [0, 1, 2]
    assert log.count("interrupted") == 1


@pytest.mark.usefixtures("trio_takes_ctrl_c")
def test_ctrl_c_while_the_exit_waits() -> None:
    """On trio Ctrl-C that finds the exit waiting for the close leaves when it is done; the close is not cut."""
    log: list[str] = []

    @trio.lowlevel.enable_ki_protection  # so that it arrives in the main task
    def interrupt() -> None:
        signal.raise_signal(signal.SIGINT)

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await anyio.wait_all_tasks_blocked()
            interrupt()
            await anyio.wait_all_tasks_blocked()
            log.append("closed")

    async def main() -> None:
        try:
            async with guarded_stream(source(), tail=lambda _: log.append("tail")) as stream:
                await anext(stream)
        finally:
            log.append("left")

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert log == ["closed", "tail", "left"]


@ctrl_c_can_be_sent
def test_ctrl_c_in_a_source_that_never_waits() -> None:
    """On trio Ctrl-C interrupts a source that spins: it is raised there, and close and tail run to their ends."""
    said = interrupt("trio").said["busy",]
    assert said == ["KeyboardInterrupt", *ALL_DONE, "left", "KeyboardInterrupt"]


@ctrl_c_can_be_sent
@pytest.mark.parametrize("backend", ["asyncio", "uvloop"])
def test_ctrl_c_twice_in_a_source_that_never_waits(backend: str) -> None:
    """On asyncio the second Ctrl-C interrupts a source that spins: it is raised there, and the tail runs to its end.

    The first one only cancels the main task, which has no turn: the source is in its cleanup when it gets one.
    """
    said = interrupt(backend).said["busy", "busy"]
    assert said[:2] == ["KeyboardInterrupt", "close"]
    assert said[-4:] == ["tail", "tail done", "left", "KeyboardInterrupt"]


@ctrl_c_can_be_sent
@on_each_backend
def test_ctrl_c_in_a_source_whose_items_are_skipped(backend: str) -> None:
    """Ctrl-C ends a source that yields without a wait and whose items are all skipped, with one close and one tail."""
    said = interrupt(backend).said["skipped",]
    assert said[0] in ("KeyboardInterrupt", "GeneratorExit")
    assert said[1:] == [*ALL_DONE, "left", "KeyboardInterrupt"]


@ctrl_c_can_be_sent
@on_each_backend
def test_ctrl_c_ends_the_program(backend: str) -> None:
    """The shell sees a program that Ctrl-C has ended, and nothing but that traceback was said on the way."""
    program = interrupt(backend)
    assert program.returncode == -signal.SIGINT
    assert program.errors.startswith("Traceback")
    assert program.errors.splitlines()[-1] == "KeyboardInterrupt"
    assert "never awaited" not in program.errors
    assert "was destroyed" not in program.errors


@ctrl_c_can_be_sent
@pytest.mark.parametrize("case", ["read", "read_again", "aclose", "aclose_chain", "hand_off"])
def test_ctrl_c_at_each_line(case: str) -> None:
    """On trio, at whatever line of ours it comes: it leaves, `cancel` is called, and what was open is closed."""
    program = Path(__file__).parent / "interrupted_lines.py"
    result = subprocess.run([sys.executable, program, case], capture_output=True, text=True, timeout=120)
    assert re.fullmatch(r"\d\d+ lines\n", result.stdout), result.stdout + result.stderr
