"""Run handles: told to stop once, never cut, joined; what they stored is surfaced once."""

import asyncio
import logging
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from nothing_left import Watch
from spies import on_asyncio
from stories import AgentsRun, CancelledByUser, Run, Story, WorkflowHandle
from streamguard import CleanupError, CleanupTimeoutError, EndReason, guarded_chain, guarded_stream
from test_release import Agent, Item, Result, of_the_sdk

pytestmark = pytest.mark.anyio

# Runs with a background task need asyncio: only there are such runners.


@on_asyncio
async def test_run_left_early() -> None:
    """A run that is left early is cancelled once and joined: its tool does not run, its model's cleanup completes."""
    story = Story()
    run = AgentsRun(story)
    async with guarded_stream(run) as stream:
        assert await anext(stream) == 1
    story.check("cancel", "model closed")
    assert run.run_loop_task.done()
    assert stream.end.reason is EndReason.LEFT
    assert stream.end.source is run


@on_asyncio
async def test_run_left_while_it_is_waited_for() -> None:
    """A run that is left while the reader waits for its next event is cancelled once, never cut."""
    story = Story()
    run = AgentsRun(story)
    with anyio.CancelScope() as scope:
        async with guarded_stream(run) as stream, anyio.create_task_group() as group:
            assert [await anext(stream), await anext(stream)] == [1, 2]

            async def leave() -> None:
                await anyio.wait_all_tasks_blocked()
                scope.cancel()

            group.start_soon(leave)
            await anext(stream)
    assert scope.cancelled_caught
    story.check("cancel", "model closed")


@on_asyncio
async def test_run_read_to_its_end() -> None:
    """A run that came to its end is not cancelled, and its task is joined."""
    story = Story()
    run = AgentsRun(story)
    run.may_call_tool.set()
    async with guarded_stream(run) as stream:
        assert [item async for item in stream] == [1, 2, 3]
    story.check("tool", "model closed")


@on_asyncio
async def test_run_never_read() -> None:
    """A run that nobody read is cancelled once and joined."""
    story = Story()
    run = AgentsRun(story)
    async with guarded_stream(run):
        await anyio.wait_all_tasks_blocked()
    assert run.run_loop_task.done()
    assert story.log == ["cancel", "model closed"]


@on_asyncio
async def test_run_never_started() -> None:
    """A run whose task had no turn yet is cancelled once and joined."""
    story = Story()
    async with guarded_stream(run := AgentsRun(story)):
        pass
    assert run.run_loop_task.done()
    assert story.log == ["cancel"]


@on_asyncio
async def test_complete_run_is_not_cancelled() -> None:
    """A run that is complete is not cancelled, though its stream was left early."""
    story = Story()
    run = AgentsRun(story)
    run.may_call_tool.set()
    async with guarded_stream(run) as stream:
        await anext(stream)
        await asyncio.wait([run.run_loop_task])
    story.check("tool", "model closed")


@on_asyncio
async def test_run_that_the_user_is_cancelling() -> None:
    """A run that the user has cancelled is not cancelled again: a second one would cut the model's cleanup."""
    story = Story()
    run = AgentsRun(story)
    async with guarded_stream(run) as stream:
        await anext(stream)
        run.cancel()
        await asyncio.sleep(0)  # the model's cleanup has begun
    story.check("cancel", "model closed")


@on_asyncio
async def test_run_that_the_user_lets_finish_its_turn() -> None:
    """A run that the user told to end after its turn is already being cancelled: it is waited for, not cancelled."""
    story = Story()
    run = AgentsRun(story)
    async with guarded_stream(run) as stream:
        await anext(stream)
        run.cancel("after_turn")
        run.may_call_tool.set()
    story.check("cancel", "tool", "model closed")


@on_asyncio
async def test_run_cancelled_by_the_reader_is_read_to_its_end() -> None:
    """A reader who cancels the run and goes on reading gets what is there, then the end."""
    story = Story()
    run = AgentsRun(story)
    async with guarded_stream(run) as stream:
        assert await anext(stream) == 1
        run.cancel()
        assert [item async for item in stream] == [2]
    story.check("cancel", "model closed")
    assert stream.end.reason is EndReason.EXHAUSTED


@on_asyncio
async def test_run_that_fails() -> None:
    """The error of a run arrives at the read, bare, and only there."""
    run = AgentsRun(Story(), fails="run")
    run.may_call_tool.set()
    with pytest.raises(OSError, match=r"^run$") as caught:
        async with guarded_stream(run) as stream:
            async for _ in stream:
                pass
    assert caught.value is run.run_loop_exception
    assert stream.end.cleanup_errors == ()
    assert not hasattr(caught.value, "__notes__")


