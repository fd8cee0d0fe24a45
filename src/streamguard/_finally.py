"""Whether something that waits is in its own cleanup, so that a cancellation would cut it.

The rule kept here: what cannot be told (no source text, no Python frame) counts as no cleanup.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from types import CodeType

from ._where import frames


def in_finally(coroutine: object) -> bool:
    """Whether a suspended coroutine, or anything that it waits for, stands in a ``finally``."""
    return any(frame.f_lineno in _lines_in_finally(frame.f_code) for frame in frames(coroutine))


@functools.lru_cache(maxsize=1024)
def _lines_in_finally(code: CodeType) -> frozenset[int]:
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except Exception:  # no text, or not the text of this code
        return frozenset()
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Try | ast.TryStar):
            for statement in node.finalbody:
                found.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    return frozenset(line + first - 1 for line in found)
