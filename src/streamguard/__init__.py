"""Close async streams when their block is left: by break, return, error, cancellation or exhaustion."""

from ._aclosing import Aclosing
from ._chain import GuardedChain, guarded_chain
from ._decorator import guarded
from ._end import EndReason, StreamEnd
from ._errors import CleanupError, CleanupTimeoutError
from ._stream import GuardedStream, guarded_stream

__all__ = [
    "Aclosing",
    "CleanupError",
    "CleanupTimeoutError",
    "EndReason",
    "GuardedChain",
    "GuardedStream",
    "StreamEnd",
    "guarded",
    "guarded_chain",
    "guarded_stream",
]
