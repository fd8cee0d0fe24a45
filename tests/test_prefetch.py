"""With `prefetch=N` the source runs at most N items ahead of the reader; without it not at all."""

import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from nothing_left import Watch
from recording import Fault
from spies import steps
from streamguard import EndReason, GuardedStream, guarded_stream

pytestmark = pytest.mark.anyio


class Counting:
    """Numbers from 1 that know how many of them were made."""

    def __init__(
        self, count: int = 10, *, error: BaseException | None = None, cleanup_error: BaseException | None = None
    ) -> None:
        self._count = count
        self._error = error
        self._cleanup_error = cleanup_error
        self.made = 0
        self.log: list[str] = []
        self.gate: anyio.Event | None = None
        """Waited for before every item."""

    async def run(self) -> AsyncIterator[int]:
        try:
            for number in range(1, self._count + 1):
                if self.gate is not None:
                    await self.gate.wait()
                self.made = number
                yield number
            if self._error is not None:
                raise self._error
            self.log.append("ended")
        finally:
            await anyio.lowlevel.checkpoint()
            self.log.append("closed")
            if self._cleanup_error is not None:
                raise self._cleanup_error


# -- how far ahead


async def test_nothing_is_read_ahead_without_it() -> None:
    """Without `prefetch` the source has made what was read, and no more, however long the body works."""
    source = Counting()
    async with guarded_stream(source.run()) as stream:
        async for number in stream:
            await anyio.wait_all_tasks_blocked()
            assert source.made == number
            if number == 3:
                break
    assert source.made == 3


async def test_nothing_is_made_before_the_first_read() -> None:
    """The source starts at the first read, with `prefetch` as well."""
    source = Counting()
    async with guarded_stream(source.run(), prefetch=5):
        await anyio.wait_all_tasks_blocked()
        assert source.made == 0
    assert source.made == 0


@pytest.mark.parametrize("ahead", [1, 2, 5])
async def test_never_more_than_n_ahead(ahead: int) -> None:
    """While the body works the source has made N items more than were read: not one more, and no fewer."""
    source = Counting(20)
    async with guarded_stream(source.run(), prefetch=ahead) as stream:
        async for number in stream:
            assert source.made <= number + ahead
            await anyio.wait_all_tasks_blocked()
            assert source.made == min(number + ahead, 20)


@pytest.mark.parametrize("ahead", [1, 2, 5, 250])
async def test_never_more_than_n_picked_ahead(ahead: int) -> None:
    """The same if each item is picked, and however many are made before others have their turn."""
    source = Counting(ahead + 20)
    async with guarded_stream(source.run(), prefetch=ahead, where=lambda _: True) as stream:
        async for number in stream:
            assert source.made <= number + ahead
            await anyio.wait_all_tasks_blocked()
            assert source.made == min(number + ahead, ahead + 20)
            if number == 30:
                break


async def test_never_more_than_n_ahead_of_a_waiting_reader() -> None:
    """A reader that waits for the first item gets it as soon as it is made, not when N are there."""
    source = Counting(20)
    gate = source.gate = anyio.Event()
    async with guarded_stream(source.run(), prefetch=5) as stream:
        async with anyio.create_task_group() as group:

            async def open_for_one() -> None:
                await anyio.wait_all_tasks_blocked()
                gate.set()
                source.gate = anyio.Event()

            group.start_soon(open_for_one)
            assert await anext(stream) == 1
        assert source.made == 1


@pytest.mark.parametrize("ahead", [1, 3, 100])
async def test_order_is_kept(ahead: int) -> None:
    """Items arrive in order, none is lost and none comes twice."""
    async with guarded_stream(Counting(50).run(), prefetch=ahead) as stream:
        numbers = []
        async for number in stream:
            numbers.append(number)
            if number % 7 == 0:
                await anyio.lowlevel.checkpoint()
    assert numbers == list(range(1, 51))
    assert (stream.end.reason, stream.end.items, stream.end.last) == (EndReason.EXHAUSTED, 50, 50)


