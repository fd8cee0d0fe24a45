"""A chain reads several streams as one: a member is closed before the next starts, and the tail runs once."""

import asyncio
import functools
import gc
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from nothing_left import Watch
from recording import Fault, only_asyncio, outcome_of
from spies import spawned_tasks
from streamguard import (
    CleanupError,
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
    assert (chain.end.reason, chain.end.members, chain.end.source) == (EXHAUSTED, (), None)
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


# -- ways out


async def test_break_in_the_first_member() -> None:
    """A break in the first member closes it; the others are closed and their bodies never run."""
    turn = Turn()
    a, b, c = turn.agent("a"), turn.agent("b"), turn.agent("c")
    async with turn.chain(a, b, c) as chain:
        async for _ in chain:
            break
    assert turn.log == ["start a", "closed a", "tail"]
    assert is_closed(b)
    assert is_closed(c)
    assert reasons(chain) == [LEFT, UNSTARTED, UNSTARTED]
    assert chain.end.reason is LEFT


async def test_break_in_the_second_member() -> None:
    """A break in the second member closes it; the first one is closed already and the third never runs."""
    turn = Turn()
    a, b, c = turn.agent("a"), turn.agent("b"), turn.agent("c")
    async with turn.chain(a, b, c) as chain:
        async for item in chain:
            if item == "b1":
                break
    assert turn.log == ["start a", "closed a", "start b", "closed b", "tail"]
    assert is_closed(c)
    assert reasons(chain) == [EXHAUSTED, LEFT, UNSTARTED]


async def test_return_from_the_loop() -> None:
    """A return has everything closed, and the tail run, before the caller goes on."""
    turn = Turn()

    async def first() -> str | None:
        async with turn.chain(turn.agent("a"), turn.agent("b")) as chain:
            async for item in chain:
                return item
        return None

    assert await first() == "a1"
    assert turn.log == ["start a", "closed a", "tail"]


async def test_generator_exit_in_the_body() -> None:
    """A chain inside an async generator that is closed counts as left."""
    turn = Turn()
    chains = []

    async def flat() -> AsyncGenerator[str, None]:
        async with turn.chain(turn.agent("a"), turn.agent("b")) as chain:
            chains.append(chain)
            async for item in chain:
                yield item

    async with aclosing(flat()) as items:
        async for _ in items:
            break
    assert turn.log == ["start a", "closed a", "tail"]
    assert chains[0].end.reason is LEFT


async def test_error_in_the_body() -> None:
    """An error of the body leaves the block bare, after every member was closed and the tail has run."""
    turn = Turn()
    b = turn.agent("b")
    error = Fault()
    with pytest.raises(Fault) as caught:
        async with turn.chain(turn.agent("a"), b) as chain:
            async for _ in chain:
                raise error
    assert caught.value is error
    assert turn.log == ["start a", "closed a", "tail"]
    assert is_closed(b)
    assert (chain.end.reason, chain.end.error) == (FAILED, error)


async def test_interrupt_in_the_body() -> None:
    """KeyboardInterrupt in the body leaves the block after everything was closed."""
    turn = Turn()
    with pytest.raises(KeyboardInterrupt):
        async with turn.chain(turn.agent("a"), turn.agent("b")) as chain:
            async for _ in chain:
                raise KeyboardInterrupt
    assert turn.log == ["start a", "closed a", "tail"]


async def test_error_in_a_member() -> None:
    """An error of a member leaves the block bare; the members behind it never run."""
    turn = Turn()
    c = turn.agent("c")
    with pytest.raises(Fault) as caught:
        async with turn.chain(turn.agent("a"), turn.agent("b", fail_after=1), c) as chain:
            await read_all(chain)
    assert turn.log == ["start a", "closed a", "start b", "closed b", "tail"]
    assert is_closed(c)
    assert reasons(chain) == [EXHAUSTED, FAILED, UNSTARTED]
    assert chain.end.error is chain.end.members[1].error is caught.value


async def test_error_of_a_member_that_the_body_handles() -> None:
    """An error of a member that the body handles ends the chain: reading on gives nothing more."""
    turn = Turn()
    b = turn.agent("b")
    async with turn.chain(turn.agent("a", fail_after=1), b) as chain:
        with pytest.raises(Fault):
            await read_all(chain)
        assert await read_all(chain) == []
    assert turn.log == ["start a", "closed a", "tail"]
    assert is_closed(b)
    assert chain.end.reason is FAILED


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
async def test_error_in_a_factory(sync: bool) -> None:
    """An error of a factory leaves the block bare; everything else is closed once, and the tail runs."""
    turn = Turn()
    error = Fault()
    waiting = Closable(turn, "c")

    def build(end: StreamEnd[str]) -> AsyncIterator[str]:
        raise error

    async def build_later(end: StreamEnd[str]) -> AsyncIterator[str]:
        await anyio.lowlevel.checkpoint()
        raise error

    with pytest.raises(Fault) as caught:
        async with turn.chain(turn.agent("a"), build if sync else build_later, waiting) as chain:
            await read_all(chain)
    assert caught.value is error
    assert turn.log == ["start a", "closed a", "closed c", "tail"]
    assert waiting.closes == 1
    assert reasons(chain) == [EXHAUSTED, FAILED, UNSTARTED]


async def test_scope_cancelled_in_the_body() -> None:
    """A scope that is cancelled in the body has every cleanup complete, and catches its cancellation."""
    turn = Turn()
    with anyio.CancelScope() as scope:
        async with turn.chain(turn.agent("a"), turn.agent("b")) as chain:
            async for _ in chain:
                scope.cancel()
                await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert turn.log == ["start a", "closed a", "tail"]
    assert (chain.end.reason, reasons(chain)) == (CANCELLED, [CANCELLED, UNSTARTED])


async def test_scope_cancelled_while_a_member_awaits() -> None:
    """A scope that is cancelled while the second member awaits has its cleanup complete."""
    turn = Turn()
    c = turn.agent("c")
    async with anyio.create_task_group() as group:

        async def cancel() -> None:
            await turn.holding.wait()
            await anyio.wait_all_tasks_blocked()
            scope.cancel()

        group.start_soon(cancel)
        with anyio.CancelScope() as scope:
            async with turn.chain(turn.agent("a"), turn.agent("b", hold_after=1), c) as chain:
                await read_all(chain)
    assert scope.cancelled_caught
    assert turn.log == ["start a", "closed a", "start b", "closed b", "tail"]
    assert is_closed(c)
    assert reasons(chain) == [EXHAUSTED, CANCELLED, UNSTARTED]


async def test_timeout_while_a_member_awaits() -> None:
    """A deadline around the block closes everything first and is reported then."""
    turn = Turn()
    with pytest.raises(TimeoutError):
        with anyio.fail_after(0.02):
            async with turn.chain(turn.agent("a", hold_after=1), turn.agent("b")) as chain:
                await read_all(chain)
    assert turn.log == ["start a", "closed a", "tail"]


@only_asyncio
@pytest.mark.parametrize("cancels", [1, 2, 3])
async def test_native_cancels_in_the_body(cancels: int) -> None:
    """However often a task is cancelled, the cleanups complete, the tail runs, and the task ends cancelled."""
    turn = Turn()
    working = anyio.Event()
    b = turn.agent("b")

    async def consume() -> None:
        async with turn.chain(turn.agent("a", hold_close=True), b) as chain:
            async for _ in chain:
                working.set()
                await anyio.sleep_forever()

    task = asyncio.create_task(consume())
    await working.wait()
    task.cancel()
    await turn.closing.wait()
    for _ in range(cancels - 1):
        task.cancel()
        await anyio.wait_all_tasks_blocked()
    turn.may_close.set()
    await asyncio.wait([task])
    assert outcome_of(task) == "cancelled"
    assert turn.log == ["start a", "closed a", "tail"]
    assert is_closed(b)


@only_asyncio
async def test_native_cancel_while_a_member_awaits() -> None:
    """A task that is cancelled while the second member awaits ends cancelled, after every cleanup."""
    turn = Turn()

    async def consume() -> None:
        async with turn.chain(turn.agent("a"), turn.agent("b", hold_after=1), turn.agent("c")) as chain:
            await read_all(chain)

    task = asyncio.create_task(consume())
    await turn.holding.wait()
    task.cancel()
    await asyncio.wait([task])
    assert outcome_of(task) == "cancelled"
    assert turn.log == ["start a", "closed a", "start b", "closed b", "tail"]


@only_asyncio
async def test_native_cancel_between_two_members() -> None:
    """A cancellation that arrives while a member is closed at its turn's end waits for it; the next never starts."""
    turn = Turn()
    b = turn.agent("b")

    async def consume() -> None:
        async with turn.chain(Closable(turn, "a", hold_close=True), b) as chain:
            await read_all(chain)

    task = asyncio.create_task(consume())
    await turn.closing.wait()
    await anyio.wait_all_tasks_blocked()
    task.cancel()
    await anyio.wait_all_tasks_blocked()
    turn.may_close.set()
    await asyncio.wait([task])
    assert outcome_of(task) == "cancelled"
    assert turn.log == ["start a", "closed a", "tail"]
    assert is_closed(b)


@only_asyncio
@pytest.mark.parametrize("turns", range(1, 14))
async def test_native_cancel_at_any_turn(turns: int) -> None:
    """At whatever turn of the loop a cancellation arrives, what was started is closed and the tail runs once."""
    turn = Turn()

    async def consume() -> None:
        async with turn.chain(Closable(turn, "a"), lambda end: Closable(turn, "b"), Closable(turn, "c")) as chain:
            await read_all(chain)

    task = asyncio.create_task(consume())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert outcome_of(task) in ("cancelled", "returned")
    # Those that never started are closed as well; these are the ones that count.
    started = [line[6:] for line in turn.log if line.startswith("start")]
    assert [line[7:] for line in turn.log if line.startswith("closed")][: len(started)] == started
    assert turn.log[-1] == "tail"
    assert turn.log.count("tail") == 1


async def test_never_iterated() -> None:
    """Entered and never iterated: every member is closed, no body runs, no callable is called, the tail runs once."""
    turn = Turn()
    a, waiting = turn.agent("a"), Closable(turn, "b")

    async def later() -> AsyncIterator[str]:
        turn.log.append("awaited")
        return turn.agent("c")

    coroutine = later()
    async with turn.chain(a, waiting, coroutine, lambda end: turn.agent("d")) as chain:
        pass
    assert turn.log == ["closed b", "tail"]
    assert is_closed(a)
    assert waiting.closes == 1
    assert coroutine.cr_frame is None
    assert (chain.end.reason, reasons(chain), chain.end.source) == (LEFT, [UNSTARTED] * 4, None)


async def test_error_before_the_first_read() -> None:
    """An error before anything was read leaves the block; every member is closed."""
    turn = Turn()
    a = turn.agent("a")
    with pytest.raises(Fault):
        async with turn.chain(a):
            raise Fault
    assert turn.log == ["tail"]
    assert is_closed(a)


async def test_never_entered() -> None:
    """A chain that was never entered is warned of, with the place where it was made."""
    with pytest.warns(ResourceWarning, match=r"GuardedChain, not entered.*test_chain\.py:\d+, was never entered"):
        guarded_chain(Turn().agent("a"))
        gc.collect()


async def test_entered_and_abandoned() -> None:
    """A chain that was entered and abandoned is warned of, and its running member is asked to close."""
    turn = Turn()
    chain = guarded_chain(turn.agent("a"), turn.agent("b"))
    await chain.__aenter__()
    await anext(chain)
    with pytest.warns(ResourceWarning, match="its block was never left"):
        del chain
        gc.collect()
    for _ in range(10):
        await anyio.wait_all_tasks_blocked()
    assert turn.log == ["start a", "closed a"]


async def test_left_while_another_task_reads() -> None:
    """A block that is left while another task reads ends that task's loop, and closes the member once."""
    turn = Turn()
    b = turn.agent("b")
    read: list[str] = []

    async def reader(chain: AsyncIterator[str]) -> None:
        async for item in chain:
            read.append(item)
        turn.log.append("reader done")

    async with anyio.create_task_group() as group:
        async with turn.chain(turn.agent("a", hold_after=1), b) as chain:
            group.start_soon(reader, chain)
            await turn.holding.wait()
            await anyio.wait_all_tasks_blocked()
    assert read == ["a1"]
    assert sorted(turn.log) == ["closed a", "reader done", "start a", "tail"]
    assert is_closed(b)
    assert reasons(chain) == [LEFT, UNSTARTED]


async def test_left_while_another_task_waits_between_two_members() -> None:
    """A block that is left while a reader sees a member closed waits for that close; the next member never starts."""
    turn = Turn()
    b = turn.agent("b")
    async with anyio.create_task_group() as group:
        async with turn.chain(Closable(turn, "a", 1, hold_close=True), b) as chain:
            group.start_soon(read_all, chain)
            await turn.closing.wait()
            await anyio.wait_all_tasks_blocked()

            async def let_close() -> None:
                await anyio.wait_all_tasks_blocked()
                turn.log.append("let close")
                turn.may_close.set()

            group.start_soon(let_close)
    assert turn.log == ["start a", "let close", "closed a", "tail"]
    assert is_closed(b)


# -- what fails


async def test_two_cleanups_fail(watch: Watch) -> None:
    """Of two cleanups that fail the first error leaves bare; the other is a note on it, in the record, and logged."""
    turn = Turn()
    first, second = CleanupFault("of a"), CleanupFault("of b")
    with pytest.raises(CleanupFault) as caught:
        async with turn.chain(
            Closable(turn, "a", error=first), Closable(turn, "b", error=second), turn.agent("c")
        ) as chain:
            await read_all(chain)
    assert caught.value is first
    assert turn.log == ["start a", "closed a", "start b", "closed b", "start c", "closed c", "tail"]
    assert chain.end.cleanup_errors == (first, second)
    assert ["of b" in note for note in first.__notes__] == [True]
    assert len(watch.claim("of b")) == 1


async def test_error_of_the_body_and_two_cleanups_fail(watch: Watch) -> None:
    """An error of the body leaves although two cleanups failed; both are notes on it, each is logged once."""
    turn = Turn()
    first, second = CleanupFault("of a"), CleanupFault("of b")
    with pytest.raises(Fault) as caught:
        async with turn.chain(Closable(turn, "a", error=first), turn.agent("b", cleanup_error=second)) as chain:
            async for item in chain:
                if item == "b1":
                    raise Fault
    assert chain.end.cleanup_errors == (first, second)
    assert len(caught.value.__notes__) == 2
    assert len(watch.claim("CleanupFault")) == 2


async def test_unstarted_members_whose_close_fails(watch: Watch) -> None:
    """A close that fails never stops the next one: every member that was not started is closed, all is reported."""
    turn = Turn()
    first, second = CleanupFault("of b"), CleanupFault("of c")
    b, c, d = Closable(turn, "b", error=first), Closable(turn, "c", error=second), Closable(turn, "d")
    with pytest.raises(CleanupFault) as caught:
        async with turn.chain(turn.agent("a"), b, c, d) as chain:
            async for _ in chain:
                break
    assert caught.value is first
    assert turn.log == ["start a", "closed a", "closed b", "closed c", "closed d", "tail"]
    assert [b.closes, c.closes, d.closes] == [1, 1, 1]
    assert [end.cleanup_errors for end in chain.end.members] == [(), (first,), (second,), ()]
    watch.claim("of c")


async def test_cancelled_and_a_cleanup_fails(watch: Watch) -> None:
    """A cancellation leaves the block although a cleanup failed before it; that one is logged."""
    turn = Turn()
    with anyio.CancelScope() as scope:
        async with turn.chain(Closable(turn, "a", error=CleanupFault("of a")), turn.agent("b")) as chain:
            async for item in chain:
                if item == "b1":
                    scope.cancel()
                    await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert turn.log[-2:] == ["closed b", "tail"]
    assert chain.end.reason is CANCELLED
    watch.claim("of a")


async def test_close_hangs_between_two_members() -> None:
    """A member whose close hangs is cut at its limit; the chain goes on, and says so at the end."""
    turn = Turn()
    with pytest.raises(CleanupTimeoutError, match=r"(?s)Closable.*turns\.py"):
        async with turn.chain(Closable(turn, "a", hold_close=True), turn.agent("b"), cleanup_timeout=0.05) as chain:
            assert await read_all(chain) == ["a1", "a2", "b1", "b2"]
    assert turn.log == ["start a", "start b", "closed b", "tail"]
    assert isinstance(chain.end.members[0].cleanup_errors[0], CleanupTimeoutError)


async def test_close_of_each_member_has_its_own_limit(watch: Watch) -> None:
    """Two closes that hang are both cut, each at a limit of its own, and both are reported."""
    turn = Turn()
    with pytest.raises(CleanupTimeoutError):
        async with turn.chain(
            Closable(turn, "a", hold_close=True), Closable(turn, "b", hold_close=True), cleanup_timeout=0.05
        ) as chain:
            await read_all(chain)
    assert [type(error) for error in chain.end.cleanup_errors] == [CleanupTimeoutError] * 2
    assert turn.log[-1] == "tail"
    watch.claim("did not end within")


async def test_member_yields_while_it_is_closed() -> None:
    """A member that yields in its cleanup is one CleanupError, and the chain goes on."""
    turn = Turn()

    async def stubborn() -> AsyncIterator[str]:
        try:
            yield "s1"
        finally:
            yield "more"
            turn.log.append("closed s")

    with pytest.raises(CleanupError, match="stubborn"):
        async with turn.chain(stubborn()) as chain:
            async for item in chain:
                if item == "s1":
                    chain.hand_off(turn.agent("b", 1))
    assert turn.log == ["closed s", "start b", "closed b", "tail"]


async def test_tail_fails() -> None:
    """An error of the tail leaves the block if nothing else does."""
    turn = Turn()
    error = CleanupFault()

    def tail(_: StreamEnd[str]) -> None:
        raise error

    with pytest.raises(CleanupFault) as caught:
        async with guarded_chain(turn.agent("a"), turn.agent("b"), tail=tail) as chain:
            await read_all(chain)
    assert caught.value is error
    assert chain.end.cleanup_errors == (error,)


async def test_tail_fails_after_an_error_of_a_member(watch: Watch) -> None:
    """An error of a member leaves the block although the tail fails."""
    turn = Turn()

    def tail(_: StreamEnd[str]) -> None:
        raise CleanupFault

    with pytest.raises(Fault):
        async with guarded_chain(turn.agent("a", fail_after=1), tail=tail) as chain:
            await read_all(chain)
    watch.claim("CleanupFault")


async def test_tail_hangs() -> None:
    """A tail that hangs is cut at the limit, and reported."""
    turn = Turn()

    async def tail(_: StreamEnd[str]) -> None:
        await anyio.sleep_forever()

    with pytest.raises(CleanupTimeoutError, match="the tail of the chain"):
        async with guarded_chain(turn.agent("a"), tail=tail, cleanup_timeout=0.05) as chain:
            await read_all(chain)
    assert turn.log == ["start a", "closed a"]


async def test_cleanup_of_a_member_at_its_own_end() -> None:
    """What a generator raises in its `finally` when it comes to its own end is an error of that member."""
    turn = Turn()
    b = turn.agent("b")
    error = CleanupFault()
    with pytest.raises(CleanupFault) as caught:
        async with turn.chain(turn.agent("a", cleanup_error=error), b) as chain:
            await read_all(chain)
    assert caught.value is error
    assert is_closed(b)
    assert (reasons(chain), chain.end.cleanup_errors) == ([FAILED, UNSTARTED], ())


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
    async with anyio.create_task_group() as group:
        async with turn.chain(a, cancel=cancelled.append) as chain:
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


# -- stop


async def test_stop_in_the_body() -> None:
    """After a stop the loop ends as if exhausted; no further member starts."""
    turn = Turn()
    b = turn.agent("b")
    async with turn.chain(turn.agent("a"), b) as chain:
        async for _ in chain:
            chain.stop()
            turn.log.append("body goes on")
    assert turn.log == ["start a", "body goes on", "closed a", "tail"]
    assert is_closed(b)
    assert (chain.end.reason, reasons(chain)) == (STOPPED, [STOPPED, UNSTARTED])


async def test_stop_by_another_task() -> None:
    """A stop by another task ends the reader's loop while the member awaits."""
    turn = Turn()

    async def stop() -> None:
        await turn.holding.wait()
        await anyio.wait_all_tasks_blocked()
        chain.stop()

    async with anyio.create_task_group() as group:
        group.start_soon(stop)
        async with turn.chain(turn.agent("a"), turn.agent("b", hold_after=1), turn.agent("c")) as chain:
            assert await read_all(chain) == ["a1", "a2", "b1"]
    assert turn.log == ["start a", "closed a", "start b", "closed b", "tail"]


async def test_stop_from_inside_a_member() -> None:
    """A member may stop the chain that it belongs to; what it yields then is dropped."""
    turn = Turn()

    async def stops() -> AsyncIterator[str]:
        yield "s1"
        chain.stop()
        yield "s2"

    async with turn.chain(stops(), turn.agent("b")) as chain:
        assert await read_all(chain) == ["s1"]
    assert turn.log == ["tail"]


async def test_stop_from_inside_a_factory() -> None:
    """A callable may stop the chain: what it makes is closed without a step."""
    turn = Turn()
    made = Closable(turn, "b")

    def build(end: StreamEnd[str]) -> AsyncIterator[str]:
        chain.stop()
        return made

    async with turn.chain(turn.agent("a", 1), build, turn.agent("c")) as chain:
        assert await read_all(chain) == ["a1"]
    assert made.closes == 1
    assert turn.log[-2:] == ["closed b", "tail"]
    assert chain.end.reason is STOPPED


async def test_stop_while_a_member_is_closed_at_its_end() -> None:
    """A stop while a member is being closed at its end keeps the next one from starting."""
    turn = Turn()

    async def stop() -> None:
        await turn.closing.wait()
        chain.stop()
        turn.may_close.set()

    async with anyio.create_task_group() as group:
        group.start_soon(stop)
        async with turn.chain(Closable(turn, "a", 1, hold_close=True), turn.agent("b")) as chain:
            assert await read_all(chain) == ["a1"]
    assert turn.log == ["start a", "closed a", "tail"]
    assert chain.end.reason is STOPPED


async def test_stop_before_the_first_read() -> None:
    """A chain that is stopped before anything was read gives nothing."""
    turn = Turn()
    async with turn.chain(turn.agent("a")) as chain:
        chain.stop()
        assert await read_all(chain) == []
    assert turn.log == ["tail"]
    assert chain.end.reason is STOPPED


async def test_stop_outside_the_block() -> None:
    """A stop before the block or after it does nothing."""
    turn = Turn()
    chain = turn.chain(turn.agent("a"))
    chain.stop()
    async with chain:
        assert await read_all(chain) == ["a1", "a2"]
    chain.stop()
    assert chain.end.reason is EXHAUSTED


# -- aclose from other tasks


async def test_aclose_by_another_task() -> None:
    """A close by another task ends the reader's loop, closes the member once, and waits for it."""
    turn = Turn()
    b = turn.agent("b")

    async def close() -> None:
        await turn.holding.wait()
        await chain.aclose()
        turn.log.append("aclose done")

    async with anyio.create_task_group() as group:
        async with turn.chain(turn.agent("a", hold_after=1), b) as chain:
            group.start_soon(close)
            assert await read_all(chain) == ["a1"]
            await anyio.wait_all_tasks_blocked()
            assert turn.log == ["start a", "closed a", "aclose done"]
    assert turn.log[-1] == "tail"
    assert is_closed(b)
    assert reasons(chain) == [STOPPED, UNSTARTED]


async def test_several_closers_wait_for_the_one_close() -> None:
    """Several tasks that close a chain all wait until the member is closed, once."""
    turn = Turn()
    done: list[int] = []

    async def close(number: int) -> None:
        await chain.aclose()
        done.append(number)

    async with turn.chain(turn.agent("a", hold_close=True), turn.agent("b")) as chain:
        await anext(chain)
        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(close, number)
            await anyio.wait_all_tasks_blocked()
            assert done == []
            turn.may_close.set()
        assert sorted(done) == [0, 1, 2]
    assert turn.log == ["start a", "closed a", "tail"]


async def test_several_closers_wait_for_members_that_were_not_started() -> None:
    """Several tasks that close a chain all wait until the members that were never started are closed as well."""
    turn = Turn()
    done: list[int] = []

    async def close(number: int) -> None:
        await chain.aclose()
        done.append(number)

    async with turn.chain(Closable(turn, "a", hold_close=True)) as chain:
        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(close, number)
            await anyio.wait_all_tasks_blocked()
            early = list(done)
            turn.may_close.set()
    assert early == []
    assert turn.log == ["closed a", "tail"]


async def test_exit_waits_for_what_another_task_is_closing() -> None:
    """A block that is left while another task closes a member that was never started waits for that close."""
    turn = Turn()
    waiting = Closable(turn, "b", hold_close=True)

    async def let_close() -> None:
        await anyio.wait_all_tasks_blocked()
        turn.log.append("let close")
        turn.may_close.set()

    async with anyio.create_task_group() as group:
        async with turn.chain(turn.agent("a"), waiting) as chain:
            await anext(chain)
            turn.closing = anyio.Event()
            group.start_soon(chain.aclose)
            while waiting.closes == 0:
                await anyio.wait_all_tasks_blocked()
            group.start_soon(let_close)
        turn.log.append("left")
    assert turn.log == ["start a", "closed a", "let close", "closed b", "tail", "left"]
    assert reasons(chain) == [STOPPED, UNSTARTED]
    assert waiting.closes == 1


async def test_failure_of_what_another_task_closes() -> None:
    """The error of a close that another task asked for leaves from the exit of the block."""
    turn = Turn()
    error = CleanupFault()
    with pytest.raises(CleanupFault) as caught:
        async with turn.chain(turn.agent("a"), Closable(turn, "b", error=error)) as chain:
            await anext(chain)
            async with anyio.create_task_group() as group:
                group.start_soon(chain.aclose)
    assert caught.value is error
    assert chain.end.cleanup_errors == (error,)


async def test_cancelled_aclose_of_members_that_were_not_started() -> None:
    """A closer that is cancelled waits for the close all the same, and ends cancelled."""
    turn = Turn()

    async with turn.chain(Closable(turn, "a", hold_close=True), Closable(turn, "b")) as chain:
        async with anyio.create_task_group() as group:
            group.start_soon(chain.aclose)
            await turn.closing.wait()
            group.cancel_scope.cancel()
            group.start_soon(_set_now, turn.may_close)
    assert turn.log == ["closed a", "closed b", "tail"]


async def _set_now(event: anyio.Event) -> None:
    event.set()


async def test_aclose_in_the_body() -> None:
    """A chain may be closed in its own block; reading then gives nothing, and the exit has only the tail to run."""
    turn = Turn()
    async with turn.chain(turn.agent("a"), turn.agent("b")) as chain:
        await anext(chain)
        await chain.aclose()
        assert turn.log == ["start a", "closed a"]
        assert await read_all(chain) == []
        await chain.aclose()
    await chain.aclose()
    assert turn.log == ["start a", "closed a", "tail"]


async def test_aclose_before_the_block() -> None:
    """A chain that was never entered can be closed for good; its members are closed and the tail runs."""
    turn = Turn()
    a = turn.agent("a")
    chain = turn.chain(a)
    await chain.aclose()
    assert is_closed(a)
    assert turn.log == ["tail"]
    with pytest.raises(RuntimeError, match="entered before"):
        await chain.__aenter__()


async def test_aclose_from_inside_a_member() -> None:
    """A member that closes its own chain is told to use stop()."""
    turn = Turn()

    async def closes() -> AsyncIterator[str]:
        with pytest.raises(RuntimeError, match=r"from inside its own source; use stop\(\)"):
            await chain.aclose()
        yield "c1"

    async with turn.chain(closes(), turn.agent("b", 1)) as chain:
        assert await read_all(chain) == ["c1", "b1"]


# -- reading


async def test_second_reader() -> None:
    """A second reader gets a RuntimeError; the first one is not disturbed."""
    turn = Turn()
    gate = anyio.Event()
    read: list[str] = []

    async def gated() -> AsyncIterator[str]:
        await gate.wait()
        yield "g1"

    async def reader() -> None:
        read.extend(await read_all(chain))

    async with turn.chain(gated(), turn.agent("b", 1)) as chain:
        async with anyio.create_task_group() as group:
            group.start_soon(reader)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(RuntimeError, match="is being read by another task"):
                await anext(chain)
            gate.set()
    assert read == ["g1", "b1"]


async def test_second_reader_between_two_members() -> None:
    """A second reader is refused as well while a member is closed for the first one."""
    turn = Turn()
    async with turn.chain(Closable(turn, "a", 1, hold_close=True), turn.agent("b", 1)) as chain:
        async with anyio.create_task_group() as group:
            group.start_soon(read_all, chain)
            await turn.closing.wait()
            with pytest.raises(RuntimeError, match="is being read by another task"):
                await anext(chain)
            turn.may_close.set()
    assert chain.end.items == 2


async def test_timed_read() -> None:
    """A read that is given up loses no item: the next read gets it."""
    turn = Turn()
    gate = anyio.Event()

    async def gated() -> AsyncIterator[str]:
        await gate.wait()
        yield "g1"

    async with turn.chain(gated(), turn.agent("b", 1)) as chain:
        with anyio.move_on_after(0.01) as scope:
            await anext(chain)
        assert scope.cancelled_caught
        gate.set()
        await anyio.wait_all_tasks_blocked()
        assert await read_all(chain) == ["g1", "b1"]


async def test_timed_read_between_two_members() -> None:
    """A read that is given up while a member is closed waits for that close; the next read goes on with the next."""
    turn = Turn()
    async with turn.chain(Closable(turn, "a", 1, hold_close=True), turn.agent("b", 1)) as chain:
        await anext(chain)
        async with anyio.create_task_group() as group:

            async def give_up() -> None:
                await turn.closing.wait()
                scope.cancel()
                await anyio.wait_all_tasks_blocked()
                turn.may_close.set()

            group.start_soon(give_up)
            with anyio.CancelScope() as scope:
                await anext(chain)
        assert scope.cancelled_caught
        assert await read_all(chain) == ["b1"]
    assert turn.log == ["start a", "closed a", "start b", "closed b", "tail"]


@only_asyncio
async def test_read_with_wait_for_between_two_members() -> None:
    """A read that `wait_for` gives up while a member is closed waits for that close, and loses no member."""
    turn = Turn()
    async with turn.chain(Closable(turn, "a", 1, hold_close=True), turn.agent("b", 1)) as chain:
        await anext(chain)
        asyncio.get_running_loop().call_later(0.05, turn.may_close.set)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(chain), 0.01)
        assert await read_all(chain) == ["b1"]
    assert turn.log == ["start a", "closed a", "start b", "closed b", "tail"]
    assert chain.end.reason is EXHAUSTED


