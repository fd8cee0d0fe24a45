"""What a source drops inside is closed with it, in its own task; what merely stands still is nobody's to close."""

import asyncio
import contextvars
import gc
import logging
import sys
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager, suppress
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from compiled import Compiled
from nothing_left import Watch, collect_until_quiet
from recording import Fault, only_asyncio
from spies import on_trio, this_task
from stories import Log
from streamguard import CleanupError, CleanupTimeoutError, GuardedStream, guarded_stream
from streamguard._hooks import Members, _members_of

pytestmark = pytest.mark.anyio


class Nest:
    """Generators inside each other, which write down where they are closed."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.tasks: dict[str, object] = {}
        """In which task each one was closed."""
        self.ran_in: object = None
        """The task that the source ran in."""

    async def leaf(self, name: str = "leaf", count: int = 3) -> AsyncGenerator[int, None]:
        try:
            for number in range(1, count + 1):
                yield number
        finally:
            await self.closed(name)

    async def around(self, inner: AsyncIterator[int], name: str) -> AsyncGenerator[int, None]:
        """Passes on what `inner` yields, but no close."""
        self.ran_in = this_task()
        try:
            async for item in inner:
                yield item
        finally:
            await self.closed(name)

    async def closed(self, name: str) -> None:
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        self.tasks[name] = this_task()
        self.log.append(name)

    async def break_at_once(self, source: object, **options: Any) -> None:
        async with guarded_stream(source, **options) as stream:  # type: ignore[var-annotated, arg-type]
            async for _ in stream:
                break
        self.log.append("left")

    def all_in_one_task(self) -> bool:
        return set(self.tasks.values()) == {self.ran_in}


# -- dropped while the source closes


async def test_inner_generator() -> None:
    """An inner generator is closed before the block is left, in the task that stepped it."""
    nest = Nest()
    await nest.break_at_once(nest.around(nest.leaf(), "outer"))
    assert nest.log == ["outer", "leaf", "left"]
    assert nest.all_in_one_task()


async def test_three_levels() -> None:
    """Three levels are closed in one task, from the outer one to the inner ones, before the block is left."""
    nest = Nest()
    await nest.break_at_once(nest.around(nest.around(nest.around(nest.leaf(), "middle"), "outer"), "top"))
    assert nest.log == ["top", "outer", "middle", "leaf", "left"]
    assert nest.all_in_one_task()


@only_asyncio  # trio warns, and cuts its cleanup
async def test_aclosing_reaches_no_inner_generator() -> None:
    """Without a guard the inner one is closed later, elsewhere: this is what the hooks are for."""
    nest = Nest()
    async with aclosing(nest.around(nest.leaf(), "outer")) as items:
        async for _ in items:
            break
    nest.log.append("left")
    for _ in range(5):
        await anyio.wait_all_tasks_blocked()
        await anyio.lowlevel.checkpoint()
    assert nest.log[:2] == ["outer", "left"]
    assert nest.tasks.get("leaf") is not this_task()


async def test_inner_generator_at_an_error() -> None:
    """An inner generator is closed before the body's error leaves the block."""
    nest = Nest()
    with pytest.raises(Fault):
        async with guarded_stream(nest.around(nest.leaf(), "outer")) as stream:
            async for _ in stream:
                raise Fault
    assert nest.log == ["outer", "leaf"]


async def test_inner_generator_at_a_cancellation() -> None:
    """The cleanup of an inner generator completes although the scope around the block is cancelled."""
    nest = Nest()
    with anyio.CancelScope() as scope:
        async with guarded_stream(nest.around(nest.leaf(), "outer")) as stream:
            async for _ in stream:
                scope.cancel()
                await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert nest.log == ["outer", "leaf"]


async def test_inner_generator_that_awaits() -> None:
    """An inner generator that awaits is cancelled with the source, and its cleanup completes in the same task."""
    nest = Nest()
    holding = anyio.Event()

    async def holds() -> AsyncGenerator[int, None]:
        try:
            yield 1
            holding.set()
            await anyio.sleep_forever()
        finally:
            await nest.closed("holds")

    async with anyio.create_task_group() as group:

        async def cancel() -> None:
            await holding.wait()
            scope.cancel()

        group.start_soon(cancel)
        with anyio.CancelScope() as scope:
            async with guarded_stream(nest.around(holds(), "outer")) as stream:
                async for _ in stream:
                    pass
    assert scope.cancelled_caught
    assert nest.log == ["holds", "outer"]
    assert nest.all_in_one_task()


async def test_source_with_an_inner_generator_that_fails() -> None:
    """An error in the source has its inner generator closed before the block is left."""
    nest = Nest()

    async def fails() -> AsyncIterator[int]:
        nest.ran_in = this_task()
        async for item in nest.leaf():
            yield item
            raise Fault

    with pytest.raises(Fault):
        async with guarded_stream(fails()) as stream:
            async for _ in stream:
                pass
    nest.log.append("left")
    assert nest.log == ["leaf", "left"]


async def test_inner_generator_whose_close_fails() -> None:
    """An error in the cleanup of an inner generator leaves the block; without a guard it would only be logged."""
    nest = Nest()

    async def fails() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            raise Fault("inner")

    with pytest.raises(Fault, match="inner"):
        await nest.break_at_once(nest.around(fails(), "outer"))
    assert nest.log == ["outer"]


async def test_inner_generator_whose_close_hangs() -> None:
    """An inner generator is closed under the same limit; the report says where it hangs."""
    nest = Nest()

    async def hangs() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            await anyio.sleep_forever()

    with pytest.raises(TimeoutError, match=r"test_hooks\.py.*in .*hangs"):
        await nest.break_at_once(nest.around(hangs(), "outer"), cleanup_timeout=0.05)
    assert nest.log == ["outer"]


async def test_generators_of_a_comprehension() -> None:
    """Generators that an async generator expression iterates are closed as well."""
    nest = Nest()
    await nest.break_at_once(item async for item in nest.leaf())
    assert nest.log == ["leaf", "left"]


async def test_several_inner_generators() -> None:
    """Every inner generator that the source dropped is closed, each once."""
    nest = Nest()

    async def zipped() -> AsyncIterator[int]:
        nest.ran_in = this_task()
        a, b, c = nest.leaf("a"), nest.leaf("b"), nest.leaf("c")
        while True:
            yield await anext(a) + await anext(b) + await anext(c)

    await nest.break_at_once(zipped())
    assert sorted(nest.log[:3]) == ["a", "b", "c"]
    assert nest.log[3:] == ["left"]
    assert nest.all_in_one_task()