@on_asyncio
async def test_run_that_fails_and_whose_error_was_caught() -> None:
    """The error of a run that the body has dealt with does not come again at the exit."""
    run = AgentsRun(Story(), fails="run")
    run.may_call_tool.set()
    async with guarded_stream(run) as stream:
        with pytest.raises(OSError, match=r"^run$"):
            async for _ in stream:
                pass
    assert stream.end.cleanup_errors == ()


@on_asyncio
async def test_run_whose_error_nobody_read() -> None:
    """The error of a run that nobody read leaves from the exit of the block."""
    run = AgentsRun(Story(), fails="run")
    run.may_call_tool.set()
    with pytest.raises(OSError, match=r"^run$"):
        async with guarded_stream(run) as stream:
            await anext(stream)
            await asyncio.wait([run.run_loop_task])
    assert stream.end.error is run.run_loop_exception


@on_asyncio
async def test_run_whose_cleanup_fails() -> None:
    """An error that the run stored while it was cancelled leaves from the exit, once."""
    run = AgentsRun(Story(), fails="cleanup")
    with pytest.raises(OSError, match=r"^cleanup$"):
        async with guarded_stream(run) as stream:
            await anext(stream)
            await anyio.wait_all_tasks_blocked()
    assert stream.end.cleanup_errors == (run.run_loop_exception,)


@on_asyncio
async def test_run_whose_cleanup_fails_after_an_error_of_the_body(watch: Watch) -> None:
    """The body's error leaves; what the run stored while it was cancelled is a note on it, and logged once."""
    run = AgentsRun(Story(), fails="cleanup")
    with pytest.raises(ValueError, match=r"^body") as caught:
        async with guarded_stream(run) as stream:
            await anext(stream)
            await anyio.wait_all_tasks_blocked()
            raise ValueError("body")
    assert len(caught.value.__notes__) == 1
    assert "OSError: cleanup" in caught.value.__notes__[0]
    assert len(watch.claim("OSError: cleanup")) == 1


@on_asyncio
async def test_run_whose_cancel_fails() -> None:
    """When a run's ``cancel`` raises, that leaves from the exit, and the events are closed all the same."""
    story = Story()

    class Stubborn(Run):
        def cancel(self) -> None:
            raise OSError("cancel")

    with pytest.raises(OSError, match=r"^cancel$"):
        async with guarded_stream(Stubborn(story)) as stream:
            await anext(stream)
    story.check("closed")


async def test_run_with_an_async_cancel() -> None:
    """What a run's ``cancel`` returns is awaited, before the events are closed, cancelled or not."""
    story = Story()

    class Polite(Run):
        async def cancel(self) -> None:
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
            story.log.append("cancel")

    with anyio.CancelScope() as scope:
        async with guarded_stream(Polite(story)) as stream:
            await anext(stream)
            scope.cancel()
            await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    story.check("cancel", "closed")


@on_asyncio
@pytest.mark.parametrize("known_by", ["is_complete", "run_loop_task"])
async def test_run_that_says_in_one_way_that_it_is_complete(known_by: str) -> None:
    """A run is not told to stop if it says that it is complete, or if its background task has ended."""
    story = Story()

    class Complete(Run):
        def cancel(self) -> None:
            story.log.append("cancel")

    run = Complete(story)
    ended = asyncio.get_running_loop().create_future()
    ended.set_result(None)
    setattr(run, known_by, True if known_by == "is_complete" else ended)
    async with guarded_stream(run) as stream:
        await anext(stream)
    story.check("closed")


async def test_run_whose_async_cancel_hangs() -> None:
    """A run's ``cancel`` that is awaited has the limit of a close; the error says that it is the cancel that hung."""
    story = Story()

    class Hanging(Run):
        async def cancel(self) -> None:
            await anyio.sleep_forever()

    with pytest.raises(CleanupTimeoutError, match=r"^the cancel of .*Hanging object did not end within 0.05 s"):
        async with guarded_stream(Hanging(story), cleanup_timeout=0.05) as stream:
            await anext(stream)
    story.check("closed")


@on_asyncio
async def test_run_whose_cancel_is_cancelled() -> None:
    """A CancelledError out of a run's ``cancel`` does not cancel the consumer: a CleanupError that says where from."""
    story = Story()

    class Cancelling(Run):
        def cancel(self) -> None:
            raise asyncio.CancelledError

    words = "^the cancel of .*Cancelling object raised a cancellation that nobody asked for$"
    with pytest.raises(CleanupError, match=words):
        async with guarded_stream(Cancelling(story)) as stream:
            await anext(stream)
    story.check("closed")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
