"""How a stream ended: a record for the tail and for whoever asks after the block."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Generic, TypeAlias
from typing import TypeVar as PlainTypeVar

from typing_extensions import TypeVar

from ._release import ReleaseReport

# With a default, so that a tail may be annotated with the bare name.
T = PlainTypeVar("T")
T_co = TypeVar("T_co", covariant=True, default=object)


class EndReason(enum.Enum):
    """What ended a stream. What leaves the block decides, else what ended the source."""

    EXHAUSTED = "exhausted"
    """The source came to its own end."""
    MATCHED = "matched"
    """``until`` returned true for the last item."""
    LEFT = "left"
    """The block was left early, by break, return, or ``GeneratorExit`` in the body; also when nothing was read."""
    STOPPED = "stopped"
    """Somebody called ``stop()``, or ``aclose()``, inside the block."""
    CANCELLED = "cancelled"
    """A cancellation leaves the block."""
    FAILED = "failed"
    """An error leaves the block, or ended the source."""
    UNSTARTED = "unstarted"
    """A member of a chain whose turn never came."""


@dataclass(frozen=True, slots=True)
class StreamEnd(Generic[T_co]):
    """How a stream ended; the argument of ``tail`` and the value of ``GuardedStream.end``."""

    reason: EndReason
    """What ended the stream."""
    error: BaseException | None
    """The error or cancellation that leaves the block or ended the source."""
    cleanup_errors: tuple[BaseException, ...]
    """An error whose place another one took, then the errors of ``cancel``, close and tail in the order they came."""
    items: int
    """How many items the reader was given."""
    last: T_co | None
    """The last item that the reader was given."""
    source: object
    """The opened source; of a callable or an awaitable, what it made; of a chain, that of the member read last."""
    members: tuple[StreamEnd[T_co], ...] = ()
    """How each member of a chain ended, in order; empty for a single stream."""
    release: ReleaseReport | None = None
    """With ``release_agents=True``, what the run let go of; the errors are then copies without traceback."""


Facts: TypeAlias = tuple[EndReason, BaseException | None, tuple[BaseException, ...], int, T | None, object]
"""What a `StreamEnd` is made of, in order. Few ask for the record, and to make it costs more than to leave a block."""
