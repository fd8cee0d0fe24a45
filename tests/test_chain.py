"""A chain reads several streams as one: a member is closed before the next starts, and the tail runs once."""

import asyncio
import functools
import inspect
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from recording import Fault, only_asyncio
from spies import spawned_tasks
from streamguard import (
    CleanupTimeoutError,
    EndReason,
    StreamEnd,
    guarded,
    guarded_chain,
    guarded_stream,
)
from turns import CleanupFault, Closable, Turn, read_all, reasons

pytestmark = pytest.mark.anyio

EXHAUSTED, MATCHED, LEFT, STOPPED = EndReason.EXHAUSTED, EndReason.MATCHED, EndReason.LEFT, EndReason.STOPPED
CANCELLED, FAILED, UNSTARTED = EndReason.CANCELLED, EndReason.FAILED, EndReason.UNSTARTED


def is_closed(generator: AsyncGenerator[Any, Any]) -> bool:
    return generator.ag_frame is None


# -- order


async def test_members_are_read_in_one_flat_loop() -> None:
    """Every item of every member arrives, in the order of the members."""
    turn = Turn()
    async with turn.chain(turn.agent("a"), turn.agent("b", 0), turn.agent("c", 1)) as chain:
        assert await read_all(chain) == ["a1", "a2", "c1"]


async def test_member_is_closed_before_the_next_starts() -> None:
    """A member is closed before the next one starts, and the tail comes last."""
    turn = Turn()
    async with turn.chain(turn.agent("a"), turn.agent("b")) as chain:
        await read_all(chain)
    assert turn.log == ["start a", "closed a", "start b", "closed b", "tail"]


async def test_member_is_closed_before_the_next_is_built() -> None:
    """A callable is called only when the member before it is closed."""
    turn = Turn()

    def build(end: StreamEnd[str]) -> AsyncIterator[str]:
        turn.log.append("build b")
        return turn.agent("b")

    async with turn.chain(turn.agent("a"), build) as chain:
        await read_all(chain)
    assert turn.log == ["start a", "closed a", "build b", "start b", "closed b", "tail"]


async def test_stages_that_are_left_at_their_final_item() -> None:
    """Of a turn that leaves each stage at its final item, every stage is closed before the next and before the tail."""
    turn = Turn()
    async with turn.chain(turn.agent("a", 3), lambda end: turn.agent("b", 3)) as chain:
        async for item in chain:
            if item == "a2":
                chain.hand_off(lambda end: turn.agent("c", 3))
            if item == "c2":
                break
    assert turn.log == ["start a", "closed a", "start c", "closed c", "tail"]


async def test_each_member_runs_in_one_task_of_its_own() -> None:
    """A member is stepped and closed in one task, another one than that of the next member."""
    turn = Turn()
    async with turn.chain(turn.agent("a"), turn.agent("b")) as chain:
        await read_all(chain)
    (task_of_a,), (task_of_b,) = turn.tasks["a"], turn.tasks["b"]
    assert task_of_a is not task_of_b


async def test_context_is_copied_when_a_member_starts() -> None:
    """A member sees what the reader has set by the time it starts, and nothing that another member has set."""
    variable: ContextVar[str] = ContextVar("variable", default="unset")

    async def seen(mine: str) -> AsyncIterator[str]:
        before = variable.get()
        variable.set(mine)
        yield before

    values = []
    async with guarded_chain(seen("of a"), seen("of b")) as chain:
        async for value in chain:
            values.append(value)
            variable.set("of the reader")
    assert values == ["unset", "of the reader"]
    assert variable.get() == "of the reader"


async def test_tail_gets_the_end_of_the_chain() -> None:
    """The single tail gets one record, of the chain, with those of its members in it."""
    turn = Turn()
    a, b = turn.agent("a"), turn.agent("b", 1)
    async with turn.chain(a, b) as chain:
        await read_all(chain)
    (end,) = turn.ends
    assert (end.reason, end.items, end.last, end.source, end.error) == (EXHAUSTED, 3, "b1", b, None)
    assert [(member.source, member.items, member.last) for member in end.members] == [(a, 2, "a2"), (b, 1, "b1")]
    assert end == chain.end


async def test_no_members() -> None:
    """A chain without members is at its end at once, and has its tail."""
    turn = Turn()
    async with turn.chain() as chain:
        assert await read_all(chain) == []
    assert (chain.end.reason, chain.end.error, chain.end.members, chain.end.source) == (EXHAUSTED, None, (), None)
    assert turn.log == ["tail"]


