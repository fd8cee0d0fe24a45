"""Runs the tests that need asyncio alone, on a Python that has neither sockets nor threads nor processes."""

import asyncio
import sys
import time
from typing import Any

import pytest

# Neither those that start programs, nor those of the pages.
TESTS = """abandoned aclosing agent_ref asyncio chain chain_hand_off chain_ways_out closing decorator end errors futures
handoff history hooks limits many nesting no_sources options owner prefetch references release runs sources stepping
stream ways_out"""
# OpenTelemetry looks around in a thread.
ONLY = "asyncio and not trio and not uvloop and not thread and not span and not another_loop"


class Loop(asyncio.BaseEventLoop):
    """An event loop without input and output. Pyodide's own cannot run until something is complete."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _NothingToSelect()

    def _process_events(self, events: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


class _NothingToSelect:
    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("nothing is left that could wake this loop")
        time.sleep(timeout)
        return []


def run(arguments: list[str]) -> int:
    """The exit status of pytest."""
    asyncio._set_running_loop(None)  # Pyodide's, which runs all the time
    asyncio.events.new_event_loop = asyncio.new_event_loop = Loop  # type: ignore[assignment]
    print(sys.version)  # noqa: T201
    tests = arguments or [f"tests/test_{name}.py" for name in TESTS.split()]
    plugins = ["-panyio", "-pstreamguard.pytest_plugin", "-pno:cacheprovider"]
    return int(pytest.main([*plugins, "-k", ONLY, *tests]))
