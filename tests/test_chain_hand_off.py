"""A hand-off replaces the running member at the next read: that one is closed first, and reported if it fails."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from nothing_left import Watch
from recording import Fault, only_asyncio, outcome_of
from streamguard import CleanupTimeoutError, EndReason, GuardedChain, StreamEnd, guarded, guarded_chain
from test_chain import NO_MEMBERS, is_closed
from turns import CleanupFault, Closable, Turn, read_all, reasons

pytestmark = pytest.mark.anyio

EXHAUSTED, MATCHED, LEFT, STOPPED = EndReason.EXHAUSTED, EndReason.MATCHED, EndReason.LEFT, EndReason.STOPPED
CANCELLED, FAILED, UNSTARTED = EndReason.CANCELLED, EndReason.FAILED, EndReason.UNSTARTED


async def read_handing_off(chain: GuardedChain[str], at: dict[str, list[Any]]) -> list[str]:
    """Read to the end; at the items that are named hand off to the members that they name."""
    items = []
    async for item in chain:
        items.append(item)
        for member in at.pop(item, ()):
            chain.hand_off(member)
    assert not at
    return items


# -- order


async def test_in_the_middle_of_a_member() -> None:
    """A hand-off in the middle of a member closes it and goes on with the new one; its reason is LEFT."""
    turn = Turn()
    async with turn.chain(turn.agent("a", 5)) as chain:
        assert await read_handing_off(chain, {"a2": [turn.agent("b")]}) == ["a1", "a2", "b1", "b2"]
    assert turn.log == ["start a", "closed a", "start b", "closed b", "tail"]
    assert reasons(chain) == [LEFT, EXHAUSTED]
    assert chain.end.reason is EXHAUSTED


async def test_happens_at_the_next_read() -> None:
    """The running member is closed at the next read, not at once: the body works on with it."""
    turn = Turn()
    async with turn.chain(turn.agent("a", 5)) as chain:
        async for item in chain:
            if item == "a1":
                chain.hand_off(turn.agent("b", 1))
                await anyio.wait_all_tasks_blocked()
                assert chain.current == 0
                turn.log.append("body goes on")
    assert turn.log == ["start a", "body goes on", "closed a", "start b", "closed b", "tail"]


async def test_comes_before_the_queue() -> None:
    """A hand-off comes before the members that are queued; those have their turn afterwards."""
    turn = Turn()
    async with turn.chain(turn.agent("a", 5), turn.agent("q", 1)) as chain:
        assert await read_handing_off(chain, {"a1": [turn.agent("b", 1)]}) == ["a1", "b1", "q1"]
    assert reasons(chain) == [LEFT, EXHAUSTED, EXHAUSTED]


async def test_several_in_order() -> None:
    """Of several hand-offs each is read to its end, in the order in which they were given, before the queue."""
    turn = Turn()
    async with turn.chain(turn.agent("a", 5), turn.agent("q", 1)) as chain:
        items = await read_handing_off(chain, {"a1": [turn.agent("b", 2), turn.agent("c", 2)]})
    assert items == ["a1", "b1", "b2", "c1", "c2", "q1"]
    assert turn.log[:6] == ["start a", "closed a", "start b", "closed b", "start c", "closed c"]
    assert reasons(chain) == [LEFT, EXHAUSTED, EXHAUSTED, EXHAUSTED]


async def test_while_another_hand_off_waits() -> None:
    """A hand-off from a member that was handed off to closes that one; those that wait keep their order."""
    turn = Turn()
    async with turn.chain(turn.agent("a", 5)) as chain:
        at = {"a1": [turn.agent("b", 3), turn.agent("c", 1)], "b1": [turn.agent("d", 1)]}
        items = await read_handing_off(chain, at)
    assert items == ["a1", "b1", "c1", "d1"]


async def test_from_member_to_member() -> None:
    """A chain of hand-offs closes each member before the next starts."""
    turn = Turn()
    async with turn.chain(turn.agent("a", 5)) as chain:
        at = {"a1": [turn.agent("b", 5)], "b1": [turn.agent("c", 5)], "c1": [turn.agent("d", 1)]}
        assert await read_handing_off(chain, at) == ["a1", "b1", "c1", "d1"]
    assert turn.log == [line for name in "abcd" for line in (f"start {name}", f"closed {name}")] + ["tail"]


async def test_a_hundred_hand_offs() -> None:
    """A turn of a hundred hand-offs runs in order and keeps nothing open."""
    turn = Turn()
    async with turn.chain(turn.agent("0", 5)) as chain:
        count = 0
        async for _ in chain:
            count += 1
            if count < 100:
                chain.hand_off(turn.agent(str(count), 5))
            else:
                break
    assert [end.items for end in chain.end.members] == [1] * 100


async def test_at_the_last_item_of_a_member() -> None:
    """A hand-off at the last item of the last member is read."""
    turn = Turn()
    async with turn.chain(turn.agent("a", 1)) as chain:
        assert await read_handing_off(chain, {"a1": [turn.agent("b", 1)]}) == ["a1", "b1"]
    assert turn.log == ["start a", "closed a", "start b", "closed b", "tail"]


async def test_before_the_first_read() -> None:
    """A hand-off before anything was read comes first; nothing was there to be replaced."""
    turn = Turn()
    async with turn.chain(turn.agent("a", 1)) as chain:
        chain.hand_off(turn.agent("b", 1))
        assert await read_all(chain) == ["b1", "a1"]
    assert reasons(chain) == [EXHAUSTED, EXHAUSTED]


async def test_to_a_callable() -> None:
    """A hand-off takes a callable, which gets the end of the member that was replaced, closed by then."""
    turn = Turn()
    given: list[StreamEnd[str]] = []

    async def build(end: StreamEnd[str]) -> AsyncIterator[str]:
        given.append(end)
        turn.log.append("build b")
        return turn.agent("b", 1)

    async with turn.chain(turn.agent("a", 5)) as chain:
        await read_handing_off(chain, {"a2": [build]})
    assert turn.log == ["start a", "closed a", "build b", "start b", "closed b", "tail"]
    assert [(end.reason, end.last) for end in given] == [(LEFT, "a2")]


async def test_to_a_guarded_function() -> None:
    """A hand-off takes what a guarded function returns."""
    turn = Turn()

    @guarded(cleanup_timeout=1.0)
    async def specialist() -> AsyncIterator[str]:
        async for item in turn.agent("b", 1):
            yield item

    async with turn.chain(turn.agent("a", 5)) as chain:
        assert await read_handing_off(chain, {"a1": [specialist()]}) == ["a1", "b1"]


async def test_to_a_chain() -> None:
    """A hand-off takes a whole chain."""
    turn = Turn()
    async with turn.chain(turn.agent("a", 5)) as chain:
        target = guarded_chain(turn.agent("b", 1), turn.agent("c", 1))
        assert await read_handing_off(chain, {"a1": [target]}) == ["a1", "b1", "c1"]


async def test_by_the_member_itself() -> None:
    """A member may hand off by itself, as a tool does; the item that it yields then is still delivered."""
    turn = Turn()

    async def triage() -> AsyncIterator[str]:
        try:
            yield "t1"
            chain.hand_off(turn.agent("b", 1))
            yield "t2"
            yield "t3"
        finally:
            turn.log.append("closed t")

    async with turn.chain(triage()) as chain:
        assert await read_all(chain) == ["t1", "t2", "b1"]
    assert turn.log == ["closed t", "start b", "closed b", "tail"]


async def test_by_a_member_that_ends() -> None:
    """A member that hands off and comes to its end is exhausted, and the new one has its turn."""
    turn = Turn()

    async def triage() -> AsyncIterator[str]:
        yield "t1"
        chain.hand_off(turn.agent("b", 1))

    async with turn.chain(triage(), turn.agent("q", 1)) as chain:
        assert await read_all(chain) == ["t1", "b1", "q1"]
    assert reasons(chain) == [EXHAUSTED] * 3


class HandsOff(Closable):
    """Hands off from its close."""

    target: Any
    chain: GuardedChain[str]

    async def aclose(self) -> None:
        await super().aclose()
        self.chain.hand_off(self.target)


async def test_from_the_close_of_a_member() -> None:
    """A member that is handed off to while another one closes at its end is read to its own end, before the queue."""
    turn = Turn()
    a = HandsOff(turn, "a", 1)
    async with turn.chain(a, turn.agent("q", 1)) as chain:
        a.chain, a.target = chain, turn.agent("b", 3)
        assert await read_all(chain) == ["a1", "b1", "b2", "b3", "q1"]
    assert reasons(chain) == [EXHAUSTED] * 3


async def test_from_the_close_at_a_hand_off() -> None:
    """A hand-off from the cleanup of the member that is replaced comes behind the one that replaces it."""
    turn = Turn()
    a = HandsOff(turn, "a", 5)
    async with turn.chain(a) as chain:
        a.chain, a.target = chain, turn.agent("c", 2)
        assert await read_handing_off(chain, {"a1": [turn.agent("b", 2)]}) == ["a1", "b1", "b2", "c1", "c2"]


async def test_from_the_close_at_a_break() -> None:
    """A hand-off from a cleanup at a break is refused: the chain has ended; that error is one of the cleanup."""
    turn = Turn()
    a = HandsOff(turn, "a", 5)
    b = turn.agent("b", 1)
    with pytest.raises(RuntimeError, match="has ended"):
        async with turn.chain(a) as chain:
            a.chain, a.target = chain, b
            async for _ in chain:
                break
    assert turn.log == ["start a", "closed a", "tail"]
    assert await read_all(b) == ["b1"]


async def test_by_another_task() -> None:
    """Another task may hand off while the reader waits; the pending read still gets its item."""
    turn = Turn()
    gate = anyio.Event()

    async def gated() -> AsyncIterator[str]:
        await gate.wait()
        yield "g1"
        yield "g2"

    async def hand_off() -> None:
        await anyio.wait_all_tasks_blocked()
        chain.hand_off(turn.agent("b", 1))
        gate.set()

    async with anyio.create_task_group() as group, turn.chain(gated()) as chain:
        group.start_soon(hand_off)
        assert await read_all(chain) == ["g1", "b1"]


async def test_after_a_read_that_was_given_up() -> None:
    """A member that is too slow can be replaced: its await is cancelled, its cleanup completes, the new one is read."""
    turn = Turn()
    async with turn.chain(turn.agent("slow", hold_after=1)) as chain:
        assert await anext(chain) == "slow1"
        with anyio.move_on_after(0.01):
            await anext(chain)
        chain.hand_off(lambda end: turn.agent(f"instead of {end.last} b", 1))
        assert await read_all(chain) == ["instead of slow1 b1"]
    assert turn.log[:2] == ["start slow", "closed slow"]
    assert (chain.end.reason, reasons(chain)) == (EXHAUSTED, [LEFT, EXHAUSTED])


async def test_away_from_a_factory_that_hangs() -> None:
    """A member whose callable hangs can be replaced as well."""
    turn = Turn()

    async def hangs(end: StreamEnd[str]) -> AsyncIterator[str]:
        try:
            await anyio.sleep_forever()
        finally:
            await anyio.lowlevel.checkpoint()
            turn.log.append("factory done")
        return turn.agent("never")

    async with turn.chain(hangs) as chain:
        with anyio.move_on_after(0.01):
            await anext(chain)
        chain.hand_off(turn.agent("b", 1))
        assert await read_all(chain) == ["b1"]
    assert turn.log == ["factory done", "start b", "closed b", "tail"]


async def test_after_an_error_that_the_body_handles() -> None:
    """A member that failed can be replaced: the body handles the error, hands off, and reads on."""
    turn = Turn()
    async with turn.chain(turn.agent("a", fail_after=1)) as chain:
        with pytest.raises(Fault):
            await read_all(chain)
        chain.hand_off(turn.agent("fallback", 1))
        assert await read_all(chain) == ["fallback1"]
    assert turn.log == ["start a", "closed a", "start fallback", "closed fallback", "tail"]
    assert (chain.end.reason, chain.end.error, reasons(chain)) == (EXHAUSTED, None, [FAILED, EXHAUSTED])


async def test_current_counts_hand_offs() -> None:
    """`current` counts members in the order in which they were read, hand-offs included."""
    turn = Turn()
    seen = []
    async with turn.chain(turn.agent("a", 5), turn.agent("q", 1)) as chain:
        async for item in chain:
            seen.append((item, chain.current))
            if item == "a1":
                chain.hand_off(turn.agent("b", 1))
    assert seen == [("a1", 0), ("b1", 1), ("q1", 2)]
    assert [end.last for end in chain.end.members] == ["a1", "b1", "q1"]


# -- the options


async def test_is_never_drained() -> None:
    """A member that is replaced is closed, although `on_early_exit` says to drain."""
    turn = Turn()

    async def persists() -> AsyncIterator[str]:
        yield "p1"
        yield "p2"
        turn.log.append("persisted")

    async with turn.chain(persists(), on_early_exit="drain") as chain:
        await read_handing_off(chain, {"p1": [turn.agent("b", 1)]})
    assert turn.log == ["start b", "closed b", "tail"]


async def test_cancel_is_told_of_the_member_that_is_replaced() -> None:
    """`cancel` gets the source of each member that is left early, before that one is closed; once each."""
    turn = Turn()
    a, b = turn.agent("a", 5), turn.agent("b", 5)
    cancelled: list[object] = []

    def cancel(source: object) -> None:
        turn.log.append("cancel")
        cancelled.append(source)

    async with turn.chain(a, cancel=cancel) as chain:
        async for item in chain:
            if item == "a1":
                chain.hand_off(b)
            else:
                break
    assert cancelled == [a, b]
    assert turn.log == ["start a", "cancel", "closed a", "start b", "cancel", "closed b", "tail"]


async def test_at_the_item_that_matches_ahead() -> None:
    """With `prefetch` a hand-off before the matching item was read goes on: nobody was given the match."""
    turn = Turn()
    async with turn.chain(turn.agent("a", 5), prefetch=8, until=lambda item: item == "a3") as chain:
        items = []
        async for item in chain:
            items.append(item)
            if item == "a1":
                await anyio.wait_all_tasks_blocked()
                chain.hand_off(turn.agent("b", 1))
    assert items == ["a1", "b1"]
    assert (chain.end.reason, reasons(chain)) == (EXHAUSTED, [LEFT, EXHAUSTED])


async def test_error_behind_unread_items_of_the_replaced_member(watch: Watch) -> None:
    """An error of the replaced member that stood behind unread items is told, in the record and the log."""
    turn = Turn()
    async with turn.chain(turn.agent("a", 2, fail_after=2), prefetch=8) as chain:
        async for item in chain:
            if item == "a1":
                await anyio.wait_all_tasks_blocked()
                chain.hand_off(turn.agent("b", 1))
    assert [type(error) for error in chain.end.cleanup_errors] == [Fault]
    assert chain.end.members[0].cleanup_errors == chain.end.cleanup_errors
    assert reasons(chain) == [LEFT, EXHAUSTED]
    watch.claim("Fault")


async def test_drops_what_was_read_ahead() -> None:
    """What the replaced member has made ahead is dropped: the next item is the new member's."""
    turn = Turn()
    async with turn.chain(turn.agent("a", 5), prefetch=3) as chain:
        items = []
        async for item in chain:
            items.append(item)
            if item == "a1":
                await anyio.wait_all_tasks_blocked()
                chain.hand_off(turn.agent("b", 1))
    assert items == ["a1", "b1"]