async def test_run_whose_cancel_is_interrupted(kind: type[BaseException]) -> None:
    """An interrupt in a run's ``cancel`` leaves the block, after the close and the tail."""
    story = Story()

    class Interrupted(Run):
        def cancel(self) -> None:
            story.log.append("cancel")
            raise kind

    with pytest.raises(kind):
        async with guarded_stream(Interrupted(story), tail=lambda _: story.log.append("tail")) as stream:
            await anext(stream)
    story.check("cancel", "closed", "tail")


async def test_run_without_any_cancel() -> None:
    """A run that cannot be cancelled is waited for: its events are closed."""
    story = Story()
    async with guarded_stream(Run(story)) as stream:
        await anext(stream)
    story.check("closed")


@on_asyncio
@pytest.mark.parametrize("name", ["run_loop_task", "_run_impl_task", "_result_task"])
async def test_background_task_by_its_name(name: str) -> None:
    """The background task of a run is awaited under each name that runners have for it."""
    story = Story()

    async def background() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            story.log.append("background done")

    task = asyncio.create_task(background())
    await asyncio.sleep(0)  # it is at work

    class Named(Run):
        run_loop_task = None

        def cancel(self) -> None:
            task.cancel()

    run = Named(story)
    setattr(run, name, task)
    async with guarded_stream(run) as stream:
        await anext(stream)
    story.check("closed", "background done")


@on_asyncio
async def test_run_made_by_a_callable() -> None:
    """A run that starts when it is made starts at the first read, inside the owner, if a callable makes it."""
    story = Story()
    runs: list[AgentsRun] = []

    def start() -> AgentsRun:
        story.note("started")
        runs.append(AgentsRun(story))
        return runs[0]

    async with guarded_stream(start) as stream:
        await anyio.wait_all_tasks_blocked()
        assert runs == []
        assert await anext(stream) == 1
    story.check("started", "cancel", "model closed")
    assert stream.end.source is runs[0]


@on_asyncio
async def test_run_that_does_not_stop(caplog: pytest.LogCaptureFixture) -> None:
    """A close that has to wait for a tool of the run is over in no time, since the run is cancelled first."""
    story = Story()
    run = AgentsRun(story)
    async with guarded_stream(run, cancel=run.cancel) as stream:
        await anext(stream)
    story.check("cancel", "model closed")


@on_asyncio
async def test_workflow_left_early() -> None:
    """A workflow is stopped by `cancel_run`, awaited, not by its deprecated `cancel`; that it obeyed is no error."""
    story = Story()
    handle = WorkflowHandle(story)
    async with guarded_stream(handle) as stream:
        assert await anext(stream) == 1
    assert story.log == ["cancel_run", "step cleaned up", "run ended"]
    assert handle.is_done()
    assert stream.end.cleanup_errors == ()


@on_asyncio
async def test_workflow_left_while_it_is_waited_for() -> None:
    """A workflow that is left while the reader waits is not cut, and its last event is dropped."""
    story = Story()
    handle = WorkflowHandle(story)
    async with guarded_stream(handle) as stream:
        assert [await anext(stream), await anext(stream)] == [1, 2]
        async with anyio.create_task_group() as group:
            group.start_soon(_never_gets_an_item, stream)
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
    assert story.log == ["cancel_run", "step cleaned up", "run ended"]
    assert stream.end.items == 2


async def _never_gets_an_item(stream: AsyncIterator[int]) -> None:
    await anext(stream)
    raise AssertionError("an item came")


@on_asyncio
async def test_workflow_left_cancelled() -> None:
    """`cancel_run` is not cut by the cancellation of the consumer, which swallows it."""
    story = Story()
    handle = WorkflowHandle(story)

    async def consume() -> None:
        async with guarded_stream(handle) as stream:
            async for _ in stream:
                pass

    task = asyncio.create_task(consume())
    await anyio.wait_all_tasks_blocked()
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert story.log == ["cancel_run", "step cleaned up", "run ended"]


@on_asyncio
async def test_workflow_read_to_its_end() -> None:
    """A workflow whose events have ended is waited for, not cancelled, though it is not done yet."""
    story = Story()
    handle = WorkflowHandle(story)
    handle.may_end.set()
    async with guarded_stream(handle) as stream:
        assert [item async for item in stream] == [1, 2, 99]
    assert story.log == ["step cleaned up", "run ended"]
    assert handle.is_done()


