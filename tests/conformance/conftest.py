"""These tests run real SDKs, offline. Both need asyncio, so they run there and on uvloop."""

import gc
from typing import Any

import pytest


@pytest.fixture(
    params=[
        pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
        pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    ]
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return request.param


@pytest.fixture(autouse=True)
def _small_heap() -> None:
    """The SDKs leave a million objects, which no search for open generators has to walk through."""
    gc.collect()
    gc.freeze()
