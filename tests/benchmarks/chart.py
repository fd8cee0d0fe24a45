"""The charts of the docs, drawn from a recorded run as SVG.

The rule kept here: it looks like the other pictures of the docs, on a ground of its own, light or dark as the reader's
system is.
"""

import math
from html import escape
from pathlib import Path

from growth import Growth
from record import Run

COLOURS = {
    # On white, and on black.
    "ours": ("#3f6fc4", "#79a2ee"),
    "floor": ("#9aa4b5", "#5b6475"),
    "others": ("#c98a2b", "#d9a24e"),
    "guards": ("#2c8a6f", "#57b99c"),
    "close": ("#b0528f", "#d583b7"),
    "before": ("#c03a2b", "#f0786a"),
}
CURVES = ["ours", "others", "guards", "close", "before", "floor"]
WIDTH, MARGIN = 800, 20
BAR, GAP, LABEL = 16, 6, 230
"""Pixels."""
FONT = "13px system-ui, -apple-system, 'Segoe UI', sans-serif"

ITEM, STREAM = "guarded_stream, an item", "guarded_stream, a stream: 3 items of 10, then left"
"""The rows that are drawn."""

Bars = list[tuple[str, float, str]]
"""Label, microseconds, colour."""


def costs(run: Run, path: Path) -> None:
    """What one item, and one stream, cost with each contender."""
    parts: list[str] = []
    y = 14.0
    for title, what in (("one item", ITEM), ("one stream, left at its third item", STREAM)):
        groups = {backend: _bars_of(run, backend, what) for backend in ("asyncio", "uvloop", "trio")}
        scale = (WIDTH - LABEL - 60) / max(micros for bars in groups.values() for _, micros, _ in bars)
        parts.append(_text(0, y, f"CPU time of {title}, in µs ({run.machine.python})", bold=True))
        y += 14
        for backend, bars in groups.items():
            parts.append(_text(0, y + 13, backend))
            for label, micros, colour in bars:
                parts.append(_text(LABEL - 8, y + 13, label, end=True))
                parts.append(_rectangle(LABEL, y, micros * scale, BAR, colour))
                parts.append(_text(LABEL + micros * scale + 6, y + 13, f"{micros:.1f}"))
                y += BAR + GAP
            y += 8
        y += 22
    _write(path, "What an item and a stream cost", y - 30, parts)


def _bars_of(run: Run, backend: str, what: str) -> Bars:
    rows = [row for row in run.rows if row.backend == backend and row.what == what]
    others = {row.against: row.other or 0 for row in rows}
    floor = [("the floor", others.pop("floor"), "floor")] if "floor" in others else []
    ours = [("guarded_stream", rows[0].ours or 0, "ours")]
    return floor + ours + [(name, micros, "others") for name, micros in others.items()]


def growth(run: Run, path: Path) -> None:
    """Microseconds for one of so many; a level line is linear growth."""
    curves = [one for one in run.growth if one.backend == "asyncio"]
    left, top, width, height = 50, 34, 420, 260
    x_most = max(math.log10(max(size for size, _ in one.micros)) for one in curves)
    y_most = math.ceil(math.log10(max(micros for one in curves for _, micros in one.micros)))

    def place(size: int, micros: float) -> tuple[float, float]:
        return left + width * math.log10(size) / x_most, top + height * (1 - math.log10(micros) / y_most)

    parts = [_text(0, 14, f"CPU time for one of so many, on asyncio, in µs ({run.machine.python})", bold=True)]
    for exponent in range(round(x_most) + 1):
        x, y = place(10**exponent, 1)
        parts += [_line(x, top, x, y), _text(x, y + 18, f"{10**exponent:,}", middle=True)]
    for exponent in range(y_most + 1):
        x, y = place(1, 10**exponent)
        parts += [_line(x, y, left + width, y), _text(x - 6, y + 4, f"{10**exponent:,}", end=True)]
    for index, (one, colour) in enumerate(zip(curves, CURVES, strict=True)):
        parts.append(_curve([place(*point) for point in one.micros], colour))
        parts += _legend(one, left + width + 24, top + 8 + 40 * index, colour)
    _write(path, "How cost grows", top + height + 20, parts)


def _legend(one: Growth, x: float, y: float, colour: str) -> list[str]:
    slope = _text(x + 18, y + 20, f"slope {one.slope:.2f}")
    return [_rectangle(x, y - 4, 12, 12, colour), _text(x + 18, y + 6, one.what), slope]


# -- SVG


def _text(x: float, y: float, words: str, *, bold: bool = False, end: bool = False, middle: bool = False) -> str:
    anchor = "end" if end else "middle" if middle else "start"
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight}>{escape(words)}</text>'


def _rectangle(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect class="{colour}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _curve(points: list[tuple[float, float]], colour: str) -> str:
    way = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in points)
    return f'<g class="{colour}"><polyline points="{way}"/>{dots}</g>'


def _style() -> str:
    def rules(index: int, text: str, ground: str, tick: str) -> str:
        colours = [f".{name} {{ fill: {shades[index]}; stroke: {shades[index]} }}" for name, shades in COLOURS.items()]
        return f"text {{ fill: {text} }} .ground {{ fill: {ground} }} line {{ stroke: {tick} }}\n{' '.join(colours)}"

    light, dark = rules(0, "#1c2230", "#ffffff", "#e6e9ef"), rules(1, "#e4e8f0", "#171b22", "#363d4a")
    shapes = (
        f"text {{ font: {FONT} }} text[font-weight] {{ font-weight: 600 }} polyline {{ fill: none; stroke-width: 2 }}"
    )
    return f"<style>\n{shapes}\n{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n</style>"


def _write(path: Path, title: str, height: float, parts: list[str]) -> None:
    across, down = WIDTH + 2 * MARGIN, round(height) + 2 * MARGIN
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{-MARGIN} {-MARGIN} {across} {down}" role="img">',
        f"<title>{escape(title)}</title>",
        _style(),
        f'<rect class="ground" x="{-MARGIN}" y="{-MARGIN}" width="{across}" height="{down}" rx="6"/>',
    ]
    path.write_text("\n".join([*head, *parts, "</svg>"]) + "\n")