@on_asyncio
async def test_workflow_never_read() -> None:
    """A workflow that nobody read is stopped and joined."""
    story = Story()
    handle = WorkflowHandle(story)
    async with guarded_stream(handle):
        await anyio.wait_all_tasks_blocked()
    assert story.log == ["cancel_run", "step cleaned up", "run ended"]


@on_asyncio
async def test_workflow_that_fails() -> None:
    """The error that a workflow only stores leaves from the exit, though its events ended normally."""
    handle = WorkflowHandle(Story(), fails=True)
    handle.may_end.set()
    with pytest.raises(OSError, match=r"^workflow$"):
        async with guarded_stream(handle) as stream:
            async for _ in stream:
                pass


@on_asyncio
async def test_run_with_background_tasks_of_its_own() -> None:
    """The tasks of a run are cancelled first, then awaited: nothing of it is left, though one waits for another."""
    story = Story()

    class Tangled(Run):
        def __init__(self) -> None:
            super().__init__(story)
            self.first = asyncio.create_task(anyio.sleep_forever())
            self.run_loop_task = asyncio.create_task(anyio.sleep_forever())

        def cancel(self) -> None:
            self.run_loop_task.cancel()

        async def stream_events(self) -> AsyncGenerator[int, None]:
            try:
                yield 1
            finally:
                self.first.cancel()
                await asyncio.wait([self.run_loop_task, self.first])
                story.note("closed")

    before = asyncio.all_tasks()
    async with guarded_stream(Tangled()) as stream:
        await anext(stream)
    story.check("closed")
    assert asyncio.all_tasks() == before


@on_asyncio
async def test_traceback_of_a_run_error_is_not_lost(caplog: pytest.LogCaptureFixture) -> None:
    """The error of a run keeps the frames of the run."""
    run = AgentsRun(Story(), fails="run")
    run.may_call_tool.set()
    with caplog.at_level(logging.ERROR, "streamguard"), pytest.raises(OSError, match="run") as caught:
        async with guarded_stream(run) as stream:
            async for _ in stream:
                pass
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert "_run" in names
    assert "stream_events" in names
    assert caplog.records == []


class Waiter:
    """A run whose events wait, in their cleanup, for the task that makes them: its cancellation comes out there."""

    def __init__(self) -> None:
        self.run_loop_task = asyncio.create_task(anyio.sleep_forever())
        self.log: list[str] = []

    async def stream_events(self) -> AsyncIterator[str]:
        try:
            yield "event"
            yield "another"
        finally:
            self.log.append("waits")
            await self.run_loop_task

    def cancel(self) -> None:
        self.log.append("cancel")
        self.run_loop_task.cancel()


@on_asyncio
@pytest.mark.parametrize("told_by", ["guard", "option", "user"])
async def test_events_that_wait_for_the_run_that_was_told_to_stop(told_by: str) -> None:
    """The cancellation of a run that was told to stop is no error of its events, whoever told it."""
    run = Waiter()
    stream = guarded_stream(run.stream_events(), cancel=run.cancel) if told_by == "option" else guarded_stream(run)
    async with stream:
        await anext(stream)
        if told_by == "user":
            run.cancel()
    assert run.log == ["cancel", "waits"]
    assert run.run_loop_task.cancelled()
    assert stream.end.reason is EndReason.LEFT
    assert stream.end.cleanup_errors == ()


# -- what a run stored


class Storing:
    """A run handle whose task has ended; what it stores is one thing, how its task ended another."""

    def __init__(self, ends: Callable[[asyncio.Future[None]], object], **stored: object) -> None:
        self._result_task = asyncio.get_running_loop().create_future()
        ends(self._result_task)
        if not self._result_task.cancelled():
            self._result_task.exception()  # asyncio would say that nobody retrieved it
        vars(self).update(stored)

    async def stream_events(self) -> AsyncGenerator[int, None]:
        yield 1


def by_success(task: asyncio.Future[None]) -> None:
    task.set_result(None)


def by_cancellation(task: asyncio.Future[None]) -> None:
    task.cancel()


def by_failure(task: asyncio.Future[None]) -> None:
    task.set_exception(OSError("task"))


def as_a_workflow(task: asyncio.Future[None]) -> None:
    task.set_exception(CancelledByUser())


@on_asyncio
@pytest.mark.parametrize("ends", [by_success, by_cancellation, by_failure])
async def test_error_that_a_run_stores_in_its_own_place(ends: Any) -> None:
    """What `run_loop_exception` says counts, whatever became of the task."""
    async with guarded_stream(Storing(ends, run_loop_exception=None)) as stream:
        assert [item async for item in stream] == [1]
    with pytest.raises(OSError, match=r"^stored$"):
        async with guarded_stream(Storing(ends, run_loop_exception=OSError("stored"))) as stream:
            assert [item async for item in stream] == [1]