async def test_hundreds_of_members() -> None:
    """A chain of hundreds of members is read in order, however few items they have."""
    turn = Turn()
    async with turn.chain(*(turn.agent(str(n), n % 2) for n in range(300))) as chain:
        assert len(await read_all(chain)) == 150
    assert reasons(chain) == [EXHAUSTED] * 300


async def test_tasks_are_made_for_what_is_read() -> None:
    """A member costs a task when its turn comes; those whose turn never comes cost none."""
    turn = Turn()
    with spawned_tasks() as names:
        async with guarded_chain(turn.agent("a"), turn.agent("b"), turn.agent("c")) as chain:
            async for _ in chain:
                break
    assert len(names) == 1


# -- members that are not new


async def test_member_that_somebody_advanced_before() -> None:
    """A member that somebody advanced before is read on from there, and closed."""
    turn = Turn()
    b = turn.agent("b", 3)
    await anext(b)
    async with turn.chain(turn.agent("a", 1), b) as chain:
        assert await read_all(chain) == ["a1", "b2", "b3"]
    assert turn.log == ["start b", "start a", "closed a", "closed b", "tail"]


async def test_advanced_member_whose_turn_never_comes() -> None:
    """A member that somebody advanced before is closed with its cleanup, although its turn never came."""
    turn = Turn()
    b = turn.agent("b", 3)
    await anext(b)
    async with turn.chain(turn.agent("a"), b) as chain:
        async for _ in chain:
            break
    assert turn.log == ["start b", "start a", "closed a", "closed b", "tail"]
    assert reasons(chain) == [LEFT, UNSTARTED]


async def test_advanced_member_whose_close_hangs() -> None:
    """A member whose turn never came, and whose close hangs, is cut at the limit; the next one is still closed."""
    turn = Turn()
    b = turn.agent("b", 3, hold_close=True)
    await anext(b)
    c = Closable(turn, "c")
    with pytest.raises(CleanupTimeoutError):
        async with turn.chain(turn.agent("a"), b, c, cleanup_timeout=0.05) as chain:
            async for _ in chain:
                break
    assert turn.log == ["start b", "start a", "closed a", "closed c", "tail"]


async def test_member_that_is_at_its_end() -> None:
    """A member that is at its end already gives nothing, and the next one has its turn."""
    turn = Turn()
    finished = turn.agent("a", 0)
    await read_all(finished)
    async with turn.chain(finished, turn.agent("b", 1)) as chain:
        assert await read_all(chain) == ["b1"]
    assert reasons(chain) == [EXHAUSTED, EXHAUSTED]


@only_asyncio
async def test_unstarted_future() -> None:
    """A pending future whose turn never comes is cancelled."""
    future: asyncio.Future[AsyncIterator[str]] = asyncio.get_running_loop().create_future()
    turn = Turn()
    async with turn.chain(turn.agent("a"), future) as chain:
        async for _ in chain:
            break
    assert future.cancelled()


# -- factories


async def test_factory_gets_the_end_of_the_member_before() -> None:
    """A callable is given how the member before it ended, which is closed by then."""
    turn = Turn()
    a = turn.agent("a", 3)
    given: list[StreamEnd[str]] = []

    def build(end: StreamEnd[str]) -> AsyncIterator[str]:
        given.append(end)
        return turn.agent("b", 1)

    async with turn.chain(a, build) as chain:
        await read_all(chain)
    (end,) = given
    assert (end.reason, end.items, end.last, end.source, end.error) == (EXHAUSTED, 3, "a3", a, None)
    assert (end.members, end.cleanup_errors) == ((), ())
    assert chain.end.members[0] == end


async def test_first_factory_gets_an_end_that_says_unstarted() -> None:
    """The first member's callable is given an end, too: one that says that nothing was there."""
    turn = Turn()
    given: list[StreamEnd[str]] = []

    def build(end: StreamEnd[str]) -> AsyncIterator[str]:
        given.append(end)
        return turn.agent("a", 1)

    async with turn.chain(build) as chain:
        assert await read_all(chain) == ["a1"]
    (end,) = given
    assert (end.reason, end.items, end.last, end.source) == (UNSTARTED, 0, None, None)


async def test_factory_gets_the_cleanup_error_of_the_member_before() -> None:
    """A callable can see that the close before it failed."""
    turn = Turn()
    error = CleanupFault()
    given: list[StreamEnd[str]] = []

    def build(end: StreamEnd[str]) -> AsyncIterator[str]:
        given.append(end)
        return turn.agent("b", 1)

    with pytest.raises(CleanupFault):
        async with turn.chain(Closable(turn, "a", error=error), build) as chain:
            await read_all(chain)
    assert given[0].cleanup_errors == (error,)