async def test_none_is_an_item() -> None:
    """An item that is None is an item, read ahead or not."""

    async def nones() -> AsyncIterator[None]:
        for _ in range(3):
            yield None

    async with guarded_stream(nones(), prefetch=2) as stream:
        assert [item async for item in stream] == [None] * 3


async def test_items_that_were_skipped_do_not_count() -> None:
    """Items that `where` skips take no place among those that are ahead."""
    source = Counting(30)
    async with guarded_stream(source.run(), prefetch=2, where=lambda number: number % 10 == 0) as stream:
        assert await anext(stream) == 10
        await anyio.wait_all_tasks_blocked()
        assert source.made == 30
        assert [number async for number in stream] == [20, 30]


async def test_it_saves_hand_offs() -> None:
    """What it is for: a source that makes its items at once wakes the reader less often than once for each."""
    with steps() as counted:
        async with guarded_stream(Counting(100).run(), prefetch=50) as stream:
            assert len([number async for number in stream]) == 100
    assert counted.total < 50


async def test_other_tasks_have_their_turn() -> None:
    """A source that never awaits, and may run far ahead, does not keep other tasks from running."""
    source = Counting(10**6)
    async with guarded_stream(source.run(), prefetch=10**6) as stream:
        await anext(stream)
        assert source.made <= 1000
    assert source.made <= 2000


async def test_other_tasks_have_their_turn_while_a_source_fills_up() -> None:
    """While the body works, too, a source that never awaits lets others run between its items."""
    source = Counting(5000)
    made = [0]

    async def other() -> None:
        while made[-1] < 5000:
            await anyio.lowlevel.checkpoint()
            made.append(source.made)

    async with anyio.create_task_group() as group:
        group.start_soon(other)
        async with guarded_stream(source.run(), prefetch=5000) as stream:
            await anext(stream)
            while source.made < 5000:
                await anyio.lowlevel.checkpoint()
    assert max(after - before for before, after in itertools.pairwise(made)) <= 1000


# -- ends


async def test_end_stands_behind_the_items() -> None:
    """A source that came to its end while items are unread: they are read first, then the loop ends."""
    source = Counting(3)
    async with guarded_stream(source.run(), prefetch=8) as stream:
        assert await anext(stream) == 1
        await anyio.wait_all_tasks_blocked()
        assert source.log == ["ended", "closed"]
        assert [number async for number in stream] == [2, 3]
    assert stream.end.reason is EndReason.EXHAUSTED


async def test_error_stands_behind_the_items() -> None:
    """An error of a source that ran ahead is raised after the items before it were read, bare."""
    error = Fault()
    numbers = []
    with pytest.raises(Fault) as caught:
        async with guarded_stream(Counting(3, error=error).run(), prefetch=8) as stream:
            async for number in stream:
                await anyio.wait_all_tasks_blocked()
                numbers.append(number)
    assert caught.value is error
    assert numbers == [1, 2, 3]
    assert (stream.end.reason, stream.end.cleanup_errors) == (EndReason.FAILED, ())


async def test_error_behind_unread_items(watch: Watch) -> None:
    """An error behind items that nobody read does not leave the block: it is in the record, and logged once."""
    error = Fault()
    async with guarded_stream(Counting(3, error=error).run(), prefetch=8) as stream:
        async for _ in stream:
            await anyio.wait_all_tasks_blocked()
            break
    assert stream.end.cleanup_errors == (error,)
    assert (stream.end.reason, stream.end.error) == (EndReason.LEFT, None)
    assert len(watch.claim("Fault")) == 1


async def test_error_behind_no_items() -> None:
    """An error that nobody read, with every item before it read, leaves from the exit as it does without."""
    error = Fault()
    with pytest.raises(Fault) as caught:
        async with guarded_stream(Counting(3, error=error).run(), prefetch=8) as stream:
            async for number in stream:
                await anyio.wait_all_tasks_blocked()
                if number == 3:
                    break
    assert caught.value is error


