"""What was left suspended is found, with its lines and its end; what was not is not; and nobody notices."""

import ast
import asyncio
import contextlib
import gc
import importlib.util
import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio
import uvloop

import streamguard
from compiled import Compiled
from recording import Fault, only_asyncio
from streamguard import Aclosing, guarded_chain, guarded_stream
from streamguard._yours import Yours
from streamguard.leaks import How, Leak, Leaks, track

# trio says of each dropped generator that it was dropped.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator .* was garbage collected:ResourceWarning")

Main = Callable[[], Awaitable[None]]
kept: list[object] = []


@pytest.fixture(autouse=True)
def _forget_kept() -> object:
    yield
    kept.clear()
    gc.collect()


def line_of(tag: str) -> int:
    """The line of this file that ends with a comment like this."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {tag}"))


# -- event loops


def by_uvloop(main: Main) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())  # type: ignore[arg-type]


def by_hand(main: Main) -> None:
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(main())
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def in_a_thread(main: Main) -> None:
    thread = threading.Thread(target=by_hand, args=[main])
    thread.start()
    thread.join()


RUNNERS = [
    pytest.param(lambda main: asyncio.run(main()), id="asyncio"),
    pytest.param(by_uvloop, id="uvloop"),
    pytest.param(trio.run, id="trio"),
    pytest.param(lambda main: anyio.run(main, backend="asyncio"), id="anyio-asyncio"),
    pytest.param(lambda main: anyio.run(main, backend="trio"), id="anyio-trio"),
    pytest.param(by_hand, id="hand-made"),
    pytest.param(in_a_thread, id="thread"),
]
on_each_loop = pytest.mark.parametrize("run", RUNNERS)


# -- ways to leave


async def turn() -> None:
    """Let the event loop close what was dropped."""
    for _ in range(10):
        await anyio.lowlevel.checkpoint()


async def numbers() -> AsyncGenerator[int, None]:
    try:
        yield 1  # the yield
        yield 2
    finally:
        await anyio.lowlevel.checkpoint()


async def by_break() -> None:
    async for _ in numbers():  # break
        break


async def by_return() -> int | None:
    async for number in numbers():  # return
        return number
    return None


async def by_exception() -> None:
    with contextlib.suppress(Fault):
        async for _ in numbers():  # exception
            raise Fault


async def by_reference() -> None:
    generator = numbers()
    kept.append(generator)
    await anext(generator)  # reference


async def by_cancellation() -> None:
    with anyio.CancelScope() as scope:
        async for _ in numbers():  # cancellation
            scope.cancel()
            await anyio.sleep_forever()


async def three_deep() -> None:
    async def second() -> None:
        async def first() -> int | None:
            async for number in numbers():  # deep
                return number
            return None

        await first()

    await second()


LEFT = {
    "break": (by_break, How.DROPPED),
    "return": (by_return, How.DROPPED),
    "exception": (by_exception, How.DROPPED),
    "reference": (by_reference, How.OPEN),
    "cancellation": (by_cancellation, How.DROPPED),
    "deep": (three_deep, How.DROPPED),
}


@on_each_loop
@pytest.mark.parametrize("way", LEFT)
def test_left(run: Callable[[Main], None], way: str) -> None:
    """Whatever is left suspended is found once, with the line of its yield, the line that iterates it, and its end."""
    leave, how = LEFT[way]

    async def main() -> None:
        await leave()
        gc.collect()
        await turn()

    with track() as leaks:
        run(main)
    assert leaks.found == (Leak("numbers", __file__, line_of("the yield"), __file__, line_of(way), how, 1),)
    assert leaks.inside == ()


async def exhausted() -> None:
    async for _ in numbers():
        pass


async def closed() -> None:
    async with contextlib.aclosing(numbers()) as stream:
        async for _ in stream:
            break
    async with Aclosing(numbers()) as stream:
        async for _ in stream:
            break
    await (started := numbers()).__anext__()
    await started.aclose()


async def guarded() -> None:
    async def around(generator: AsyncIterator[int]) -> AsyncIterator[int]:
        async for number in generator:
            yield number

    async with guarded_stream(around(numbers())) as stream:
        async for _ in stream:
            break
    async with guarded_chain(around(numbers()), around(numbers())) as chain:
        async for _ in chain:
            break


async def failed() -> None:
    async def fails() -> AsyncIterator[int]:
        yield 1
        raise Fault

    with pytest.raises(Fault):
        async for _ in fails():
            pass


async def never_started() -> None:
    kept.append(numbers())
    numbers()


@on_each_loop
@pytest.mark.parametrize("not_leave", [exhausted, closed, guarded, failed, never_started])
def test_not_left(run: Callable[[Main], None], not_leave: Main) -> None:
    """What was exhausted, closed, guarded, has failed or was never started is not found."""
    with track() as leaks:
        run(not_leave)
    assert leaks.found == leaks.inside == ()


def test_never_ran() -> None:
    """A generator whose first step was asked for and never taken was not left at a yield."""

    async def main() -> None:
        first = numbers()
        step = first.__anext__()
        with warnings.catch_warnings(action="ignore"):
            del first, step
        kept.append(second := numbers())
        kept.append(second.__anext__())

    with track() as leaks, warnings.catch_warnings(action="ignore"):
        asyncio.run(main())
        kept.clear()
    assert leaks.found == ()


def test_compiled() -> None:
    """What a compiler made of a generator has no line to tell of: it is not found, and closed as without us."""
    log: list[str] = []

    async def main() -> None:
        kept.append(Compiled(log))
        await anext(kept[0])  # type: ignore[call-overload]
        async for _ in Compiled(log):
            break
        await turn()
        assert log == ["closed"]

    with track() as leaks:
        asyncio.run(main())
    assert log == ["closed", "closed"]
    assert leaks.found == leaks.inside == ()


def test_loop_that_takes_no_attributes() -> None:
    """A loop that cannot be asked when it ends is tracked as far as that goes."""

    class Loop:
        __slots__ = ()

    with Hooks(), track() as leaks:
        asyncio._set_running_loop(Loop())  # type: ignore[arg-type]
        try:
            leave_one_by_hand()
        finally:
            asyncio._set_running_loop(None)
    assert names(leaks.found) == ["numbers"]


def test_several_loops() -> None:
    """Event loops one after another, of different kinds, all count."""
    with track() as leaks:
        asyncio.run(by_break())
        trio.run(by_break)
        by_uvloop(by_break)
    assert [leak.count for leak in leaks.found] == [3]


def test_loops_at_the_same_time() -> None:
    """Loops in two threads count, each its own."""
    meet = threading.Barrier(2, timeout=10)

    async def main() -> None:
        await by_break()
        meet.wait()
        await by_reference()

    with track() as leaks:
        threads = [threading.Thread(target=run, args=[main]) for run in (by_uvloop, trio.run)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [(leak.how, leak.count) for leak in leaks.found] == [(How.DROPPED, 2), (How.OPEN, 2)]


def test_never_finalised() -> None:
    """A loop that is closed without shutting its generators down never finalises what it still knows."""
    loop = asyncio.new_event_loop()
    with track() as leaks:
        loop.run_until_complete(by_reference())
        loop.close()
    assert [leak.how for leak in leaks.found] == [How.UNFINALISED]


def test_dropped_when_the_loop_was_gone() -> None:
    """A generator that is dropped after its loop was closed is never finalised."""
    loop = asyncio.new_event_loop()
    with track() as leaks:
        loop.run_until_complete(by_reference())
        loop.close()
        kept.clear()
        gc.collect()
        assert [leak.how for leak in leaks.found] == [How.UNFINALISED]


def test_reference_cycle() -> None:
    """A generator that only a reference cycle holds when the block ends is found."""

    async def main() -> None:
        with track() as leaks:
            await in_a_cycle()
        assert [leak.how for leak in leaks.found] == [How.DROPPED]

    async def in_a_cycle() -> None:
        cycle = [generator := numbers()]
        cycle.append(cycle)  # type: ignore[arg-type]
        await anext(generator)

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()


def at_work(loop: asyncio.AbstractEventLoop) -> None:
    """Let a task work on an item, for ever."""

    async def start() -> None:
        ready = anyio.Event()
        task = asyncio.create_task(pause_in(numbers(), ready))
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        kept.append(task)
        await ready.wait()

    loop.run_until_complete(start())


def test_at_work_when_the_loop_was_closed() -> None:
    """What a task was at work on when its loop was closed is never finalised."""
    loop = asyncio.new_event_loop()
    with track() as leaks:
        at_work(loop)
        loop.close()
    assert [leak.how for leak in leaks.found] == [How.UNFINALISED]


def test_at_work_when_the_loop_shuts_down() -> None:
    """What a task is at work on when the loop closes all that is open was still open."""
    loop = asyncio.new_event_loop()
    with track() as leaks:
        at_work(loop)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
    assert [leak.how for leak in leaks.found] == [How.OPEN]


def test_at_work_in_a_loop_that_nobody_closes() -> None:
    """What a task was at work on when its loop was left to itself was still open: nobody is at work any more."""
    loop = asyncio.new_event_loop()
    with track() as leaks:
        at_work(loop)
    assert [leak.how for leak in leaks.found] == [How.OPEN]
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def test_task_that_ends_in_a_trio_run() -> None:
    """What is open while some task of a trio run ends, and closed before the run does, is not left."""

    async def main() -> None:
        generator = numbers()
        await anext(generator)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.lowlevel.checkpoint)
            trio.lowlevel.spawn_system_task(trio.lowlevel.checkpoint)
        await generator.aclose()

    with track() as leaks:
        trio.run(main)
    assert leaks.found == ()


def test_trio_as_a_guest() -> None:
    """What is open when a trio run ends that is the guest of an asyncio loop was left in the trio run."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        trio.lowlevel.start_guest_run(
            by_reference, run_sync_soon_threadsafe=loop.call_soon_threadsafe, done_callback=ended.set_result
        )
        (await ended).unwrap()

    with track() as leaks:
        asyncio.run(main())
    assert [(leak.first_line, leak.how) for leak in leaks.found] == [(line_of("reference"), How.OPEN)]