class Agent:
    """Makes the same stream in every way in which a callable can."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    async def run(self, end: StreamEnd[str]) -> AsyncIterator[str]:
        async for item in self._turn.agent("b", 1):
            yield f"{item} after {end.last}"

    async def build(self, end: StreamEnd[str]) -> AsyncIterator[str]:
        await anyio.lowlevel.checkpoint()
        return self.run(end)

    def __call__(self, end: StreamEnd[str]) -> AsyncIterator[str]:
        return self.run(end)

    async def run_for(self, user: str, end: StreamEnd[str]) -> AsyncIterator[str]:
        async for item in self.run(end):
            yield item


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda agent: agent.run, id="generator function"),
        pytest.param(lambda agent: agent.build, id="coroutine function"),
        pytest.param(lambda agent: agent, id="object"),
        pytest.param(lambda agent: functools.partial(agent.run_for, "me"), id="partial"),
        pytest.param(lambda agent: lambda end: agent.build(end), id="lambda that returns a coroutine"),
        pytest.param(lambda agent: lambda end: guarded_stream(agent.run(end)), id="lambda that returns a guard"),
        pytest.param(lambda agent: lambda end, more=1: agent.run(end), id="lambda with a default"),
        pytest.param(lambda agent: lambda *ends: agent.run(*ends), id="lambda with any arguments"),
        pytest.param(lambda agent: lambda end: lambda: agent.run(end), id="lambda that returns a callable"),
    ],
)
async def test_kinds_of_factories(make: Any) -> None:
    """Whatever can be called with the end of the member before makes the next member."""
    turn = Turn()
    async with turn.chain(turn.agent("a"), make(Agent(turn))) as chain:
        assert await read_all(chain) == ["a1", "a2", "b1 after a2"]
    assert turn.log == ["start a", "closed a", "start b", "closed b", "tail"]


async def test_end_has_what_a_factory_made() -> None:
    """The record of a member that a callable made has what it made as its source."""
    turn = Turn()
    made = turn.agent("b", 1)
    async with turn.chain(turn.agent("a", 1), lambda end: made) as chain:
        await read_all(chain)
    assert chain.end.members[1].source is chain.end.source is made


async def test_end_has_the_factory_that_was_not_called() -> None:
    """The record of a member whose callable was never called has that callable as its source."""
    turn = Turn()

    def build(end: StreamEnd[str]) -> AsyncIterator[str]:
        return turn.agent("b")

    async with turn.chain(turn.agent("a"), build) as chain:
        async for _ in chain:
            break
    assert chain.end.members[1].source is build


async def test_end_has_the_factory_that_failed() -> None:
    """The record of a member whose callable failed has that callable as its source, not one of ours."""

    def build(end: StreamEnd[str]) -> AsyncIterator[str]:
        raise Fault

    with pytest.raises(Fault):
        async with guarded_chain(build) as chain:
            await read_all(chain)
    assert chain.end.members[0].source is build


async def test_factory_runs_in_the_task_of_its_member() -> None:
    """A callable is called in the task that its member will run in, so that both see the same context."""
    turn = Turn()
    variable: ContextVar[str] = ContextVar("variable", default="unset")

    async def show() -> AsyncIterator[str]:
        yield variable.get()

    def build(end: StreamEnd[str]) -> AsyncIterator[str]:
        variable.set("by the factory")
        return show()

    async with turn.chain(build) as chain:
        assert await read_all(chain) == ["by the factory"]
    assert variable.get() == "unset"


async def test_cancelled_in_a_factory() -> None:
    """A cancellation that hits an async callable lets its cleanup complete; nothing of it is left."""
    turn = Turn()

    async def build(end: StreamEnd[str]) -> AsyncIterator[str]:
        try:
            turn.holding.set()
            await anyio.sleep_forever()
        finally:
            await anyio.lowlevel.checkpoint()
            turn.log.append("factory done")
        return turn.agent("b")

    async with anyio.create_task_group() as group:

        async def cancel() -> None:
            await turn.holding.wait()
            scope.cancel()

        group.start_soon(cancel)
        with anyio.CancelScope() as scope:
            async with turn.chain(turn.agent("a", 1), build) as chain:
                await read_all(chain)
    assert scope.cancelled_caught
    assert turn.log == ["start a", "closed a", "factory done", "tail"]


# -- the options hold for every member


async def test_until_ends_the_whole_chain() -> None:
    """The item that matches is the last one of the whole chain; further members never run."""
    turn = Turn()
    c = turn.agent("c")
    async with turn.chain(turn.agent("a"), turn.agent("b", 3), c, until=lambda item: item == "b2") as chain:
        assert await read_all(chain) == ["a1", "a2", "b1", "b2"]
    assert is_closed(c)
    assert (chain.end.reason, reasons(chain)) == (MATCHED, [EXHAUSTED, MATCHED, UNSTARTED])


async def test_until_at_the_last_item_of_a_member() -> None:
    """A match at the last item of a member ends the chain, too: the next member is not started to see."""
    turn = Turn()
    async with turn.chain(turn.agent("a"), turn.agent("b"), until=lambda item: item == "a2") as chain:
        assert await read_all(chain) == ["a1", "a2"]
    assert turn.log == ["start a", "closed a", "tail"]


async def test_until_ends_what_is_added_as_well() -> None:
    """A member that is added at the item that matches never runs, and is closed."""
    turn = Turn()
    late = turn.agent("late")
    async with turn.chain(turn.agent("a"), until=lambda item: item == "a1") as chain:
        async for _ in chain:
            chain.then(late)
    assert turn.log == ["start a", "closed a", "tail"]
    assert is_closed(late)
    assert chain.end.reason is MATCHED


async def test_where_skips_in_every_member() -> None:
    """Items that `where` does not want are skipped in every member; the record counts what the reader was given."""
    turn = Turn()
    async with turn.chain(turn.agent("a", 3), turn.agent("b", 3), where=lambda item: item.endswith("2")) as chain:
        assert await read_all(chain) == ["a2", "b2"]
    assert [end.items for end in chain.end.members] == [1, 1]


async def test_error_in_where() -> None:
    """An error of `where` in the second member is one of that member."""
    turn = Turn()

    def where(item: str) -> bool:
        if item == "b1":
            raise Fault
        return True

    with pytest.raises(Fault):
        async with turn.chain(turn.agent("a"), turn.agent("b"), where=where) as chain:
            await read_all(chain)
    assert turn.log == ["start a", "closed a", "start b", "closed b", "tail"]
    assert reasons(chain) == [EXHAUSTED, FAILED]


async def test_prefetch_stays_within_a_member() -> None:
    """A member runs ahead of the reader, but the next one does not start before it is closed."""
    turn = Turn()
    async with turn.chain(turn.agent("a"), turn.agent("b"), prefetch=8) as chain:
        assert await anext(chain) == "a1"
        await anyio.wait_all_tasks_blocked()
        assert turn.log == ["start a", "closed a"]
        assert await read_all(chain) == ["a2", "b1", "b2"]
    assert reasons(chain) == [EXHAUSTED, EXHAUSTED]


async def test_break_with_items_ahead() -> None:
    """What a member has made ahead is dropped at a break; the next member never runs."""
    turn = Turn()
    b = turn.agent("b")
    async with turn.chain(turn.agent("a", 5), b, prefetch=2) as chain:
        async for _ in chain:
            await anyio.wait_all_tasks_blocked()
            break
    assert turn.log == ["start a", "closed a", "tail"]
    assert is_closed(b)
    assert (chain.end.items, chain.end.reason) == (1, LEFT)


async def test_stop_with_items_ahead_of_an_ended_member() -> None:
    """A stop while the member has come to its end, with items that nobody read, ends the chain there."""
    turn = Turn()
    b = turn.agent("b")
    async with turn.chain(turn.agent("a", 3), b, prefetch=8) as chain:
        async for _ in chain:
            await anyio.wait_all_tasks_blocked()
            chain.stop()
    assert turn.log == ["start a", "closed a", "tail"]
    assert is_closed(b)
    assert (chain.end.items, chain.end.reason, reasons(chain)) == (1, STOPPED, [STOPPED, UNSTARTED])


async def test_drain_is_for_the_running_member() -> None:
    """With `on_early_exit="drain"` the running member comes to its own end; those behind it still never run."""
    turn = Turn()

    async def persists(name: str) -> AsyncIterator[str]:
        async for item in turn.agent(name):
            yield item
        turn.log.append(f"persisted {name}")

    async with turn.chain(persists("a"), persists("b"), persists("c"), on_early_exit="drain") as chain:
        async for item in chain:
            if item == "b1":
                break
    assert turn.log == [
        *("start a", "closed a", "persisted a"),
        *("start b", "closed b", "persisted b"),
        "tail",
    ]
    assert chain.end.reason is LEFT


async def test_cancel_gets_the_source_of_the_running_member() -> None:
    """On an early way out `cancel` is called once, with the source of the running member, before that is closed."""
    turn = Turn()
    a, b = turn.agent("a"), turn.agent("b")
    cancelled: list[object] = []

    async def cancel(source: object) -> None:
        await anyio.lowlevel.checkpoint()
        turn.log.append("cancel")
        cancelled.append(source)

    async with turn.chain(a, lambda end: b, turn.agent("c"), cancel=cancel) as chain:
        async for item in chain:
            if item == "b1":
                break
    assert cancelled == [b]
    assert turn.log == ["start a", "closed a", "start b", "cancel", "closed b", "tail"]


@pytest.mark.parametrize("read", [True, False], ids=["exhausted", "never iterated"])
async def test_cancel_is_not_called_without_a_running_member(read: bool) -> None:
    """When every member is at its end, or none was started, there is nothing that `cancel` could be told of."""
    turn = Turn()
    cancelled: list[object] = []
    async with turn.chain(turn.agent("a"), turn.agent("b"), cancel=cancelled.append) as chain:
        if read:
            await read_all(chain)
    assert cancelled == []


async def test_cancel_is_called_once_for_a_member_that_two_tasks_close() -> None:
    """Though the block is left while its reader hands off, `cancel` is called once for the member."""
    turn = Turn()
    a, b = turn.agent("a", hold_close=True), turn.agent("b")
    cancelled: list[object] = []
    async with anyio.create_task_group() as group, turn.chain(a, cancel=cancelled.append) as chain:
        await anext(chain)
        chain.hand_off(b)
        group.start_soon(read_all, chain)
        await turn.closing.wait()
        group.start_soon(_set_when_blocked, turn.may_close)
    assert cancelled == [a]
    assert is_closed(b)


async def _set_when_blocked(event: anyio.Event) -> None:
    await anyio.wait_all_tasks_blocked()
    event.set()


async def test_failing_cancel_stops_nothing() -> None:
    """When `cancel` fails, the member is closed all the same; that error leaves the block."""
    turn = Turn()

    def cancel(_: object) -> None:
        raise CleanupFault

    with pytest.raises(CleanupFault):
        async with turn.chain(turn.agent("a"), cancel=cancel) as chain:
            async for _ in chain:
                break
    assert turn.log == ["start a", "closed a", "tail"]


# -- nested


async def test_chain_in_a_guard() -> None:
    """A chain in a guard is entered, read and left by the guard, at a break as well."""
    turn = Turn()
    async with guarded_stream(turn.chain(turn.agent("a", 1), turn.agent("b"))) as stream:
        async for item in stream:
            if item == "b1":
                break
        turn.log.append("break")
    assert turn.log == ["start a", "closed a", "start b", "break", "closed b", "tail"]


async def test_chain_in_a_guard_is_told_of_the_error() -> None:
    """A chain in a guard learns of the body's error, so that its tail does; the error leaves once, without notes."""
    turn = Turn()
    error = Fault()
    with pytest.raises(Fault) as caught:
        async with guarded_stream(turn.chain(turn.agent("a"), turn.agent("b"))) as stream:
            async for _ in stream:
                raise error
    assert caught.value is error
    assert not hasattr(error, "__notes__")
    assert turn.ends[0].reason is FAILED


