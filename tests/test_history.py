"""Results that are kept for audit and hold no agents."""

import asyncio
import weakref
from typing import Any

import pytest

from nothing_left import collect_until_quiet
from streamguard import ReleaseReport, ResultHistory, release_agents


class Agent:
    def __init__(self, name: str) -> None:
        self.name = name


class Item:
    def __init__(self, agent: Any) -> None:
        self.agent = agent


class Result:
    """Of the shape of a run result."""

    final_output = "done"

    def __init__(self, name: str) -> None:
        self.last_agent: Any = Agent(name)
        self.new_items = [Item(self.last_agent)]

    def to_input_list(self) -> list[Any]:
        return []

    def release_agents(self) -> None:
        pass


def test_append() -> None:
    """A result is kept, its agents are not, their names are."""
    history = ResultHistory[Result]()
    result = Result("writer")
    ref = weakref.ref(result.last_agent)
    entry = history.append(result)
    collect_until_quiet()
    assert ref() is None
    assert entry.result is result
    assert entry.report.names == ("writer",)
    assert entry.report.released == 1
    assert list(history) == [entry]


def test_released_before() -> None:
    """A result that was released before, by a guard for example, still has its names."""
    history = ResultHistory[Result]()
    result = Result("writer")
    release_agents(result)
    assert history.append(result).report.names == ("writer",)


def test_sequence() -> None:
    """Entries can be counted, indexed, sliced, walked through both ways, and found."""
    history = ResultHistory[Result]()
    for number in range(5):
        history.append(Result(f"agent {number}"))

    def names(entries: Any) -> list[str]:
        return [entry.report.last_agent for entry in entries]

    assert len(history) == 5
    assert history
    assert names(history) == ["agent 0", "agent 1", "agent 2", "agent 3", "agent 4"]
    assert names(reversed(history)) == names(history)[::-1]
    assert names([history[0], history[-1]]) == ["agent 0", "agent 4"]
    assert names(history[1:3]) == ["agent 1", "agent 2"]
    assert history[2] in history
    assert history.index(history[2]) == 2
    with pytest.raises(IndexError):
        history[5]


def test_maxlen() -> None:
    """The oldest results go first."""
    history = ResultHistory[Result](maxlen=2)
    results = [Result("a"), Result("b"), Result("c")]
    oldest = weakref.ref(results[0])
    for result in results:
        history.append(result)
    assert [entry.report.last_agent for entry in history] == ["b", "c"]
    assert history.maxlen == 2
    del results, result
    collect_until_quiet()
    assert oldest() is None


def test_empty() -> None:
    """A history without entries is false, and one of length 0 keeps nothing."""
    assert not ResultHistory[Result]()
    history = ResultHistory[Result](maxlen=0)
    history.append(Result("writer"))
    assert len(history) == 0


def test_left() -> None:
    """A result that must keep its agents is kept with them, and the report says why."""
    result = Result("writer")
    result.interruptions = ["may I?"]
    entry = ResultHistory[Result]().append(result)
    assert entry.report.held == ("interruptions: the run waits for an approval",)
    assert result.last_agent.name == "writer"


def test_unknown() -> None:
    """Anything else is kept as it is."""
    assert ResultHistory[str]().append("text").report == ReleaseReport(known=False)


def test_many() -> None:
    """However many turns there are, the agents that are alive are those of the turn in flight."""
    history = ResultHistory[Result](maxlen=100)
    alive = weakref.WeakSet[Agent]()
    most = 0
    for number in range(1000):
        result = Result(f"agent {number}")
        alive.add(result.last_agent)
        most = max(most, len(alive))  # without a collection
        history.append(result)
    assert most == 1
    assert len(history) == 100


@pytest.mark.parametrize("maxlen", [1.5, "2", True])
def test_wrong_type(maxlen: Any) -> None:
    with pytest.raises(TypeError, match="give the number of results to keep, or None for all"):
        ResultHistory(maxlen=maxlen)


def test_negative() -> None:
    with pytest.raises(ValueError, match="from 0 up, or None for all"):
        ResultHistory(maxlen=-1)


def test_repr() -> None:
    """It tells how many there are, not what they are: they may be large."""
    history = ResultHistory[str](maxlen=3)
    history.append("a")
    assert repr(history) == "<ResultHistory of 1 results, maxlen=3>"


def test_no_loop_needed() -> None:
    """Results are appended outside of an event loop as well."""
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
    assert ResultHistory[Result]().append(Result("writer")).report.released == 1


def test_append_while_iterating() -> None:
    """A loop over the history sees what was there when it began, whatever is appended meanwhile."""
    history = ResultHistory[str]()
    history.append("one")
    for entry in history:
        history.append(entry.result + " more")
    assert [entry.result for entry in history] == ["one", "one more"]
