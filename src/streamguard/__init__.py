"""Close async streams when their block is left: by break, return, error, cancellation or exhaustion."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._aclosing import Aclosing
    from ._agent_ref import AgentRef
    from ._chain import GuardedChain, guarded_chain
    from ._decorator import guarded
    from ._end import EndReason, StreamEnd
    from ._errors import CleanupError, CleanupTimeoutError
    from ._history import ResultHistory
    from ._release import ReleaseReport, release_agents
    from ._stream import GuardedStream, guarded_stream

else:  # checkers would take any name for one of ours

    def __getattr__(name: str) -> object:
        if name not in _WHERE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        thing = globals()[name] = getattr(import_module(f".{_WHERE[name]}", __name__), name)
        return thing


__all__ = [
    "Aclosing",
    "AgentRef",
    "CleanupError",
    "CleanupTimeoutError",
    "EndReason",
    "GuardedChain",
    "GuardedStream",
    "ReleaseReport",
    "ResultHistory",
    "StreamEnd",
    "guarded",
    "guarded_chain",
    "guarded_stream",
    "release_agents",
]

# Loaded when it is asked for: what they need, asyncio and typing-extensions, takes longer to load than anyio does.
_WHERE = {
    "Aclosing": "_aclosing",
    "AgentRef": "_agent_ref",
    "CleanupError": "_errors",
    "CleanupTimeoutError": "_errors",
    "EndReason": "_end",
    "GuardedChain": "_chain",
    "GuardedStream": "_stream",
    "ReleaseReport": "_release",
    "ResultHistory": "_history",
    "StreamEnd": "_end",
    "guarded": "_decorator",
    "guarded_chain": "_chain",
    "guarded_stream": "_stream",
    "release_agents": "_release",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
