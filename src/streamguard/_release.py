"""`release_agents`: let a stored result go of its agents.

The rule kept here: names first; then the result, and nothing but the result, is changed; then what it still holds is
looked for and told. Results are recognised by their public shape; no SDK is imported.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from ._agent_ref import AgentRef, name_of
from ._records import NEAR, Copies, Kinds, Walk, describe, is_a, is_future, stored

T = TypeVar("T")

_AT_MOST = 20
"""How many paths a report tells."""
_PROXIES = 4
"""How many proxies around a result are looked through; some objects have an attribute of any name."""
_MISSING = object()
_reports: dict[int, tuple[weakref.ref[Any], ReleaseReport]] = {}
"""What was released, by the result's id: its names are nowhere else any more."""


@dataclass(frozen=True, slots=True)
class ReleaseReport:
    """What `release_agents` found in a result, and what it let go.

    A name is ``None`` where the agent was gone before.
    """

    known: bool
    """Whether this was the result of an agent run; anything else is left alone."""
    names: tuple[str, ...] = ()
    """The name of every agent that the result held, once."""
    item_agents: tuple[str | None, ...] = ()
    """The name of each new item's agent, one for one."""
    handoffs: tuple[tuple[str | None, str | None], ...] = ()
    """Who handed off to whom, in order."""
    last_agent: str | None = None
    """The name of the agent that ran last."""
    released: int = 0
    """How many agents the result held before this call, and does not hold after it."""
    held: tuple[str, ...] = ()
    """What still holds an agent, by the path and the agent's name; or why the result was left as it was."""


def release_agents(result: object, /) -> ReleaseReport:
    """Let a stored result go of its agents, and keep their names.

    A result of openai-agents, or of an SDK of the same shape, holds its agents (with their tools, models and clients)
    for as long as it is kept. This records the names, calls the result's own ``release_agents()``, drops what still
    leads to an agent, then looks for what it could not drop. Afterwards ``final_output``, ``to_input_list()``,
    ``raw_responses`` and ``repr()`` work as before; ``last_agent`` and ``to_state()`` do not.

    Only the result itself is changed: records in it are replaced by copies without agents. The agents, your context and
    input, events that you keep, and states that you took by ``to_state()`` are as before. A run that has not ended,
    failed, waits for an approval, or has events that nobody read, is left as it is: ``held`` says why. A second call
    changes nothing and gives the names again.

    Args:
        result: The result of a run, streamed or not.

    Returns:
        The names, and what is still held; for an object that is no such result one that says ``known=False``.

    Example:
        >>> release_agents("no result of a run").known
        False
    """
    return release_with(result, None)[0]


def release_with(result: object, last: T) -> tuple[ReleaseReport, T]:
    """Release a result, and give back its last event without its agents: an event holds them as well."""
    for _ in range(_PROXIES):  # instrumentation wraps objects in proxies
        wrapped = _read(result, "__wrapped__")
        result = result if wrapped is None else wrapped
    if not _is_result(result):
        return ReleaseReport(known=False), last
    release = _Release(result, last)
    before = _reports.get(id(result))
    if before is not None:
        return replace(before[1], released=0), release.strip(last)
    held = release.agents_held()
    report = release.names(held.values())
    reason = release.reason_to_leave()
    if reason is not None:
        return replace(report, held=(reason,)), last
    release.let_go()
    last = release.strip(last)
    report = release.verified(report, held, last)
    _remember(result, report)
    return report, last


def _remember(result: object, report: ReleaseReport) -> None:
    key = id(result)
    with contextlib.suppress(TypeError):  # it cannot be weakly referenced
        _reports[key] = (weakref.ref(result, lambda _: _reports.pop(key, None)), report)


# -- recognising


def _is_result(thing: object) -> bool:
    items = _read(thing, "new_items")
    return (
        isinstance(items, list | tuple)
        and all(_has(item, "agent") for item in items)
        and _has(thing, "final_output")
        and _has(thing, "last_agent")
        and callable(_read(thing, "to_input_list"))
        and callable(_read(thing, "release_agents"))
        and not isinstance(thing, type)
    )


def _has(thing: object, name: str) -> bool:
    # Not hasattr(): after a release the property raises an error of the SDK's own.
    return inspect.getattr_static(thing, name, _MISSING) is not _MISSING


def _read(thing: object, name: str) -> Any:
    """A public attribute, ``None`` if it cannot be read; this meets objects of any kind."""
    try:
        return getattr(thing, name, None)
    except Exception:
        return None


