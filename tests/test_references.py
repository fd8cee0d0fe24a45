"""What a stream gave, held or raised is freed when its block is left, by counting alone: the collector has no part."""

import asyncio
import contextvars
import gc
import logging
import sys
import types
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from nothing_left import collect_until_quiet
from recording import Fault, only_asyncio
from streamguard import guarded_chain, guarded_stream

pytestmark = pytest.mark.anyio


class Payload:
    """An item, or what a source holds."""


class References:
    """Payloads and errors, held weakly."""

    def __init__(self) -> None:
        self._references: list[tuple[str, weakref.ref[Any]]] = []

    def payload(self, name: str) -> Payload:
        payload = Payload()
        self.watch(name, payload)
        return payload

    def error(self, name: str = "error") -> Fault:
        error = Fault(name)
        self.watch(name, error)
        return error

    def watch(self, name: str, thing: object) -> None:
        self._references.append((name, weakref.ref(thing)))

    @property
    def alive(self) -> list[str]:
        return [name for name, reference in self._references if reference() is not None]

    @property
    def number(self) -> int:
        return len(self._references)

    async def source(self, *, fails: str = "", waits: bool = False) -> AsyncIterator[Payload]:
        """Gives three items, holds something, and awaits in its cleanup."""
        held = self.payload("held")
        try:
            yield self.payload("item 1")
            if fails == "source":
                raise self.error()
            if waits:
                await anyio.sleep_forever()
            yield self.payload("item 2")
            yield self.payload("item 3")
        finally:
            await anyio.lowlevel.checkpoint()
            if fails == "cleanup":
                raise self.error("cleanup error")
            del held

    async def around(self, inner: AsyncIterator[Payload]) -> AsyncIterator[Payload]:
        async for item in inner:
            yield item


@contextmanager
def no_collector() -> Iterator[None]:
    collect_until_quiet()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def another_turn() -> None:
    """The loop still holds what it ran last."""
    await anyio.lowlevel.checkpoint()


Opener = Callable[[References, dict[str, Any]], Any]