async def test_replaces_a_member_that_ended_with_items_ahead() -> None:
    """A member that came to its end with items that nobody read counts as LEFT when it is replaced."""
    turn = Turn()
    async with turn.chain(turn.agent("a", 3), prefetch=8) as chain:
        items = []
        async for item in chain:
            items.append(item)
            if item == "a1":
                await anyio.wait_all_tasks_blocked()
                chain.hand_off(turn.agent("b", 1))
    assert items == ["a1", "b1"]
    assert reasons(chain) == [LEFT, EXHAUSTED]


async def test_at_the_item_that_matches() -> None:
    """`until` ends the whole chain, also when the body hands off at the item that matches."""
    turn = Turn()
    b = turn.agent("b", 1)
    async with turn.chain(turn.agent("a", 5), until=lambda item: item == "a2") as chain:
        items = []
        async for item in chain:
            items.append(item)
            if item == "a2":
                with contextlib.suppress(RuntimeError):  # whether it is refused or closed
                    chain.hand_off(b)
                    b = None  # type: ignore[assignment]
    if b is not None:
        await b.aclose()
    assert items == ["a1", "a2"]
    assert chain.end.reason is MATCHED


# -- what fails


async def test_close_fails() -> None:
    """A close that fails at a hand-off does not stop the chain: the error leaves at the end."""
    turn = Turn()
    error = CleanupFault()
    with pytest.raises(CleanupFault) as caught:
        async with turn.chain(turn.agent("a", 5, cleanup_error=error)) as chain:
            items = await read_handing_off(chain, {"a1": [turn.agent("b")]})
            assert items == ["a1", "b1", "b2"]
    assert caught.value is error
    assert turn.log == ["start a", "closed a", "start b", "closed b", "tail"]
    assert chain.end.cleanup_errors == chain.end.members[0].cleanup_errors == (error,)
    assert turn.ends[0].cleanup_errors == (error,)


