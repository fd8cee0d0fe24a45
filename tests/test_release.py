"""Letting stored results go of their agents, by the shape of the result: no SDK is needed here.

The SDK is made up. Its public names are those of openai-agents, its private ones its own.
"""

import asyncio
import contextvars
import gc
import weakref
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import wrapt

from nothing_left import collect_until_quiet
from streamguard import AgentRef
from streamguard._release import ReleaseReport, release_agents, release_with


def of_the_sdk(kind: type) -> type:
    """Its classes come from a package of their own; those of this module are the user's."""
    kind.__module__ = "made_up_sdk.results"
    return kind


@of_the_sdk
class BaseAgent:
    pass


@of_the_sdk
@dataclass
class Agent(BaseAgent):
    name: str
    others: list[Any] = field(default_factory=list)


@of_the_sdk
class SlottedAgent:
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


@of_the_sdk
@dataclass
class Item:
    agent: Any
    text: str
    output: Any = None


@of_the_sdk
@dataclass
class HandoffItem:
    agent: Any
    source_agent: Any
    target_agent: Any


@of_the_sdk
@dataclass(slots=True)
class SlottedItem:
    agent: Any
    text: str


@of_the_sdk
@dataclass(frozen=True)
class Checked:
    """The result of an output guardrail."""

    agent: Any
    passed: bool


@of_the_sdk
class Pair(NamedTuple):
    first: Any
    second: Any


@of_the_sdk
@dataclass
class Wrapper:
    context: Any


@of_the_sdk
class Result:
    def __init__(self, items: list[Any], last: Any, context: Any = None, **more: Any) -> None:
        self.input = "hi"
        self.new_items = items
        self.raw_responses = ["raw"]
        self.final_output = "done"
        self.context_wrapper = Wrapper(context)
        self.releases = 0
        self.__last = last
        vars(self).update(more)

    @property
    def last_agent(self) -> Any:
        if self.__last is None:
            raise LookupError("the last agent is gone")
        return self.__last

    def to_input_list(self) -> list[str]:
        return [self.input, *(item.text for item in self.new_items)]

    def release_agents(self) -> None:
        self.releases += 1


@of_the_sdk
class BareResult:
    """A result that cannot be weakly referenced."""

    __slots__ = ("_who", "final_output", "new_items")

    def __init__(self, items: list[Any], last: Any) -> None:
        self.new_items = items
        self.final_output = "done"
        self._who = last

    @property
    def last_agent(self) -> Any:
        return self._who

    def to_input_list(self) -> list[Any]:
        return []

    def release_agents(self) -> None:
        weakref.ref(self._who)


@of_the_sdk
class SlottedResult(BareResult):
    __slots__ = ("__weakref__",)


def gone(*refs: weakref.ref[Any]) -> list[bool]:
    collect_until_quiet()
    return [ref() is None for ref in refs]


def agents_alive(kind: type = BaseAgent) -> int:
    collect_until_quiet()
    return sum(type(thing) is kind for thing in gc.get_objects())


def test_released() -> None:
    """Names are recorded, agents are let go, and the result works."""
    planner, writer = Agent("planner"), Agent("writer")
    result = Result([Item(planner, "one"), HandoffItem(planner, planner, writer), Item(writer, "two")], writer)
    refs = weakref.ref(planner), weakref.ref(writer)
    del planner, writer
    assert gone(*refs) == [False, False]
    report = release_agents(result)
    assert gone(*refs) == [True, True]
    assert report == ReleaseReport(
        known=True,
        names=("planner", "writer"),
        item_agents=("planner", "planner", "writer"),
        handoffs=(("planner", "writer"),),
        last_agent="writer",
        released=2,
        held=(),
    )
    assert result.releases == 1
    assert (result.final_output, result.raw_responses, result.new_items[2].text) == ("done", ["raw"], "two")


def test_second_call() -> None:
    """A second call changes nothing, and gives the names again."""
    result = Result([Item(Agent("writer"), "one")], Agent("editor"))
    first = release_agents(result)
    items = result.new_items
    second = release_agents(result)
    assert second.released == 0
    assert (second.known, second.names, second.item_agents) == (True, ("writer", "editor"), ("writer",))
    assert (second.last_agent, second.held) == (first.last_agent, first.held)
    assert result.new_items is items
    assert result.releases == 1