async def test_chain_in_a_guard_cancelled_while_a_member_awaits() -> None:
    """A cancellation reaches through a guard to the member that awaits; its cleanup completes, the tail runs."""
    turn = Turn()
    async with anyio.create_task_group() as group:

        async def cancel() -> None:
            await turn.holding.wait()
            scope.cancel()

        group.start_soon(cancel)
        with anyio.CancelScope() as scope:
            async with guarded_stream(turn.chain(turn.agent("a", hold_after=1), turn.agent("b"))) as stream:
                await read_all(stream)
    assert scope.cancelled_caught
    assert turn.log == ["start a", "closed a", "tail"]


async def test_unread_chain_in_a_guard() -> None:
    """A chain in a guard that is never read has its members closed and its tail run."""
    turn = Turn()
    a = turn.agent("a")
    async with guarded_stream(turn.chain(a)):
        pass
    assert turn.log == ["tail"]
    assert is_closed(a)


class Session:
    """A context manager that gives a stream, and notes how it was left."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self.left: list[object] = []

    async def __aenter__(self) -> AsyncIterator[str]:
        return self._turn.agent("a")

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        self.left.append(error)


async def test_context_manager_as_a_member() -> None:
    """A member that is a context manager is told of the body's error if it is the one that runs, else of nothing."""
    turn = Turn()
    before, running = Session(turn), Session(turn)
    error = Fault()
    with pytest.raises(Fault):
        async with turn.chain(before, running) as chain:
            async for _ in chain:
                if chain.current == 1:
                    raise error
    assert (before.left, running.left) == ([None], [error])