async def test_error_behind_unread_items_under_an_error_of_the_body(watch: Watch) -> None:
    """The body's error leaves; the one behind unread items is a note on it, in the record, and logged once."""
    behind = Fault("behind")
    with pytest.raises(Fault, match="body") as caught:
        async with guarded_stream(Counting(3, error=behind).run(), prefetch=8) as stream:
            async for _ in stream:
                await anyio.wait_all_tasks_blocked()
                raise Fault("body")
    assert ["behind" in note for note in caught.value.__notes__] == [True]
    assert stream.end.cleanup_errors == (behind,)
    assert len(watch.claim("behind")) == 1


async def test_tail_is_told_of_the_error_behind_unread_items(watch: Watch) -> None:
    """The tail's record has the error that stood behind unread items."""
    error = Fault()
    ends: list[Any] = []
    async with guarded_stream(Counting(3, error=error).run(), prefetch=8, tail=ends.append) as stream:
        await anext(stream)
        await anyio.wait_all_tasks_blocked()
    assert ends[0].cleanup_errors == (error,)
    watch.claim("Fault")


async def test_stop_with_an_error_behind_unread_items(watch: Watch) -> None:
    """After a stop an error that stood behind unread items is not raised by the next read, but told."""
    error = Fault()
    async with guarded_stream(Counting(3, error=error).run(), prefetch=8) as stream:
        await anext(stream)
        await anyio.wait_all_tasks_blocked()
        stream.stop()
        assert [number async for number in stream] == []
    assert (stream.end.reason, stream.end.cleanup_errors) == (EndReason.STOPPED, (error,))
    watch.claim("Fault")


async def test_until_in_the_middle_of_what_is_ahead() -> None:
    """The source runs no further than to the item that matches; that one is the last to be read."""
    source = Counting(20)
    async with guarded_stream(source.run(), prefetch=8, until=lambda number: number == 4) as stream:
        assert await anext(stream) == 1
        await anyio.wait_all_tasks_blocked()
        assert source.made == 4
        assert [number async for number in stream] == [2, 3, 4]
    assert (stream.end.reason, stream.end.items) == (EndReason.MATCHED, 4)
    assert source.log == ["closed"]


async def test_break_before_the_item_that_matches() -> None:
    """A stream that is left before the item that matched was read counts as left, not as matched."""
    source = Counting(20)
    async with guarded_stream(source.run(), prefetch=8, until=lambda number: number == 4) as stream:
        await anext(stream)
        await anyio.wait_all_tasks_blocked()
    assert (stream.end.reason, stream.end.items, stream.end.last) == (EndReason.LEFT, 1, 1)


async def test_error_of_until_stands_behind_the_items() -> None:
    """An error of `until` for an item that is ahead is raised when the items before it were read."""

    def until(number: int) -> bool:
        if number == 3:
            raise Fault
        return False

    numbers = []
    with pytest.raises(Fault):
        async with guarded_stream(Counting().run(), prefetch=8, until=until) as stream:
            async for number in stream:
                await anyio.wait_all_tasks_blocked()
                numbers.append(number)
    assert numbers == [1, 2]


# -- leaving


async def test_stop_drops_what_is_ahead() -> None:
    """After a stop nothing that is ahead is read, and the source makes no more."""
    source = Counting(20)
    async with guarded_stream(source.run(), prefetch=3) as stream:
        await anext(stream)
        await anyio.wait_all_tasks_blocked()
        stream.stop()
        assert [number async for number in stream] == []
        await anyio.wait_all_tasks_blocked()
        assert source.made == 4
    assert (stream.end.reason, stream.end.items) == (EndReason.STOPPED, 1)
    assert source.log == ["closed"]


async def test_stop_after_the_source_has_ended() -> None:
    """A stop with items unread is a stop, although the source came to its own end."""
    async with guarded_stream(Counting(3).run(), prefetch=8) as stream:
        await anext(stream)
        await anyio.wait_all_tasks_blocked()
        stream.stop()
        assert [number async for number in stream] == []
    assert (stream.end.reason, stream.end.items) == (EndReason.STOPPED, 1)