async def test_inner_generator_with_a_task_group() -> None:
    """An inner generator that yields inside a task group is closed in the task that entered the group."""
    nest = Nest()

    async def grouped() -> AsyncGenerator[int, None]:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            try:
                yield 1
            finally:
                group.cancel_scope.cancel()
        nest.log.append("group done")

    async def outer() -> AsyncIterator[int]:
        async for item in grouped():
            yield item

    await nest.break_at_once(outer())
    assert nest.log[-1] == "left"


async def test_source_whose_cleanup_needs_what_the_inner_one_holds() -> None:
    """A source whose cleanup waits for a lock that its dropped inner generator holds is not blocked by that."""
    nest = Nest()
    connections = anyio.Semaphore(1)

    async def response() -> AsyncGenerator[int, None]:
        async with connections:
            yield 1

    async def outer() -> AsyncIterator[int]:
        try:
            async for item in response():
                yield item
        finally:
            async with connections:
                nest.log.append("told the server")

    await nest.break_at_once(outer(), cleanup_timeout=1.0)
    assert nest.log == ["told the server", "left"]


async def test_close_waits_for_what_has_let_go_of_a_lock() -> None:
    """An inner generator that was closed for its lock is closed to its end before the block is left."""
    nest = Nest()
    connections = anyio.Semaphore(1)

    async def response() -> AsyncGenerator[int, None]:
        try:
            async with connections:
                yield 1
        finally:
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            nest.log.append("inner closed")

    async def outer() -> AsyncIterator[int]:
        try:
            async for item in response():
                yield item
        finally:
            async with connections:
                nest.log.append("told the server")

    await nest.break_at_once(outer(), cleanup_timeout=1.0)
    assert nest.log == ["told the server", "inner closed", "left"]


async def test_dropped_by_what_is_closed_elsewhere() -> None:
    """What an inner generator drops while another task closes it, since its source waited for it, is closed as well."""
    log: list[str] = []
    closing = anyio.Event()

    async def innermost() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await anyio.lowlevel.checkpoint()
            log.append("innermost")

    async def inner() -> AsyncIterator[int]:
        items = innermost()  # dropped at the very end
        try:
            async for item in items:
                yield item
        finally:
            closing.set()
            await anyio.wait_all_tasks_blocked()
            log.append("inner")

    async def outer() -> AsyncIterator[int]:
        try:
            async for item in inner():
                yield item
        finally:
            await closing.wait()
            log.append("outer")

    async with guarded_stream(outer(), cleanup_timeout=1) as stream:
        await anext(stream)
    assert log == ["outer", "inner", "innermost"]


async def test_what_the_cleanup_needs_is_never_let_go() -> None:
    """If the inner generator that holds the lock hangs in its own cleanup, both are cut at the limit; none is left."""
    connections = anyio.Semaphore(1)

    async def response() -> AsyncGenerator[int, None]:
        async with connections:
            try:
                yield 1
            finally:
                await anyio.sleep_forever()

    async def outer() -> AsyncIterator[int]:
        try:
            async for item in response():
                yield item
        finally:
            async with connections:
                pass

    with pytest.raises(TimeoutError):
        await Nest().break_at_once(outer(), cleanup_timeout=0.1)


async def test_failing_close_of_what_the_cleanup_needs() -> None:
    """An error in the cleanup of the inner generator that held the lock leaves the block."""
    connections = anyio.Semaphore(1)

    async def response() -> AsyncGenerator[int, None]:
        async with connections:
            try:
                yield 1
            finally:
                raise Fault

    async def outer() -> AsyncIterator[int]:
        try:
            async for item in response():
                yield item
        finally:
            async with connections:
                pass

    with pytest.raises(Fault):
        await Nest().break_at_once(outer(), cleanup_timeout=0.2)


@pytest.mark.parametrize("then", [None, GeneratorExit, Fault])
async def test_yields_in_the_cleanup_that_is_needed(then: type[BaseException] | None, watch: Watch) -> None:
    """If the inner generator that holds the lock answers its close by a yield, that is told as of any other."""
    connections = anyio.Semaphore(1)

    async def response() -> AsyncGenerator[int, None]:
        async with connections:
            try:
                yield 1
            except GeneratorExit:
                yield 2
                if then is not None:
                    raise then from None

    async def outer() -> AsyncIterator[int]:
        try:
            async for item in response():
                yield item
        finally:
            async with connections:
                pass

    with pytest.raises(CleanupError, match=r"response' yielded at .* while it was closed"):
        await Nest().break_at_once(outer(), cleanup_timeout=0.2)
    if then is Fault:
        watch.claim("Fault")


async def test_failing_close_before_the_limit(watch: Watch) -> None:
    """What fails while the exit waits for the limit comes before the error that tells of the limit."""

    async def response() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            await anyio.lowlevel.checkpoint()
            raise Fault

    async def outer() -> AsyncIterator[int]:
        try:
            async for item in response():
                yield item
        finally:
            await anyio.sleep_forever()

    with pytest.raises(Fault):
        async with guarded_stream(outer(), cleanup_timeout=0.2) as stream:
            await anext(stream)
    assert [type(error) for error in stream.end.cleanup_errors] == [Fault, CleanupTimeoutError]
    watch.claim("did not end within 0.2 s")


async def test_slow_cleanup_does_not_hurry_what_it_dropped() -> None:
    """A cleanup that is slow by itself has its dropped inner generators closed in the source's own task."""
    nest = Nest()

    async def outer() -> AsyncIterator[int]:
        nest.ran_in = this_task()
        try:
            async for item in nest.leaf():
                yield item
        finally:
            await anyio.sleep(0.05)
            nest.log.append("slow")

    await nest.break_at_once(outer(), cleanup_timeout=10.0)
    assert nest.log == ["slow", "leaf", "left"]
    assert nest.all_in_one_task()


# -- dropped while the source runs


