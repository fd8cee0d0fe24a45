"""Close async streams when their block is left: by break, return, error, cancellation or exhaustion."""

from ._aclosing import Aclosing
from ._agent_ref import AgentRef
from ._chain import GuardedChain, guarded_chain
from ._decorator import guarded
from ._end import EndReason, StreamEnd
from ._errors import CleanupError, CleanupTimeoutError
from ._history import ResultHistory
from ._release import ReleaseReport, release_agents
from ._stream import GuardedStream, guarded_stream

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
