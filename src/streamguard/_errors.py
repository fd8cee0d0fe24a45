"""What goes wrong while closing, and how an error that cannot be raised is still told.

The rule kept here: one error leaves a block, bare; every other one becomes a note on it and one log record.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import traceback

logger = logging.getLogger("streamguard")


class CleanupError(RuntimeError):
    """The source did not close as an async generator must.

    It yielded while it was closed, or it raised a cancellation that nobody had asked for. Leaves from the exit of a
    guard's block. The cause is that cancellation, or the RuntimeError by which ``aclose()`` answers a ``yield``, as the
    language reference says.
    """


class CleanupTimeoutError(CleanupError, TimeoutError):
    """A close, a ``cancel`` or a tail did not end within ``cleanup_timeout``; the message says where it hangs.

    What hangs was cancelled, given 0.25 s, and abandoned if it still did not end.
    """


def without(
    error: BaseException, leaves: type[BaseException] | tuple[type[BaseException], ...]
) -> BaseException | None:
    """What is left of an error when the given kinds are taken out; the user's own grouping stays."""
    if isinstance(error, leaves):
        return None
    if isinstance(error, BaseExceptionGroup):
        return error.split(leaves)[1]
    return error


def consists_of(error: BaseException | None, kind: type[BaseException]) -> bool:
    """Whether this is such an error, or a group of nothing else."""
    return error is not None and without(error, kind) is None


def is_interrupt(error: BaseException | None) -> bool:
    """Whether this ends the program, by itself or in a group, as a task group makes one."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup((KeyboardInterrupt, SystemExit)) is not None
    return isinstance(error, KeyboardInterrupt | SystemExit)


def without_traceback(error: BaseException) -> BaseException:
    """A copy of an error that holds no frames, and no run; both hold agents."""
    if isinstance(error, BaseExceptionGroup):
        return error.derive([without_traceback(member) for member in error.exceptions])
    copied = _copy(error)
    for name, value in list(vars(copied).items()):
        if hasattr(value, "last_agent"):  # what an SDK's error tells of its run
            setattr(copied, name, None)
    return copied.with_traceback(None)


def _copy(error: BaseException) -> BaseException:
    # An error may be made of other arguments than those it keeps, or keep what no copy has.
    for make in (copy.copy, _copy_of_what_is_kept):
        with contextlib.suppress(Exception):
            copied = make(error)
            if type(copied) is type(error) and copied is not error and str(copied) == str(error):
                return copied
    text = "".join(traceback.format_exception_only(error)).strip()
    return RuntimeError(f"{text} (stands for an error that cannot be copied)")


def _copy_of_what_is_kept(error: BaseException) -> BaseException:
    copied = type(error).__new__(type(error), *error.args)
    copied.args = error.args
    vars(copied).update(vars(error))
    return copied


def report(secondary: BaseException, primary: BaseException | None, *, of_cleanup: bool = True) -> None:
    """Keep an error that cannot leave the block: a note on the one that does, and a log record."""
    text = "".join(traceback.format_exception_only(secondary)).strip()
    if primary is not None and primary is not secondary:
        fate = "the cleanup failed as well" if of_cleanup else "this took the place of"
        primary.add_note(f"streamguard: {fate}: {text}")
    what = "error while closing a stream" if of_cleanup else "error of a stream, displaced while it was closed"
    logger.error("%s: %s", what, text, exc_info=secondary)
