"""What was measured, each with its bar, and how it is printed."""

from dataclasses import dataclass

from timing import Spread, Times


@dataclass(frozen=True)
class Bar:
    """What a figure should be: at most, or at least, so much."""

    limit: float
    at_least: bool = False

    def is_met_by(self, figure: float) -> bool:
        return figure >= self.limit if self.at_least else figure <= self.limit

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.limit:g}"


def at_most(limit: float) -> Bar:
    return Bar(limit)


def at_least(limit: float) -> Bar:
    return Bar(limit, at_least=True)


@dataclass(frozen=True)
class Row:
    """One figure: ours, what it is compared with, and the bar."""

    backend: str
    what: str
    unit: str
    """``x``: times as long as the other, ``x faster``: times that the other takes as long, or ``KiB``."""
    figure: float
    low: float
    high: float
    """The quartiles of the rounds."""
    bar: Bar | None
    """``None`` where a figure is only for comparison."""
    against: str = ""
    ours: float | None = None
    other: float | None = None
    """Microseconds of each."""

    @property
    def missed(self) -> bool:
        return self.bar is not None and not self.bar.is_met_by(self.figure)

    @property
    def key(self) -> str:
        """The same figure in another run."""
        return f"{self.backend}: {self.what} {self.unit} {self.against}"


def slower(backend: str, what: str, times: Times, ours: str, other: str, limit: float) -> Row:
    """How many times as long as another ours may take."""
    return _compared(backend, what, times, (ours, other), "x", times.ratio(ours, other), at_most(limit))


def faster(backend: str, what: str, times: Times, ours: str, other: str, limit: float) -> Row:
    """How many times as long as ours another has to take."""
    return _compared(backend, what, times, (ours, other), "x faster", times.ratio(other, ours), at_least(limit))


def _compared(
    backend: str, what: str, times: Times, names: tuple[str, str], unit: str, ratio: Spread, bar: Bar | None
) -> Row:
    ours, other = names
    micros = times.micros(ours), times.micros(other)
    return Row(backend, what, unit, ratio.median, ratio.low, ratio.high, bar, other, *micros)


def compared(backend: str, what: str, times: Times, ours: str, other: str) -> Row:
    """The same, with no bar."""
    return _compared(backend, what, times, (ours, other), "x", times.ratio(ours, other), None)


def tally(rows: list[Row]) -> str:
    """How many bars are met."""
    bars = sum(row.bar is not None for row in rows)
    return f"{bars - sum(row.missed for row in rows)} of {bars} bars"


def sized(backend: str, what: str, kib: float, limit: float) -> Row:
    """How much memory something takes."""
    return Row(backend, what, "KiB", kib, kib, kib, at_most(limit))


HEADER = (
    f"{'':<9}{'what':<54}{'figure':<15}{'against':<32}{'bar':<9}{'':<8}{'quartiles':<16}{'us':>9}{'against us':>12}"
)


def line(row: Row) -> str:
    figure = f"{row.figure:.2f} {row.unit}"
    quartiles = "" if row.low == row.high else f"{row.low:.2f} - {row.high:.2f}"
    micros = "" if row.ours is None else f"{row.ours:>9.2f}{row.other:>12.2f}"
    bar = "" if row.bar is None else str(row.bar)
    verdict = "" if row.bar is None else "MISSED" if row.missed else "met"
    return f"{row.backend:<9}{row.what:<54}{figure:<15}{row.against:<32}{bar:<9}{verdict:<8}{quartiles:<16}{micros}"