@pytest.mark.parametrize("way_out", ["hand-off", "aclose"])
async def test_context_manager_that_is_left_early(way_out: str) -> None:
    """The same of a member that is replaced, or closed by hand: there is no error to tell of."""
    turn = Turn()
    session = Session(turn)
    async with turn.chain(session) as chain:
        assert await anext(chain) == "a1"
        if way_out == "aclose":
            await chain.aclose()
        else:
            chain.hand_off(turn.agent("b"))
            assert await anext(chain) == "b1"
        assert session.left == [None]


async def test_guard_as_a_member() -> None:
    """A guard as a member is entered and left in its turn, with a tail of its own."""
    turn = Turn()

    def inner_tail(_: object) -> None:
        turn.log.append("inner tail")

    inner = guarded_stream(turn.agent("a", 3), until=lambda item: item == "a2", tail=inner_tail)
    async with turn.chain(inner, turn.agent("b", 1)) as chain:
        assert await read_all(chain) == ["a1", "a2", "b1"]
    assert turn.log == ["start a", "closed a", "inner tail", "start b", "closed b", "tail"]


async def test_unstarted_guard_as_a_member() -> None:
    """A guard whose turn never comes is entered and left, so that its source is closed and its tail runs."""
    turn = Turn()
    b = turn.agent("b")

    def inner_tail(end: StreamEnd[str]) -> None:
        turn.log.append(f"inner tail, {end.items} items")

    async with turn.chain(turn.agent("a"), guarded_stream(b, tail=inner_tail)) as chain:
        async for _ in chain:
            break
    assert turn.log == ["start a", "closed a", "inner tail, 0 items", "tail"]
    assert is_closed(b)