def test_reports_are_not_kept() -> None:
    """What is remembered of a result goes with it."""
    from streamguard import _release

    before = len(_release._reports)
    result = Result([], Agent("writer"))
    release_agents(result)
    assert len(_release._reports) == before + 1
    del result
    collect_until_quiet()
    assert len(_release._reports) == before


def test_released_by_the_sdk_before() -> None:
    """Where agents are gone the report says `None`."""
    result = Result([Item(None, "one"), HandoffItem(None, None, None)], None)
    report = release_agents(result)
    assert report == ReleaseReport(known=True, item_agents=(None, None), handoffs=((None, None),))


def test_same_name_once() -> None:
    """Two agents of one name are one name, and two that were let go."""
    report = release_agents(Result([Item(Agent("writer"), "one")], Agent("writer")))
    assert report.names == ("writer",)
    assert report.released == 2


class KeyAgent(Agent):
    """Hashable, unlike its base."""

    __hash__ = object.__hash__


@of_the_sdk
class Bag(dict):
    """A record that is made in C."""


HOLDERS = {
    "attribute": lambda agent: agent,
    "list": lambda agent: [agent, "kept"],
    "dict": lambda agent: {"who": agent, "what": "kept"},
    "key of a dict": lambda agent: {agent: "kept"},
    "set": lambda agent: {agent, "kept"},
    "dict of the SDK": lambda agent: Bag(who=agent),
    "tuple": lambda agent: (agent, "kept"),
    "deque": lambda agent: deque([agent, "kept"]),
    "named tuple": lambda agent: Pair(agent, "kept"),
    "frozen record": lambda agent: [Checked(agent, passed=True)],
    "record with slots": lambda agent: [SlottedItem(agent, "kept")],
    "closure": lambda agent: lambda: agent,
    "bound method": lambda agent: agent.__repr__,
    "object of another package": lambda agent: SimpleNamespace(who=agent),
    "exception in a record": lambda agent: [Item(ValueError(agent), "kept")],
    "strong reference": AgentRef,
    "nested result": lambda agent: Result([Item(agent, "inner")], agent),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_private_holder(holder: str) -> None:
    """An agent is found wherever a private attribute holds it, and let go."""
    agent = KeyAgent("writer")
    result = Result([Item(agent, "one")], agent, _whatever=HOLDERS[holder](agent))
    ref = weakref.ref(agent)
    del agent
    report = release_agents(result)
    assert gone(ref) == [True]
    assert (report.released, report.held) == (1, ())


def test_copies_keep_the_rest() -> None:
    """What holds an agent is replaced by a copy of the same kind, with everything else in it."""
    agent = KeyAgent("writer")
    held = [(agent, 1), {"a": agent, "b": 2}, Pair(agent, 3), deque([agent, 4]), {agent, 5}, {agent: 6, "b": 7}]
    result = Result([SlottedItem(agent, "one")], agent, checked=held)
    release_agents(result)
    assert result.checked == [(None, 1), {"a": None, "b": 2}, Pair(None, 3), deque([None, 4]), {5}, {"b": 7}]
    assert type(result.checked[2]) is Pair
    assert result.new_items == [SlottedItem(None, "one")]
    assert held[0] == (agent, 1)


def test_one_copy_of_each() -> None:
    """An item that two lists share is one object in both of them afterwards."""
    agent = Agent("writer")
    items = [Item(agent, "one"), Item(agent, "two")]
    result = Result(items, agent, _model_input=items[1:])
    release_agents(result)
    assert result._model_input[0] is result.new_items[1]


def test_cycle() -> None:
    """Records that hold each other are copied once."""
    agent = Agent("writer")
    item = Item(agent, "one")
    item.text = [item]
    result = Result([item], agent)
    release_agents(result)
    copied = result.new_items[0]
    assert copied is not item
    assert copied.text[0] is copied


def test_output_of_a_tool() -> None:
    """What a tool returned is the user's: an agent in it stays, in a dict as well, and the report tells of it."""
    agent, other = Agent("writer"), Agent("other")
    item = Item(agent, "one")
    item.output = output = {"who": other}
    result = Result([item], agent)
    report = release_agents(result)
    assert result.new_items[0].output is output
    assert output == {"who": other}
    assert any("output" in path and "other" in path for path in report.held)


def test_unknown_agents_of_the_same_kind() -> None:
    """An agent that no public attribute names is recognised by the SDK's base class."""

    class MyAgent(Agent):
        pass

    starting = Agent("planner")
    result = Result([], MyAgent("writer"), _started_by=starting)
    report = release_agents(result)
    assert report.names == ("writer", "planner")
    assert report.released == 2
    assert result._started_by is None


def test_checked_agent() -> None:
    """An agent that only a guardrail's result names is let go, whatever its class."""

    class OtherAgent:
        name = "checker"

    result = Result([], Agent("writer"), output_guardrail_results=[Checked(OtherAgent(), passed=True)])
    report = release_agents(result)
    assert report.names == ("checker", "writer")
    assert report.released == 2


class Stranger:
    """An agent of no SDK's class: only where it stands tells what it is."""

    name = "stranger"


@pytest.mark.parametrize("place", ["agent", "source_agent", "target_agent"])
def test_agent_of_an_item(place: str) -> None:
    """An agent that only one attribute of one item names is let go, whatever its class."""
    item = HandoffItem(None, None, None)
    setattr(item, place, Stranger())
    report = release_agents(Result([item], Agent("writer")))
    assert report.names == ("stranger", "writer")
    assert report.released == 2


@pytest.mark.parametrize("place", ["source_agent", "target_agent"])
def test_half_a_hand_off(place: str) -> None:
    """An item that tells only one of the two is no hand-off."""
    agent = Agent("writer")
    item = Item(agent, "one")
    setattr(item, place, agent)
    assert release_agents(Result([item], agent)).handoffs == ()


def test_shared_base_class() -> None:
    """If everything of an SDK has one base class, its records are not taken for agents."""

    @of_the_sdk
    class Thing:
        pass

    @of_the_sdk
    class ThingAgent(Thing):
        name = "writer"

    @of_the_sdk
    class ThingItem(Thing):
        def __init__(self, agent: Any) -> None:
            self.agent = agent

    @of_the_sdk
    class ThingResult(Thing, Result):
        pass

    agent = ThingAgent()
    result = ThingResult([ThingItem(agent)], agent)
    assert release_agents(result).released == 1
    assert isinstance(result.new_items[0], ThingItem)


def test_slots() -> None:
    """Agents and results with `__slots__` are released; agents that cannot be weakly referenced as well."""
    agent = SlottedAgent("writer")
    result = SlottedResult([SlottedItem(agent, "one")], agent)
    before = agents_alive(SlottedAgent)
    del agent
    report = release_agents(result)
    assert report.item_agents == ("writer",)
    assert (report.released, report.held) == (1, ())
    assert agents_alive(SlottedAgent) == before - 1


def test_result_that_cannot_be_weakly_referenced() -> None:
    """It is released like any other; its names are not remembered, since nothing would tell when it goes."""
    agent = Agent("writer")
    result = BareResult([SlottedItem(agent, "one")], agent)
    report = release_agents(result)
    assert (report.names, report.released, report.held) == (("writer",), 1, ())
    assert release_agents(result) == ReleaseReport(known=True, item_agents=(None,))


def test_item_releases_itself() -> None:
    """An item's own `release_agent()` is called, on our copy: the item is still as it was."""

    @of_the_sdk
    class RefItem:
        def __init__(self, agent: Any) -> None:
            self._strong, self._weak = agent, None

        @property
        def agent(self) -> Any:
            return self._strong or self._weak()

        def release_agent(self) -> None:
            self._strong, self._weak = None, weakref.ref(self._strong)

    agent = Agent("writer")
    item = RefItem(agent)
    result = Result([item], agent)
    release_agents(result)
    assert result.new_items[0].agent is agent
    assert result.new_items[0]._strong is None
    assert item._strong is agent


def test_item_with_agent_ref() -> None:
    """A run item that was written with `AgentRef` keeps its name; the user's own reference stays strong."""
    ref = AgentRef(Agent("writer"))
    result = Result([Item(ref, "one")], ref())
    report = release_agents(result)
    assert report.item_agents == ("writer",)
    assert (report.released, report.held) == (1, ())
    assert result.new_items[0].agent.released
    assert not ref.released
    ref.release()
    collect_until_quiet()
    assert result.new_items[0].agent() is None
    assert result.new_items[0].agent.name == "writer"


def test_sdk_release_comes_before_the_last_agent_is_cleared() -> None:
    """The SDK's own release sees the last agent, so that it can keep a weak reference to it."""

    class WeakResult(Result):
        def release_agents(self) -> None:
            self._weak = weakref.ref(self.last_agent)

    of_the_sdk(WeakResult)
    agent = Agent("writer")
    result = WeakResult([Item(agent, "one")], agent)
    release_agents(result)
    assert result._weak() is agent


def test_sdk_release_fails() -> None:
    """An SDK's release that raises does not keep the agents."""

    class BadResult(Result):
        def release_agents(self) -> None:
            raise OSError

    of_the_sdk(BadResult)
    agent = Agent("writer")
    report = release_agents(BadResult([Item(agent, "one")], agent))
    assert report.released == 1


# -- what is the user's


class Holder:
    """An object of the user's that holds an agent."""

    def __init__(self, agent: Any) -> None:
        self.agent = agent


def test_context() -> None:
    """The user's context is not touched; what it holds is told with its path."""
    agent = Agent("writer")
    for context in ({"who": agent}, Holder(agent), [agent], agent, Item(agent, "mine")):
        result = Result([Item(agent, "one")], agent, context)
        wrapper = result.context_wrapper
        report = release_agents(result)
        assert result.context_wrapper.context is context
        assert wrapper.context is context
        assert report.released == 0
        assert len(report.held) == 1
        assert report.held[0].startswith("context_wrapper.context")
        assert report.held[0].endswith(": writer")
    assert context.agent is agent


def test_context_with_others() -> None:
    """Agents in the context that did not take part in the run are no matter of the result."""
    result = Result([], Agent("writer"), {"registry": [Agent("planner")]})
    report = release_agents(result)
    assert (report.names, report.released, report.held) == (("writer",), 1, ())


@pytest.mark.parametrize("place", ["input", "final_output", "raw_responses"])
def test_data_with_others(place: str) -> None:
    """Nor are those that only the data of a result holds, which everybody sees: they stay where they are."""
    result = Result([], Agent("writer"))
    data = {"by": Agent("planner")}
    setattr(result, place, data)
    report = release_agents(result)
    assert (report.names, report.released, report.held) == (("writer",), 1, ())
    assert getattr(result, place) is data
    assert data == {"by": Agent("planner")}


def test_large_context() -> None:
    """A context is looked into only a little way: it may lead to the whole program."""
    context = [[] for _ in range(100_000)]
    report = release_agents(Result([], Agent("writer"), context))
    assert (report.released, report.held) == (1, ())


def test_large_result() -> None:
    """Where a result is too large to be searched, the report does not say that nothing is held."""
    result = Result([], Agent("writer"), huge=[[] for _ in range(100_000)])
    huge = result.huge
    report = release_agents(result)
    assert result.huge is huge
    assert "were not looked at" in report.held[-1]


def test_visible_data() -> None:
    """Data that the user can see stays, whatever it holds; the report tells the path."""
    agent = Agent("writer")
    output, final = Holder(agent), {"by": agent}
    item = Item(agent, "one", output=output)
    result = Result([item], agent, _generated=[item], output_guardrail_results=[Item(agent, "fine", output=final)])
    result.final_output = final
    report = release_agents(result)
    assert result.new_items[0].output is output
    assert result._generated == result.new_items
    assert result.final_output is final
    assert result.output_guardrail_results[0].output is final
    assert sorted(report.held) == ["final_output['by']: writer", "new_items[0].output.agent: writer"]
    assert report.released == 0


def test_visible_functions() -> None:
    """A function that holds an agent is dropped, also where the user can see it; others stay."""
    agent = Agent("writer")
    result = Result([], agent, check=lambda: agent, other=test_visible_functions)
    report = release_agents(result)
    assert result.check is None
    assert result.other is test_visible_functions
    assert (report.released, report.held) == (1, ())


EVERYBODY = [Agent("writer")]


def test_module_namespace() -> None:
    """A function holds nothing of the module that it is in."""
    result = Result([], EVERYBODY[0], other=test_module_namespace)
    report = release_agents(result)
    assert result.other is test_module_namespace
    assert (report.released, report.held) == (1, ())


class Lazy:
    """A proxy that makes what it stands for when somebody asks what it is."""

    def __init__(self, agent: Any) -> None:
        self.agent = agent

    @property
    def __class__(self) -> Any:
        raise AssertionError


def test_proxies_are_not_asked() -> None:
    """The search runs nobody's code: proxies of the user's are not woken."""
    agent = Agent("writer")
    result = Result([Item(agent, "one")], agent, Lazy([Lazy(None)]), _private=Lazy(agent), shown=Lazy({1: agent}))
    report = release_agents(result)
    assert result._private is None
    assert report.held == ("shown.agent[1]: writer",)


@pytest.mark.parametrize(
    ("shown", "path"),
    [
        (lambda agent: Holder(agent), "shown.agent"),
        (lambda agent: {"a": Holder(agent)}, "shown['a'].agent"),
        (lambda agent: [0, Holder(agent)], "shown[1].agent"),
        (lambda agent: Holder((0, agent)), "shown.agent[1]"),
        (lambda agent: Holder({agent.name: agent}), "shown.agent['writer']"),
        (lambda agent: Holder({1.5: agent}), "shown.agent[<float>]"),
        (lambda agent: Holder({KeyAgent("writer"): 1}), "shown.agent[a key]"),
        (lambda agent: Holder(ValueError(agent)), "shown.agent.<tuple>[0]"),
        (lambda agent: Holder(lambda: agent), "shown.agent.<tuple>[0].<Agent>"),
    ],
)
def test_paths(shown: Any, path: str) -> None:
    """A path reads as one would write it; where Python has no name for a step it tells the type."""
    agent = Agent("writer")
    report = release_agents(Result([], agent, output_guardrail_results=None, shown=shown(agent)))
    assert report.held == (f"{path}: writer",)


def test_own_items_are_not_changed() -> None:
    """Items, and lists of them, that somebody else holds (a state, an event) are as before."""

    class ThoroughResult(Result):
        def release_agents(self) -> None:
            for item in self.new_items:
                item.agent = None

    of_the_sdk(ThoroughResult)
    agent = Agent("writer")
    items = [Item(agent, "one"), HandoffItem(agent, agent, agent)]
    checks = [Checked(agent, passed=True)]
    result = ThoroughResult(items, agent, output_guardrail_results=checks)
    release_agents(result)
    assert items[0].agent is agent
    assert items[1].target_agent is agent
    assert checks[0].agent is agent
    assert result.output_guardrail_results == [Checked(None, passed=True)]


# -- what is left as it is


def left(result: Any, reason: str, **changes: Any) -> None:
    before = dict(vars(result))
    report = release_agents(result)
    assert report.known
    assert report.names == ("writer",)
    assert report.released == 0
    assert report.held == (reason,)
    assert vars(result) == before
    assert result.new_items[0].agent.name == "writer"
    assert result.releases == 0


def result_with(**more: Any) -> Result:
    agent = Agent("writer")
    return Result([Item(agent, "one")], agent, **more)


def test_not_complete() -> None:
    """A run that says it is not complete is left."""
    left(result_with(is_complete=False), "is_complete: the run has not ended")


def test_waits_for_approval() -> None:
    """A run that waits for an approval is left."""
    left(result_with(interruptions=["may I?"]), "interruptions: the run waits for an approval")


def test_stored_error() -> None:
    """A run that stored an error is left."""
    left(result_with(_oops=ValueError()), "_oops: the run failed")


async def _work(agent: Any, event: asyncio.Event) -> Any:
    await event.wait()
    return agent


def test_running_task() -> None:
    """A run whose task still works with an agent is left, and released when the task is done."""

    async def main() -> None:
        event = asyncio.Event()
        result = result_with(is_complete=True)
        result._job = asyncio.create_task(_work(result.last_agent, event))
        left(result, "_job: the run has not ended")
        await asyncio.sleep(0)
        left(result, "_job: the run has not ended")
        event.set()
        await result._job
        assert release_agents(result).released == 1
        assert result._job is None

    asyncio.run(main())


def test_task_without_agents() -> None:
    """A task that only closes something does not keep the agents."""

    async def main() -> None:
        event = asyncio.Event()
        result = result_with()
        result._closing = task = asyncio.create_task(_work(None, event))
        assert release_agents(result).released == 1
        assert result._closing is task
        event.set()
        await task

    asyncio.run(main())


def test_failed_task() -> None:
    """A run whose task failed is left."""

    async def fail() -> None:
        raise ValueError

    async def main() -> None:
        result = result_with()
        result._job = asyncio.create_task(fail())
        await asyncio.wait([result._job])
        left(result, "_job: the run failed")

    asyncio.run(main())


def test_failed_task_that_nobody_asked() -> None:
    """The error of a task that nobody asked for it is still told, if the run is left for another reason."""
    told: list[str] = []

    async def fail() -> None:
        raise ValueError

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))
        result = result_with(is_complete=False)
        result._job = asyncio.create_task(fail())
        await asyncio.wait([result._job])
        left(result, "is_complete: the run has not ended")
        del result
        collect_until_quiet()

    asyncio.run(main())
    assert told == ["Task exception was never retrieved"]