async def test_dropped_while_running() -> None:
    """What the source drops while it runs is closed by the time the block is left."""
    nest = Nest()

    async def outer() -> AsyncIterator[int]:
        nest.ran_in = this_task()
        async for item in nest.leaf("first"):
            yield item
            break
        async for item in nest.leaf("second"):
            yield item

    async with guarded_stream(outer()) as stream:
        assert await anext(stream) == 1
        assert await anext(stream) == 1
    nest.log.append("left")
    assert sorted(nest.log[:2]) == ["first", "second"]
    assert nest.log[2] == "left"


@on_trio
@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize("prefetch", [0, 1, 5])
async def test_dropped_while_running_is_closed_at_the_next_step(prefetch: int, before: int) -> None:
    """On trio, whose own finaliser would cut its cleanup, it is closed at the next step, in the source's task."""
    nest = Nest()

    async def outer() -> AsyncIterator[int]:
        nest.ran_in = this_task()
        for number in range(before):
            yield number
        async for _ in nest.leaf():
            break
        yield before
        nest.log.append("next step")
        yield before + 1

    async with guarded_stream(outer(), prefetch=prefetch) as stream:
        for number in range(before + 2):
            assert await anext(stream) == number
    assert nest.log == ["leaf", "next step"]
    assert nest.all_in_one_task()


@pytest.mark.parametrize("limit", [2.0, None])
async def test_yields_in_the_close_of_the_loop(limit: float | None, watch: Watch, anyio_backend_name: str) -> None:
    """One that is dropped while the source runs, and yields while the loop closes it, is stepped on and told."""
    log = Log()

    async def inner() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            yield 2
            log.append("stepped on")

    async def source() -> AsyncGenerator[int, None]:
        async for _ in inner():
            break
        await anyio.wait_all_tasks_blocked()
        yield 3

    with anyio.fail_after(5), pytest.raises(CleanupError, match=r"inner' yielded at .*stepped on to its end"):
        async with guarded_stream(source(), cleanup_timeout=limit) as stream:
            assert await anext(stream) == 3
    assert log == ["stepped on"]
    if anyio_backend_name == "asyncio":
        watch.claim("async generator ignored GeneratorExit")


@on_trio
@pytest.mark.parametrize("skips", [False, True])
async def test_fires_while_a_dropped_one_is_closed(skips: bool) -> None:
    """A timeout of the source that fires while the owner closes what was dropped inside it cuts that: no error."""
    log = Log()

    async def inner() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            scope.cancel()
            try:
                await anyio.lowlevel.checkpoint()
            finally:
                log.append("inner closed")

    async def source() -> AsyncGenerator[int, None]:
        with scope:
            async for _ in inner():
                break
            yield 2
            await anyio.sleep_forever()
        log.append("fired")
        yield 3

    scope = anyio.CancelScope()
    async with guarded_stream(source(), where=lambda item: not (skips and item == 2)) as stream:
        assert [item async for item in stream] == ([3] if skips else [2, 3])
    assert log == ["inner closed", "fired"]


@on_trio
async def test_dropped_one_that_outlasts_the_limit_between_two_steps() -> None:
    """The deadline cuts the cleanup of what was dropped also where the owner has begun it between two steps."""
    log = Log()
    closing = anyio.Event()

    async def inner() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            closing.set()
            try:
                await anyio.sleep_forever()
            finally:
                log.append("cut")

    async def source() -> AsyncGenerator[int, None]:
        async for _ in inner():
            break
        yield 2
        yield 3

    with pytest.raises(CleanupTimeoutError):
        async with guarded_stream(source(), cleanup_timeout=0.05) as stream:
            assert await anext(stream) == 2
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(anext, stream, None)
                    await closing.wait()
                    scope.cancel()
    assert log == ["cut"]


@on_trio
@pytest.mark.parametrize("opens", [False, True])
async def test_dropped_before_a_step_that_needs_it(opens: bool) -> None:
    """What is dropped while the source opens, or answers its own timeout, is closed before the next step as well."""
    connections = anyio.Semaphore(1)

    async def drop() -> None:
        async def inner() -> AsyncGenerator[int, None]:
            async with connections:
                yield 1

        async for _ in inner():
            break

    async def rest() -> AsyncGenerator[int, None]:
        async with connections:
            yield 3

    async def opened() -> AsyncGenerator[int, None]:
        await drop()
        return rest()

    async def answering() -> AsyncGenerator[int, None]:
        with scope:
            try:
                yield 1
            finally:
                with anyio.CancelScope(shield=True):
                    await drop()
        yield 2
        async for item in rest():
            yield item

    scope = anyio.CancelScope()
    with anyio.fail_after(5):
        async with guarded_stream(opened() if opens else answering()) as stream:
            if not opens:
                assert await anext(stream) == 1
                scope.cancel()
                await anyio.wait_all_tasks_blocked()
                assert await anext(stream) == 2
            assert await anext(stream) == 3


@on_trio
@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("at_a_stretch", [False, True])
async def test_stop_that_comes_while_a_dropped_one_is_closed(prefetch: int, at_a_stretch: bool) -> None:
    """A source that is stopped while the owner closes what was dropped is not stepped again."""
    log: list[str] = []
    closing, may_close = anyio.Event(), anyio.Event()

    async def leaf() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            closing.set()
            await may_close.wait()
            log.append("leaf")

    async def outer() -> AsyncIterator[int]:
        yield 0
        async for _ in leaf():
            break
        yield 1
        log.append("stepped on")
        yield 2

    async with (
        anyio.create_task_group() as group,
        guarded_stream(outer(), prefetch=prefetch, where=lambda item: not (at_a_stretch and item)) as stream,
    ):

        async def stop() -> None:
            await closing.wait()
            stream.stop()
            may_close.set()

        group.start_soon(stop)
        assert [item async for item in stream] in ([0], [0, 1])
        await anyio.wait_all_tasks_blocked()
        assert log == ["leaf"]


@on_trio
@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("at_a_stretch", [False, True])
async def test_close_that_comes_while_a_dropped_one_is_closed(prefetch: int, at_a_stretch: bool) -> None:
    """Whoever leaves while the owner closes what was dropped waits for that cleanup, and does not cut it."""
    log: list[str] = []
    closing, may_close = anyio.Event(), anyio.Event()

    async def leaf() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            closing.set()
            await may_close.wait()
            log.append("leaf")

    async def let_close() -> None:
        await anyio.wait_all_tasks_blocked()
        may_close.set()

    async def outer() -> AsyncIterator[int]:
        try:
            yield 0
            async for _ in leaf():
                break
            yield 1
            await anyio.sleep_forever()
        finally:
            log.append("closed")

    async with anyio.create_task_group() as group:
        async with guarded_stream(
            outer(), prefetch=prefetch, where=lambda item: not (at_a_stretch and item), cleanup_timeout=0.5
        ) as stream:

            async def read() -> None:
                async for _ in stream:
                    pass

            group.start_soon(read)
            await closing.wait()
            group.start_soon(let_close)
    assert log == ["leaf", "closed"]


