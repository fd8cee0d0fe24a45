"""Whatever way the block of a chain is left, every member is closed, all errors are told, and the tail runs once."""

import asyncio
import gc
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from nothing_left import Watch
from recording import Fault, Recording, only_asyncio, outcome_of
from streamguard import (
    CleanupError,
    CleanupTimeoutError,
    EndReason,
    GuardedChain,
    StreamEnd,
    guarded_chain,
    guarded_stream,
)
from turns import CleanupFault, Closable, Turn, read_all, reasons

pytestmark = pytest.mark.anyio

EXHAUSTED, MATCHED, LEFT, STOPPED = EndReason.EXHAUSTED, EndReason.MATCHED, EndReason.LEFT, EndReason.STOPPED
CANCELLED, FAILED, UNSTARTED = EndReason.CANCELLED, EndReason.FAILED, EndReason.UNSTARTED


def is_closed(generator: AsyncGenerator[Any, Any]) -> bool:
    return generator.ag_frame is None


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
        with pytest.raises(Fault) as caught:
            await read_all(chain)
        assert await read_all(chain) == []
    assert turn.log == ["start a", "closed a", "tail"]
    assert is_closed(b)
    assert (chain.end.reason, chain.end.error) == (FAILED, caught.value)


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
        with anyio.fail_after(0.1):
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
    line = sys._getframe().f_lineno + 2
    with pytest.warns(ResourceWarning, match=rf"not entered.*test_chain_ways_out\.py:{line}, was never entered"):
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

    async with anyio.create_task_group() as group, turn.chain(turn.agent("a", hold_after=1), b) as chain:
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
    async with anyio.create_task_group() as group, turn.chain(Closable(turn, "a", 1, hold_close=True), b) as chain:
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


async def test_left_just_when_the_last_member_ends() -> None:
    """A reader that gets its turn after another task has left the block sees the end of the chain."""
    log: list[str] = []
    ends = anyio.Event()

    async def member() -> AsyncIterator[int]:
        yield 1
        ends.set()

    async def reader(chain: GuardedChain[int]) -> None:
        log.extend([f"read {number}" async for number in chain])
        log.append("reader done")

    async with anyio.create_task_group() as group:
        async with guarded_chain(member()) as chain:
            group.start_soon(reader, chain)
            await ends.wait()
        assert chain.end.members[0].items == 1
    assert log == ["read 1", "reader done"]


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

    async with anyio.create_task_group() as group, turn.chain(turn.agent("a", hold_after=1), b) as chain:
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

    async with turn.chain(Closable(turn, "a", hold_close=True)) as chain, anyio.create_task_group() as group:
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


async def test_exit_waits_for_the_cancel_that_another_task_called() -> None:
    """A block that is left while another task closes it, and waits for `cancel`, has the member in its end."""
    turn = Turn()
    called, may_end = anyio.Event(), anyio.Event()

    async def cancel(_: object) -> None:
        called.set()
        await may_end.wait()
        turn.log.append("cancelled")

    async def let_end() -> None:
        await anyio.wait_all_tasks_blocked()
        may_end.set()

    async with anyio.create_task_group() as group:
        async with turn.chain(turn.agent("a"), cancel=cancel) as chain:
            await anext(chain)
            group.start_soon(chain.aclose)
            await called.wait()
            group.start_soon(let_end)
    assert turn.log == ["start a", "cancelled", "closed a", "tail"]
    assert [end.items for end in turn.ends] == [1]
    assert reasons(chain) == [STOPPED]


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

    async with (
        turn.chain(Closable(turn, "a", hold_close=True), Closable(turn, "b")) as chain,
        anyio.create_task_group() as group,
    ):
        group.start_soon(chain.aclose)
        await turn.closing.wait()
        group.cancel_scope.cancel()
        group.start_soon(_set_now, turn.may_close)
    assert turn.log == ["closed a", "closed b", "tail"]


async def _set_now(event: anyio.Event) -> None:
    event.set()


@only_asyncio  # cancels natively
@pytest.mark.parametrize("closer", ["exit", "aclose", "second"])
async def test_native_cancel_while_an_unstarted_member_closes(closer: str) -> None:
    """Whoever closes a member that was never started, or waits for that, obeys a cancellation when it is closed."""
    turn = Turn()
    chain = turn.chain(Closable(turn, "a", hold_close=True), Closable(turn, "b"))

    async def close() -> None:
        if closer != "exit":
            await chain.aclose()
        else:
            async with chain:
                pass

    if closer != "exit":
        await chain.__aenter__()
    tasks = [asyncio.create_task(close()) for _ in range(2 if closer == "second" else 1)]
    await turn.closing.wait()
    await anyio.wait_all_tasks_blocked()
    tasks[-1].cancel()
    await anyio.wait_all_tasks_blocked()
    assert turn.log == []
    turn.may_close.set()
    await asyncio.wait(tasks)
    if closer != "exit":
        await chain.__aexit__(None, None, None)
    assert turn.log == ["closed a", "closed b", "tail"]
    assert [outcome_of(task) for task in tasks] == [*["returned"] * (len(tasks) - 1), "cancelled"]


