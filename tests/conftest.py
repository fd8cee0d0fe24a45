"""Every test that is marked `anyio` runs on each backend, and must leave nothing behind."""

import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from nothing_left import Watch, collect_until_quiet
from spies import ASYNCIO

BACKENDS = [*ASYNCIO, pytest.param(("trio", {}), id="trio")]


@pytest.fixture(params=BACKENDS)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return request.param


@pytest.fixture
def watch() -> Watch:
    """What `nothing_left` uses; `watch.claim(pattern)` takes out what the test expected."""
    return Watch()


@pytest.fixture
async def nothing_left(anyio_backend_name: str, watch: Watch, request: pytest.FixtureRequest) -> AsyncIterator[None]:
    watch.start(anyio_backend_name)
    try:
        yield
        left = watch.left()
    finally:
        watch.stop()
    if left and not request.node.get_closest_marker("may_leave"):
        raise AssertionError("\n  ".join(["the test left something behind:", *left]))


@pytest.fixture(autouse=True)
def _nothing_left(request: pytest.FixtureRequest) -> None:
    # An async fixture cannot be automatic itself: it would fail every test that is not async.
    if "anyio_backend" in request.fixturenames:
        # What is older than the test need not be walked each time that `nothing_left` collects.
        collect_until_quiet()
        gc.freeze()
        request.getfixturevalue("nothing_left")