async def test_stop_while_the_source_makes_more() -> None:
    """A stop while the source is at work on an item has that item dropped."""
    source = Counting(20)
    async with guarded_stream(source.run(), prefetch=3) as stream:
        await anext(stream)
        await anyio.wait_all_tasks_blocked()
        source.gate = gate = anyio.Event()
        await anext(stream)
        await anyio.wait_all_tasks_blocked()
        stream.stop()
        gate.set()
        await anyio.wait_all_tasks_blocked()
        assert [number async for number in stream] == []
    assert stream.end.items == 2


async def test_break_with_everything_ahead() -> None:
    """A break while N items are ahead closes the source where it is; they are dropped."""
    source = Counting(20)
    async with guarded_stream(source.run(), prefetch=3) as stream:
        async for _ in stream:
            await anyio.wait_all_tasks_blocked()
            break
    assert (source.made, source.log) == (4, ["closed"])
    assert (stream.end.reason, stream.end.items, stream.end.last) == (EndReason.LEFT, 1, 1)


async def test_break_after_the_source_has_ended() -> None:
    """A break with items unread counts as left, although the source came to its own end."""
    async with guarded_stream(Counting(3).run(), prefetch=8) as stream:
        async for _ in stream:
            await anyio.wait_all_tasks_blocked()
            break
    assert (stream.end.reason, stream.end.items) == (EndReason.LEFT, 1)


async def test_break_while_the_source_makes_more() -> None:
    """A break while the source awaits, running ahead, cancels that await; its cleanup completes."""
    source = Counting(20)
    async with guarded_stream(source.run(), prefetch=3) as stream:
        await anext(stream)
        await anyio.wait_all_tasks_blocked()
        source.gate = anyio.Event()
        await anext(stream)
        await anyio.wait_all_tasks_blocked()
    assert source.log == ["closed"]


async def test_cancelled_with_everything_ahead() -> None:
    """A cancelled scope closes a source that is ahead as any other; its cleanup completes."""
    source = Counting(20)
    with anyio.CancelScope() as scope:
        async with guarded_stream(source.run(), prefetch=3) as stream:
            async for _ in stream:
                scope.cancel()
                await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert source.log == ["closed"]


async def test_cleanup_error_with_everything_ahead() -> None:
    """An error of the cleanup leaves a block that was left with items ahead."""
    with pytest.raises(Fault):
        async with guarded_stream(Counting(20, cleanup_error=Fault()).run(), prefetch=3) as stream:
            async for _ in stream:
                await anyio.wait_all_tasks_blocked()
                break


async def test_drain_with_everything_ahead() -> None:
    """A drain runs on from where the source is, and drops all."""
    source = Counting(20)
    async with guarded_stream(source.run(), prefetch=3, on_early_exit="drain") as stream:
        async for _ in stream:
            await anyio.wait_all_tasks_blocked()
            break
    assert (source.made, source.log) == (20, ["ended", "closed"])
    assert (stream.end.reason, stream.end.items) == (EndReason.LEFT, 1)


async def test_aclose_with_everything_ahead() -> None:
    """A close by the body drops what is ahead: the next read finds the end."""
    source = Counting(20)
    async with guarded_stream(source.run(), prefetch=3) as stream:
        await anext(stream)
        await anyio.wait_all_tasks_blocked()
        await stream.aclose()
        assert source.log == ["closed"]
        assert [number async for number in stream] == []
    assert stream.end.items == 1


# -- timed reads


async def test_timed_read() -> None:
    """A read that is given up loses no item, and the source goes on."""
    source = Counting(5)
    gate = source.gate = anyio.Event()
    async with guarded_stream(source.run(), prefetch=2) as stream:
        for _ in range(3):
            with anyio.move_on_after(0.01) as scope:
                await anext(stream)
            assert scope.cancelled_caught
        gate.set()
        assert [number async for number in stream] == [1, 2, 3, 4, 5]


async def test_timed_read_of_what_is_there() -> None:
    """A read of what is there already is not given up, even in a scope that is cancelled: nothing is waited for."""
    async with guarded_stream(Counting(5).run(), prefetch=2) as stream:
        assert await anext(stream) == 1
        await anyio.wait_all_tasks_blocked()
        with anyio.CancelScope() as scope:
            scope.cancel()
            assert await anext(stream) == 2
        assert [number async for number in stream] == [3, 4, 5]


