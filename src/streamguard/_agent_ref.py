"""`AgentRef`: a reference to an agent that can be let go.

The rule kept here: the name is written down when the reference is made, so it outlives the agent.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Generic, NoReturn, Self, TypeVar

A = TypeVar("A")


class AgentRef(Generic[A]):
    """A reference to an agent: strong until it is released, weak after; for those who write run items.

    Called like a weak reference, it gives the agent or ``None``. An agent that was made inline, and that nobody
    else holds, lives until `release` is called. An agent that cannot be weakly referenced (``__slots__`` without
    ``__weakref__``) is gone at the release. References to the same agent are equal, released or not (one without
    ``__weakref__``: until then), and hashable also where the agent is not. A copy refers to the same agent and is
    released on its own; pickling is refused.

    Args:
        agent: The agent.

    Raises:
        TypeError: If this is ``None``, or another reference.

    Example:
        >>> class Agent:
        ...     name = "writer"
        >>> ref = AgentRef(Agent())
        >>> ref
        <AgentRef 'writer'>
        >>> ref.release()
        >>> ref(), ref.name
        (None, 'writer')
    """

    __slots__ = ("__weakref__", "_agent", "_hash", "_name", "_weak")

    def __init__(self, agent: A) -> None:
        if agent is None or isinstance(agent, AgentRef):
            raise TypeError(f"AgentRef({agent!r}) refers to no agent; give the agent itself")
        self._name = name_of(agent)
        self._hash = id(agent)
        self._agent: A | None = agent
        self._weak: weakref.ref[A] | None = None
        with contextlib.suppress(TypeError):
            # One agent has one such object, as long as somebody holds it: that makes equality outlive the agent.
            self._weak = weakref.ref(agent)

    def __call__(self) -> A | None:
        if self._agent is not None or self._weak is None:
            return self._agent
        return self._weak()

    @property
    def name(self) -> str:
        """The agent's name when the reference was made; it stays."""
        return self._name

    @property
    def released(self) -> bool:
        """Whether the reference was released; the agent may live on, if somebody else holds it."""
        return self._agent is None

    def release(self) -> None:
        """Hold the agent weakly from now on; calling this again does nothing."""
        self._agent = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AgentRef):
            return NotImplemented
        if self._weak is not None:
            return self._weak is other._weak
        return self is other or (self._agent is not None and self._agent is other._agent)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        state = "" if not self.released else ", released" if self() is not None else ", gone"
        return f"<AgentRef {self._name!r}{state}>"

    def __copy__(self) -> Self:
        copied = object.__new__(type(self))
        copied._agent, copied._weak = self._agent, self._weak
        copied._hash, copied._name = self._hash, self._name
        return copied

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        # So that `dataclasses.asdict()` of a run item does not copy agents.
        return self.__copy__()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} cannot be pickled, because an agent lives in its process; store its `name` instead")


def name_of(agent: object) -> str:
    """The name of an agent, or that of its type if it has none."""
    name = getattr(agent, "name", None)
    return name if isinstance(name, str) else type(agent).__name__
