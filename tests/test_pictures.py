"""The picture of a turn shows what happens: a fresh recording has the same events in the same order."""

import asyncio

import plain
from timeline import ENABLED, draw, order_in, order_of


def test_turn_without_an_sdk() -> None:
    """The committed picture has the events of a fresh recording, in its order and in its tasks."""
    panels = asyncio.run(plain.record())
    assert order_in(plain.PICTURE.read_text()) == order_of(panels)


def test_what_the_picture_shows() -> None:
    """Bare, the model call is closed after input is enabled; guarded, before."""
    order = order_in(plain.PICTURE.read_text())
    for name, closed_first in {"a bare loop": False, "guarded": True}.items():
        turn = [event.split(" | ")[1] for event in order if event.startswith(f"{name} | ")]
        closed = next(place for place, event in enumerate(turn) if event.startswith("model call: closed"))
        enabled = next(place for place, event in enumerate(turn) if event.startswith(ENABLED))
        assert (closed < enabled) == closed_first


def test_drawn_events_are_found_again() -> None:
    """What stands in a picture is what it was drawn from, whatever characters are in it."""
    panels = asyncio.run(plain.record())
    odd = {f"<{name} & co>": events for name, events in panels.items()}
    assert order_in(draw("<odd>", odd)) == order_of(odd)
