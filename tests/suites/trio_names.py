"""The names of trio that its channel tests use, as anyio has them: with these they run on asyncio as well."""

from types import SimpleNamespace

import anyio
import anyio.lowlevel


def names() -> SimpleNamespace:
    """What stands for the module `trio`; made in the event loop, since the class of a cancellation is the loop's."""
    return SimpleNamespace(
        CancelScope=anyio.CancelScope,
        Cancelled=anyio.get_cancelled_exc_class(),
        ClosedResourceError=anyio.ClosedResourceError,
        Event=anyio.Event,
        lowlevel=SimpleNamespace(checkpoint=anyio.lowlevel.checkpoint),
        move_on_after=_move_on_soon,
        open_nursery=anyio.create_task_group,
        sleep_forever=anyio.sleep_forever,
        testing=SimpleNamespace(wait_all_tasks_blocked=anyio.wait_all_tasks_blocked),
    )


def _move_on_soon(seconds: float) -> anyio.CancelScope:
    """Trio's tests have a clock that jumps."""
    return anyio.move_on_after(seconds / 100)