@only_asyncio
async def test_close_waits_for_the_finaliser_of_the_loop() -> None:
    """On asyncio the loop closes it at once, in a task of its own; the exit waits until it has."""
    nest = Nest()
    may_close = anyio.Event()

    async def slow() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            await may_close.wait()
            nest.log.append("slow")

    async def outer() -> AsyncIterator[int]:
        async for _ in slow():
            break
        yield 1

    async def let_close() -> None:
        await anyio.wait_all_tasks_blocked()
        nest.log.append("let close")
        may_close.set()

    async with anyio.create_task_group() as group:
        async with guarded_stream(outer()) as stream:
            await anext(stream)
            group.start_soon(let_close)
        nest.log.append("left")
    assert nest.log == ["let close", "slow", "left"]


@only_asyncio  # on trio the owner keeps them
async def test_many_dropped_at_a_stretch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of very many that are dropped while nobody can close them, all are closed, and they are looked through seldom."""
    nest = Nest()
    looks: list[Members] = []
    look = Members.open_at_others

    def counted(members: Members) -> list[Any]:
        looks.append(members)
        return look(members)

    async def outer() -> AsyncIterator[int]:
        for _ in range(500):
            async for _ in nest.leaf():
                break
        monkeypatch.setattr(Members, "open_at_others", look)
        yield 1

    monkeypatch.setattr(Members, "open_at_others", counted)
    await nest.break_at_once(outer())
    assert nest.log == [*["leaf"] * 500, "left"]
    assert len(looks) < 10


async def test_dropped_one_that_holds_a_lock(anyio_backend_name: str) -> None:
    """A source that waits for a lock which a generator that it dropped holds: asyncio frees it, on trio the exit does.

    On trio what is dropped is closed at the source's next step, in its own task: no other one could leave its scopes.
    """
    connections = anyio.Semaphore(1)

    async def response() -> AsyncGenerator[int, None]:
        async with connections:
            yield 1
            yield 2

    async def outer() -> AsyncIterator[int]:
        for _ in range(3):
            async for _ in response():
                break
            async for item in response():
                yield item
                break

    items = []
    with anyio.move_on_after(0.2 if anyio_backend_name == "trio" else 5) as scope:
        async with guarded_stream(outer()) as stream:
            async for item in stream:
                items.append(item)
    if anyio_backend_name == "trio":
        assert scope.cancelled_caught
    else:
        assert items == [1, 1, 1]


async def test_dropped_at_the_end_of_the_source() -> None:
    """What the source drops as its last act before it is exhausted is closed by the time the block is left."""
    nest = Nest()

    async def outer() -> AsyncIterator[int]:
        yield 1
        async for _ in nest.leaf():
            break

    async with guarded_stream(outer()) as stream:
        assert [item async for item in stream] == [1]
    nest.log.append("left")
    assert nest.log == ["leaf", "left"]


# -- reference cycles


@pytest.fixture
def _collects_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # Else at most once a second, whatever other tests did.
    monkeypatch.setattr("streamguard._hooks.COLLECT_EVERY", 0.0)


class Cyclic:
    """Holds the generator that holds it."""

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self.items = self.run()

    async def run(self) -> AsyncGenerator[int, None]:
        async for item in self.nest.leaf("cyclic"):
            yield item

    async def pass_on(self) -> AsyncIterator[int]:
        async for item in self.items:
            yield item


@pytest.mark.usefixtures("_collects_at_once")
async def test_young_cycle() -> None:
    """A generator that only a young reference cycle holds is closed before the block is left."""
    nest = Nest()

    async def outer() -> AsyncIterator[int]:
        nest.ran_in = this_task()
        async for item in Cyclic(nest).pass_on():
            yield item

    await nest.break_at_once(outer())
    assert nest.log == ["cyclic", "left"]
    assert nest.all_in_one_task()


@only_asyncio  # whose callbacks may hold anything
async def test_held_by_the_loop_for_one_more_turn() -> None:
    """An inner generator that the event loop lets go of at its next turn is closed by its owner as well."""
    nest = Nest()

    async def outer() -> AsyncIterator[int]:
        nest.ran_in, inner = this_task(), nest.leaf()
        try:
            async for item in inner:
                assert [number async for number in nest.leaf("begun later", 1)] == [1]
                yield item
        finally:
            asyncio.get_running_loop().call_soon(id, inner)

    await nest.break_at_once(outer())
    assert nest.log == ["begun later", "leaf", "left"]
    assert nest.all_in_one_task()


@only_asyncio  # trio warns when such a one is collected at last
@pytest.mark.usefixtures("_collects_at_once")
async def test_no_collection_when_it_is_switched_off() -> None:
    """With the collector switched off, as latency-bound programs do, no collection is forced; the limit is said."""
    nest = Nest()

    async def outer() -> AsyncIterator[int]:
        async for item in Cyclic(nest).pass_on():
            yield item

    gc.disable()
    try:
        await nest.break_at_once(outer())
    finally:
        gc.enable()
    assert nest.log == ["left"]
    collect_until_quiet()
    while "cyclic" not in nest.log:
        await anyio.lowlevel.checkpoint()
    await anyio.wait_all_tasks_blocked()


async def test_collection_at_most_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many streams are closed, a collection is forced at most once a second; a documented limit."""
    collections: list[str] = []
    monkeypatch.setattr("streamguard._hooks._last_collection", -1e9)

    def on_collection(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] < 2:
            collections.append(phase)

    nest = Nest()
    kept = [nest.leaf(count=100) for _ in range(20)]
    gc.callbacks.append(on_collection)
    threshold = gc.get_threshold()
    gc.set_threshold(10**9)
    try:
        for generator in kept:
            await nest.break_at_once(_borrow(generator))
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(on_collection)
    assert len(collections) == 1
    for generator in kept:
        await generator.aclose()