def test_cancelled_task() -> None:
    """A cancelled task's traceback holds the agents: it is dropped, the task is kept."""

    async def main() -> None:
        result = result_with(is_complete=True)
        ref = weakref.ref(result.last_agent)
        result._job = task = asyncio.create_task(_work(result.last_agent, asyncio.Event()))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        report = release_agents(result)
        assert (report.released, report.held) == (1, ())
        assert result._job is task
        assert gone(ref) == [True]

    asyncio.run(main())


def test_task_context() -> None:
    """A done task whose context holds an agent is let go."""
    current = contextvars.ContextVar[Any]("current")

    async def main() -> None:
        result = result_with()

        async def job() -> None:
            current.set(result.last_agent)

        result.job = asyncio.create_task(job())
        await result.job
        report = release_agents(result)
        assert (report.released, report.held) == (1, ())
        assert result.job is None

    asyncio.run(main())


def test_large_task_context() -> None:
    """A done task whose context is too large to be searched is let go."""
    current = contextvars.ContextVar[Any]("current")

    async def main() -> None:
        result = result_with()
        current.set([[] for _ in range(10_000)])
        result.job = asyncio.create_task(asyncio.sleep(0))
        await result.job
        report = release_agents(result)
        assert (report.released, report.held) == (1, ())
        assert result.job is None

    asyncio.run(main())