async def test_second_reader() -> None:
    """A second reader that would have to wait is refused; the first one is not disturbed."""
    source = Counting(2)
    gate = source.gate = anyio.Event()
    numbers: list[int] = []

    async def reader(stream: GuardedStream[int]) -> None:
        numbers.extend([number async for number in stream])

    async with guarded_stream(source.run(), prefetch=2) as stream, anyio.create_task_group() as group:
        group.start_soon(reader, stream)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(RuntimeError, match="being read by another task"):
            await anext(stream)
        gate.set()
    assert numbers == [1, 2]


async def test_what_fires_inside_a_source_that_is_ahead() -> None:
    """A timeout inside a source that stands N ahead leaves the body alone, and arrives behind the items."""
    fired = anyio.Event()

    async def times_out() -> AsyncIterator[int]:
        try:
            with anyio.fail_after(0.01):
                for number in range(1, 10):
                    yield number
        finally:
            fired.set()

    numbers = []
    went_on = False
    with pytest.raises(TimeoutError):
        async with guarded_stream(times_out(), prefetch=2) as stream:
            async for number in stream:
                numbers.append(number)
                if number == 1:
                    await fired.wait()
                    await anyio.wait_all_tasks_blocked()
                    went_on = True
    assert went_on
    assert numbers == [1, 2, 3]


async def test_room_first_after_a_timeout_of_its_own() -> None:
    """What comes of the source's own timeout stands beside what it had made; it makes more when there is room."""
    fuse: list[Callable[[], None]] = []
    made: list[int] = []

    async def source() -> AsyncIterator[int]:
        with anyio.CancelScope() as scope:
            fuse.append(scope.cancel)
            for number in (1, 2, 3):
                made.append(number)
                yield number
        for number in (10, 11):
            made.append(number)
            yield number

    async with guarded_stream(source(), prefetch=1) as stream:
        assert await anext(stream) == 1
        await anyio.wait_all_tasks_blocked()
        fuse[0]()
        await anyio.wait_all_tasks_blocked()
        assert made == [1, 2, 10]
        assert await anext(stream) == 2
        await anyio.wait_all_tasks_blocked()
        assert made == [1, 2, 10]  # 10 stands unread: that is one ahead
        assert [item async for item in stream] == [10, 11]


async def test_goes_on_after_two_timeouts_of_its_own() -> None:
    """A source that answers one timeout of its own after the other runs ahead again as soon as there is room."""
    fuses: list[Callable[[], None]] = []
    made: list[int] = []

    async def source() -> AsyncIterator[int]:
        for numbers in ((1, 2, 3, 4, 5), (10, 11), (20, 21)):
            with anyio.CancelScope() as scope:
                fuses.append(scope.cancel)
                for number in numbers:
                    made.append(number)
                    yield number

    async with guarded_stream(source(), prefetch=3) as stream:
        assert await anext(stream) == 1
        await anyio.wait_all_tasks_blocked()
        fuses[0]()
        await anyio.wait_all_tasks_blocked()
        fuses[1]()
        await anyio.wait_all_tasks_blocked()
        assert [await anext(stream), await anext(stream)] == [2, 3]
        await anyio.wait_all_tasks_blocked()
        assert made == [1, 2, 3, 4, 10, 20]
        assert await anext(stream) == 4
        await anyio.wait_all_tasks_blocked()
        assert made == [1, 2, 3, 4, 10, 20, 21]
        assert [item async for item in stream] == [10, 20, 21]


async def test_items_are_let_go() -> None:
    """Items that were ahead and dropped are freed at the exit, and those that were read when the reader lets go."""

    class Item:
        alive = 0

        def __init__(self) -> None:
            Item.alive += 1

        def __del__(self) -> None:
            Item.alive -= 1

    async def items() -> AsyncIterator[Item]:
        while True:
            yield Item()

    async with guarded_stream(items(), prefetch=3) as stream:
        await anext(stream)
        await anyio.wait_all_tasks_blocked()
    assert Item.alive <= 1  # `end.last`
