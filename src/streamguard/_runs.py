"""Run handles: runs that go on in the background and hand out their events (openai-agents, llama-index).

The rule kept here: a run is told to stop once, and not when it is complete or being stopped by somebody else: a second
time cuts the cleanup of its model. Recognised by their shape; no SDK is imported.
"""

from __future__ import annotations

import asyncio
from typing import Any


class Run:
    """A run handle, and whether we told it to stop."""

    __slots__ = ("_handle", "_stopped")

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._stopped = False

    def stop(self) -> object:
        """Tell the run to stop, unless that is not needed; what this returns may have to be awaited."""
        if self.is_ending:
            return None
        for name in ("cancel_run", "cancel"):
            cancel = getattr(self._handle, name, None)
            if callable(cancel):
                result = cancel()
                self._stopped = True
                return result
        return None

    @property
    def is_ending(self) -> bool:
        """Whether the run is complete or being stopped: it ends by itself now."""
        if self.was_told:
            return True
        task = self._task()
        # openai-agents: is_complete is set at once by cancel().
        return (task is not None and task.done()) or bool(getattr(self._handle, "is_complete", False))

    @property
    def was_told(self) -> bool:
        """Whether somebody has told the run to stop, so that a cancellation may come out of it."""
        if self._stopped or getattr(self._handle, "_cancel_mode", "none") != "none":  # openai-agents
            return True
        task = self._task()
        if task is None:
            return False
        return task.cancelled() or (isinstance(task, asyncio.Task) and task.cancelling() > 0)

    def _task(self) -> asyncio.Future[Any] | None:
        for name in ("run_loop_task", "_run_impl_task", "_result_task"):
            task = getattr(self._handle, name, None)
            if asyncio.isfuture(task):
                return task
        return None

    async def settle(self) -> None:
        """Wait for the background task, and raise the error that the run stored."""
        task = self._task()
        if task is None:
            return
        # Never awaited directly: a cancellation of this wait must not reach the run as a second one.
        await asyncio.wait([task])
        error = None if task.cancelled() else task.exception()
        if hasattr(self._handle, "run_loop_exception"):
            error = self._handle.run_loop_exception
        elif self._stopped and "Cancel" in type(error).__name__:
            return  # llama-index says so that it did what it was told
        if error is not None and not isinstance(error, asyncio.CancelledError):
            raise error