def test_trio_run_that_goes_on() -> None:
    """A trio run that goes on when the block is left is rid of us, and can be tracked again."""

    def instruments() -> list[object]:
        return list(trio._core._run.GLOBAL_RUN_CONTEXT.runner.instruments["_all"])

    async def main() -> None:
        for _ in range(2):
            with track() as leaks:
                await by_break()
            assert names(leaks.found) == ["numbers"]
            assert instruments() == []

    trio.run(main)


def test_guarded_one_that_takes_the_place_of_another() -> None:
    """A guarded generator at the address of one that was tracked is not taken for it."""

    async def items(count: int) -> AsyncGenerator[int, None]:
        for number in range(count):
            yield number

    async def source(before: set[int]) -> AsyncIterator[int]:
        inner = [items(1) for _ in range(50)]
        assert before.intersection(map(id, inner)), "no address was taken again"
        for generator in inner:
            await anext(generator)
        del inner, generator
        yield 1

    async def main() -> None:
        ended = [items(0) for _ in range(50)]
        before = set(map(id, ended))
        for generator in ended:
            async for _ in generator:
                pass
        del ended, generator
        async with guarded_stream(source(before)) as stream:
            await anext(stream)

    with track() as leaks:
        asyncio.run(main())
    assert leaks.found == leaks.inside == ()