def _split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is the source's and what is the guard's."""
    of_the_source = {key: value for key, value in options.items() if key in ("fails", "waits")}
    return of_the_source, {key: value for key, value in options.items() if key not in of_the_source}


def stream(refs: References, options: dict[str, Any]) -> Any:
    of_the_source, options = _split(options)
    return guarded_stream(refs.source(**of_the_source), **options)


def nested(refs: References, options: dict[str, Any]) -> Any:
    of_the_source, options = _split(options)
    return guarded_stream(refs.around(refs.source(**of_the_source)), **options)


def chain(refs: References, options: dict[str, Any]) -> Any:
    of_the_source, options = _split(options)
    return guarded_chain(refs.source(**of_the_source), lambda end: refs.source(), **options)


each_opener = pytest.mark.parametrize("opener", [stream, nested, chain])


def tail(_: object) -> None:
    pass


# -- the ways out


async def by_break(guard: Any, refs: References) -> None:
    async with guard:
        async for item in guard:
            del item
            break


async def by_end(guard: Any, refs: References) -> None:
    async with guard:
        async for item in guard:
            del item


async def by_stop(guard: Any, refs: References) -> None:
    async with guard:
        async for item in guard:
            del item
            guard.stop()


async def unread(guard: Any, refs: References) -> None:
    async with guard:
        pass


async def by_aclose(guard: Any, refs: References) -> None:
    async with guard:
        async for item in guard:
            del item
            await guard.aclose()


async def by_error(guard: Any, refs: References) -> None:
    try:
        async with guard:
            async for item in guard:
                del item
                raise refs.error("body error")
    finally:
        del guard  # else the error's traceback holds it, by this frame


async def by_scope(guard: Any, refs: References) -> None:
    with anyio.CancelScope() as scope:
        try:
            async with guard:
                async for item in guard:
                    del item
                    scope.cancel()
                    await anyio.sleep_forever()
        finally:
            del guard


async def by_scope_while_it_waits(guard: Any, refs: References) -> None:
    async def cancel() -> None:
        await anyio.wait_all_tasks_blocked()
        scope.cancel()

    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:
            try:
                async with guard:
                    await anext(guard)
                    group.start_soon(cancel)
                    await anext(guard)
            finally:
                del guard


async def by_end_letting_go(guard: Any, refs: References) -> None:
    try:
        async with guard:
            async for item in guard:
                del item
    finally:
        del guard


async def by_break_letting_go(guard: Any, refs: References) -> None:
    try:
        async with guard:
            async for item in guard:
                del item
                break
    finally:
        del guard


async def by_break_with_one_unread(guard: Any, refs: References) -> None:
    try:
        async with guard:
            await anext(guard)
            await anyio.wait_all_tasks_blocked()
    finally:
        del guard


WayOut = Callable[[Any, References], Awaitable[None]]

CLEAN: list[WayOut] = [by_break, by_end, by_stop, by_aclose, unread]
clean_ways_out = pytest.mark.parametrize("way_out", CLEAN, ids=lambda way_out: way_out.__name__)

FAILING: dict[str, tuple[WayOut, dict[str, Any]]] = {
    "error in the body": (by_error, {}),
    "error in the body, then in the cleanup": (by_error, {"fails": "cleanup"}),
    "error of the source": (by_end_letting_go, {"fails": "source"}),
    "error of the source, unread": (by_break_with_one_unread, {"fails": "source", "prefetch": 3}),
    "error of the cleanup": (by_break_letting_go, {"fails": "cleanup"}),
    "cancelled in the body": (by_scope, {}),
    "cancelled in the source": (by_scope_while_it_waits, {"waits": True}),
}
failing_ways_out = pytest.mark.parametrize(("way_out", "options"), FAILING.values(), ids=FAILING)


# -- payloads


@each_opener
@pytest.mark.parametrize("options", [{}, {"prefetch": 2}, {"until": bool}, {"tail": tail}], ids=", ".join)
@clean_ways_out
async def test_payload_is_freed(way_out: WayOut, options: dict[str, Any], opener: Opener) -> None:
    """When a block was left without an error, items and what the source held are freed with the guard."""
    refs = References()
    with no_collector():
        await way_out(opener(refs, options), refs)
        await another_turn()
        assert refs.alive == []
    assert refs.number or way_out is unread


@each_opener
async def test_of_a_kept_guard_only_the_last_item_is_left(opener: Opener) -> None:
    """A guard that is kept after its block keeps the last item that was read, for `end.last`, and nothing else."""
    refs = References()
    with no_collector():
        guard = opener(refs, {"prefetch": 2})
        await by_break(guard, refs)
        await another_turn()
        assert refs.alive == ["item 1"]
        del guard
        assert refs.alive == []


async def test_payload_is_freed_while_the_stream_goes_on() -> None:
    """While it waits for the next read, neither guard nor owner holds an older item than the last one."""
    refs = References()
    with no_collector():
        async with guarded_stream(refs.source()) as stream:
            for _ in range(3):
                await anext(stream)
            await another_turn()
            assert refs.alive == ["held", "item 3"]


async def test_skipped_payload_is_freed() -> None:
    """An item that `where` has skipped is freed when the next one is made."""
    refs = References()

    def third(_: Payload) -> bool:
        return "item 3" in refs.alive

    with no_collector():
        async with guarded_stream(refs.source(), where=third) as stream:
            await anext(stream)
            await another_turn()
            assert refs.alive == ["held", "item 3"]


async def test_dropped_payload_is_freed_by_stop() -> None:
    """`stop()` lets go at once of the items that stand ahead."""
    refs = References()
    with no_collector():
        async with guarded_stream(refs.source(), prefetch=2) as stream:
            await anext(stream)
            await anyio.wait_all_tasks_blocked()
            assert refs.alive == ["held", "item 1", "item 2", "item 3"]
            stream.stop()
            assert refs.alive == ["held", "item 1"]  # the last one that was read
        del stream
        await another_turn()
        assert refs.alive == []


async def test_payload_that_came_after_a_cancelled_read_is_freed() -> None:
    """An item that came when its reader had gone is freed with the guard."""
    refs = References()

    async def slow() -> AsyncIterator[Payload]:
        yield refs.payload("item 1")
        await anyio.lowlevel.checkpoint()
        yield refs.payload("item 2")

    async def consume() -> None:
        async with guarded_stream(slow()) as stream:
            await anext(stream)
            with anyio.CancelScope() as scope:
                scope.cancel()
                await anext(stream)
            await anyio.wait_all_tasks_blocked()

    with no_collector():
        await consume()
        await another_turn()
        assert refs.alive == []
    assert refs.number == 2


# -- errors


@pytest.fixture
def no_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no log record made: pytest keeps them, and each holds its error."""
    monkeypatch.setattr(logging.getLogger("streamguard"), "disabled", True)