async def _borrow(iterator: AsyncIterator[int]) -> AsyncIterator[int]:
    while True:
        yield await anext(iterator, 0)


# -- tasks of the source


async def test_generators_of_child_tasks() -> None:
    """Generators that child tasks of the source drop are closed by the time the block is left."""
    nest = Nest()

    async def child() -> None:
        async for _ in nest.leaf("child"):
            break

    async def outer() -> AsyncIterator[int]:
        async with anyio.create_task_group() as group:
            group.start_soon(child)
        yield 1

    await nest.break_at_once(outer())
    assert nest.log == ["child", "left"]


async def test_generators_of_child_tasks_that_are_cancelled() -> None:
    """Generators that child tasks drop when the source is closed are closed by the time the block is left."""
    nest = Nest()

    async def child(started: anyio.Event) -> None:
        async for _ in nest.leaf("child"):
            started.set()
            await anyio.sleep_forever()

    async def outer() -> AsyncIterator[int]:
        async with anyio.create_task_group() as group:
            started = anyio.Event()
            group.start_soon(child, started)
            await started.wait()
            yield 1

    await nest.break_at_once(outer())
    assert nest.log == ["child", "left"]


@only_asyncio  # trio warns of it, and cuts its cleanup
async def test_dropped_in_a_worker_thread() -> None:
    """A generator that a worker thread drops, or a collection there, is closed by the time the block is left."""
    nest = Nest()

    async def outer() -> AsyncIterator[int]:
        held = [nest.leaf("dropped in a thread")]
        await anext(held[0])
        await anyio.to_thread.run_sync(held.clear)
        yield 1

    async with guarded_stream(outer()) as stream:
        await anext(stream)
    nest.log.append("left")
    assert nest.log == ["dropped in a thread", "left"]


@only_asyncio  # trio warns of it, and cuts its cleanup
async def test_dropped_in_a_worker_thread_at_the_end() -> None:
    """The same for one that is dropped there in the source's cleanup."""
    nest = Nest()

    async def outer() -> AsyncIterator[int]:
        held = [nest.leaf("dropped in a thread")]
        await anext(held[0])
        try:
            yield 1
        finally:
            await anyio.to_thread.run_sync(held.clear)

    await nest.break_at_once(outer())
    assert nest.log == ["dropped in a thread", "left"]


# -- merely suspended


async def test_connection_that_an_agent_keeps() -> None:
    """A connection that the source opened for an agent's exit stack stays open, and is closed with that stack."""
    nest = Nest()
    connection: list[str] = []

    @asynccontextmanager
    async def connect() -> AsyncIterator[None]:
        connection.append("open")
        try:
            yield
        finally:
            await anyio.lowlevel.checkpoint()
            connection.append("closed")

    async with AsyncExitStack() as agent:

        async def run() -> AsyncIterator[int]:
            if not connection:
                await agent.enter_async_context(connect())
            async for item in nest.leaf():
                yield item

        for _ in range(3):
            await nest.break_at_once(run())
        collect_until_quiet()
        assert connection == ["open"]
    assert connection == ["open", "closed"]
    assert nest.log == ["leaf", "left"] * 3


async def test_borrowed_iterator() -> None:
    """An iterator that the source only advanced goes on for its owner."""
    nest = Nest()
    owned = nest.leaf("owned", 5)

    async def first_two() -> AsyncIterator[int]:
        yield await anext(owned)
        yield await anext(owned)

    await nest.break_at_once(first_two())
    assert await anext(owned) == 2
    await owned.aclose()
    assert nest.log == ["left", "owned"]


@only_asyncio
async def test_borrowed_iterator_that_is_dropped_later() -> None:
    """What was first iterated inside a source and is dropped after the block is closed by the loop, as ever."""
    nest = Nest()
    held = [nest.leaf("owned", 5)]

    async def first() -> AsyncIterator[int]:
        yield await anext(held[0])

    await nest.break_at_once(first())
    hooks = sys.get_asyncgen_hooks()
    held.clear()
    while "owned" not in nest.log:
        await anyio.lowlevel.checkpoint()
    assert nest.log == ["left", "owned"]
    assert sys.get_asyncgen_hooks() == hooks
    await anyio.wait_all_tasks_blocked()


async def test_iterator_of_another_guard() -> None:
    """A guard that was entered inside another one's source, and kept, is still readable when that one was left."""
    nest = Nest()
    async with AsyncExitStack() as stack:
        kept: list[GuardedStream[int]] = []

        async def outer() -> AsyncIterator[int]:
            kept.append(await stack.enter_async_context(guarded_stream(nest.around(nest.leaf("kept"), "around"))))
            yield await anext(kept[0])

        await nest.break_at_once(outer())
        assert nest.log == ["left"]
        assert await anext(kept[0]) == 2
    assert nest.log == ["left", "around", "kept"]


async def test_suspended_generator_of_the_body() -> None:
    """Generators of the body are not the stream's: they are untouched by its close."""
    nest = Nest()
    mine = nest.leaf("mine")
    async with guarded_stream(nest.leaf()) as stream:
        async for _ in stream:
            assert await anext(mine) == 1
            break
    nest.log.append("left")
    assert await anext(mine) == 2
    await mine.aclose()
    assert nest.log == ["leaf", "left", "mine"]


# -- hooks


