"""A reference to an agent: strong until released, weak after, with a name that stays."""

import copy
import gc
import pickle
import weakref
from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest

from streamguard import AgentRef


@dataclass  # so it is not hashable, like real ones
class Agent:
    name: str


class SlottedAgent:
    """It cannot be weakly referenced."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


@dataclass
class Item:
    agent: AgentRef[Any]
    text: str = ""


def test_inline_agent() -> None:
    """An agent that nobody else holds lives until the release."""
    ref = AgentRef(Agent("writer"))
    gc.collect()
    assert ref() == Agent("writer")
    assert not ref.released
    ref.release()
    assert ref() is None
    assert ref.released
    assert ref.name == "writer"


def test_held_elsewhere() -> None:
    """After the release the agent is there as long as somebody else holds it."""
    agent = Agent("writer")
    ref = AgentRef(agent)
    ref.release()
    assert ref() is agent
    del agent
    assert ref() is None


def test_released_twice() -> None:
    """A second release does nothing."""
    ref = AgentRef(Agent("writer"))
    ref.release()
    ref.release()
    assert ref() is None


def test_not_weakly_referenceable() -> None:
    """Such an agent is gone at the release; its name stays."""
    agent = SlottedAgent("writer")
    ref = AgentRef(agent)
    assert ref() is agent
    ref.release()
    assert ref() is None
    assert ref.name == "writer"


def test_name_is_recorded() -> None:
    """The name is that of the time when the reference was made."""
    agent = Agent("writer")
    ref = AgentRef(agent)
    agent.name = "editor"
    assert ref.name == "writer"


def test_no_name() -> None:
    """An agent without a name is called by its type."""
    assert AgentRef(object()).name == "object"


@pytest.mark.parametrize("kind", [Agent, SlottedAgent])
def test_equality(kind: Any) -> None:
    """References are equal if they refer to the same agent, not to an equal one."""
    agent = kind("writer")
    assert AgentRef(agent) == AgentRef(agent)
    assert hash(AgentRef(agent)) == hash(AgentRef(agent))
    other = kind("writer")
    assert AgentRef(agent) != AgentRef(other)
    assert hash(AgentRef(agent)) != hash(AgentRef(other))
    assert AgentRef(agent) != agent


def test_equality_outlives_the_agent() -> None:
    """References to one agent stay equal, with the same hash, when it is released and gone."""
    agent = Agent("writer")
    one, other = AgentRef(agent), AgentRef(agent)
    before = hash(one)
    one.release()
    assert one == other
    other.release()
    del agent
    assert one == other
    assert len({one, other}) == 1
    assert hash(one) == before
    assert one != AgentRef(Agent("writer"))


def test_equality_without_weak_references() -> None:
    """Two released references to what cannot be weakly referenced cannot be told to be equal."""
    agent = SlottedAgent("writer")
    one, other = AgentRef(agent), AgentRef(agent)
    one.release()
    assert one != other
    assert one in [one]


def test_repr() -> None:
    """It tells the name, and whether the agent is there."""
    agent = Agent("writer")
    ref = AgentRef(agent)
    assert repr(ref) == "<AgentRef 'writer'>"
    ref.release()
    assert repr(ref) == "<AgentRef 'writer', released>"
    del agent
    assert repr(ref) == "<AgentRef 'writer', gone>"


def test_in_a_dataclass() -> None:
    """A run item that holds one can be compared, shown, copied and made into a dict; no agent is copied."""
    agent = Agent("writer")
    item = Item(AgentRef(agent), "hello")
    assert item == Item(AgentRef(agent), "hello")
    assert repr(item) == "Item(agent=<AgentRef 'writer'>, text='hello')"
    assert replace(item, text="bye").agent is item.agent
    assert asdict(item)["agent"]() is agent


@pytest.mark.parametrize("copied_by", [copy.copy, copy.deepcopy])
def test_copy(copied_by: Any) -> None:
    """A copy refers to the same agent, and is released on its own."""
    agent = Agent("writer")
    ref = AgentRef(agent)
    copied = copied_by(ref)
    assert copied == ref
    ref.release()
    seen = weakref.ref(agent)
    del agent
    assert copied() is seen()
    assert seen() is not None
    copied.release()
    assert seen() is None


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle(protocol: int) -> None:
    """Pickling is refused, and the message says what to store."""
    with pytest.raises(TypeError, match=r"<AgentRef 'writer'> cannot be pickled.* store its `name` instead"):
        pickle.dumps(Item(AgentRef(Agent("writer"))), protocol)


@pytest.mark.parametrize("nothing", [None, AgentRef(Agent("writer"))])
def test_no_agent(nothing: object) -> None:
    """What is no agent is refused at once."""
    with pytest.raises(TypeError, match="give the agent itself"):
        AgentRef(nothing)
