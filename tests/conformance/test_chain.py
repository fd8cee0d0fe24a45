"""Turns of several real agents in one chain: one flat loop, one tail."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import anyio
import pytest
from agents import Agent, RunConfig, Runner, RunResultStreaming, set_tracing_disabled
from agents.testing import assistant_message
from google.adk.agents import BaseAgent, LlmAgent
from google.adk.events import Event
from google.adk.runners import InMemoryRunner
from ways_out import Probe

from nothing_left import Watch
from offline_adk import OfflineAgent, OfflineModel, answer, open_runner, start_turn, tool_call
from offline_openai import OfflineModel as OpenAIModel
from offline_openai import is_whole_message
from offline_wire import Wire
from spies import steps
from streamguard import EndReason, GuardedChain, StreamEnd, guarded_chain

pytestmark = pytest.mark.anyio
set_tracing_disabled(True)


# -- google-adk: a triage agent and two specialists, each with a runner of its own


class Line(Probe):
    """The wire of one agent's model, which writes down when it is opened and closed."""

    def __init__(self, name: str, log: list[str]) -> None:
        super().__init__()
        self.name = name
        self.log = log

    def open(self) -> None:
        super().open()
        self.log.append(f"{self.name} calls")

    async def close(self) -> None:
        await super().close()
        self.log.append(f"{self.name} closed")


def hand_over(to: str) -> str:
    """Hands the user over to a specialist."""
    raise AssertionError("the turn goes on with the specialist; nobody runs this")


def handoff_of(event: Event) -> str | None:
    """The specialist whom an event hands over to."""
    calls = event.get_function_calls()
    return calls[0].args["to"] if calls else None


class Desk:
    """A triage agent and two specialists, one temporary runner for each that had its turn."""

    def __init__(self, *route: str) -> None:
        self.log: list[str] = []
        self.route = route
        self.lines = {name: Line(name, self.log) for name in ("triage", "orders", "refunds")}
        self.runners: list[InMemoryRunner] = []
        self.closed_runners = 0
        self.input_enabled = False
        self.ends: list[StreamEnd[Event]] = []

    async def run(self, name: str) -> AsyncGenerator[Event, None]:
        """A turn of one agent, in a new runner."""
        runner = await open_runner(self._agent(name))
        self.runners.append(runner)
        self.log.append(f"{name} starts")
        return start_turn(runner)

    def _agent(self, name: str) -> BaseAgent:
        targets = dict(zip(("triage", *self.route), self.route, strict=False))
        reply = answer(f"Here is {name}.", "Your money", "is on its way.")
        if name in targets:
            reply = [*reply[:-1], tool_call("hand_over", to=targets[name])]
        model = OfflineModel(model=f"offline-{name}", wire=self.lines[name], replies=[reply])
        return LlmAgent(name=name, model=model, tools=[hand_over])

    def chain(self) -> GuardedChain[Event]:
        return guarded_chain(self.run("triage"), tail=self.finish, cleanup_timeout=5)

    async def read(self, chain: GuardedChain[Event]) -> list[str]:
        """One flat loop; who spoke."""
        authors: list[str] = []
        async for event in chain:
            if event.author not in authors:
                authors.append(event.author)
            if target := handoff_of(event):
                chain.hand_off(self.run(target))
            elif event.is_final_response():
                break
        return authors

    async def finish(self, end: StreamEnd[Event]) -> None:
        """The one place where a turn ends."""
        for runner in self.runners:
            await runner.close()
            self.closed_runners += 1
        self.log.append("runners closed")
        self.input_enabled = True
        self.ends.append(end)


@pytest.fixture
def here(watch: Watch) -> Any:
    """What is left since the test started, to be asked at once after the block."""
    return lambda: [line for line in watch.left() if line.startswith(("task: ", "open: "))]


async def test_two_handoffs(here: Callable[[], list[str]]) -> None:
    """Each agent is closed before the next one starts, and the tail runs once, last."""
    desk = Desk("orders", "refunds")
    async with desk.chain() as chain:
        authors = await desk.read(chain)
        assert not desk.input_enabled
    assert here() == []
    assert authors == ["triage", "orders", "refunds"]
    assert desk.log == [
        *("triage starts", "triage calls", "triage closed"),
        *("orders starts", "orders calls", "orders closed"),
        *("refunds starts", "refunds calls", "refunds closed"),
        "runners closed",
    ]
    assert desk.input_enabled
    assert desk.closed_runners == 3
    assert desk.ends == [chain.end]
    assert [end.reason for end in chain.end.members] == [EndReason.LEFT] * 3
    assert chain.end.reason is EndReason.LEFT
    assert chain.end.last.author == "refunds"


@pytest.mark.parametrize("by", ["task", "scope"])
async def test_cancelled_in_the_first(here: Callable[[], list[str]], by: str) -> None:
    """The user cancels while the first agent's model is awaited: the tail closes its runner all the same."""
    desk = Desk("refunds")
    line = desk.lines["triage"]
    line.hold_at = lambda piece: piece.content.parts[0].text == "is on its way."
    scope = anyio.CancelScope()
    left: list[str] = []

    async def consume() -> None:
        with scope:
            try:
                async with desk.chain() as chain:
                    await desk.read(chain)
            finally:
                left.extend(here())

    with anyio.fail_after(5):
        task = asyncio.create_task(consume())
        await line.holding.wait()
        await anyio.wait_all_tasks_blocked()
        if by == "task":
            task.cancel()
        else:
            scope.cancel()
        await asyncio.wait([task])
    assert task.cancelled() == (by == "task")
    assert [line for line in left if "consume()" not in line] == []
    assert desk.log == ["triage starts", "triage calls", "triage closed", "runners closed"]
    assert desk.input_enabled
    assert desk.closed_runners == 1
    assert [end.reason for end in desk.ends] == [EndReason.CANCELLED]


