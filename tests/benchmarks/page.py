"""The figures of the docs: every recorded run as JSON, and the tables and charts that are made from them.

`python tests/benchmarks/page.py` makes tables and charts anew from the runs that are recorded.
"""

import math
from collections.abc import Iterable
from pathlib import Path

import chart
from record import Run
from rows import Row, tally

FIGURES = Path(__file__).parents[2] / "docs" / "figures"


def record(run: Run) -> None:
    """Keep a run, and make what the docs show of all."""
    run.save(FIGURES / f"benchmarks-{run.machine.minor}.json")
    make()


def make() -> None:
    runs = [Run.load_from(path) for path in sorted(FIGURES.glob("benchmarks-*.json"))]
    latest = runs[-1]
    parts = [_machines(runs), _bars(runs), _imports(runs), _peers(latest), _growth(latest)]
    (FIGURES / "benchmarks.inc").write_text("\n\n".join(parts) + "\n")
    chart.costs(latest, FIGURES / "cost.svg")
    chart.growth(latest, FIGURES / "growth.svg")


def _table(head: list[str], lines: Iterable[list[str]], right: int) -> str:
    """A Markdown table whose columns from `right` on are figures."""
    marks = [("---:" if column >= right else "---") for column in range(len(head))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, marks, *lines))


def _machines(runs: list[Run]) -> str:
    first = runs[0].machine
    pythons = ", ".join(run.machine.python for run in runs)
    versions = ", ".join(f"{name} {number}" for name, number in first.versions.items())
    met = "; ".join(f"{tally(run.rows)} met on {run.machine.minor}" for run in runs)
    return (
        f"{pythons}; {first.system}, {first.processor}, {first.cores} cores (load average at the start: "
        f"{', '.join(f'{run.load[0]:.1f}' for run in runs)}). {versions}.\n\n{met}."
    )


def _bars(runs: list[Run]) -> str:
    """One table for each event loop; a column for each Python."""
    cells = [{row.key: _cell(row) for row in run.rows} for run in runs]
    tables = []
    for backend in dict.fromkeys(row.backend for row in runs[-1].rows if row.backend):
        head = [backend, "against", "bar", *(run.machine.minor for run in runs)]
        lines = [
            [*_measured(row), *(known.get(row.key, "") for known in cells)]
            for row in runs[-1].rows
            if row.backend == backend
        ]
        tables.append(_table(head, lines, 3))
    return "\n\n".join(tables)


def _measured(row: Row) -> list[str]:
    return [
        row.what,
        {"x": f"x {row.against}", "x faster": f"faster than {row.against}"}.get(row.unit, row.unit),
        "" if row.bar is None else str(row.bar),
    ]


def _cell(row: Row) -> str:
    figure = f"**{row.figure:.2f}**" if row.missed else f"{row.figure:.2f}"
    return figure if row.ours is None else f"{figure} ({_micros(row.ours)})"


def _micros(value: float) -> str:
    """Three digits, and no exponent."""
    return f"{value:,.{max(0, 2 - math.floor(math.log10(value)))}f} µs"


def _imports(runs: list[Run]) -> str:
    rows = [row for row in runs[-1].rows if not row.backend]
    cells = [{row.key: _cell(row) for row in run.rows} for run in runs]
    head = ["", "against", "bar", *(run.machine.minor for run in runs)]
    lines = [[*_measured(row), *(known.get(row.key, "") for known in cells)] for row in rows]
    lines += [[name, "", "", *(f"{run.imports[name]:.0f} ms" for run in runs)] for name in runs[-1].imports]
    return _table(head, lines, 3)


def _peers(run: Run) -> str:
    head = [f"on asyncio, {run.machine.minor}", "what it does not guarantee", "an item, x bare", "an item", "a stream"]
    lines = [
        [f"`{peer.name}`", peer.remark, f"{peer.of_bare:.2f}", _micros(peer.per_item), _micros(peer.per_stream)]
        for peer in run.peers
    ]
    return _table(head, lines, 2)


def _growth(run: Run) -> str:
    head = [f"on {run.machine.minor}", "of", "slope", "µs for one of so many"]
    lines = [
        [one.backend, one.what, f"{one.slope:.2f}", ", ".join(f"{n:,}: {us:.1f}" for n, us in one.micros)]
        for one in run.growth
    ]
    return _table(head, lines, 2)


if __name__ == "__main__":
    make()
