"""What a guard costs: one run, one table. `nox -s bench`; `-- --quick` for a look, `-- --record` for the docs.

The ratios are what to compare; the microseconds are this machine's. It is no test: a bar that is missed is said, and
that is all.
"""

import argparse
import gc
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import anyio

import costs
import footprint
import growth
import page
import peers
import rows
from growth import Growth
from peers import Peer
from record import Machine, Run
from rows import Row

T = TypeVar("T")

BACKENDS = {
    "asyncio": ("asyncio", {"use_uvloop": False}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}


@dataclass(frozen=True)
class Plan:
    """How much to do."""

    rounds: int
    turns: int
    """Rounds of agent turns."""
    imports: int
    growths: int
    largest: int
    """The most streams at once."""
    streams: int
    """One after the other."""


FULL = Plan(rounds=41, turns=41, imports=21, growths=7, largest=10_000, streams=100_000)
QUICK = Plan(rounds=7, turns=7, imports=7, growths=2, largest=100, streams=3_000)


def on(backend: str, measure: Callable[..., Awaitable[T]], *arguments: object) -> T:
    name, options = BACKENDS[backend]
    gc.collect()
    gc.freeze()  # what is imported is nobody's garbage
    return anyio.run(measure, backend, *arguments, backend=name, backend_options=options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--quick", action="store_true", help="fewer rounds: less than a minute")
    how.add_argument("--record", action="store_true", help="write the figures and charts of the docs anew")
    asked = parser.parse_args()
    plan = QUICK if asked.quick else FULL
    machine = Machine.here()
    print(machine)
    print(f"CPU time; medians of {plan.rounds} rounds in which all contenders take their turns; ratios within a round")
    before = os.getloadavg()[0]
    measured, imported = measure_rows(plan)
    run = Run(machine, [before, os.getloadavg()[0]], measured, imported, show_peers(plan), show_growth(plan))
    if asked.record:
        page.record(run)


def measure_rows(plan: Plan) -> tuple[list[Row], dict[str, float]]:
    """The table, row by row; and the milliseconds of imports."""
    measured: list[Row] = []

    def show(more: list[Row]) -> None:
        measured.extend(more)
        for row in more:
            print(rows.line(row), flush=True)

    print(f"\n{rows.HEADER}")
    for backend in BACKENDS:
        show(on(backend, costs.measure, plan.rounds))
    for backend in BACKENDS:
        show(on(backend, footprint.measure, plan.streams))
    row, imported = footprint.imports(plan.imports)
    show([row])
    import adk_turn  # it brings a million objects, which the others have no use for

    for backend in ("asyncio", "uvloop"):
        show(on(backend, adk_turn.measure, plan.turns))
    print(f"\n{rows.tally(measured)} are met in this run. Load average now {os.getloadavg()[0]:.1f}")
    print("Imports: " + ", ".join(f"{name} {millis:.0f} ms" for name, millis in imported.items()))
    return measured, imported


def show_peers(plan: Plan) -> list[Peer]:
    print(f"\n{peers.HEADER}")
    measured = on("asyncio", peers.measure, plan.rounds)
    for peer in measured:
        print(peers.line(peer))
    return measured


def show_growth(plan: Plan) -> list[Growth]:
    print("\nHow cost grows: the slope of the total (1: linear), and microseconds for one of so many")
    measured: list[Growth] = []
    for backend in BACKENDS:
        more = on(backend, growth.measure, plan.growths, plan.largest)
        measured += more
        for one in more:
            print(growth.line(one), flush=True)
    return measured


if __name__ == "__main__":
    main()
