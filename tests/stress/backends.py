"""Running something on one of the backends, the same way each time."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import anyio
from trio._core import _run

T = TypeVar("T")

BACKENDS = ("asyncio", "uvloop", "trio")


def chosen(backend: str) -> tuple[str, ...]:
    """The backends that a program was asked for."""
    if backend not in ("all", *BACKENDS):
        sys.exit(f"{backend!r} is no backend; take one of {', '.join(BACKENDS)}, or all")
    return BACKENDS if backend == "all" else (backend,)


def run_on(backend: str, main: Callable[[], Awaitable[T]]) -> T:
    """Run it to its end."""

    async def run() -> T:
        if backend != "trio":
            # asyncio's debug mode would tell of a busy machine, and the witness counts what is told.
            asyncio.get_running_loop().slow_callback_duration = 60
        return await main()

    name, options = ("trio", {}) if backend == "trio" else ("asyncio", {"use_uvloop": backend == "uvloop"})
    return anyio.run(run, backend=name, backend_options=options)


@contextmanager
def deterministic(seed: object = 0) -> Iterator[None]:
    """Have trio step its tasks in the same order each time; it shuffles them."""
    before, state = _run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r.getstate()
    _run._ALLOW_DETERMINISTIC_SCHEDULING = True
    _run._r.seed(str(seed))
    try:
        yield
    finally:
        _run._ALLOW_DETERMINISTIC_SCHEDULING = before
        _run._r.setstate(state)