@only_asyncio  # cancels natively
@pytest.mark.parametrize("drained", [False, True])
async def test_native_cancel_of_one_of_several_closers(drained: bool) -> None:
    """Whoever is cancelled while it closes what is drained, or waits for another closer, obeys when that is done."""
    recording = Recording()
    recording.hold_the_close()
    cancelled: list[bool] = []

    class Session:
        """Its exit is given the details of the way out, there are none."""

        async def __aenter__(self) -> AsyncIterator[int]:
            return recording.numbers(hold_after=1)

        async def __aexit__(self, *details: object) -> None:
            assert details == (None, None, None)

    async with anyio.create_task_group() as group:

        async def close_twice() -> None:
            await anyio.wait_all_tasks_blocked()
            first = asyncio.create_task(chain.aclose())
            await recording.closing.wait()
            second = asyncio.create_task(chain.aclose())
            await anyio.wait_all_tasks_blocked()
            first.cancel()
            second.cancel()
            await anyio.wait_all_tasks_blocked()
            cancelled.extend([first.done(), second.done()])
            recording.may_close.set()
            await asyncio.wait([first, second])
            cancelled.extend([first.cancelled(), second.cancelled()])

        async with guarded_chain(Session(), on_early_exit="drain") as chain:
            assert await anext(chain) == 1
            group.start_soon(close_twice)
            if not drained:
                await recording.closing.wait()
    assert cancelled == [False, False, True, True]


@pytest.mark.parametrize("guard", [guarded_stream, guarded_chain])
async def test_aclose_does_not_drain(guard: Any) -> None:
    """`aclose()` closes at once, also where a block that is left early drains its source."""
    recording = Recording()
    async with guard(recording.numbers(), on_early_exit="drain") as stream:
        assert await anext(stream) == 1
        await stream.aclose()
    assert recording.log == ["GeneratorExit", "closing", "closed"]


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


async def test_aclose_while_a_factory_awaits() -> None:
    """A close by another task while a callable awaits cancels that await; its cleanup completes."""
    turn = Turn()

    async def hangs(end: StreamEnd[str]) -> AsyncIterator[str]:
        try:
            turn.holding.set()
            await anyio.sleep_forever()
        finally:
            await anyio.lowlevel.checkpoint()
            turn.log.append("factory done")
        return turn.agent("never")

    async def close() -> None:
        await turn.holding.wait()
        await chain.aclose()

    async with anyio.create_task_group() as group, turn.chain(turn.agent("a", 1), hangs, turn.agent("c")) as chain:
        group.start_soon(close)
        assert await read_all(chain) == ["a1"]
    assert turn.log == ["start a", "closed a", "factory done", "tail"]
    assert chain.end.reason is STOPPED


async def test_aclose_by_cancel() -> None:
    """A `cancel` that closes the chain itself, as a shutdown function may, does not wait for itself."""
    turn = Turn()

    async def cancel(_: object) -> None:
        await chain.aclose()
        turn.log.append("cancel done")

    async with turn.chain(turn.agent("a"), cancel=cancel, cleanup_timeout=0.5) as chain:
        await anext(chain)
    assert turn.log == ["start a", "closed a", "cancel done", "tail"]


async def test_error_in_the_body_while_another_task_closes() -> None:
    """An error of the body leaves although another task is closing; its exit waits for that close."""
    turn = Turn()
    with pytest.raises(Fault):
        async with turn.chain(Closable(turn, "a", hold_close=True), turn.agent("b")) as chain:
            await anext(chain)
            async with AsyncExitStack() as stack:
                group = await stack.enter_async_context(anyio.create_task_group())
                group.start_soon(chain.aclose)
                await turn.closing.wait()
                turn.may_close.set()
            raise Fault
    assert turn.log == ["start a", "closed a", "tail"]
    assert chain.end.reason is FAILED


@pytest.mark.parametrize("seconds", [0, None])
async def test_limit_of_zero_and_none(seconds: float | None) -> None:
    """With no limit, or one of 0, members that need no waiting are closed in order, and the tail runs."""
    log: list[str] = []

    async def quick(name: str) -> AsyncIterator[str]:
        try:
            yield f"{name}1"
            yield f"{name}2"
        finally:
            log.append(f"closed {name}")

    async with guarded_chain(
        quick("a"), quick("b"), cleanup_timeout=seconds, tail=lambda end: log.append("tail")
    ) as chain:
        async for item in chain:
            if item == "a1":
                chain.hand_off(quick("c"))
            elif item == "b1":
                break
    assert log == ["closed a", "closed c", "closed b", "tail"]


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

    async with turn.chain(gated(), turn.agent("b", 1)) as chain, anyio.create_task_group() as group:
        group.start_soon(reader)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(RuntimeError, match="is being read by another task"):
            await anext(chain)
        gate.set()
    assert read == ["g1", "b1"]


async def test_second_reader_between_two_members() -> None:
    """A second reader is refused as well while a member is closed for the first one."""
    turn = Turn()
    async with (
        turn.chain(Closable(turn, "a", 1, hold_close=True), turn.agent("b", 1)) as chain,
        anyio.create_task_group() as group,
    ):
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
        assert "start b" not in turn.log  # nobody waits for it yet
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
