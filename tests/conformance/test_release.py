"""Stored results of real openai-agents runs let go of their agents, and of nothing else."""

import contextlib
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
    MaxTurnsExceeded,
    OutputGuardrail,
    RunConfig,
    Runner,
    RunResult,
    RunResultStreaming,
    function_tool,
    handoff,
    set_tracing_disabled,
)
from agents.exceptions import AgentsException
from agents.testing import ScriptedModel, assistant_message, function_call
from anyio import wait_all_tasks_blocked

from nothing_left import collect_until_quiet
from streamguard import AgentRef, ReleaseReport, ResultHistory, guarded_chain, guarded_stream, release_agents
from streamguard._release import release_with

pytestmark = pytest.mark.anyio
set_tracing_disabled(True)

STORED = 200

Result = RunResult | RunResultStreaming


class Crew:
    """A planner that hands off to a writer, whose output is checked. Makes a run, and then holds nothing of it."""

    def __init__(self) -> None:
        def check(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
            assert (self, agent) is not None  # holds the crew, as the tools of real programs do
            return GuardrailFunctionOutput(output_info="fine", tripwire_triggered=False)

        async def look(context: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
            return check(context, agent, given)

        self.writer = Agent(
            name="writer",
            model=ScriptedModel([[function_call("look_up", {}, call_id="2")], [assistant_message("The end.")]]),
            tools=[function_tool(self.look_up)],
            output_guardrails=[OutputGuardrail(check)],
        )
        self.planner = Agent(
            name="planner",
            model=ScriptedModel(
                [[assistant_message("The writer will do."), function_call("transfer_to_writer", {}, call_id="1")]]
            ),
            handoffs=[self.writer],
            input_guardrails=[InputGuardrail(look)],
        )
        # Only these are known, to be sure that no agent is held because somebody holds its tools.
        self.seen = [weakref.ref(agent) for agent in (self.planner, self.writer)]

    async def look_up(self) -> str:
        """Looks something up."""
        return "found"


async def completed(crew: Crew) -> Result:
    return await Runner.run(crew.planner, "Write.")


async def streamed(crew: Crew) -> Result:
    result = Runner.run_streamed(crew.planner, "Write.")
    async for _ in result.stream_events():
        pass
    return result


async def guarded(crew: Crew) -> Result:
    result = Runner.run_streamed(crew.planner, "Write.")
    async with guarded_stream(result) as stream:
        async for _ in stream:
            pass
    return result


def stopped(at: str) -> Callable[[Crew], Awaitable[Result]]:
    async def stopped_early(crew: Crew) -> Result:
        result = Runner.run_streamed(crew.planner, "Write.")
        async with guarded_stream(result) as stream:
            async for event in stream:
                if getattr(event, "name", event.type) == at:
                    break
            else:
                raise AssertionError(f"there was no {at}")
        return result

    return stopped_early


async def never_read(crew: Crew) -> Result:
    async with guarded_stream(Runner.run_streamed(crew.planner, "Write.")) as stream:
        pass
    return stream.end.source


async def filtered(crew: Crew) -> Result:
    crew.planner.handoffs = [handoff(crew.writer)]
    return await Runner.run(crew.planner, "Write.", run_config=RunConfig(nest_handoff_history=True))


async def resumed(crew: Crew) -> Result:
    """The writer's tool needs an approval, which it gets."""
    crew.writer.tools = [function_tool(crew.look_up, needs_approval=True)]
    result = await streamed(crew)
    while result.interruptions:
        state = result.to_state()
        state.approve(result.interruptions[0])
        result = Runner.run_streamed(crew.planner, state)
        async for _ in result.stream_events():
            pass
    return result


async def as_tool(crew: Crew) -> Result:
    boss = Agent(
        name="boss",
        model=ScriptedModel([[function_call("ask", {"input": "Write."}, call_id="0")], [assistant_message("Fine.")]]),
        tools=[crew.planner.as_tool("ask", "Asks the planner.")],
    )
    crew.seen.append(weakref.ref(boss))
    return await Runner.run(boss, "Write.")


RUNS = [
    completed,
    streamed,
    guarded,
    stopped("raw_response_event"),
    stopped("message_output_created"),
    stopped("agent_updated_stream_event"),
    stopped("handoff_occured"),
    stopped("tool_called"),
    stopped("tool_output"),
    never_read,
    filtered,
    resumed,
    as_tool,
]
NAMES = [
    "completed",
    "streamed",
    "guarded",
    "stopped at the first piece",
    "stopped at the message",
    "stopped at the start",
    "stopped at the hand-off",
    "stopped at the call of a tool",
    "stopped at the output of a tool",
    "never read",
    "filtered",
    "resumed",
    "as tool",
]
every_run = pytest.mark.parametrize("run", RUNS, ids=NAMES)


async def results_of(run: Callable[[Crew], Awaitable[Result]], count: int) -> tuple[list[Result], list[Any]]:
    """Results that are stored, and weak references to the agents."""
    results, seen = [], []
    for _ in range(count):
        crew = Crew()
        results.append(await run(crew))
        seen += crew.seen
    await wait_all_tasks_blocked()  # the last task of a guard is about to end
    return results, seen


def alive(seen: list[Any]) -> int:
    collect_until_quiet()
    return sum(ref() is not None for ref in seen)


@every_run
async def test_stored(run: Any) -> None:
    """Every agent of stored results is alive before the release, and none is after it."""
    results, seen = await results_of(run, 10)
    assert alive(seen) == len(seen)
    reports = [release_agents(result) for result in results]
    assert {report.held for report in reports} == {()}
    assert alive(seen) == 0


async def test_two_hundred() -> None:
    """200 stored results of all kinds with two agents each: 400 alive before, none after."""
    results, seen = [], []
    kinds = [completed, streamed, stopped("raw_response_event"), stopped("tool_called")]
    for kind in kinds:
        more_results, more_seen = await results_of(kind, STORED // len(kinds))
        results += more_results
        seen += more_seen
    assert alive(seen) == 2 * STORED
    for result in results:
        result.release_agents()
    assert alive(seen) == 2 * STORED  # the SDK's own call alone frees none of them
    for result in results:
        release_agents(result)
    assert alive(seen) == 0
    assert len(results) == STORED


async def test_one_is_enough() -> None:
    """Agents go when the release returns or with the next collection; nothing else has to be dropped."""
    results, seen = await results_of(streamed, 1)
    kept = dict(vars(results[0]))
    del kept
    release_agents(results[0])
    assert alive(seen) == 0


@pytest.mark.parametrize("run", [completed, streamed, resumed])
async def test_report(run: Any) -> None:
    """The names are recorded: of every item, of both sides of the hand-off, of the last agent."""
    crew = Crew()
    result = await run(crew)
    items = tuple(item.agent.name for item in result.new_items)
    history = ResultHistory[Any]()
    report = history.append(result).report
    assert report == ReleaseReport(
        known=True,
        names=("planner", "writer"),
        item_agents=items,
        handoffs=(("planner", "writer"),),
        last_agent="writer",
        released=2,
        held=(),
    )
    assert "planner" in items
    assert "writer" in items
    assert history[0].report.names == ("planner", "writer")


@every_run
async def test_still_works(run: Any) -> None:
    """Output, input list and responses are what they were; the result can be shown."""

    def shown(result: Result) -> list[Any]:
        return [
            result.final_output,
            result.to_input_list(),
            result.to_input_list(mode="normalized"),
            list(map(id, result.raw_responses)),
            result.last_response_id,
            [type(item) for item in result.new_items],
            [item.to_input_item() for item in result.new_items if item.type != "tool_approval_item"],
            [check.output.output_info for check in result.output_guardrail_results],
        ]

    [result], seen = await results_of(run, 1)
    before = shown(result)
    release_agents(result)
    assert alive(seen) == 0
    assert shown(result) == before
    assert type(result).__name__ in repr(result)
    assert all(item.agent is None for item in result.new_items)


async def test_second_release() -> None:
    """A second release changes nothing and gives the names again."""
    result = await streamed(Crew())
    release_agents(result)
    before = dict(vars(result))
    report = release_agents(result)
    assert vars(result) == before
    assert (report.names, report.released) == (("planner", "writer"), 0)


async def test_no_longer() -> None:
    """What the page says no longer works: `last_agent`, `to_state()`, `str()`."""
    result = await completed(Crew())
    release_agents(result)
    collect_until_quiet()
    with pytest.raises(AgentsException):
        _ = result.last_agent
    with pytest.raises(AgentsException):
        result.to_state()
    with pytest.raises(AgentsException):
        str(result)


@pytest.mark.parametrize("run", [completed, streamed])
async def test_while_the_agents_live(run: Any) -> None:
    """As long as somebody else holds the agents, the result finds them, by the SDK's weak references."""
    crew = Crew()
    result = await run(crew)
    release_agents(result)
    assert result.last_agent is crew.writer
    assert result.new_items[0].agent is crew.planner


async def test_off_by_default() -> None:
    """Without being asked nothing lets go: the result is resumed by `to_state()`."""
    crew = Crew()
    result = await guarded(crew)
    assert result.last_agent is crew.writer
    assert all(item.agent is not None for item in result.new_items)
    crew.writer.model = ScriptedModel([[assistant_message("More.")]])
    again = await Runner.run(crew.writer, result.to_state())
    assert again.last_agent is crew.writer


# -- what is not touched


async def test_context_is_not_touched() -> None:
    """The user's context stays as it is; what it holds is told with its path."""

    @dataclass
    class Desk:
        chief: Any

    crew = Crew()
    context = Desk(crew.planner)
    result = await Runner.run(crew.planner, "Write.", context=context)
    wrapper = result.context_wrapper
    report = release_agents(result)
    assert result.context_wrapper is wrapper
    assert wrapper.context is context
    assert context.chief is crew.planner
    assert report.held == ("context_wrapper.context.chief: planner",)
    assert report.released == 1


async def test_agents_are_not_touched() -> None:
    """Agents have the attributes that they had."""
    crew = Crew()
    result = await streamed(crew)
    before = [dict(vars(agent)) for agent in (crew.planner, crew.writer)]
    release_agents(result)
    assert [vars(agent) for agent in (crew.planner, crew.writer)] == before


@pytest.mark.parametrize("run", [completed, streamed])
async def test_state_is_not_touched(run: Any) -> None:
    """A state that was taken before is as it was, also when nobody else holds the agents."""
    result = await run(Crew())
    state = result.to_state()
    before = state.to_json()
    items = [item.agent for item in state._session_items]
    checked = [check.agent for check in state._output_guardrail_results]
    release_agents(result)
    collect_until_quiet()
    assert state.to_json() == before
    assert [item.agent for item in state._session_items] == items
    assert [check.agent for check in state._output_guardrail_results] == checked
    assert vars(state._session_items[0])["agent"] is items[0]  # held, not only found by a weak reference


async def test_state_that_was_resumed() -> None:
    """The state that a run was resumed from is the user's, and may be resumed from again."""
    crew = Crew()
    crew.writer.tools = [function_tool(crew.look_up, needs_approval=True)]
    paused = await streamed(crew)
    state = paused.to_state()
    state.approve(paused.interruptions[0])
    result = Runner.run_streamed(crew.planner, state)
    async for _ in result.stream_events():
        pass
    before = state.to_json(), dict(vars(state))
    assert release_agents(result).released == 2
    assert (state.to_json(), vars(state)) == before
    assert paused.last_agent is crew.writer
    assert [item.agent for item in paused.new_items].count(None) == 0


async def test_paused_run_is_left() -> None:
    """A run that waits for an approval is left, and resumes as before."""
    for run in (completed, streamed):
        crew = Crew()
        crew.writer.tools = [function_tool(crew.look_up, needs_approval=True)]
        result = await run(crew)
        before = dict(vars(result))
        report = release_agents(result)
        assert report.held == ("interruptions: the run waits for an approval",)
        assert (report.names, report.released) == (("planner", "writer"), 0)
        assert vars(result) == before
        state = result.to_state()
        state.approve(result.interruptions[0])
        assert (await Runner.run(crew.planner, state)).final_output == "The end."


async def test_running_run_is_left() -> None:
    """A run that has not ended is left, and goes on."""
    result = Runner.run_streamed(Crew().planner, "Write.")
    assert release_agents(result).held == ("is_complete: the run has not ended",)
    async for _ in result.stream_events():
        assert release_agents(result).released == 0
    assert result.final_output == "The end."
    assert release_agents(result).released == 2


async def test_unread_run_is_left() -> None:
    """A run that has ended, but whose events nobody has read, is left; they can be read."""
    result = Runner.run_streamed(Crew().planner, "Write.")
    await result.run_loop_task
    assert release_agents(result).held == ("_event_queue: events of the run were not read",)
    assert "agent_updated_stream_event" in [event.type async for event in result.stream_events()]
    assert release_agents(result).released == 2


async def test_failed_run_is_left() -> None:
    """A run that failed is left: its error tells of its agents."""
    result = Runner.run_streamed(Crew().planner, "Write.", max_turns=1)
    with pytest.raises(MaxTurnsExceeded) as failure:
        async for _ in result.stream_events():
            pass
    report = release_agents(result)
    assert (report.known, report.released) == (True, 0)
    assert report.held[0].endswith(": the run failed")
    assert result.last_agent is failure.value.run_data.last_agent


async def test_failed_cleanup_is_left() -> None:
    """A run that was stopped, but whose model failed while closing, counts as failed."""

    class Model(ScriptedModel):
        async def stream_response(self, *args: Any, **options: Any) -> Any:
            try:
                async for piece in super().stream_response(*args, **options):
                    yield piece
            finally:
                raise ConnectionError

    result = Runner.run_streamed(Agent(name="writer", model=Model([[assistant_message("Hi.")]])), "Write.")
    with contextlib.suppress(ConnectionError):
        async with guarded_stream(result) as stream:
            async for event in stream:
                if event.type == "raw_response_event":
                    break
    assert release_agents(result).held[0].endswith(": the run failed")


async def test_kept_events() -> None:
    """Events that the user keeps hold their agents, and are not touched."""
    crew = Crew()
    seen = crew.seen
    result = Runner.run_streamed(crew.planner, "Write.")
    events = [event async for event in result.stream_events()]
    del crew
    release_agents(result)
    assert alive(seen) == 2
    items = [event.item for event in events if event.type == "run_item_stream_event"]
    assert all(vars(item)["agent"] is not None for item in items)
    del items, events
    assert alive(seen) == 0


async def test_kept_error() -> None:
    """An error that the user keeps holds the agents of its frames; it is not touched."""

    async def turn() -> None:
        crew = Crew()
        seen.extend(crew.seen)
        result = Runner.run_streamed(crew.planner, "Write.")
        results.append(result)
        async with guarded_stream(result) as stream:
            async for _ in stream:
                raise LookupError

    seen: list[Any] = []
    results: list[Any] = []
    try:
        await turn()
    except LookupError as error:
        kept: Any = error
    assert release_agents(results[0]).held == ()
    assert alive(seen) == 2
    assert kept.__traceback__ is not None
    del kept
    await wait_all_tasks_blocked()
    assert alive(seen) == 0


@pytest.mark.parametrize("at", ["agent_updated_stream_event", "message_output_created", "raw_response_event", "never"])
async def test_last_event(at: str) -> None:
    """The record of the end pins no agent: the last event in it is one without."""
    crew = Crew()
    seen = crew.seen
    async with guarded_stream(Runner.run_streamed(crew.planner, "Write.")) as stream:
        async for event in stream:
            if getattr(event, "name", event.type) == at:
                break
    end = stream.end
    kind = type(event)
    del crew, stream, event
    report, last = release_with(end.source, end.last)
    source = end.source
    del end
    await wait_all_tasks_blocked()
    assert alive(seen) == 0
    assert report.held == ()
    assert type(last) is kind
    assert release_agents(source).names == report.names


async def test_agent_ref() -> None:
    """A real agent, which is neither hashable nor light, is referred to until the release."""
    ref = AgentRef(Agent(name="writer"))
    collect_until_quiet()
    assert ref().name == "writer"
    ref.release()
    assert alive([ref]) == 0
    assert (ref.name, ref) == ("writer", ref)


async def test_history() -> None:
    """However many turns go through a history, only the agents of the turn in flight are alive."""
    history = ResultHistory[Result](maxlen=10)
    seen: list[Any] = []
    for _ in range(30):
        crew = Crew()
        seen = [ref for ref in seen if ref() is not None] + crew.seen
        history.append(await streamed(crew))
        del crew
        assert alive(seen) == 0
    assert len(history) == 10
    assert {entry.report.names for entry in history} == {("planner", "writer")}
    assert {entry.result.final_output for entry in history} == {"The end."}


# -- the option of guard and chain


@pytest.mark.parametrize("at", ["agent_updated_stream_event", "message_output_created", "raw_response_event", "never"])
async def test_option_of_the_guard(at: str) -> None:
    """With `release_agents=True` neither the run, nor the guard, nor its record pins an agent; the names are there."""
    crew = Crew()
    seen = crew.seen
    tails = []
    run = Runner.run_streamed(crew.planner, "Write.")
    async with guarded_stream(run, release_agents=True, tail=tails.append) as stream:
        async for event in stream:
            if getattr(event, "name", event.type) == at:
                break
    kind = type(event)
    del crew, event
    assert alive(seen) == 0
    assert stream.end.release is not None
    assert stream.end.release.known
    assert stream.end.release.held == ()
    assert "planner" in stream.end.release.names
    assert type(stream.end.last) is kind
    assert [end.release for end in tails] == [stream.end.release]
    assert run.to_input_list()


async def test_option_is_off_by_default() -> None:
    """Without the option nothing is released, and the record says so."""
    crew = Crew()
    async with guarded_stream(Runner.run_streamed(crew.planner, "Write.")) as stream:
        async for _ in stream:
            pass
    assert stream.end.release is None
    assert stream.end.source.last_agent is crew.writer


async def test_option_with_an_error_in_the_body() -> None:
    """The error that leaves the block is untouched; the one in the record is a copy without frames."""
    crew = Crew()
    with pytest.raises(LookupError) as caught:
        async with guarded_stream(Runner.run_streamed(crew.planner, "Write."), release_agents=True) as stream:
            async for _ in stream:
                raise LookupError("in the body")
    assert caught.value.__traceback__ is not None
    assert stream.end.error is not caught.value
    assert type(stream.end.error) is LookupError
    assert stream.end.error.args == ("in the body",)
    assert stream.end.error.__traceback__ is None


async def test_option_of_the_chain() -> None:
    """A chain releases every member's run, but only when all is closed: a callable still sees the agents before it."""
    crew, other = Crew(), Crew()
    seen = crew.seen + other.seen
    planners = [other.planner]
    seen_by_callable = []

    def second(end: Any) -> RunResultStreaming:
        seen_by_callable.append(end.source.last_agent.name)
        return Runner.run_streamed(planners.pop(), end.source.final_output)

    async with guarded_chain(Runner.run_streamed(crew.planner, "Write."), second, release_agents=True) as chain:
        async for _ in chain:
            pass
    assert seen_by_callable == ["writer"]
    del crew, other, second, _
    assert alive(seen) == 0
    assert [end.release.names for end in chain.end.members] == [("planner", "writer")] * 2
    assert chain.end.release == chain.end.members[1].release
    assert chain.end.source.final_output == "The end."
