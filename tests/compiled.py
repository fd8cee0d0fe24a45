"""An async generator as Cython makes it: it calls the hooks of `sys`, but has no frame, so it tells no state."""

from collections.abc import Awaitable

import anyio.lowlevel

from streamguard import _taps


class Compiled:
    """Counts, for ever, and writes down when it is closed."""

    def __init__(self, log: list[str]) -> None:
        self._log = log
        self._count = 0
        self._finalizer: object = None

    def __aiter__(self) -> "Compiled":
        return self

    def __anext__(self) -> Awaitable[int]:
        if not self._count:
            # Those that Python's own generators call: the leak finder hides them from `sys.get_asyncgen_hooks`.
            firstiter, self._finalizer = _taps._python[0]()
            firstiter(self)  # type: ignore[misc, arg-type]
        return self._next()

    async def _next(self) -> int:
        self._count += 1
        return self._count

    @property
    def ag_running(self) -> bool:
        return False

    async def aclose(self) -> None:
        self._finalizer = None
        await anyio.lowlevel.checkpoint()
        self._log.append("closed")

    def __del__(self) -> None:
        if callable(self._finalizer):
            self._finalizer(self)