async def drop_its_error(run: Awaitable[None]) -> None:
    with suppress(Fault):
        await run


@pytest.mark.usefixtures("no_records")
@each_opener
@failing_ways_out
async def test_error_is_freed(way_out: WayOut, options: dict[str, Any], opener: Opener) -> None:
    """An error that was handled is freed, with all that the stream held, if no frame of the user holds the guard."""
    refs = References()
    with no_collector():
        # No local holds the guard but the consumer's, which lets go of it.
        await drop_its_error(way_out(opener(refs, options), refs))
        await another_turn()
        assert refs.alive == []
    assert refs.number >= 2


@pytest.mark.usefixtures("no_records")
@failing_ways_out
async def test_error_is_freed_by_the_collector(way_out: WayOut, options: dict[str, Any]) -> None:
    """An error whose traceback holds the guard, by a frame of the user, is freed by the collector at the latest."""
    refs = References()

    async def consume() -> None:
        guard = stream(refs, options)
        await way_out(guard, refs)
        assert guard is not None

    await drop_its_error(consume())
    await another_turn()
    collect_until_quiet()
    assert refs.alive == []


@only_asyncio
async def test_native_cancellation_is_freed() -> None:
    """A task that was cancelled in its block, and forgotten, leaves nothing of the stream behind."""
    refs = References()
    working = anyio.Event()

    async def consume(guard: Any) -> None:
        try:
            async with guard:
                async for item in guard:
                    del item
                    working.set()
                    await anyio.sleep_forever()
        finally:
            del guard

    with no_collector():
        task = asyncio.create_task(consume(stream(refs, {})))
        await working.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        del task
        await another_turn()
        assert refs.alive == []


@only_asyncio
async def test_native_cancellation_in_the_close_is_freed() -> None:
    """The same when the cancellation came in the close and was remembered meanwhile."""
    refs = References()
    closing = anyio.Event()
    go_on = anyio.Event()

    async def source() -> AsyncIterator[Payload]:
        try:
            yield refs.payload("item 1")
        finally:
            closing.set()
            await go_on.wait()

    async def consume(guard: Any) -> None:
        try:
            async with guard:
                async for item in guard:
                    del item
                    break
        except asyncio.CancelledError as cancellation:
            refs.watch("cancellation", cancellation)
            raise
        finally:
            del guard

    with no_collector():
        task = asyncio.create_task(consume(guarded_stream(source())))
        await closing.wait()
        task.cancel()
        go_on.set()
        await asyncio.wait([task])
        assert task.cancelled()
        del task
        await another_turn()
        assert refs.alive == []


@only_asyncio
async def test_native_cancellation_of_a_closer_is_freed() -> None:
    """The same of a task that was cancelled while it closed a stream by `aclose()`."""
    refs = References()
    closing, go_on = anyio.Event(), anyio.Event()

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            closing.set()
            await go_on.wait()

    async def close(guard: Any) -> None:
        try:
            await guard.aclose()
        except asyncio.CancelledError as cancellation:
            refs.watch("cancellation", cancellation)
            raise
        finally:
            del guard

    with no_collector():
        async with guarded_stream(source()) as guard:
            await anext(guard)
            task = asyncio.create_task(close(guard))
            await closing.wait()
            task.cancel()
            go_on.set()
            await asyncio.wait([task])
            assert task.cancelled()
            del task
        await another_turn()
        assert refs.alive == []
    assert refs.number == 1


async def test_close_by_another_task_is_freed() -> None:
    """A stream that another task has closed is freed by counting as well."""
    refs = References()

    async def consume(guard: Any) -> None:
        async with anyio.create_task_group() as group, guard:
            await anext(guard)
            group.start_soon(guard.aclose)
            async for _ in guard:
                pass

    with no_collector():
        await consume(stream(refs, {"waits": True}))
        await another_turn()
        assert refs.alive == []


async def test_hung_close_is_freed() -> None:
    """A source that was cut at its deadline is freed with its guard, when the error was handled."""
    refs = References()

    async def source() -> AsyncIterator[Payload]:
        try:
            yield refs.payload("item 1")
        finally:
            await anyio.sleep_forever()

    async def consume(guard: Any) -> None:
        try:
            await by_break_letting_go(guard, refs)
        except TimeoutError as error:
            refs.watch("timeout", error)
        finally:
            del guard

    with no_collector():
        await consume(guarded_stream(source(), cleanup_timeout=0))
        await another_turn()
        assert refs.alive == []
    assert refs.number == 2