async def test_close_fails_under_an_error(watch: Watch) -> None:
    """A close that failed at a hand-off is told of, by a note and a record, when an error leaves the block later."""
    turn = Turn()
    with pytest.raises(Fault) as caught:
        async with turn.chain(turn.agent("a", 5, cleanup_error=CleanupFault("of a"))) as chain:
            await read_handing_off(chain, {"a1": [turn.agent("b", fail_after=1)]})
    assert ["of a" in note for note in caught.value.__notes__] == [True]
    assert len(watch.claim("of a")) == 1


async def test_close_hangs() -> None:
    """A close that hangs at a hand-off is cut at its limit; the new member has its turn, the report comes last."""
    turn = Turn()
    with pytest.raises(CleanupTimeoutError):
        async with turn.chain(turn.agent("a", 5, hold_close=True), cleanup_timeout=0.05) as chain:
            items = await read_handing_off(chain, {"a1": [turn.agent("b", 1)]})
            assert items == ["a1", "b1"]
    assert turn.log == ["start a", "start b", "closed b", "tail"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
async def test_interrupt_in_the_close(kind: type[BaseException]) -> None:
    """An interrupt out of the close at a hand-off is not kept back until the new member has run to its end."""
    turn = Turn()
    b = turn.agent("b", 5)
    with pytest.raises(kind):
        async with turn.chain(turn.agent("a", 5, cleanup_error=kind())) as chain:
            await read_handing_off(chain, {"a1": [b]})
    assert turn.log == ["start a", "closed a", "tail"]
    assert is_closed(b)


async def test_factory_fails() -> None:
    """An error of the callable that was handed off to leaves the block; the queued members are closed."""
    turn = Turn()
    queued = turn.agent("q")

    def build(end: StreamEnd[str]) -> AsyncIterator[str]:
        raise Fault

    with pytest.raises(Fault):
        async with turn.chain(turn.agent("a", 5), queued) as chain:
            await read_handing_off(chain, {"a1": [build]})
    assert turn.log == ["start a", "closed a", "tail"]
    assert is_closed(queued)
    assert reasons(chain) == [LEFT, FAILED, UNSTARTED]


async def test_unread_error_of_the_replaced_member() -> None:
    """An error of a member that nobody read before it was replaced is not lost: it leaves from the exit."""
    turn = Turn()
    fired = anyio.Event()

    async def times_out() -> AsyncIterator[str]:
        try:
            with anyio.fail_after(0.01):
                yield "t1"
                await anyio.sleep_forever()
        finally:
            fired.set()

    items = []
    with pytest.raises(TimeoutError) as caught:
        async with turn.chain(times_out()) as chain:
            async for item in chain:
                items.append(item)
                if item == "t1":
                    await fired.wait()
                    await anyio.wait_all_tasks_blocked()
                    chain.hand_off(turn.agent("b", 1))
    assert items == ["t1", "b1"]
    assert chain.end.members[0].error is caught.value


async def test_unread_errors_of_two_replaced_members(watch: Watch) -> None:
    """Of two errors that nobody read the first leaves from the exit; the other is told, not lost."""
    turn = Turn()

    async def read_and_hand_off(chain: GuardedChain[str], name: str) -> None:
        fired = anyio.Event()

        async def times_out() -> AsyncIterator[str]:
            try:
                with anyio.fail_after(0.01):
                    yield name
                    await anyio.sleep_forever()
            except TimeoutError:
                raise Fault(name) from None
            finally:
                fired.set()

        chain.hand_off(times_out())
        assert await anext(chain) == name
        await fired.wait()
        await anyio.wait_all_tasks_blocked()

    with pytest.raises(Fault, match="first") as caught:
        async with turn.chain(turn.agent("a", 1)) as chain:
            await read_and_hand_off(chain, "first")
            await read_and_hand_off(chain, "second")
            chain.hand_off(turn.agent("b", 1))
            assert await read_all(chain) == ["b1", "a1"]
    assert [str(error) for error in chain.end.cleanup_errors] == ["second"]
    assert chain.end.members[0].error is caught.value
    watch.claim("displaced while it was closed: .*Fault: second")


# -- ways out while a hand-off is about to happen


async def test_break_after_a_hand_off() -> None:
    """A member that was handed off to, and never read because of a break, is closed without running."""
    turn = Turn()
    b, queued = turn.agent("b"), turn.agent("q")
    async with turn.chain(turn.agent("a", 5), queued) as chain:
        async for _ in chain:
            chain.hand_off(b)
            break
    assert turn.log == ["start a", "closed a", "tail"]
    assert is_closed(b)
    assert is_closed(queued)
    assert [(end.source, end.reason) for end in chain.end.members[1:]] == [(b, UNSTARTED), (queued, UNSTARTED)]


async def test_error_after_a_hand_off() -> None:
    """An error right after a hand-off closes both members, the new one without running."""
    turn = Turn()
    b = Closable(turn, "b")
    with pytest.raises(Fault):
        async with turn.chain(turn.agent("a", 5)) as chain:
            async for _ in chain:
                chain.hand_off(b)
                raise Fault
    assert turn.log == ["start a", "closed a", "closed b", "tail"]
    assert b.closes == 1


async def test_stop_after_a_hand_off() -> None:
    """A stop wins over a hand-off that waits: the new member is closed without running."""
    turn = Turn()
    b = turn.agent("b")
    async with turn.chain(turn.agent("a", 5)) as chain:
        async for _ in chain:
            chain.hand_off(b)
            chain.stop()
    assert turn.log == ["start a", "closed a", "tail"]
    assert is_closed(b)
    assert chain.end.reason is STOPPED


@only_asyncio
@pytest.mark.parametrize("cancels", [1, 2])
async def test_native_cancel_while_the_replaced_member_closes(cancels: int) -> None:
    """Cancelled while the replaced member closes: its cleanup completes, the new one never runs, all is cancelled."""
    turn = Turn()
    b = turn.agent("b")

    async def consume() -> None:
        async with turn.chain(turn.agent("a", 5, hold_close=True)) as chain:
            await read_handing_off(chain, {"a1": [b]})

    task = asyncio.create_task(consume())
    await turn.closing.wait()
    for _ in range(cancels):
        task.cancel()
        await anyio.wait_all_tasks_blocked()
    turn.may_close.set()
    await asyncio.wait([task])
    assert outcome_of(task) == "cancelled"
    assert turn.log == ["start a", "closed a", "tail"]
    assert is_closed(b)


async def test_scope_cancelled_while_the_replaced_member_closes() -> None:
    """A scope that is cancelled while the replaced member closes lets its cleanup complete, then takes effect."""
    turn = Turn()
    async with anyio.create_task_group() as group:

        async def cancel() -> None:
            await turn.closing.wait()
            scope.cancel()
            await anyio.wait_all_tasks_blocked()
            turn.may_close.set()

        group.start_soon(cancel)
        with anyio.CancelScope() as scope:
            async with turn.chain(turn.agent("a", 5, hold_close=True)) as chain:
                await read_handing_off(chain, {"a1": [turn.agent("b", 5)]})
    assert scope.cancelled_caught
    assert turn.log[:2] == ["start a", "closed a"]
    assert turn.log[-1] == "tail"
    assert turn.log.count("start b") == turn.log.count("closed b")


async def test_aclose_while_the_replaced_member_closes() -> None:
    """A chain that another task closes during a hand-off has that close complete; the new member never runs."""
    turn = Turn()
    b = turn.agent("b")

    async def close() -> None:
        await turn.closing.wait()
        group.start_soon(chain.aclose)
        await anyio.wait_all_tasks_blocked()
        turn.may_close.set()

    async with anyio.create_task_group() as group, turn.chain(turn.agent("a", 5, hold_close=True)) as chain:
        group.start_soon(close)
        assert await read_handing_off(chain, {"a1": [b]}) == ["a1"]
    assert turn.log == ["start a", "closed a", "tail"]
    assert is_closed(b)


# -- bad input


async def test_outside_the_block() -> None:
    """A hand-off before the block says where it belongs; the chain stays as it was."""
    turn = Turn()
    b = turn.agent("b", 1)
    chain = turn.chain(turn.agent("a", 1))
    with pytest.raises(RuntimeError, match=r'no current member yet; use hand_off\(\) inside its "async with" block'):
        chain.hand_off(b)
    async with chain:
        assert await read_all(chain) == ["a1"]
    with pytest.raises(RuntimeError, match="has ended"):
        chain.hand_off(b)
    assert await read_all(b) == ["b1"]


@pytest.mark.parametrize(("member", "message"), NO_MEMBERS)
async def test_to_what_is_no_member(member: Any, message: str) -> None:
    """What is no source is refused by `hand_off`, which leaves the chain as it was: the running member goes on."""
    turn = Turn()
    async with turn.chain(turn.agent("a", 3)) as chain:
        items = []
        async for item in chain:
            items.append(item)
            with pytest.raises(TypeError, match=message):
                chain.hand_off(member)
    assert items == ["a1", "a2", "a3"]
    assert reasons(chain) == [EXHAUSTED]
