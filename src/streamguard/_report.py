"""What was left, as text for people and as JSON for machines."""

from __future__ import annotations

import ast
import json
import os.path
from collections.abc import Iterator, Sequence

from ._listing import iterated_at, lines_of
from ._tracker import How, Leak

WIDTH = 100
_MARGIN = 18

_ENDS = {
    How.DROPPED: "dropped; closed by the event loop, later and in another task, or by Python",
    How.OPEN: "still open at the end, so it was closed late or not at all",
    How.UNFINALISED: "never finalised; its `finally` did not run to the end",
}


def as_json(leaks: Sequence[Leak]) -> str:
    """A list of objects, on one line."""
    return json.dumps([{name: getattr(leak, name) for name in Leak.__slots__} for leak in leaks])


def report(found: Sequence[Leak], inside: Sequence[Leak], *, list_inside: bool, how_to_list: str, colour: bool) -> str:
    """The whole text; empty if there is nothing to tell."""
    parts: list[str] = []
    if found:
        parts += [_title(found, "were left suspended"), *(describe(leak, colour=colour) for leak in found)]
    if inside and list_inside:
        parts += [_title(inside, "were left inside libraries"), *(describe(leak, colour=colour) for leak in inside)]
    elif inside and found:
        parts.append(f"{_total(inside):,} more inside libraries; {how_to_list} lists what is inside")
    return "\n\n".join(parts)


def describe(leak: Leak, *, colour: bool = False) -> str:
    """One leak: what, where, how, and what to do."""
    times = "" if leak.count == 1 else f", {leak.count:,} times"
    name = _cut(leak.name, WIDTH - len(times))
    lines = [_bold(name, colour) + times]
    lines += _place("  at its yield    ", leak.file, leak.line)
    lines += _place("  first iterated  ", leak.first_file, leak.first_line)
    lines.append("  how it ended    " + _ENDS[leak.how])
    lines.append("  the fix         " + _fix(leak))
    return "\n".join(lines)


def _title(leaks: Sequence[Leak], what: str) -> str:
    total = _total(leaks)
    if total == 1:
        return f"1 async generator {what.replace('were', 'was', 1)}:"
    places = "" if total == len(leaks) else f", at {len(leaks):,} place{'s' * (len(leaks) > 1)}"
    return f"{total:,} async generators {what}{places}:"


def _total(leaks: Sequence[Leak]) -> int:
    return sum(leak.count for leak in leaks)


def _place(label: str, file: str, line: int) -> Iterator[str]:
    number = f":{line}"
    yield label + _cut_left(_short(file), WIDTH - _MARGIN - len(number)) + number
    # No lines, or a file that is shorter now.
    for source in lines_of(file)[line - 1 : line]:
        if source.strip():
            yield " " * (_MARGIN + 2) + _cut(source.strip(), WIDTH - _MARGIN - 2)


def _fix(leak: Leak) -> str:
    before, after = "async with guarded_stream(", ") as stream:"
    iterated = iterated_at(leak.first_file, leak.first_line)
    source = _call_of(leak.name) if iterated is None else _shortened(iterated)
    if len(before + source + after) > WIDTH - _MARGIN:
        source = "..."
    return before + source + after


def _shortened(iterated: ast.expr) -> str:
    match iterated:
        # The events alone do not stop the run; the handle does.
        case ast.Call(func=ast.Attribute(value=run, attr="stream_events")):
            return _shortened(run)
        case ast.Call(func=function, args=[], keywords=[]):
            return f"{ast.unparse(function)}()"
        case ast.Call(func=function):
            return f"{ast.unparse(function)}(...)"
    return ast.unparse(iterated)


def _call_of(name: str) -> str:
    """The call that made a generator, as far as its name tells; a generator expression, for one, was not called."""
    function = name.rpartition("<locals>.")[2]
    if function.endswith(".stream_events"):
        return "run"
    is_called = all(part.isidentifier() and not part.startswith("__") for part in function.split("."))
    return f"{function}(...)" if is_called else "..."


def _short(file: str) -> str:
    try:
        short = os.path.relpath(file)
    except (ValueError, OSError):  # another drive, or the current folder is gone
        return file
    return file if short.startswith(os.pardir) or not os.path.isabs(file) else short


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _cut_left(text: str, width: int) -> str:
    return text if len(text) <= width else "..." + text[3 - width :]


def _bold(text: str, colour: bool) -> str:
    return f"\033[1;33m{text}\033[0m" if colour else text