# -- the guard itself


@each_opener
@pytest.mark.parametrize("options", [{}, {"prefetch": 2}, {"tail": tail}], ids=", ".join)
@clean_ways_out
async def test_nothing_for_the_collector(way_out: WayOut, options: dict[str, Any], opener: Opener) -> None:
    """A block that was left without an error leaves no reference cycle: the collector finds nothing to free."""
    refs = References()
    await way_out(opener(refs, options), refs)  # warms up: what is made once is not the stream's
    with no_collector():
        await way_out(opener(refs, options), refs)
        await another_turn()
        assert unreachable() == []


async def _async_tail(_: object) -> None:
    await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize(
    "options",
    [{"on_early_exit": "drain"}, {"tail": _async_tail}, {"cleanup_timeout": None}, {"cancel": list}],
    ids=list,
)
async def test_nothing_for_the_collector_with_options(options: dict[str, Any]) -> None:
    """Nor does a drain, a tail or a `cancel` that is awaited, or a close without a limit."""
    refs = References()
    await by_break(stream(refs, options), refs)
    with no_collector():
        await by_break(stream(refs, options), refs)
        await another_turn()
        assert unreachable() == []


async def test_nothing_for_the_collector_after_a_heartbeat() -> None:
    """Nor do reads that were cancelled by a time limit."""

    async def slow() -> AsyncIterator[int]:
        yield 1
        await anyio.sleep_forever()

    async def consume() -> None:
        async with guarded_stream(slow()) as stream:
            await anext(stream)
            for _ in range(3):
                with anyio.move_on_after(0):
                    await anext(stream)

    await consume()
    with no_collector():
        await consume()
        await another_turn()
        assert [thing for thing in unreachable() if "anyio" not in type(thing).__module__] == []


def unreachable() -> list[object]:
    """What only the collector can free."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return list(gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def of_ours() -> list[str]:
    """The objects of the library that are alive, but for its modules' own."""
    things = [thing for thing in gc.get_objects() if type(thing).__module__.startswith("streamguard")]
    return sorted(type(thing).__qualname__ for thing in things)


@each_opener
@clean_ways_out
async def test_nothing_of_ours_is_left(way_out: WayOut, opener: Opener) -> None:
    """Owner, task, members and layer of hooks are gone with the guard; an entered stream did have them."""
    refs = References()
    collect_until_quiet()
    before = of_ours()
    guard = opener(refs, {})
    assert of_ours() != before
    with no_collector():
        await way_out(guard, refs)
        del guard
        await another_turn()
        assert of_ours() == before


async def test_context_is_freed() -> None:
    """The copy of the context that the source ran in is gone with the guard, and with it what variables held."""
    refs = References()
    variable: contextvars.ContextVar[object] = contextvars.ContextVar("variable")

    async def source() -> AsyncIterator[int]:
        variable.set(refs.payload("of the source"))
        yield 1
        yield 2

    async def consume() -> None:
        token = variable.set(refs.payload("of the consumer"))
        guard = guarded_stream(source())
        async with guard:
            variable.reset(token)
            del token
            async for _ in guard:
                assert "of the source" in refs.alive
                break
        del guard
        await another_turn()
        assert refs.alive == []

    with no_collector():
        await consume()
    assert refs.number == 2


async def test_hooks_hold_no_stream() -> None:
    """A layer of hooks that others still hold, after the block, holds nothing of the stream."""
    refs = References()
    hooks: list[object] = []

    async def source() -> AsyncIterator[Payload]:
        hooks.extend(sys.get_asyncgen_hooks())
        yield refs.payload("item 1")
        yield refs.payload("item 2")

    with no_collector():
        await by_break(guarded_stream(refs.around(source())), refs)
        await another_turn()
        assert refs.alive == []
    assert hooks


async def test_source_is_freed() -> None:
    """The generators themselves are gone with the guard, inner ones as well."""
    refs = References()
    inner = refs.source()
    outer = refs.around(inner)
    refs.watch("inner", inner)
    refs.watch("outer", outer)
    assert isinstance(outer, types.AsyncGeneratorType)
    guard = guarded_stream(outer)
    with no_collector():
        del inner, outer
        await by_break(guard, refs)
        assert "inner" not in refs.alive
        del guard
        await another_turn()
        assert refs.alive == []
