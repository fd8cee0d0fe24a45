"""The pictures of the runners' turns show what happens: a fresh recording has the same events in the same order."""

import asyncio
import sys
from pathlib import Path

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
sys.path.insert(0, str(PICTURES))

import runners  # noqa: E402
from timeline import order_in, order_of  # noqa: E402


def test_turns_of_runners() -> None:
    """The committed pictures have the events of a fresh recording, in its order and in its tasks."""
    for picture, panels in asyncio.run(runners.record()).items():
        assert order_in((PICTURES / f"{picture}.svg").read_text()) == order_of(panels)