async def test_read_after_the_end() -> None:
    """After its block a chain gives nothing more, whatever members it had left."""
    turn = Turn()
    async with turn.chain(turn.agent("a"), turn.agent("b")) as chain:
        await anext(chain)
    assert await read_all(chain) == []


async def test_what_fires_inside_an_idle_member() -> None:
    """A timeout inside a member that fires while the body works leaves the body alone, and arrives at the next read."""
    turn = Turn()
    fired = anyio.Event()

    async def times_out() -> AsyncIterator[str]:
        try:
            with anyio.fail_after(0.01):
                yield "t1"
                await anyio.sleep_forever()
        finally:
            fired.set()

    with pytest.raises(TimeoutError):
        async with turn.chain(turn.agent("a", 1), times_out()) as chain:
            async for item in chain:
                if item == "t1":
                    await fired.wait()
                    turn.log.append("body went on")
    assert turn.log == ["start a", "closed a", "body went on", "tail"]


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

    async with anyio.create_task_group() as group:
        async with turn.chain(gated()) as chain:
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
        with pytest.raises(RuntimeError, match="has ended; no member can be added. Make a new chain"):
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
    with pytest.raises(RuntimeError, match='read outside its block; use "async with"'):
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


async def test_repr() -> None:
    """A chain shows where it is and how many members are to come."""
    turn = Turn()
    chain = turn.chain(turn.agent("a"), turn.agent("b"))
    assert repr(chain) == "<GuardedChain, not entered, 2 members to come>"
    async with chain:
        await anext(chain)
        assert repr(chain) == "<GuardedChain, at member 0, 1 members to come>"
    assert repr(chain) == "<GuardedChain, closed, 0 members to come>"


