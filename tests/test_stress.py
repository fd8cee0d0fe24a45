"""A little of what `stress/` does at length: every cancellation point, random cancellations, a crowd, random plays.

What is drawn is the same each time. The long forms are `nox -s stress` and `nox -s soak`.
"""

import gc
import itertools
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nothing_left import collect_until_quiet
from stress import every_cancellation, plays, random_cancels, soak
from stress.backends import deterministic, run_on
from stress.programs import ON_ASYNCIO, SOURCES, WAYS, Program
from stress.random_plays import test_of as make_test

SEED = 1
STRIDE = 6
"""How many points lie between two that are tried."""
CANCELS = 60
RUNS = 50
PLAYS = 30


@pytest.fixture(params=["asyncio", "uvloop", "trio"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """A backend whose tasks are stepped in the same order each time."""
    with warnings.catch_warnings(), deterministic(SEED):
        warnings.simplefilter("error")
        collect_until_quiet()
        yield str(request.param)
        gc.unfreeze()  # the harnesses freeze what is older than they


def cells(backend: str) -> Iterator[tuple[Program, every_cancellation.Kind]]:
    """Each source in one guard with one way out, cancelled by a scope and natively where there is such a thing."""
    ways, guards = itertools.cycle(sorted(WAYS)), itertools.cycle(["stream", "chain", "ahead", "decorated"])
    kinds = itertools.cycle(["scope"] if backend == "trio" else ["native", "scope"])
    for source in (*SOURCES, *(() if backend == "trio" else ON_ASYNCIO)):
        program = Program(source, next(ways), next(guards))
        yield program, every_cancellation.Kind(next(kinds))


def test_every_point(backend: str) -> None:
    """A program with any kind of source keeps the promise wherever it is cancelled."""
    count = every_cancellation.run(backend, cells(backend), STRIDE)
    assert count.violations == []
    assert count.points > 100


def test_random_cancels(backend: str) -> None:
    """Programs keep the promise at whatever time they are cancelled."""
    count = random_cancels.Count()
    run_on(backend, lambda: random_cancels.try_many(backend, CANCELS, SEED, itertools.count(), count))
    assert count.violations == []
    assert count.cancels >= CANCELS


def test_crowd(backend: str) -> None:
    """Fifty runs at once, a third of them with a fault: each is closed once, each tail runs once, nothing is left."""

    async def main() -> soak.Soak:
        crowd = soak.Soak(RUNS, SEED, longest_pause=0.01)
        await crowd.go_round(lambda: crowd.counts["runs"] < 3 * RUNS)
        return crowd

    crowd = run_on(backend, main)
    assert crowd.violations + crowd.sums() == []
    assert crowd.counts["with a fault"] >= RUNS / 2


@pytest.mark.parametrize("kind", ["streams", "chains"])
def test_plays(backend: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is done to a stream or a chain, from several tasks, goes as the model says."""
    monkeypatch.setattr(logging.getLogger("streamguard"), "disabled", True)  # the model compares what is told otherwise
    states: set[Any] = set()
    play: Callable[[], None] = make_test(getattr(plays, kind), backend, PLAYS, SEED, states)
    play()
    assert len(states) > PLAYS / 2
