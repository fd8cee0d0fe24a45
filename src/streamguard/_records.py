"""What the records of a run hold: found without running their code, copied without the agents in them.

The rule kept here: nothing that may belong to somebody else is changed. A record that holds an agent is copied, and the
copy goes without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
import gc
import itertools
import logging
import sys
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Container, Iterable, Iterator, Mapping
from types import CodeType, MemberDescriptorType, ModuleType
from typing import Any, TypeAlias, TypeGuard
from weakref import ReferenceType

from ._agent_ref import AgentRef, name_of

NEAR = 50_000
"""How many objects of a result are looked at before the search is given up."""
AFAR = 1_000
"""How many objects are looked at in each thing that is the user's: a context may lead to the whole program."""

Path: TypeAlias = tuple[object, ...]

_USERS = ("context", "input", "output", "final_output", "raw_responses")
"""Attributes whose value is the user's, or the model's, whatever it is."""

# What leads to the whole program, and holds nothing for a result. The namespace of a module, to which every function
# leads, is known by what is in it.
_WORLD = (ModuleType, type, CodeType, ReferenceType, asyncio.AbstractEventLoop, logging.Logger, threading.Thread)


class Kinds:
    """Which objects are agents, and which are records of the SDK that made the result."""

    __slots__ = ("_agents", "_packages", "_seen")

    def __init__(self, records: Iterable[object], agents: Iterable[object]) -> None:
        shared = {base for record in records for base in type(record).__mro__}
        self._packages = {_package(base) for base in shared} - set(sys.stdlib_module_names)
        self._agents: set[type] = set()
        for kind in {type(agent) for agent in agents}:
            # Agents that nobody could name are recognised as well: by the SDK's own base class.
            bases = {base for base in kind.__mro__ if _package(base) in self._packages}
            self._agents |= {kind} | (bases - shared)
        self._seen: dict[type, bool] = {}

    def is_agent(self, thing: object) -> bool:
        """Whether this is an agent."""
        kind = type(thing)
        known = self._seen.get(kind)
        if known is None:
            known = self._seen[kind] = not self._agents.isdisjoint(kind.__mro__)
        return known

    def is_record(self, thing: object) -> bool:
        """Whether this is one of the SDK's own objects."""
        return _package(type(thing)) in self._packages and not is_a(thing, type)


def _package(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]


# Not isinstance(), here and below: it asks a proxy for its class, and that runs the proxy's code.
def is_a(thing: object, kinds: type | tuple[type, ...]) -> bool:
    """Whether this is of such a type, by its real type."""
    return issubclass(type(thing), kinds)


def is_future(thing: object) -> TypeGuard[asyncio.Future[Any]]:
    """Whether this is a task or a future of asyncio."""
    return hasattr(type(thing), "_asyncio_future_blocking")


# -- reading and writing


def stored(record: object) -> Iterator[tuple[str, object]]:
    """The attributes that an object stores itself, without those that it computes."""
    yield from list(_own_dict(record).items())
    for name, slot in _slots(record):
        with contextlib.suppress(AttributeError):  # nothing is stored there
            yield name, slot.__get__(record)


def put(record: object, name: str, value: object) -> None:
    """Store an attribute, whatever the object says about it (it may be frozen)."""
    slot = next((slot for slot_name, slot in _slots(record) if slot_name == name), None)
    if slot is not None:
        slot.__set__(record, value)
    else:
        _own_dict(record)[name] = value


def _own_dict(record: object) -> dict[str, object]:
    try:
        own = object.__getattribute__(record, "__dict__")
    except AttributeError:
        return {}
    return own if isinstance(own, dict) else {}


def _slots(record: object) -> Iterator[tuple[str, MemberDescriptorType]]:
    for kind in type(record).__mro__:
        if "__slots__" in vars(kind):
            yield from ((name, slot) for name, slot in vars(kind).items() if type(slot) is MemberDescriptorType)


# -- searching


class Walk:
    """One walk from an object to the agents that it holds, through all that the garbage collector sees."""

    def __init__(self, kinds: Kinds, skipped: Mapping[int, object], yours: Container[int]) -> None:
        self._kinds = kinds
        self._skipped = skipped
        self._yours = yours
        self._afar: list[object] = []
        self.holders: dict[int, tuple[object, object]] = {}
        """What was walked through, by its id, and what held it."""
        self.given_up: list[int] = []
        """Limits that were reached."""

    def paths(self, start: object) -> Iterator[Path]:
        """Each way to an agent, the shortest first: from the start, by what holds what, to the agent."""
        self.holders[id(start)] = (start, None)
        yield from self._walk(start, NEAR)
        for thing in self._afar:
            yield from self._walk(thing, AFAR)

    def _walk(self, start: object, limit: int) -> Iterator[Path]:
        queue = deque([start])
        end = len(self.holders) + limit
        while queue:
            holder = queue.popleft()
            for held in gc.get_referents(holder):
                if len(self.holders) > end:
                    self.given_up.append(limit)
                    return
                if self._kinds.is_agent(held):
                    yield (*self._path_to(holder), held)
                elif gc.is_tracked(held) and self._is_new(held):
                    self.holders[id(held)] = (held, holder)
                    (self._afar if limit == NEAR and self._leads_afar(held) else queue).append(held)

    def _is_new(self, thing: object) -> bool:
        return id(thing) not in self.holders and id(thing) not in self._skipped and not _is_world(thing)

    def _leads_afar(self, thing: object) -> bool:
        return id(thing) in self._yours or type(thing) is contextvars.Context

    def _path_to(self, thing: object) -> Path:
        path = []
        while thing is not None:
            path.append(thing)
            thing = self.holders[id(thing)][1]
        return tuple(reversed(path))