async def test_cancelled_during_the_tail() -> None:
    """The user cancels once more while the tail closes the runners: it ends first."""
    desk = Desk("refunds")
    at_work, closing, may_close = asyncio.Event(), asyncio.Event(), asyncio.Event()
    finish = desk.finish

    async def slow_finish(end: StreamEnd[Event]) -> None:
        closing.set()
        await may_close.wait()
        await finish(end)

    desk.finish = slow_finish

    async def consume() -> None:
        async with desk.chain() as chain:
            async for _ in chain:
                at_work.set()
                await asyncio.Event().wait()

    with anyio.fail_after(5):
        task = asyncio.create_task(consume())
        await at_work.wait()
        task.cancel()
        await closing.wait()
        task.cancel()
        await anyio.wait_all_tasks_blocked()
        assert not task.done()
        may_close.set()
        await asyncio.wait([task])
    assert task.cancelled()
    assert desk.input_enabled
    assert desk.closed_runners == 1


async def test_no_handoff() -> None:
    """A triage agent that answers by itself is a turn of one agent."""
    desk = Desk()
    async with desk.chain() as chain:
        assert await desk.read(chain) == ["triage"]
    assert desk.log == ["triage starts", "triage calls", "triage closed", "runners closed"]
    assert len(chain.end.members) == 1


# -- other authors


async def read(chain: GuardedChain[Event], texts: list[str]) -> None:
    async with chain:
        async for event in chain:
            texts.append(event.content.parts[0].text)


class Unawaited(Wire):
    """A wire that is never waited for, so that no step of a task is an agent's own."""

    async def receive(self, piece: object) -> None:
        pass

    async def close(self) -> None:
        pass


async def steps_of_a_turn(*, pieces: int, where: Callable[[Event], bool] | None) -> tuple[int, int, list[str]]:
    """How often the reader, and all tasks, get the processor in a turn of three talkative agents and a brief one."""
    wire = Unawaited()
    reply = answer(*map(str, range(pieces)))[:-1]
    talkers = [OfflineAgent(name=f"talker{number}", wire=wire, reply=reply) for number in range(3)]
    specialist = OfflineAgent(name="specialist", wire=wire, reply=answer("Done."))
    runners = [await open_runner(agent) for agent in (*talkers, specialist)]
    texts: list[str] = []
    with steps() as spy:
        chain = guarded_chain(*(start_turn(runner) for runner in runners), where=where)
        await asyncio.create_task(read(chain, texts))
    (of_the_reader,) = (count for task, count in spy.count.items() if task.__qualname__ == "read")
    return of_the_reader, spy.total, texts


def is_specialist(event: Event) -> bool:
    return event.author == "specialist"


async def test_other_authors_do_not_wake_the_reader() -> None:
    """The reader gets the processor for the events that it is given, not for those of other authors."""
    everything, _, all_texts = await steps_of_a_turn(pieces=20, where=None)
    chosen, _, texts = await steps_of_a_turn(pieces=20, where=is_specialist)
    assert len(all_texts) == 62
    assert texts == ["Done.", "Done."]
    # One step for each item; the rest is closing one member and starting the next.
    assert everything - chosen == 60


async def test_other_authors_cost_nothing() -> None:
    """However many events of other authors are skipped, in every member of the chain, no task is switched to."""
    _, few, _ = await steps_of_a_turn(pieces=10, where=is_specialist)
    _, many, texts = await steps_of_a_turn(pieces=50, where=is_specialist)
    assert texts == ["Done.", "Done."]
    assert many == few


# -- openai-agents: the second run is built from what the first one said


def start(wire: Probe, name: str, text: str, task: str) -> RunResultStreaming:
    agent = Agent(name=name, model=OpenAIModel(wire, [assistant_message(text)]))
    return Runner.run_streamed(agent, task, run_config=RunConfig(tracing_disabled=True))


async def test_built_from_the_first(here: Callable[[], list[str]]) -> None:
    """The second run starts when the first one is closed, and works on its output; leaving it stops it."""
    log: list[str] = []
    plan, story = Line("planner", log), Line("writer", log)
    ends: list[StreamEnd[Any]] = []
    async with guarded_chain(
        lambda _: start(plan, "planner", "A story of a lost parcel.", "Plan."),
        lambda end: start(story, "writer", "It was lost in the mail.", end.source.final_output),
        tail=ends.append,
        cleanup_timeout=5,
    ) as chain:
        async for event in chain:
            if chain.current == 1 and is_whole_message(event):
                break
    assert here() == []
    first, second = chain.end.members
    assert second.source.input == first.source.final_output == "A story of a lost parcel."
    assert log == ["planner calls", "planner closed", "writer calls", "writer closed"]
    assert [end.reason for end in chain.end.members] == [EndReason.EXHAUSTED, EndReason.LEFT]
    assert second.source.run_loop_task.done()
    assert ends == [chain.end]


async def test_second_is_never_started() -> None:
    """Left in the first run, the second one is never made."""
    log: list[str] = []
    plan = Line("planner", log)

    def refuse(end: StreamEnd[Any]) -> Any:
        raise AssertionError("the turn was over")

    async with guarded_chain(lambda _: start(plan, "planner", "A plan.", "Plan."), refuse, cleanup_timeout=5) as chain:
        async for event in chain:
            if is_whole_message(event):
                break
    assert log == ["planner calls", "planner closed"]
    assert [end.reason for end in chain.end.members] == [EndReason.LEFT, EndReason.UNSTARTED]
