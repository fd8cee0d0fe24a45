"""The pictures of the runners' turns show what happens: a fresh recording has the same events in the same order."""

import asyncio

import runners
from timeline import order_in, order_of


def test_turns_of_runners() -> None:
    """The committed pictures have the events of a fresh recording, in its order and in its tasks."""
    for picture, panels in asyncio.run(runners.record()).items():
        assert order_in((runners.HERE / f"{picture}.svg").read_text()) == order_of(panels)
