"""These tests serve over real connections. The server needs asyncio, so they run there and on uvloop."""

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "examples"))


@pytest.fixture(
    params=[
        pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
        pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    ]
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return request.param


@pytest.fixture
def http(anyio_backend: tuple[str, dict[str, Any]]) -> str:
    """Both of uvicorn's implementations of HTTP, one with each event loop."""
    return "httptools" if anyio_backend[1]["use_uvloop"] else "h11"