@on_asyncio
async def test_run_whose_task_somebody_cancelled() -> None:
    """A task of a run that somebody else cancelled is no error of the run."""
    async with guarded_stream(Storing(by_cancellation)) as stream:
        assert [item async for item in stream] == [1]
    assert stream.end.cleanup_errors == ()


@on_asyncio
async def test_workflow_that_somebody_else_stopped() -> None:
    """A workflow that says it was told to stop, and was not told by us, has not come to its end: that is an error."""
    with pytest.raises(CancelledByUser):
        async with guarded_stream(Storing(as_a_workflow)) as stream:
            assert [item async for item in stream] == [1]


@on_asyncio
async def test_workflow_that_fails_when_it_is_stopped() -> None:
    """A workflow that was told to stop, and fails on the way, says more than that it obeyed."""

    class Failing(WorkflowHandle):
        async def cancel_run(self) -> None:
            self._result_task.cancel()
            self._result_task = asyncio.get_running_loop().create_future()
            by_failure(self._result_task)
            self._result_task.exception()

    with pytest.raises(OSError, match=r"^task$"):
        async with guarded_stream(Failing(Story())) as stream:
            await anext(stream)


# -- agents, with release_agents=True


@of_the_sdk
class ReleasableRun(Result):
    """A run that has ended, whose events are read and whose agents can be released."""

    def __init__(self, name: str, log: list[str], **more: Any) -> None:
        agent = Agent(name)
        super().__init__([Item(agent, "one")], agent, **more)
        self.log = log

    async def stream_events(self) -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
        finally:
            self.log.append("closed")


async def test_chain_releases_the_agents_of_each_run() -> None:
    """Every run of a chain lets go of its agents, those that were replaced as well; the records tell the names."""
    first, second = ReleasableRun("triage", []), ReleasableRun("writer", [])
    async with guarded_chain(first, second, release_agents=True) as chain:
        assert [item async for item in chain] == [1, 2, 1, 2]
    assert [end.release.names for end in chain.end.members] == [("triage",), ("writer",)]
    assert [run.new_items[0].agent for run in (first, second)] == [None, None]
    assert chain.end.release is chain.end.members[1].release


@pytest.mark.parametrize("tail", [None, lambda end: None], ids=["no tail", "tail"])
async def test_last_item_of_a_released_run(tail: Any) -> None:
    """The record of a released run keeps the last item, without its agent; it tells of no error."""

    @of_the_sdk
    class Events(ReleasableRun):
        async def stream_events(self) -> AsyncGenerator[Any, None]:
            for item in self.new_items:
                yield item

    async with guarded_stream(Events("writer", []), release_agents=True, tail=tail) as stream:
        assert [item.text async for item in stream] == ["one"]
    end = stream.end
    assert end.release.names == ("writer",)
    assert (end.last.text, end.last.agent) == ("one", None)
    assert (end.reason, end.error, end.cleanup_errors) == (EndReason.EXHAUSTED, None, ())


class Undecided:
    """Answers no question."""

    def __bool__(self) -> bool:
        raise OSError("no answer")


async def test_member_whose_release_fails() -> None:
    """The same in a chain: the other members are released all the same."""
    first, second = ReleasableRun("triage", [], interruptions=Undecided()), ReleasableRun("writer", [])
    with pytest.raises(OSError, match="no answer"):
        async with guarded_chain(first, second, release_agents=True) as chain:
            assert [item async for item in chain] == [1, 2, 1, 2]
    assert [end.release is None for end in chain.end.members] == [True, False]
    assert [str(error) for error in chain.end.cleanup_errors] == ["no answer"]


async def test_run_whose_release_fails() -> None:
    """An error of the release leaves the block like one of the cleanup; the run is closed, and the tail runs."""
    log: list[str] = []
    run = ReleasableRun("writer", log, interruptions=Undecided())
    with pytest.raises(OSError, match="no answer") as caught:
        async with guarded_stream(run, release_agents=True, tail=lambda _: log.append("tail")) as stream:
            async for _ in stream:
                break
    assert log == ["closed", "tail"]
    assert stream.end.release is None
    (kept,) = stream.end.cleanup_errors
    assert (type(kept), str(kept), kept.__traceback__) == (OSError, "no answer", None)
    assert caught.value.__traceback__ is not None