async def test_guarded_function_as_a_member() -> None:
    """What a guarded function returns can be a member, and what a callable makes."""
    turn = Turn()

    @guarded
    async def speak(name: str) -> AsyncIterator[str]:
        async for item in turn.agent(name, 1):
            yield item

    async with turn.chain(speak("a"), lambda end: speak("b")) as chain:
        assert await read_all(chain) == ["a1", "b1"]
    assert turn.log == ["start a", "closed a", "start b", "closed b", "tail"]


async def test_chain_as_a_member() -> None:
    """A chain as a member runs its own tail before the next member starts."""
    turn, inner = Turn(), Turn()
    inner.log = turn.log
    async with turn.chain(inner.chain(inner.agent("a", 1), inner.agent("b", 1)), turn.agent("c", 1)) as chain:
        assert await read_all(chain) == ["a1", "b1", "c1"]
    assert turn.log == ["start a", "closed a", "start b", "closed b", "tail", "start c", "closed c", "tail"]
    assert chain.end.members[0].items == 2


async def test_chain_as_a_member_of_itself() -> None:
    """A chain that is given itself is refused when that member's turn comes, with what to do."""
    turn = Turn()
    with pytest.raises(RuntimeError, match="entered before"):
        async with turn.chain(turn.agent("a", 1)) as chain:
            chain.then(chain)
            await read_all(chain)
    assert turn.log == ["start a", "closed a", "tail"]


async def test_chain_in_an_exit_stack() -> None:
    """A chain can be entered by an exit stack, and is closed with it."""
    turn = Turn()
    async with AsyncExitStack() as stack:
        chain = await stack.enter_async_context(turn.chain(turn.agent("a"), turn.agent("b")))
        await anext(chain)
    assert turn.log == ["start a", "closed a", "tail"]


# -- current


async def test_current() -> None:
    """`current` is the index of the member that is read, counted as in the record of the end."""
    turn = Turn()
    seen = []
    chain = turn.chain(turn.agent("a"), turn.agent("b", 0), turn.agent("c", 1))
    assert chain.current == 0
    async with chain:
        async for item in chain:
            seen.append((item, chain.current))
        assert chain.current == 2
    assert seen == [("a1", 0), ("a2", 0), ("c1", 2)]
    assert chain.current == 2


async def test_current_after_an_early_way_out() -> None:
    """After the block `current` still is the member that was read last, whatever was to come behind it."""
    turn = Turn()
    async with turn.chain(turn.agent("a"), turn.agent("b"), turn.agent("c"), turn.agent("d")) as chain:
        async for item in chain:
            if item == "b1":
                break
    assert chain.current == 1
    assert chain.end.members[chain.current].last == "b1"


async def test_end_of_a_chain_that_was_never_read() -> None:
    """A chain that is left unread tells of no error, and of no member that was read."""
    turn = Turn()
    async with turn.chain(turn.agent("a"), turn.agent("b")) as chain:
        pass
    assert (chain.end.reason, chain.end.error, chain.end.cleanup_errors) == (EndReason.LEFT, None, ())
    assert (chain.end.items, chain.end.last) == (0, None)


