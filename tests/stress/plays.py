"""Which plays there are: what `hypothesis` draws from."""

from typing import TypeVar

from hypothesis import strategies as st

from .model import Options, Script
from .play import ACTORS, MAIN, Operation, Play

DRIVER = -1
T = TypeVar("T")


def lists(elements: st.SearchStrategy[T], most: int) -> st.SearchStrategy[tuple[T, ...]]:
    """Of any length, none more likely; left to itself, `hypothesis` makes most of them short."""
    return st.integers(0, most).flatmap(lambda size: st.lists(elements, min_size=size, max_size=size)).map(tuple)


# What is to come more often stands here more than once: a play that ends at once shows little.
steps = st.sampled_from(["item"] * 7 + ["gate"] * 4 + ["fail", "stop"])
numbers = st.sampled_from([None] * 4 + [0, 1, 2, 3, 4])
scripts = st.builds(
    Script,
    steps=lists(steps, 12),
    scope=st.sampled_from(["", "ends", "fails", "goes on"]),
    cleanup=st.sampled_from(["", "", "fails", "yields"]),
)
options = st.builds(
    Options,
    until=numbers,
    skipped=numbers,
    prefetch=st.sampled_from([0, 0, 0, 1, 2]),
    drains=st.booleans(),
)

actors = st.integers(MAIN, ACTORS - 1)
reads = st.builds(Operation, st.sampled_from(["read", "timed read", "timed read"]), st.just(MAIN) | actors)
events = st.builds(Operation, st.sampled_from(["open", "open", "fire"]))
additions = st.builds(Operation, st.sampled_from(["then", "hand off"]), st.just(DRIVER), scripts)
closes = st.builds(Operation, st.just("aclose"), actors)
exits = st.builds(Operation, st.sampled_from(["leave", "raise"]), st.just(MAIN))
ends = st.builds(Operation, st.sampled_from(["stop", "cancel", "cancel natively"]))


def _operations(
    alive: st.SearchStrategy[Operation], ending: st.SearchStrategy[Operation]
) -> st.SearchStrategy[tuple[Operation, ...]]:
    """Some that keep the stream alive, then at most two that end it, then whatever there is."""
    return st.tuples(lists(alive, 20), lists(ending, 2), lists(alive | ending, 4)).map(lambda parts: sum(parts, ()))


streams = st.builds(
    Play,
    scripts=st.tuples(scripts),
    options=options,
    operations=_operations(reads | events, closes | exits | ends),
)
chains = st.builds(
    Play,
    scripts=lists(scripts, 3),
    options=options,
    operations=_operations(reads | events | additions, closes | exits | ends),
    is_chain=st.just(True),
)