def _is_world(thing: object) -> bool:
    if hasattr(type(thing), "on_span_end"):
        return True  # a trace processor, which keeps what it likes of all runs
    return is_a(thing, _WORLD) or (type(thing) is dict and ("__spec__" in thing or "__builtins__" in thing))


def describe(path: Path) -> str:
    """A path as one would write it: ``context_wrapper.context['planner']: planner``."""
    steps = [held for holder, held in itertools.pairwise(path) if held is not _own_dict(holder)]
    holders = [path[0], *steps[:-1]]
    labels = [_label(holder, held) for holder, held in zip(holders, steps, strict=True)]
    return f"{''.join(labels).removeprefix('.')}: {name_of(path[-1])}"


def _label(holder: Any, held: object) -> str:
    if is_a(holder, dict):
        return next((f"[{_key(key)}]" for key, value in dict.items(holder) if value is held), "[a key]")
    if type(holder) in (list, tuple, deque):
        return next((f"[{index}]" for index, value in enumerate(holder) if value is held), "[?]")
    names = (name for name, value in stored(holder) if value is held)
    return f".{next(names, f'<{type(held).__name__}>')}"


def _key(key: object) -> str:
    return repr(key) if type(key) in (str, int) else f"<{type(key).__name__}>"


# -- copying


class Copies:
    """Copies of records without the agents in them; one copy of each, however often it is met."""

    def __init__(self, kinds: Kinds, yours: Mapping[int, object]) -> None:
        self._kinds = kinds
        self._made: dict[int, tuple[object, object]] = {}
        # What is the user's counts for nothing here: it is neither copied nor taken away.
        self._barren = dict(yours)

    def without_agents(self, thing: object, *, private: bool = False) -> object:
        """The same object if it holds no agent, else a copy, or ``None`` where none can be made.

        Data of another kind that the user can see (a tool's output) stays, whatever it holds.
        """
        if self._kinds.is_agent(thing):
            return None
        if id(thing) in self._made:
            return self._made[id(thing)][1]
        holds_one = self.holds_an_agent(thing)
        if holds_one is False:
            return thing
        if is_future(thing):
            return None  # done, or it would not come here; its context may lead anywhere
        if holds_one is None:
            return thing
        return self._copy(thing, private)

    def holds_an_agent(self, thing: object) -> bool | None:
        """Whether an agent can be reached; ``None`` if this leads too far to tell."""
        if not gc.is_tracked(thing) or id(thing) in self._barren or _is_world(thing):
            return False
        walk = Walk(self._kinds, self._barren, ())
        if next(walk.paths(thing), None) is not None:
            return True
        if walk.given_up:
            return None
        self._barren.update((key, held) for key, (held, _) in walk.holders.items())
        return False

    def _copy(self, thing: Any, private: bool) -> object:
        kind = type(thing)
        if kind is AgentRef:
            released = copy.copy(thing)
            released.release()
            return released
        if kind in (list, deque, dict, OrderedDict, defaultdict):
            return self._copy_items(thing, private)
        if kind in (tuple, set, frozenset) or (issubclass(kind, tuple) and hasattr(kind, "_make")):
            return self._copy_fixed(thing, private)
        if self._kinds.is_record(thing):
            return self._copy_record(thing, private)
        return None if private or callable(thing) else thing

    def _copy_items(self, thing: Any, private: bool) -> object:
        copied = copy.copy(thing)
        self._made[id(thing)] = (thing, copied)
        for key, value in thing.items() if isinstance(thing, dict) else enumerate(thing):
            if self._kinds.is_agent(key):
                del copied[key]
            else:
                copied[key] = self.without_agents(value, private=private)
        return copied

    def _copy_fixed(self, thing: Any, private: bool) -> object:
        make = getattr(type(thing), "_make", type(thing))
        copied = make([self.without_agents(value, private=private) for value in thing])
        if not isinstance(copied, tuple):
            copied -= {None}
        self._made[id(thing)] = (thing, copied)
        return copied

    def _copy_record(self, thing: object, private: bool) -> object:
        try:
            copied = object.__new__(type(thing))
        except TypeError:  # made in C
            return None if private else thing
        self._made[id(thing)] = (thing, copied)
        for name, value in stored(thing):
            put(copied, name, value)
        self._release(copied)
        self.clear(copied, private=private)
        return copied

    @staticmethod
    def _release(copied: Any) -> None:
        """Let an item let go as its SDK does it: with weak references, where it can."""
        with contextlib.suppress(Exception):
            copied.release_agent()

    def clear(self, record: object, *, private: bool = False, but_agents: bool = False) -> None:
        """Replace what a record stores by what holds no agent."""
        # Public ones first: an object that the user can see is copied as such.
        for name, value in sorted(stored(record), key=lambda item: item[0].startswith("_")):
            if name in _USERS or (but_agents and self._kinds.is_agent(value)):
                continue
            instead = self.without_agents(value, private=private or name.startswith("_"))
            if instead is not value:
                put(record, name, instead)