def test_unread_events() -> None:
    """A run with events that nobody read is left; empty, its queue does not matter."""
    result = result_with(_events=asyncio.Queue())
    result._events.put_nowait(Item(result.last_agent, "news"))
    left(result, "_events: events of the run were not read")
    result._events.get_nowait()
    assert release_agents(result).released == 1


# -- what is no result


class Lookalike:
    """All but the names that are missing."""

    new_items = ()
    final_output = "done"
    last_agent = Agent("writer")

    def to_input_list(self) -> list[Any]:
        return []

    def release_agents(self) -> None:
        raise AssertionError


class NoRelease(Lookalike):
    release_agents = None


class NoInputList(Lookalike):
    to_input_list = "a list"


class OtherItems(Lookalike):
    new_items = (SimpleNamespace(author="writer"),)


class ItemsByName(Lookalike):
    @property
    def new_items(self) -> Any:
        return {"one": Item(None, "one")}


class Hostile:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class HostileTruth:
    def __bool__(self) -> bool:
        raise RuntimeError

    @property
    def __wrapped__(self) -> Any:
        return self


class HostileItems(Lookalike):
    @property
    def new_items(self) -> Any:
        raise RuntimeError


UNKNOWN = [
    None,
    "text",
    object(),
    Lookalike,
    NoRelease(),
    NoInputList(),
    OtherItems(),
    ItemsByName(),
    Hostile(),
    HostileTruth(),
    HostileItems(),
    SimpleNamespace(new_items=[Item(None, "one")], final_output="done"),
    test_context,
]