# -- what an exit stack loses


async def test_exit_stack_closes_late() -> None:
    """Of members in an exit stack the first is closed after the last one ran, and the tail is somewhere else."""
    turn = Turn()
    async with AsyncExitStack() as stack:
        for name in ("a", "b"):
            async for _ in await stack.enter_async_context(aclosing(turn.agent(name))):
                break
        turn.log.append("tail")
    assert turn.log == ["start a", "start b", "tail", "closed b", "closed a"]


async def test_exit_stack_loses_the_error_of_the_body() -> None:
    """In an exit stack an error of a cleanup takes the place of the body's; in a chain it does not (see above)."""
    turn = Turn()
    with pytest.raises(CleanupFault) as caught:
        async with AsyncExitStack() as stack:
            a = await stack.enter_async_context(aclosing(turn.agent("a", cleanup_error=CleanupFault())))
            async for _ in a:
                raise Fault
    assert not hasattr(caught.value, "__notes__")


async def test_exit_stack_loses_the_first_cleanup_error() -> None:
    """In an exit stack the error of the cleanup that runs last leaves, the first one only shows as its context."""
    turn = Turn()
    with pytest.raises(CleanupFault, match="of a"):
        async with AsyncExitStack() as stack:
            for name in ("a", "b"):
                member = turn.agent(name, cleanup_error=CleanupFault(f"of {name}"))
                await anext(await stack.enter_async_context(aclosing(member)))


async def test_exit_stack_cuts_the_cleanups() -> None:
    """In an exit stack a cancelled scope cuts every cleanup at its first await; in a chain it does not (see above)."""
    turn = Turn()
    with anyio.CancelScope() as scope:
        async with AsyncExitStack() as stack:
            for name in ("a", "b"):
                await anext(await stack.enter_async_context(aclosing(turn.agent(name))))
            scope.cancel()
            await anyio.lowlevel.checkpoint()
    assert turn.log == ["start a", "start b"]