def test_dropped_just_before_the_loop_was_closed() -> None:
    """A generator whose finaliser task never ran is never finalised, although its loop was there to start it."""
    loop = asyncio.new_event_loop()
    with track() as leaks, warnings.catch_warnings(action="ignore"):
        loop.run_until_complete(by_break())
        loop.close()
    assert [leak.how for leak in leaks.found] == [How.UNFINALISED]


def test_without_a_loop() -> None:
    """A generator that is driven by hand, without a loop and its hooks, counts, and is closed as Python does."""
    closed = []

    async def letters() -> AsyncIterator[str]:
        try:
            yield "a"
        finally:
            closed.append("a")

    async def main() -> None:
        async for _ in letters():
            break

    with track() as leaks:
        with pytest.raises(StopIteration):
            main().send(None)
        assert closed == ["a"]
    assert [leak.how for leak in leaks.found] == [How.DROPPED]


def test_kept_without_a_loop() -> None:
    """One that is driven by hand and kept is never finalised: there is nobody who would."""

    async def letters() -> AsyncGenerator[str, None]:
        yield "a"

    with track() as leaks:
        kept.append(generator := letters())
        with pytest.raises(StopIteration):
            generator.__anext__().send(None)
    assert [leak.how for leak in leaks.found] == [How.UNFINALISED]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_without_a_loop_that_awaits(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that awaits while Python closes it is told of in Python's words, and with its traceback."""
    told: list[tuple[str, list[str]]] = []

    def tell(unraisable: Any) -> None:
        frames = traceback.extract_tb(unraisable.exc_traceback)
        told.append((str(unraisable.exc_value), [frame.name for frame in frames]))

    monkeypatch.setattr(sys, "unraisablehook", tell)

    async def letters() -> AsyncIterator[str]:
        try:
            yield "a"
        finally:
            await asyncio.sleep(0)

    async def main() -> None:
        async for _ in letters():
            break

    def drive() -> None:
        with pytest.raises(StopIteration):
            main().send(None)

    drive()
    with track() as leaks:
        drive()
    assert told[0] == told[1]
    assert told[0][0] == "async generator ignored GeneratorExit"
    assert [leak.how for leak in leaks.found] == [How.UNFINALISED]


# -- grouped, and no memory for it


def test_counted() -> None:
    """A line that leaks a thousand times is one leak with a count."""

    async def main() -> None:
        for _ in range(1000):
            await by_break()

    with track() as leaks:
        asyncio.run(main())
    assert [(leak.name, leak.count) for leak in leaks.found] == [("numbers", 1000)]


def test_while_it_runs() -> None:
    """What was left so far can be asked for in the block."""

    async def main() -> None:
        with track() as leaks:
            await by_break()
            assert [leak.count for leak in leaks.found] == [1]
            await by_break()
            assert [leak.count for leak in leaks.found] == [2]

    asyncio.run(main())


def test_memory() -> None:
    """Neither generators that ended nor those that were dropped and closed are kept."""
    alive: list[weakref.ref[AsyncGenerator[int, None]]] = []

    async def main(leaks: Leaks) -> None:
        for _ in range(5000):
            alive.append(weakref.ref(generator := numbers()))
            await anext(generator)
            del generator
            async for _ in numbers():
                pass
            await asyncio.sleep(0)
        assert len(leaks._tracker._left) <= 1000
        assert len(leaks._tracker._open) <= 1000

    with track() as leaks:
        asyncio.run(main(leaks))
    assert [leak.count for leak in leaks.found] == [5000]
    assert not any(ref() for ref in alive)


def test_memory_of_what_ended() -> None:
    """Of generators that ended nothing is kept, also while the program keeps them."""

    async def main() -> None:
        for _ in range(1500):
            kept.append(generator := numbers())
            assert [number async for number in generator] == [1, 2]
        assert len(leaks._tracker._open) <= 1000

    with track() as leaks:
        asyncio.run(main())
    assert leaks.found == ()


# -- in a running loop


async def pause_in(generator: AsyncGenerator[int, None], ready: anyio.Event) -> None:
    async for _ in generator:
        ready.set()
        await anyio.sleep_forever()


@pytest.mark.anyio
@pytest.mark.may_leave("the point")
async def test_at_work(anyio_backend: object) -> None:
    """What a task is at work on when the block ends is not left; what only a variable of others holds is."""
    ready = anyio.Event()
    async with anyio.create_task_group() as group:
        with track() as leaks:
            group.start_soon(pause_in, numbers(), ready)
            await ready.wait()
            await by_reference()
        group.cancel_scope.cancel()
    assert [(leak.first_line, leak.how) for leak in leaks.found] == [(line_of("reference"), How.OPEN)]


@pytest.mark.anyio
@only_asyncio
async def test_being_read(anyio_backend: object) -> None:
    """What waits for its next item when the block ends is not left, whoever holds it."""

    async def waits() -> AsyncGenerator[int, None]:
        await asyncio.sleep(60)
        yield 1

    with track() as leaks:
        kept.append(generator := waits())
        task = asyncio.create_task(generator.__anext__())  # type: ignore[var-annotated, arg-type]
        await asyncio.sleep(0)
        del generator
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert leaks.found == ()


def test_inner_generator_of_one_that_is_kept() -> None:
    """Of generators inside each other that are still open, the outer one is the one that was left."""

    async def around() -> AsyncIterator[int]:
        async for number in numbers():
            yield number

    async def main() -> None:
        kept.append(generator := around())
        await anext(generator)

    with track() as leaks:
        asyncio.run(main())
    assert [leak.name for leak in leaks.found] == [f"{main.__qualname__.rpartition('.')[0]}.around"]


# -- whose it is

LIBRARY = """
async def inner():
    yield 1
    yield 2

async def outer():
    async for item in inner():
        yield item

class Stream:
    def __init__(self):
        self._items = inner()
    def __aiter__(self):
        return self
    async def __anext__(self):
        return await self._items.__anext__()

async def first():
    async for item in inner():
        return item
"""


@pytest.fixture
def library(tmp_path: Path) -> ModuleType:
    """An installed module."""
    path = tmp_path / "site-packages" / "thelib.py"
    path.parent.mkdir()
    path.write_text(LIBRARY)
    spec = importlib.util.spec_from_file_location("thelib", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def names(leaks: tuple[Leak, ...]) -> list[str]:
    return [leak.name for leak in leaks]


def test_generator_of_a_library(library: ModuleType) -> None:
    """What your loop leaves is yours, with your line; what the library's generators leave with it is the library's."""

    async def main() -> None:
        async for _ in library.outer():  # library
            break
        await turn()

    with track() as leaks:
        asyncio.run(main())
    assert names(leaks.found) == ["outer"]
    assert (leaks.found[0].file, leaks.found[0].first_file) == (library.__file__, __file__)
    assert leaks.found[0].first_line == line_of("library")
    assert names(leaks.inside) == ["inner"]


def test_iterator_around_a_generator(library: ModuleType) -> None:
    """An iterator of a library that wraps a generator is looked through: your loop left it."""

    async def main() -> None:
        async for _ in library.Stream():  # iterator
            break

    with track() as leaks:
        asyncio.run(main())
    assert names(leaks.found) == ["inner"]
    assert leaks.found[0].first_line == line_of("iterator")
    assert leaks.inside == ()


def test_left_by_a_library(library: ModuleType) -> None:
    """What a library leaves by itself is not yours, unless you say that the library is."""
    with track() as leaks:
        asyncio.run(library.first())
    assert (names(leaks.found), names(leaks.inside)) == ([], ["inner"])
    with track(packages=["thelib"]) as leaks:
        asyncio.run(library.first())
    assert (names(leaks.found), names(leaks.inside)) == (["inner"], [])
    with track(packages=["the"]) as leaks:
        asyncio.run(library.first())
    assert (names(leaks.found), names(leaks.inside)) == ([], ["inner"])


def test_streamguard_is_a_library() -> None:
    """What streamguard itself iterates is never yours, wherever it is installed."""
    assert not Yours(["streamguard"])(streamguard.__file__)


def test_python_is_a_library() -> None:
    """A context manager made of a generator is iterated by Python's own library."""

    @contextlib.asynccontextmanager
    async def opened() -> AsyncIterator[int]:
        yield 1

    async def main() -> None:
        kept.append(manager := opened())
        await manager.__aenter__()

    with track() as leaks:
        asyncio.run(main())
    assert (len(leaks.found), len(leaks.inside)) == (0, 1)


# -- hooks


class Hooks:
    """Hooks of the program's own."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def first(self, generator: AsyncGenerator[int, None]) -> None:
        self.log.append("first")

    def last(self, generator: AsyncGenerator[int, None]) -> None:
        self.log.append("last")

    def __enter__(self) -> "Hooks":
        self.before = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(self.first, self.last)
        return self

    def __exit__(self, *details: object) -> None:
        sys.set_asyncgen_hooks(*self.before)


def leave_one_by_hand() -> None:
    with pytest.raises(StopIteration):
        by_break().send(None)


@pytest.mark.parametrize("order", ["before", "inside"])
def test_hooks_of_the_program(order: str) -> None:
    """Hooks that the program installs, before or while it is tracked, are seen, called and left as without tracking."""
    python = (sys.get_asyncgen_hooks, sys.set_asyncgen_hooks)
    hooks = Hooks()
    with hooks if order == "before" else track() as first:
        with track() if order == "before" else hooks as second:
            leaks = second if order == "before" else first
            assert sys.get_asyncgen_hooks() == (hooks.first, hooks.last)
            leave_one_by_hand()
            assert hooks.log == ["first", "last"]
        if order == "before":
            assert sys.get_asyncgen_hooks() == (hooks.first, hooks.last)
    assert isinstance(leaks, Leaks)
    assert names(leaks.found) == ["numbers"]
    assert (sys.get_asyncgen_hooks, sys.set_asyncgen_hooks) == python
    assert sys.get_asyncgen_hooks() == (None, None)


def test_half_of_the_hooks() -> None:
    """A hook that the program does not give stays what it was."""
    hooks = Hooks()
    with track():
        sys.set_asyncgen_hooks(firstiter=hooks.first)
        assert sys.get_asyncgen_hooks() == (hooks.first, None)
        sys.set_asyncgen_hooks(finalizer=hooks.last)
        assert sys.get_asyncgen_hooks() == (hooks.first, hooks.last)
        sys.set_asyncgen_hooks(None, None)
        assert sys.get_asyncgen_hooks() == (None, None)


def test_warning_of_the_loop() -> None:
    """trio warns whoever dropped a generator, at the line that did."""

    async def main() -> None:
        await by_break()

    def lines() -> list[tuple[str, int]]:
        with warnings.catch_warnings(record=True, action="always", category=ResourceWarning) as caught:
            trio.run(main)
        return [(warning.filename, warning.lineno) for warning in caught]

    expected = lines()
    with track():
        assert lines() == expected
    assert expected[0][0] == __file__


def test_functions_that_the_program_kept() -> None:
    """The functions of `sys` that a program took while it was tracked work as before when it is no longer."""
    hooks = Hooks()
    with track():
        get, set_ = sys.get_asyncgen_hooks, sys.set_asyncgen_hooks
    set_(hooks.first, hooks.last)
    assert get() == sys.get_asyncgen_hooks() == (hooks.first, hooks.last)
    set_(None, None)
    assert get() == sys.get_asyncgen_hooks() == (None, None)


def test_functions_that_another_tracer_put_around_ours() -> None:
    """What another tracer has put around ours in `sys` stays when ours goes, and works."""
    hooks = Hooks()
    calls: list[str] = []
    python = (sys.get_asyncgen_hooks, sys.set_asyncgen_hooks)
    with track():
        get, set_ = sys.get_asyncgen_hooks, sys.set_asyncgen_hooks

        def traced_get() -> object:
            calls.append("get")
            return get()

        def traced_set(*args: object) -> None:
            calls.append("set")
            set_(*args)  # type: ignore[arg-type]

        sys.get_asyncgen_hooks, sys.set_asyncgen_hooks = traced_get, traced_set  # type: ignore[assignment]
    try:
        assert (sys.get_asyncgen_hooks, sys.set_asyncgen_hooks) == (traced_get, traced_set)
        sys.set_asyncgen_hooks(hooks.first, hooks.last)
        assert sys.get_asyncgen_hooks() == python[0]() == (hooks.first, hooks.last)
        sys.set_asyncgen_hooks(None, None)
        assert calls == ["set", "get", "set"]
    finally:
        sys.get_asyncgen_hooks, sys.set_asyncgen_hooks = python


def test_wrong_hooks() -> None:
    """Python's error for what is no hook is raised, and all goes on."""
    with track() as leaks:
        with pytest.raises(TypeError, match="callable"):
            sys.set_asyncgen_hooks(firstiter=1)  # type: ignore[arg-type]
        asyncio.run(by_break())
    assert names(leaks.found) == ["numbers"]


@on_each_loop
def test_hooks_of_the_loop(run: Callable[[Main], None]) -> None:
    """In a loop that was started while tracking, the hooks are the loop's, and nothing of ours is left."""
    loops: list[asyncio.AbstractEventLoop] = []

    async def main() -> None:
        firstiter, _ = sys.get_asyncgen_hooks()
        assert firstiter is not None
        assert not type(firstiter).__module__.startswith("streamguard")
        await by_break()
        with contextlib.suppress(RuntimeError):
            loops.append(asyncio.get_running_loop())

    with track():
        run(main)
        assert sys.get_asyncgen_hooks() == (None, None)
    assert not any("shutdown_asyncgens" in vars(loop) for loop in loops)


@pytest.mark.anyio
@pytest.mark.may_leave("the point")
async def test_hooks_of_a_running_loop(anyio_backend: object) -> None:
    """In a loop that runs already, the hooks are back when the block is left; what was started in it goes on."""
    before = sys.get_asyncgen_hooks()
    with track():
        generator = numbers()
        await anext(generator)
        assert sys.get_asyncgen_hooks() == before
    assert sys.get_asyncgen_hooks() == before
    assert [number async for number in generator] == [2]


def test_shutdown_of_the_programs_own() -> None:
    """A loop whose `shutdown_asyncgens` the program has replaced calls the program's, then and afterwards."""
    loop = asyncio.new_event_loop()
    called = []

    async def shutdown() -> None:
        called.append(True)

    loop.shutdown_asyncgens = shutdown  # type: ignore[method-assign]
    with track() as leaks:
        loop.run_until_complete(by_reference())
        loop.run_until_complete(loop.shutdown_asyncgens())
    assert loop.shutdown_asyncgens is shutdown
    assert called == [True]
    assert [leak.how for leak in leaks.found] == [How.OPEN]
    loop.close()


def test_shutdown_that_the_program_replaces_meanwhile() -> None:
    """A loop whose `shutdown_asyncgens` the program replaces while it is tracked keeps the program's."""
    loop = asyncio.new_event_loop()
    called = []

    async def shutdown() -> None:
        called.append(True)

    with track():
        loop.run_until_complete(by_break())
        loop.shutdown_asyncgens = shutdown  # type: ignore[method-assign]
    assert loop.shutdown_asyncgens is shutdown
    loop.run_until_complete(loop.shutdown_asyncgens())
    assert called == [True]
    loop.close()


def test_two_at_once() -> None:
    """Trackers inside each other, also left in another order, each find what was started in their block."""
    outer, inner = track(), track()
    first = outer.__enter__()
    asyncio.run(by_break())
    second = inner.__enter__()
    asyncio.run(by_return())
    outer.__exit__(None, None, None)
    asyncio.run(by_exception())
    inner.__exit__(None, None, None)
    assert [leak.first_line for leak in first.found] == [line_of("break"), line_of("return")]
    assert [leak.first_line for leak in second.found] == [line_of("return"), line_of("exception")]
    assert sys.get_asyncgen_hooks() == (None, None)


def test_error_in_the_block() -> None:
    """An error leaves the block as it is, and the hooks are back."""
    python = (sys.get_asyncgen_hooks, sys.set_asyncgen_hooks)
    with pytest.raises(ZeroDivisionError), track():
        _ = 1 / 0
    assert (sys.get_asyncgen_hooks, sys.set_asyncgen_hooks) == python


# -- the report


def test_report() -> None:
    """A report names the generator, both lines with their source, the end and the fix."""

    async def main() -> None:
        await by_break()
        await by_break()
        await by_reference()

    with track() as leaks:
        asyncio.run(main())
    text = leaks.report()
    assert text.startswith("3 async generators were left suspended, at 2 places:\n\nnumbers, 2 times\n")
    for expected in (
        f"test_leaks.py:{line_of('the yield')}\n",
        "yield 1  # the yield",
        f"test_leaks.py:{line_of('break')}\n",
        "async for _ in numbers():  # break",
        "dropped",
        "still open",
        "async with guarded_stream(numbers()) as stream:",
        "async with guarded_stream(generator) as stream:",
    ):
        assert expected in text
    assert "\033" not in text
    assert "\033" in leaks.report(colour=True)


def test_report_from_a_folder_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no path can be relative, because the current folder is gone, the whole path is told."""
    with track() as leaks:
        asyncio.run(by_break())
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert f"{__file__}:{line_of('the yield')}" in leaks.report()


def test_report_of_nothing() -> None:
    """If nothing was left there is nothing to say."""
    with track() as leaks:
        pass
    assert leaks.report() == leaks.report(inside=True) == ""


def test_report_of_libraries(library: ModuleType) -> None:
    """What libraries left is counted, and shown apart when asked for."""

    async def main() -> None:
        async for _ in library.outer():
            break
        await turn()

    with track() as leaks:
        asyncio.run(main())
    assert "\n\n1 more inside libraries; report(inside=True) lists what is inside" in leaks.report()
    assert "\n\n1 async generator was left inside libraries:\n\ninner\n" in leaks.report(inside=True)


FIXES = [
    ("async for item in numbers(): break", "numbers()"),
    ("async for item in numbers(2, name=3): break", "numbers(...)"),
    ("async for (\n    item\n  ) in numbers(\n    2\n  ): break", "numbers(...)"),
    ("items = [1 / item async for item in numbers()]", "numbers()"),
    ("async for item in (number async for number in numbers()): break", "numbers(...)"),
    ("async for item in Class().method(1): break", "Class().method(...)"),
    ("async for item in Class(): break", "Class()"),
    ("kept.append(numbers()); await kept[-1].__anext__()", "kept[-1]"),
    ("await anext(numbers())", "numbers()"),
    ("async for item in Run().stream_events(): break", "Run()"),
    ("def nested():\n    return numbers()\n  async for item in nested(): break", "nested()"),
    ("make = lambda: (item async for item in numbers())\n  async for item in make(): break", "make()"),
    (f"async for item in {'[] or ' * 20}numbers(): break", "..."),
]
STREAMS = """
async def numbers(*args, **names):
  yield 0
class Class:
  async def method(self, item):
    yield item
  async def __aiter__(self):
    yield 1
class Run:
  async def stream_events(self):
    yield 1
"""


def fixes_of(program: str, path: Path, *, readable: bool) -> list[str]:
    """The fixes that the report of a program names."""
    if readable:
        path.write_text(program)
    scope: dict[str, Any] = {"kept": kept}
    exec(compile(program, path, "exec"), scope)

    async def main() -> None:
        with contextlib.suppress(ZeroDivisionError):
            await scope["main"]()
        await turn()

    with track() as leaks:
        asyncio.run(main())
    return [line.partition("the fix")[2].strip() for line in leaks.report().splitlines() if "the fix" in line]


@pytest.mark.parametrize(("lines", "source"), FIXES)
def test_fix(tmp_path: Path, lines: str, source: str) -> None:
    """The fix is the line's own expression in a guard, short, and always code."""
    fixes = fixes_of(f"{STREAMS}async def main():\n  {lines}\n", tmp_path / "program.py", readable=True)
    assert f"async with guarded_stream({source}) as stream:" in fixes
    for fix in fixes:
        ast.parse(f"async def main():\n  {fix} pass")


@pytest.mark.parametrize(
    ("lines", "source"),
    [
        ("async for item in numbers(): break", "numbers(...)"),
        ("async for item in Class().method(1): break", "Class.method(...)"),
        ("async for item in Class(): break", "..."),
        ("async for item in (1 async for item in numbers()): break", "..."),
        ("async for item in Run().stream_events(): break", "run"),
    ],
)
def test_fix_without_source(tmp_path: Path, lines: str, source: str) -> None:
    """Where the line cannot be read, the name of the generator function tells, if it is one that is called."""
    fixes = fixes_of(f"{STREAMS}async def main():\n  {lines}\n", tmp_path / "program.py", readable=False)
    assert f"async with guarded_stream({source}) as stream:" in fixes


@pytest.mark.parametrize(("line", "shown"), [("<p>line\n", 2), ("\n", 0)])
def test_source_that_is_no_python(tmp_path: Path, line: str, shown: int) -> None:
    """The line of a template, compiled to Python, is shown as it is, if there is something on it."""
    path = tmp_path / "page.html"
    program = f"{STREAMS}async def main():\n  async for item in numbers(): break\n"
    exec(compile(program, path, "exec"), scope := {})  # type: ignore[var-annotated]
    path.write_text(line * 20)
    with track() as leaks:
        asyncio.run(scope["main"]())
    assert leaks.report().count("<p>line\n") == shown
    assert "guarded_stream(numbers(...))" in leaks.report()


@pytest.mark.parametrize("readable", [True, False])
def test_width(tmp_path: Path, readable: bool) -> None:
    """However long paths, names and lines are, and whether or not the source can be read, 100 columns are enough."""
    name = "a_name_that_never_ends_" * 8
    source = f"async def {name}():\n    yield {' + '.join('1' * 80)}\n"
    folder = tmp_path / ("a long folder " * 10) / ("another one " * 10)
    folder.mkdir(parents=True)
    path = folder / "program.py"
    if readable:
        path.write_text(source)
    scope: dict[str, Callable[[], AsyncGenerator[int, None]]] = {}
    exec(compile(source, path, "exec"), scope)  # type: ignore[arg-type]

    async def main() -> None:
        async for _ in scope[name]():
            break

    with track() as leaks:
        asyncio.run(main())
    lines = leaks.report().splitlines()
    assert max(map(len, lines)) == 100
    assert any(line.endswith("program.py:2") for line in lines)