@pytest.mark.parametrize("thing", UNKNOWN, ids=[type(thing).__name__ for thing in UNKNOWN])
def test_unknown(thing: Any) -> None:
    """Anything else is left alone, and the report says so."""
    assert release_agents(thing) == ReleaseReport(known=False)


def test_unknown_is_not_read() -> None:
    """What merely resembles a result keeps its agent."""
    lookalike = OtherItems()
    lookalike.agent = agent = Agent("writer")
    release_agents(lookalike)
    assert lookalike.agent is agent


def test_wrapped() -> None:
    """A result in a proxy of instrumentation is released."""
    result = result_with()
    report = release_agents(wrapt.ObjectProxy(result))
    assert report.released == 1
    assert result.new_items[0].agent is None


# -- the last event of a stream


@of_the_sdk
@dataclass
class Updated:
    new_agent: Any


@of_the_sdk
@dataclass
class ItemEvent:
    item: Any


@pytest.mark.parametrize("kind", [lambda item: Updated(item.agent), ItemEvent])
def test_last_event(kind: Any) -> None:
    """The last event is given back without agents; the event itself, which the user may keep, is as before."""
    result = result_with()
    agent = result.last_agent
    event = kind(result.new_items[0])
    before = vars(event).copy()
    report, last = release_with(result, event)
    assert (report.released, report.held) == (1, ())
    assert type(last) is type(event)
    assert last is not event
    assert vars(event) == before
    ref = weakref.ref(agent)
    del agent, event, before
    assert gone(ref) == [True]
    if isinstance(last, ItemEvent):
        assert last.item is result.new_items[0]