class _Release:
    """One release of one result."""

    __slots__ = ("_copies", "_items", "_kinds", "_result", "_yours")

    def __init__(self, result: Any, last: object) -> None:
        self._result = result
        self._items = list(result.new_items)
        context = _read(_read(result, "context_wrapper"), "context")
        shown = [_read(result, name) for name in ("input", "final_output", "raw_responses")]
        self._yours = {id(thing): thing for thing in (context, *shown)}
        self._kinds = Kinds([result, *self._items], [agent for agent in self._public_agents(last) if agent is not None])
        self._copies = Copies(self._kinds, self._yours)

    def _public_agents(self, last: object) -> Iterator[Any]:
        """The agents of the public attributes, in the order in which they came; ``None`` where one is gone."""
        event_item = _read(last, "item")
        for item in (*self._items, event_item):
            yield from (_agent(item, name) for name in ("agent", "source_agent", "target_agent"))
        checks = _read(self._result, "output_guardrail_results")
        for check in checks if isinstance(checks, list | tuple) else ():
            yield _agent(check, "agent")
        yield _agent(self._result, "last_agent")
        yield _agent(last, "new_agent")

    # -- before

    def agents_held(self) -> dict[int, object]:
        """The agents that the result itself holds, by their id."""
        for value in self._futures():
            _drop_traceback(value)
        paths = Walk(self._kinds, self._yours, ()).paths(self._result)
        return {id(path[-1]): path[-1] for path in paths}

    def names(self, held: Iterable[object]) -> ReleaseReport:
        """A report with the names."""
        public = [agent for agent in self._public_agents(None) if agent is not None]
        handoffs = [item for item in self._items if _has(item, "source_agent") and _has(item, "target_agent")]
        return ReleaseReport(
            known=True,
            names=tuple(dict.fromkeys(name_of(agent) for agent in (*public, *held))),
            item_agents=tuple(_name(item, "agent") for item in self._items),
            handoffs=tuple((_name(item, "source_agent"), _name(item, "target_agent")) for item in handoffs),
            last_agent=_name(self._result, "last_agent"),
        )

    def reason_to_leave(self) -> str | None:
        """Why the result still needs its agents, ``None`` if it does not."""
        if _read(self._result, "is_complete") is False:
            return "is_complete: the run has not ended"
        if _read(self._result, "interruptions"):
            return "interruptions: the run waits for an approval"
        for name, value in stored(self._result):
            reason = self._reason_in(value)
            if reason is not None:
                return f"{name}: {reason}"
        return None

    def _reason_in(self, value: object) -> str | None:
        if is_a(value, BaseException):
            return "the run failed"
        if type(value) is asyncio.Queue and not value.empty() and self._copies.holds_an_agent(value):
            return "events of the run were not read"
        if not is_future(value):
            return None
        if not value.done():
            # A task that only closes connections does not need the agents.
            return None if self._copies.holds_an_agent(value) is False else "the run has not ended"
        return "the run failed" if not value.cancelled() and value.exception() is not None else None

    def _futures(self) -> Iterator[asyncio.Future[Any]]:
        yield from (value for _, value in stored(self._result) if is_future(value))

    # -- the release

    def let_go(self) -> None:
        """Drop what holds agents."""
        # Agents last: the SDK's own release has to see which one it replaces by a weak reference. It comes after the
        # items, so that it releases our copies: the items themselves may be in a state or an event that is kept.
        self._copies.clear(self._result, but_agents=True)
        with contextlib.suppress(Exception):  # agents with __slots__ cannot be weakly referenced
            self._result.release_agents()
        self._copies.clear(self._result)

    def strip(self, last: T) -> T:
        """The last event without its agents."""
        return cast("T", self._copies.without_agents(last))

    # -- after

    def verified(self, report: ReleaseReport, before: dict[int, object], last: object) -> ReleaseReport:
        """The report with what is still held, found by looking for it."""
        walk = Walk(self._kinds, {}, self._yours)
        paths = [path for path in walk.paths(self._result) if id(path[-1]) in before]
        held = [describe(path) for path in paths[:_AT_MOST]]
        held += [f"last.{describe(path)}" for path in Walk(self._kinds, {}, ()).paths(last)][:_AT_MOST]
        if NEAR in walk.given_up:
            held.append(f"(more than {NEAR} objects: the others were not looked at)")
        released = before.keys() - {id(path[-1]) for path in paths}
        return replace(report, released=len(released), held=tuple(held))


def _drop_traceback(future: asyncio.Future[Any]) -> None:
    """Let a cancelled task go of its error, whose frames hold agents; asyncio forgets it when it was read."""
    if future.cancelled():
        with contextlib.suppress(asyncio.CancelledError):
            future.exception()


def _agent(holder: object, name: str) -> Any:
    agent = _read(holder, name)
    return agent() if isinstance(agent, AgentRef) else agent


def _name(holder: object, name: str) -> str | None:
    agent = _read(holder, name)  # or an AgentRef, which knows the name when the agent is gone
    return None if agent is None else name_of(agent)
