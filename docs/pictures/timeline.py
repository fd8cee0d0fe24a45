"""Draws recorded turns as SVG: what happened in which order, when, and in which task.

Each line of a picture is something that happened, in the order in which it began. What lasts is a bar, pale while it is
open and in full colour while it is being closed; what happens at once is a dot. Zero is the moment at which the loop is
left. The shaded part begins when the user may write again; what goes on in it has a red name. The events stand in the
picture as text as well, so that a test can compare them with those of a fresh run.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape, unescape
from itertools import count
from typing import TypeAlias

WIDTH, MARGIN, GUTTER, LINE, TITLE = 840, 16, 270, 34, 34
FONT = "13px system-ui, -apple-system, 'Segoe UI', sans-serif"
STYLE = f"""
  text {{ font: {FONT}; fill: #1c2230 }}
  .title {{ font-weight: 600 }}
  .scale {{ font-size: 11px; fill: #5b6475 }}
  .ground {{ fill: #ffffff; stroke: #d5dae3 }}
  .tick {{ stroke: #e6e9ef }}
  .left {{ stroke: #5b6475; stroke-dasharray: 4 3 }}
  .free {{ fill: #5b6475; fill-opacity: 0.12 }}
  .open {{ fill: #9db7e4 }}
  .closing {{ fill: #3f6fc4 }}
  .dot {{ fill: #1c2230 }}
  .late {{ fill: #c03a2b }}
  @media (prefers-color-scheme: dark) {{
    text {{ fill: #e4e8f0 }}
    .scale {{ fill: #9aa4b5 }}
    .ground {{ fill: #171b22; stroke: #363d4a }}
    .tick {{ stroke: #262c36 }}
    .left {{ stroke: #9aa4b5 }}
    .free {{ fill: #9aa4b5; fill-opacity: 0.14 }}
    .open {{ fill: #35517f }}
    .closing {{ fill: #79a2ee }}
    .dot {{ fill: #e4e8f0 }}
    .late {{ fill: #f0786a }}
  }}
"""

Scale: TypeAlias = Callable[[float], float]
"""Where a time stands in the picture."""

LEGEND = "full colour: being closed; shaded: the user may write"
LEFT = "the loop is left"
ENABLED = "input is enabled"


@dataclass(frozen=True)
class Event:
    """Something that happened: `opens`, `closing` and `closed` belong to a bar of that name."""

    at: float
    """Milliseconds since the loop was left."""
    name: str
    what: str
    task: str

    def __str__(self) -> str:
        return f"{self.name}: {self.what}, in {self.task}" if self.what else f"{self.name}, in {self.task}"


class Recorder:
    """Writes down what happens, when, and in which task."""

    def __init__(self, others: str) -> None:
        self._others = others
        """How tasks are called that are neither yours nor the guard's."""
        self._events: list[tuple[float, str, str, str]] = []

    def note(self, name: str, what: str = "") -> None:
        self._events.append((time.perf_counter(), name, what, self._task()))

    def _task(self) -> str:
        name = asyncio.current_task().get_name()
        if name.startswith("streamguard: "):
            return "the guard's task"
        return name if name == "your task" else self._others

    def events(self) -> list[Event]:
        left_at = next(at for at, name, *_ in self._events if name == LEFT)
        return [Event((at - left_at) * 1000, *rest) for at, *rest in self._events]


@dataclass
class Line:
    """One line of a panel."""

    name: str
    begin: float
    closing: float
    end: float
    task: str
    lasts: bool


def lines_of(events: list[Event]) -> list[Line]:
    """The lines of a panel: a bar for what opens and is closed, a dot for everything else."""
    lines: list[Line] = []
    bars: dict[str, Line] = {}
    for event in events:
        if event.what == "closing":
            bars[event.name].closing = event.at
        elif event.what == "closed":
            bar = bars.pop(event.name)
            bar.end, bar.task = event.at, event.task
        else:
            line = Line(event.name, event.at, event.at, event.at, event.task, lasts=event.what == "opens")
            lines.append(line)
            if line.lasts:
                bars[event.name] = line
    return lines


def draw(title: str, panels: dict[str, list[Event]]) -> str:
    """The picture of one turn, once for each way to read it."""
    everything = [event.at for events in panels.values() for event in events]
    first, last = min(everything), max(everything)
    begin, width = MARGIN + GUTTER, WIDTH - 2 * MARGIN - GUTTER - 24

    def x(at: float) -> float:
        return begin + (at - first) / (last - first) * width

    body: list[str] = []
    top = float(MARGIN)
    for name, events in panels.items():
        lines = lines_of(events)
        height = TITLE + LINE * len(lines) + 24
        body += panel(name, lines, x, top, height, range_of_ticks(first, last))
        top += height + MARGIN
    record = "\n".join(f"{name} | {event}" for name, events in panels.items() for event in events)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top:.0f}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<metadata>\n{escape(record)}\n</metadata>",
            f"<style>{STYLE}</style>",
            *body,
            "</svg>\n",
        ]
    )


def panel(name: str, lines: list[Line], x: Scale, top: float, height: float, ticks: range) -> Iterator[str]:
    bottom = top + height
    inner = WIDTH - 2 * MARGIN
    yield f'<rect class="ground" x="{MARGIN}" y="{top}" width="{inner}" height="{height}" rx="6"/>'
    yield f'<text class="title" x="{MARGIN + 10}" y="{top + 22}">{escape(name)}</text>'
    yield f'<text class="scale" text-anchor="end" x="{WIDTH - MARGIN - 10}" y="{top + 22}">{LEGEND}</text>'
    for tick in ticks:
        yield f'<line class="tick" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{top + TITLE}" y2="{bottom - 20}"/>'
        yield f'<text class="scale" text-anchor="middle" x="{x(tick):.1f}" y="{bottom - 7}">{tick} ms</text>'
    yield f'<line class="left" x1="{x(0):.1f}" x2="{x(0):.1f}" y1="{top + TITLE}" y2="{bottom - 20}"/>'
    enabled = next(line.begin for line in lines if line.name == ENABLED)
    right = WIDTH - MARGIN - 1
    yield (
        f'<rect class="free" x="{x(enabled):.1f}" y="{top + TITLE}" '
        f'width="{right - x(enabled):.1f}" height="{height - TITLE - 20}"/>'
    )
    for y, line in zip(count(top + TITLE + LINE / 2, LINE), lines, strict=False):
        late = line.end > enabled and line.task != "your task"
        yield from label(line, y, late=late)
        yield from bar(line, x, y) if line.lasts else dot(line, x, y, late=late)


def label(line: Line, y: float, *, late: bool) -> Iterator[str]:
    how = f"closed in {line.task}" if line.lasts else f"in {line.task}"
    kind = ' class="late"' if late else ""
    yield f'<text{kind} x="{MARGIN + 10}" y="{y - 1}">{escape(line.name)}</text>'
    yield f'<text class="scale" x="{MARGIN + 10}" y="{y + 12}">{escape(how)}</text>'


def bar(line: Line, x: Scale, y: float) -> Iterator[str]:
    for kind, begin, end in (("open", line.begin, line.closing), ("closing", line.closing, line.end)):
        yield f'<rect class="{kind}" x="{x(begin):.1f}" y="{y - 8}" width="{x(end) - x(begin):.1f}" height="16"/>'


def dot(line: Line, x: Scale, y: float, *, late: bool) -> Iterator[str]:
    yield f'<circle class="{"late" if late else "dot"}" cx="{x(line.begin):.1f}" cy="{y}" r="4.5"/>'


def range_of_ticks(first: float, last: float) -> range:
    """Round times, at most ten of them."""
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 10**6) if (last - first) / step <= 10)
    return range(int(first // step + 1) * step, int(last // step + 1) * step, step)


def order_in(picture: str) -> list[str]:
    """The events that a picture was drawn from, in order."""
    return unescape(picture.split("<metadata>\n")[1].split("\n</metadata>")[0]).split("\n")


def order_of(panels: dict[str, list[Event]]) -> list[str]:
    """The events of a recording, in the form in which they stand in a picture."""
    return [f"{name} | {event}" for name, events in panels.items() for event in events]