@pytest.mark.parametrize("kind", [lambda item: Updated(item.agent), ItemEvent])
def test_last_event_after_a_release(kind: Any) -> None:
    """The last event lets go also when the result was released before."""
    result = result_with()
    event = kind(result.new_items[0])
    ref = weakref.ref(result.last_agent)
    release_agents(result)
    report, last = release_with(result, event)
    assert report.names == ("writer",)
    assert type(last) is type(event)
    del event
    assert gone(ref) == [True]


def test_last_event_of_a_run_that_is_left() -> None:
    """If the run is left as it is, so is its last event."""
    result = result_with(is_complete=False)
    event = Updated(result.last_agent)
    assert release_with(result, event)[1] is event


def test_last_event_of_another_kind() -> None:
    """A last item without agents, or of the user's own kind, is the same object; one that holds is told."""
    result = result_with()
    own = Holder(result.last_agent)
    report, last = release_with(result, own)
    assert last is own
    assert report.held == ("last.agent: writer",)
    assert release_with(result_with(), "text")[1] == "text"
    assert release_with("unknown", own)[1] is own


class Wrapped:
    """A proxy, as instrumentation puts around a result."""

    def __init__(self, wrapped: object) -> None:
        self.__wrapped__ = wrapped


def test_proxy_of_a_proxy() -> None:
    """A result is known through two proxies, and released."""
    result = Result([Item(Agent("writer"), "one")], Agent("writer"))
    report = release_agents(Wrapped(Wrapped(result)))
    assert report.known
    assert result.new_items[0].agent is None


class Processor:
    """A trace processor: it keeps what it likes of all runs."""

    def __init__(self, kept: object) -> None:
        self.kept = kept

    def on_span_end(self, span: object) -> None:
        """Keep nothing more."""


def test_trace_processor() -> None:
    """What a trace processor keeps of other runs is no part of a result: neither named nor taken away."""
    stranger = Agent("stranger")
    result = Result([Item(Agent("writer"), "one")], Agent("writer"))
    result._trace = processor = Processor([stranger])
    report = release_agents(result)
    assert "stranger" not in report.names
    assert report.held == ()
    assert processor.kept == [stranger]