async def test_current_of_a_chain_that_was_never_read() -> None:
    """`current` stays 0 when no member was read."""
    turn = Turn()
    async with turn.chain(turn.agent("a"), turn.agent("b")) as chain:
        pass
    assert chain.current == 0


async def test_current_in_a_factory() -> None:
    """In a callable `current` is the index of the member that it makes."""
    turn = Turn()
    seen = []

    def build(end: StreamEnd[str]) -> AsyncIterator[str]:
        seen.append(chain.current)
        return turn.agent("b", 1)

    async with turn.chain(turn.agent("a", 1), build) as chain:
        await read_all(chain)
    assert seen == [1]


# -- then


async def test_then_behind_all_others() -> None:
    """A member that is added comes behind all that were queued."""
    turn = Turn()
    chain = turn.chain(turn.agent("a", 1), turn.agent("b", 1))
    chain.then(turn.agent("c", 1))
    async with chain:
        chain.then(lambda end: turn.agent(f"after {end.last} d", 1))
        assert await read_all(chain) == ["a1", "b1", "c1", "after c1 d1"]


async def test_then_at_the_last_item_of_the_last_member() -> None:
    """A member that is added at the last item of the last member is read."""
    turn = Turn()
    async with turn.chain(turn.agent("a", 1)) as chain:
        items = []
        async for item in chain:
            items.append(item)
            if item == "a1":
                chain.then(turn.agent("b", 1))
    assert items == ["a1", "b1"]
    assert turn.log == ["start a", "closed a", "start b", "closed b", "tail"]


async def test_then_from_the_cleanup_of_the_last_member() -> None:
    """A member that the last member adds in its own cleanup is read."""
    turn = Turn()

    async def adds() -> AsyncIterator[str]:
        try:
            yield "a1"
        finally:
            chain.then(turn.agent("b", 1))

    async with turn.chain(adds()) as chain:
        assert await read_all(chain) == ["a1", "b1"]


async def test_then_while_the_last_member_awaits() -> None:
    """A member that another task adds while the last one awaits is read."""
    turn = Turn()
    gate = anyio.Event()

    async def gated() -> AsyncIterator[str]:
        await gate.wait()
        yield "g1"

    async def add() -> None:
        await anyio.wait_all_tasks_blocked()
        chain.then(turn.agent("b", 1))
        gate.set()

    async with anyio.create_task_group() as group, turn.chain(gated()) as chain:
        group.start_soon(add)
        assert await read_all(chain) == ["g1", "b1"]


# -- bad input


def no_arguments() -> AsyncIterator[str]:
    raise AssertionError


def two_arguments(end: object, more: object) -> AsyncIterator[str]:
    raise AssertionError


NO_MEMBERS = [
    pytest.param(["a"], "list object is not an async stream; wrap it in an async generator", id="sync iterable"),
    pytest.param(None, "None is not an async stream", id="None"),
    pytest.param(1, "int object is not an async stream", id="number"),
    pytest.param(no_arguments, "no_arguments' cannot be called with one argument, the previous", id="no arguments"),
    pytest.param(two_arguments, "two_arguments' cannot be called with one argument", id="two arguments"),
]


@pytest.mark.parametrize(("member", "message"), NO_MEMBERS)
async def test_no_member(member: Any, message: str) -> None:
    """What is no source is refused when the chain is made; the other members are untouched."""
    turn = Turn()
    a = turn.agent("a", 1)
    with pytest.raises(TypeError, match=message):
        guarded_chain(a, member)
    assert await read_all(a) == ["a1"]


@pytest.mark.parametrize(("member", "message"), NO_MEMBERS)
async def test_then_of_what_is_no_member(member: Any, message: str) -> None:
    """What is no source is refused by `then`, which leaves the chain as it was."""
    turn = Turn()
    async with turn.chain(turn.agent("a", 1)) as chain:
        with pytest.raises(TypeError, match=message):
            chain.then(member)
        assert await read_all(chain) == ["a1"]
    assert reasons(chain) == [EXHAUSTED]


@pytest.mark.parametrize("added", ["then", "hand_off"])
async def test_member_for_an_exhausted_chain(added: str) -> None:
    """A chain that came to its end takes no further member, inside its block and after it."""
    turn = Turn()
    b = turn.agent("b", 1)
    async with turn.chain(turn.agent("a", 1)) as chain:
        await read_all(chain)
        with pytest.raises(RuntimeError, match=r"has ended; no member can be added\. Make a new chain"):
            getattr(chain, added)(b)
    with pytest.raises(RuntimeError, match="has ended"):
        getattr(chain, added)(b)
    assert await read_all(b) == ["b1"]
    assert len(chain.end.members) == 1