class ForeignHooks:
    """Hooks of somebody else, that call on those that were there."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.dropped: list[str] = []
        self.before = sys.get_asyncgen_hooks()

    def firstiter(self, generator: AsyncGenerator[Any, Any]) -> None:
        self.started.append(generator.__name__)
        if self.before.firstiter is not None:
            self.before.firstiter(generator)

    def finalizer(self, generator: AsyncGenerator[Any, Any]) -> None:
        self.dropped.append(generator.__name__)
        if self.before.finalizer is not None:
            self.before.finalizer(generator)

    def install(self) -> None:
        self.before = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(self.firstiter, self.finalizer)

    def installed(self) -> bool:
        hooks = sys.get_asyncgen_hooks()
        # A bound method is a new object each time.
        return (hooks.firstiter, hooks.finalizer) == (self.firstiter, self.finalizer)


@contextmanager
def hooks_kept() -> Iterator[None]:
    """Puts back what was there: these tests install hooks of their own."""
    before = sys.get_asyncgen_hooks()
    try:
        yield
    finally:
        sys.set_asyncgen_hooks(*before)


async def test_foreign_hooks_from_before() -> None:
    """Hooks that were there before a guard are called meanwhile, and are there again afterwards."""
    nest = Nest()
    foreign = ForeignHooks()
    with hooks_kept():
        foreign.install()
        await nest.break_at_once(nest.around(nest.leaf(), "outer"))
        assert foreign.installed()
    assert foreign.started == ["around", "leaf"]
    assert nest.log == ["outer", "leaf", "left"]


async def test_foreign_hooks_from_meanwhile() -> None:
    """Hooks that are installed while a guard is open stay, and the guard still sees what its source drops."""
    nest = Nest()
    foreign = ForeignHooks()

    async def outer() -> AsyncIterator[int]:
        yield 1
        async for item in nest.leaf():
            yield item

    with hooks_kept():
        async with guarded_stream(outer()) as stream:
            await anext(stream)
            foreign.install()
            await anext(stream)
        nest.log.append("left")
        assert foreign.installed()
        assert foreign.started == ["leaf"]
        assert foreign.dropped == ["leaf"]
        # What they call on is ours no more, but forwards for ever.
        await nest.break_at_once(nest.leaf("later"))
        assert foreign.installed()
    assert nest.log == ["leaf", "left", "later", "left"]


async def test_foreign_hooks_between_two_guards() -> None:
    """Hooks that are installed between two guards that overlap stay; both guards see what their sources drop."""
    first, second = Nest(), Nest()
    foreign = ForeignHooks()
    with hooks_kept():
        async with guarded_stream(first.around(first.leaf(), "outer")) as one:
            await anext(one)
            foreign.install()
            async with guarded_stream(second.around(second.leaf(), "outer")) as two:
                await anext(two)
            assert foreign.installed()
        assert foreign.installed()
    assert first.log == second.log == ["outer", "leaf"]
    assert foreign.started == ["around", "leaf"]


async def test_foreign_finalizer_alone() -> None:
    """A finaliser that somebody installs alone while a guard is open is still there afterwards."""
    nest = Nest()
    dropped: list[str] = []
    with hooks_kept():
        before = sys.get_asyncgen_hooks()
        async with guarded_stream(nest.leaf()) as stream:
            await anext(stream)
            ours = sys.get_asyncgen_hooks().finalizer

            def finalizer(generator: AsyncGenerator[Any, Any]) -> None:
                dropped.append(generator.__name__)
                if ours is not None:
                    ours(generator)

            sys.set_asyncgen_hooks(finalizer=finalizer)
        assert sys.get_asyncgen_hooks().finalizer is finalizer
        sys.set_asyncgen_hooks(*before)


async def test_foreign_firstiter_alone() -> None:
    """A first-iteration hook that somebody installs alone while a guard is open is still there afterwards."""
    nest = Nest()
    with hooks_kept():
        async with guarded_stream(nest.leaf()) as stream:
            await anext(stream)
            ours = sys.get_asyncgen_hooks().firstiter

            def firstiter(generator: AsyncGenerator[Any, Any]) -> None:
                if ours is not None:
                    ours(generator)

            sys.set_asyncgen_hooks(firstiter=firstiter)
        assert sys.get_asyncgen_hooks().firstiter is firstiter


async def test_no_hooks_at_all() -> None:
    """Where no loop hears of generators, Python closes one that is dropped on the spot; with a guard open, too."""
    nest = Nest()

    async def of_the_body() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            nest.log.append("closed by Python")

    with hooks_kept():
        sys.set_asyncgen_hooks(None, None)
        async with guarded_stream(nest.around(nest.leaf(), "outer")) as stream:
            await anext(stream)
            generator = of_the_body()
            await anext(generator)
            del generator
            nest.log.append("dropped")
        assert sys.get_asyncgen_hooks() == (None, None)
    assert nest.log == ["closed by Python", "dropped", "outer", "leaf"]


async def test_foreign_hooks_that_come_and_go() -> None:
    """Hooks put on while a guard is open, and taken off after it, again and again, leave no pile of ours behind."""
    nest = Nest()
    foreign = ForeignHooks()
    depths = []

    def depth(generator: AsyncGenerator[Any, Any]) -> None:
        frame, count = sys._getframe(), 0
        while frame is not None:
            frame, count = frame.f_back, count + 1  # type: ignore[assignment]
        depths.append(count)
        if bottom.firstiter is not None:
            bottom.firstiter(generator)

    with hooks_kept():
        bottom = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=depth)
        for _ in range(20):
            async with guarded_stream(nest.leaf()) as stream:
                await anext(stream)
                foreign.install()
            sys.set_asyncgen_hooks(*foreign.before)
    assert depths[-1] <= depths[0] + 2


async def test_hooks_are_restored_after_many_guards() -> None:
    """However many guards were open, left in whatever order, the hooks are those of before."""
    nest = Nest()
    before = sys.get_asyncgen_hooks()
    streams = [guarded_stream(nest.around(nest.leaf(str(n)), "outer")) for n in range(50)]
    for stream in streams:
        await stream.__aenter__()
        await anext(stream)
    assert sys.get_asyncgen_hooks() != before
    for stream in streams[::2] + streams[1::2][::-1]:
        assert sys.get_asyncgen_hooks() != before
        await stream.__aexit__(None, None, None)
    assert sys.get_asyncgen_hooks() == before
    assert nest.log == [line for n in [*range(0, 50, 2), *range(49, 0, -2)] for line in ("outer", str(n))]


async def test_hooks_are_untouched_by_what_is_never_read() -> None:
    """A guard that is entered and never read installs nothing."""
    nest = Nest()
    before = sys.get_asyncgen_hooks()
    async with guarded_stream(nest.leaf()):
        assert sys.get_asyncgen_hooks() == before


async def test_interleaved_guards() -> None:
    """Of guards that overlap, each closes what its own source dropped, in its own task."""
    one, two = Nest(), Nest()
    first = guarded_stream(one.around(one.leaf(), "outer"))
    second = guarded_stream(two.around(two.leaf(), "outer"))
    await first.__aenter__()
    await anext(first)
    await second.__aenter__()
    await anext(second)
    await first.__aexit__(None, None, None)
    assert (one.log, two.log) == (["outer", "leaf"], [])
    await second.__aexit__(None, None, None)
    assert two.log == ["outer", "leaf"]
    assert one.all_in_one_task()
    assert two.all_in_one_task()
    assert one.ran_in is not two.ran_in


async def test_guards_in_many_tasks() -> None:
    """A hundred guards in as many tasks each close their own inner generators, and the hooks are restored."""
    nests = [Nest() for _ in range(100)]
    before = sys.get_asyncgen_hooks()
    async with anyio.create_task_group() as group:
        for nest in nests:
            group.start_soon(nest.break_at_once, nest.around(nest.leaf(), "outer"))
    assert {tuple(nest.log) for nest in nests} == {("outer", "leaf", "left")}
    assert all(nest.all_in_one_task() for nest in nests)
    assert sys.get_asyncgen_hooks() == before


async def test_guard_inside_a_source() -> None:
    """A guard inside a guarded source closes its own inner generators; the outer one closes the outer's."""
    nest = Nest()

    async def outer() -> AsyncIterator[int]:
        async with guarded_stream(nest.around(nest.leaf("inner"), "around inner")) as stream:
            async for item in stream:
                async for _ in nest.leaf("beside"):
                    yield item

    await nest.break_at_once(outer())
    assert nest.log[-1] == "left"
    assert sorted(nest.log[:-1]) == ["around inner", "beside", "inner"]
    assert nest.log.index("around inner") < nest.log.index("inner")