async def test_member_added_in_the_tail() -> None:
    """The tail cannot add a member any more: the chain has ended."""

    def tail(_: object) -> None:
        with pytest.raises(RuntimeError, match="has ended"):
            chain.then(Turn().agent("b"))

    async with guarded_chain(Turn().agent("a"), tail=tail) as chain:
        await anext(chain)


@pytest.mark.parametrize("made", [None, ["b1"], 1], ids=["None", "list", "number"])
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
async def test_factory_that_makes_no_source(made: Any, sync: bool) -> None:
    """A callable that returns no source is named in a TypeError from the read; the rest is closed."""
    turn = Turn()
    c = turn.agent("c")

    def build(end: StreamEnd[str]) -> Any:
        return made

    async def build_later(end: StreamEnd[str]) -> Any:
        return made

    with pytest.raises(TypeError, match=r"build.* made no stream: .* is not an async stream"):
        async with turn.chain(turn.agent("a", 1), build if sync else build_later, c) as chain:
            await read_all(chain)
    assert turn.log == ["start a", "closed a", "tail"]
    assert is_closed(c)


async def test_read_outside_the_block() -> None:
    """A chain that is read without `async with` says what to write."""
    turn = Turn()
    chain = turn.chain(turn.agent("a"))
    with pytest.raises(RuntimeError, match='is read outside its block; use "async with"'):
        await read_all(chain)
    await chain.aclose()


async def test_entered_twice() -> None:
    """A chain cannot be entered a second time, inside or after its block."""
    turn = Turn()
    async with turn.chain(turn.agent("a", 1)) as chain:
        with pytest.raises(RuntimeError, match="entered before; make a new one"):
            await chain.__aenter__()
        assert await read_all(chain) == ["a1"]
    with pytest.raises(RuntimeError, match="entered before"):
        await chain.__aenter__()


async def test_left_without_having_been_entered() -> None:
    """Leaving a chain that was not entered raises and says what to write."""
    chain = guarded_chain()
    with pytest.raises(RuntimeError, match='left without having been entered; use "async with"'):
        await chain.__aexit__(None, None, None)
    await chain.aclose()


async def test_end_before_the_exit() -> None:
    """How a chain ended is not known inside its block."""
    async with guarded_chain(Turn().agent("a")) as chain:
        with pytest.raises(RuntimeError, match="has not ended; read `end` after its block"):
            _ = chain.end


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"cleanup_timeout": -1}, ValueError),
        ({"cleanup_timeout": float("nan")}, ValueError),
        ({"cleanup_timeout": "1"}, TypeError),
        ({"prefetch": -1}, ValueError),
        ({"prefetch": 1.5}, TypeError),
        ({"on_early_exit": "leave"}, ValueError),
        ({"tail": 1}, TypeError),
        ({"cancel": 1}, TypeError),
        ({"until": 1}, TypeError),
        ({"where": "a"}, TypeError),
    ],
    ids=str,
)
async def test_bad_options(options: dict[str, Any], error: type[Exception]) -> None:
    """Options are checked when the chain is made, before a member is touched; the message names the option."""
    turn = Turn()
    a = turn.agent("a", 1)
    with pytest.raises(error, match=next(iter(options))):
        guarded_chain(a, **options)
    assert await read_all(a) == ["a1"]


async def test_bad_cancel() -> None:
    """A `cancel` that cannot take the member's source is refused, in the words that say what it gets."""
    words = r"^cancel: function '.*' cannot be called with one argument, the member's source \(.*\)$"
    with pytest.raises(TypeError, match=words):
        guarded_chain(cancel=lambda: None)


def test_defaults() -> None:
    """A chain's options have the defaults that those of a stream have."""
    of_a_chain, of_a_stream = (
        {name: option.default for name, option in inspect.signature(function).parameters.items()}
        for function in (guarded_chain, guarded_stream)
    )
    del of_a_chain["members"], of_a_stream["source"]
    assert of_a_chain == of_a_stream


async def test_repr() -> None:
    """A chain shows where it is and how many members are to come."""
    turn = Turn()
    chain = turn.chain(turn.agent("a"), turn.agent("b"))
    assert repr(chain) == "<GuardedChain, not entered, 2 members to come>"
    async with chain:
        await anext(chain)
        assert repr(chain) == "<GuardedChain, at member 0, 1 members to come>"
        chain.hand_off(turn.agent("c"))
        assert repr(chain) == "<GuardedChain, at member 0, 2 members to come>"
    assert repr(chain) == "<GuardedChain, closed, 0 members to come>"