@only_asyncio  # trio warns of every generator that is dropped
async def test_generators_that_take_the_place_of_others() -> None:
    """A generator of the body at the address of one that the source had started is not waited for by the close."""
    of_source: set[int] = set()
    may_close = anyio.Event()
    closed: list[int] = []

    # One function for both: only a generator of the same size takes the place.
    async def items(count: int) -> AsyncGenerator[int, None]:
        try:
            for number in range(count):
                yield number
        finally:
            if count:
                await may_close.wait()
                closed.append(1)

    async def outer() -> AsyncIterator[int]:
        inner = [items(0) for _ in range(50)]
        of_source.update(map(id, inner))
        for generator in inner:
            async for _ in generator:
                pass
        del inner, generator
        yield 1

    with anyio.fail_after(2):
        async with guarded_stream(outer()) as stream:
            await anext(stream)
            mine = [items(1) for _ in range(50)]
            assert of_source.intersection(map(id, mine)), "no address was taken again"
            for generator in mine:
                await anext(generator)
            del mine, generator
    assert closed == []
    may_close.set()
    while len(closed) < 50:
        await anyio.lowlevel.checkpoint()
    await anyio.wait_all_tasks_blocked()


async def test_nothing_is_kept_of_what_ended() -> None:
    """Inner generators that ended are freed while the stream goes on, without the collector."""
    nest = Nest()
    ended: list[weakref.ref[AsyncGenerator[int, None]]] = []

    async def outer() -> AsyncIterator[int]:
        for _ in range(10):
            inner = nest.leaf(count=1)
            ended.append(weakref.ref(inner))
            async for item in inner:
                yield item
            del inner
        yield 0

    gc.disable()
    try:
        async with guarded_stream(outer()) as stream:
            async for item in stream:
                if item == 0:
                    assert [ref() for ref in ended] == [None] * 10
    finally:
        gc.enable()


# -- threads and loops


def _run_nest(backend: str, started: threading.Barrier | None = None) -> Nest:
    nest = Nest()

    async def main() -> None:
        before = sys.get_asyncgen_hooks()
        async with guarded_stream(nest.around(nest.leaf(), "outer")) as stream:
            await anext(stream)
            if started is not None:
                started.wait(10)  # both loops have a guard open at the same time
        nest.log.append("left")
        if sys.get_asyncgen_hooks() != before:
            nest.log.append("hooks are not restored")

    anyio.run(main, backend=backend)
    return nest


@pytest.mark.parametrize("backends", [("asyncio", "asyncio"), ("asyncio", "trio"), ("trio", "trio")], ids="-".join)
def test_two_threads(backends: tuple[str, str]) -> None:
    """Guards in two threads with event loops of their own keep their generators apart."""
    nests: list[Nest] = []
    started = threading.Barrier(2)
    threads = [
        threading.Thread(target=lambda backend=backend: nests.append(_run_nest(backend, started)))
        for backend in backends
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [nest.log for nest in nests] == [["outer", "leaf", "left"]] * 2
    assert all(nest.all_in_one_task() for nest in nests)


@pytest.mark.parametrize("backends", [("asyncio", "asyncio"), ("asyncio", "trio"), ("trio", "asyncio")], ids="-".join)
def test_two_loops_one_after_another(backends: tuple[str, str]) -> None:
    """Two event loops one after another in a thread each get their hooks, and leave none."""
    before = sys.get_asyncgen_hooks()
    for backend in backends:
        nest = _run_nest(backend)
        assert nest.log == ["outer", "leaf", "left"]
        assert sys.get_asyncgen_hooks() == before


def test_loop_after_one_that_ended_with_an_open_guard() -> None:
    """A loop that ended with an open guard does not keep the guards of the next loop from seeing what is dropped."""
    before = sys.get_asyncgen_hooks()
    nest = Nest()
    kept = []

    async def leaves_it_open() -> None:
        stream = guarded_stream(nest.leaf("open"))
        await stream.__aenter__()
        await anext(stream)
        kept.append(stream)

    asyncio.run(leaves_it_open())
    assert sys.get_asyncgen_hooks() == before
    after = _run_nest("asyncio")
    assert after.log == ["outer", "leaf", "left"]
    assert sys.get_asyncgen_hooks() == before
    with pytest.warns(ResourceWarning):
        kept.clear()
        gc.collect()


# -- the current span


async def _spans(opener: Callable[[AsyncIterator[int]], Any], caplog: pytest.LogCaptureFixture) -> list[str]:
    tracer = TracerProvider().get_tracer("test")

    async def model_call() -> AsyncIterator[int]:
        with tracer.start_as_current_span("model call"):
            yield 1
            yield 2

    async def agent() -> AsyncIterator[int]:
        async for item in model_call():
            yield item

    with caplog.at_level(logging.ERROR, "opentelemetry.context"):
        async with opener(agent()) as stream:
            async for _ in stream:
                break
        for _ in range(5):
            collect_until_quiet()
            await anyio.wait_all_tasks_blocked()
    assert not trace.get_current_span().get_span_context().is_valid or opener is not guarded_stream
    records = [record.getMessage() for record in caplog.records if "detach" in record.getMessage()]
    caplog.clear()
    return records


async def test_span_of_an_inner_generator(caplog: pytest.LogCaptureFixture) -> None:
    """The span that an inner generator made current is detached where it was attached: nothing is logged."""
    assert await _spans(guarded_stream, caplog) == []


@only_asyncio  # trio warns of the generator as well
async def test_span_of_an_inner_generator_without_a_guard(caplog: pytest.LogCaptureFixture) -> None:
    """Without a guard an inner generator fails to detach its span, since it is closed in another context."""
    context = trace.context_api.get_current()
    try:
        assert await _spans(aclosing, caplog) == ["Failed to detach context"]
    finally:
        trace.context_api.attach(context)


async def test_dropped_one_that_outlasts_the_limit() -> None:
    """What was dropped while the source ran, and hangs in its cleanup, is named and cut at the deadline."""

    async def inner() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await anyio.sleep_forever()  # hangs here

    async def outer() -> AsyncIterator[int]:
        async for _ in inner():
            break
        yield 1
        yield 2

    with pytest.raises(CleanupTimeoutError, match=r"inner\n.*# hangs here") as caught:
        async with guarded_stream(outer(), cleanup_timeout=0.1) as stream:
            async for _ in stream:
                break
    assert stream.end.cleanup_errors == (caught.value,)


async def test_dropped_one_that_obeys_no_cancellation() -> None:
    """What was dropped while the source ran, and swallows every cancellation, is given up a moment after the limit."""
    free = anyio.Event()
    log: list[str] = []

    async def inner() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            while not free.is_set():
                with suppress(anyio.get_cancelled_exc_class()), anyio.CancelScope(shield=True):
                    await free.wait()  # hangs here
            log.append("inner closed")

    async def outer() -> AsyncIterator[int]:
        async for _ in inner():
            break
        yield 1
        yield 2

    with anyio.fail_after(5), pytest.raises(CleanupTimeoutError, match=r"inner\n.*# hangs here"):
        async with guarded_stream(outer(), cleanup_timeout=0.1) as stream:
            async for _ in stream:
                break
    assert log == []
    assert not [name for task in anyio.get_running_tasks() if "the wait for others" in (name := task.name or "")]
    free.set()
    await anyio.wait_all_tasks_blocked()
    assert log == ["inner closed"]


@only_asyncio  # cancels natively
async def test_cancelled_while_the_dropped_one_is_cut(watch: Watch) -> None:
    """A cancellation that comes when the limit is over, and what was dropped is cancelled, is obeyed afterwards."""
    log: list[str] = []
    cancelled = anyio.Event()

    async def inner() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            with suppress(asyncio.CancelledError):
                await anyio.sleep_forever()
            task.cancel()
            await cancelled.wait()
            log.append("inner closed")

    async def outer() -> AsyncIterator[int]:
        async for _ in inner():
            break
        yield 1
        yield 2

    async def consume() -> None:
        async with guarded_stream(outer(), cleanup_timeout=0.05, tail=lambda _: log.append("tail")) as stream:
            await anext(stream)

    task = asyncio.create_task(consume())
    while task.cancelling() == 0:
        await asyncio.sleep(0)
    cancelled.set()
    await asyncio.wait([task])
    assert task.cancelled()
    assert log == ["inner closed", "tail"]
    watch.claim("did not end within 0.05 s")


async def test_compiled_source() -> None:
    """What a compiler made of a generator tells no state; guarded it is closed as any other."""
    log: list[str] = []
    async with guarded_stream(Compiled(log)) as stream:
        assert await anext(stream) == 1
    assert log == ["closed"]


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_compiled_inner_generator(is_cancelled: bool) -> None:
    """The same of one that a source drops when it closes: it is closed before the block is left."""
    log: list[str] = []

    async def source() -> AsyncIterator[int]:
        async for number in Compiled(log):
            yield number
            await anyio.sleep_forever()

    with anyio.CancelScope() as scope:
        async with guarded_stream(source()) as stream:
            assert await anext(stream) == 1
            if is_cancelled:
                scope.cancel()
                await anext(stream)
    assert log == ["closed"]


@only_asyncio
async def test_compiled_one_that_is_dropped_while_running() -> None:
    """One that is dropped before is left to the event loop, and not waited for: it does not tell when it has ended."""
    log: list[str] = []

    async def source() -> AsyncIterator[int]:
        async for _ in Compiled(log):
            break
        yield 1

    async with guarded_stream(source()) as stream:
        assert await anext(stream) == 1
        await anyio.wait_all_tasks_blocked()
        assert log == ["closed"]


async def test_detached_task_goes_on_after_the_stream() -> None:
    """What a task that the source detached iterates afterwards is its own: neither noted nor kept for the source."""
    nest = Nest()
    may_read, may_drop = anyio.Event(), anyio.Event()

    async def read_later() -> None:
        await may_read.wait()
        generator = nest.leaf()
        assert await anext(generator) == 1
        await may_drop.wait()
        await generator.aclose()

    async with anyio.create_task_group() as outlives:

        async def source() -> AsyncIterator[int]:
            outlives.start_soon(read_later)
            yield 1
            yield 2

        await nest.break_at_once(source())
        async with guarded_stream(nest.leaf("of another")) as other:  # hooks are in place again
            await anext(other)
            may_read.set()
            await anyio.wait_all_tasks_blocked()
            may_drop.set()
            await anyio.wait_all_tasks_blocked()
    assert nest.log == ["left", "leaf", "of another"]


async def test_dropped_by_another_thread_as_the_stream_ends() -> None:
    """What another thread drops when its stream has just ended is the event loop's."""
    generator = Nest().leaf()
    members = Members(keeps_all=True)
    contextvars.copy_context().run(members.start)
    members.note(generator)
    members.stop()
    assert not members.keep(generator)
    assert not members.dropped
    assert not members.left_to_others
    await generator.aclose()


async def test_nothing_is_noted_of_a_stream_that_is_over() -> None:
    """What was noted of its generators goes with a stream, also of those that were read to their ends."""
    nest = Nest()
    async with guarded_stream(nest.around(nest.leaf(), "outer")) as stream:
        assert [number async for number in stream] == [1, 2, 3]
    await nest.break_at_once(nest.around(nest.leaf(), "outer"))
    assert all(members.is_open for members in _members_of.values())
