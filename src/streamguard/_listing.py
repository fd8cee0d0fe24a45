"""What stands in a source file, if it can be read: its lines, and the expression that a line iterates."""

from __future__ import annotations

import ast
import functools
import linecache
import sys
import warnings
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any


def lines_of(file: str) -> Sequence[str]:
    """The lines of a file, also of one in a zip file; none if it cannot be read."""
    return linecache.getlines(file) or linecache.getlines(file, _globals_of(file))


def _globals_of(file: str) -> dict[str, Any] | None:
    """The names of a module, its loader among them, which reads what the file system does not show."""
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            # Asked like this, a module that is loaded at its first use stays as it is.
            names: dict[str, Any] = object.__getattribute__(module, "__dict__")
            if names.get("__file__") == file:
                return names
    return None


def iterated_at(file: str, line: int) -> ast.expr | None:
    """What the line of a file iterates, if that is one thing."""
    found = {ast.unparse(what): what for number, what in _iterated_in("".join(lines_of(file))) if number == line}
    return next(iter(found.values())) if len(found) == 1 else None


@functools.lru_cache(maxsize=8)
def _iterated_in(source: str) -> Sequence[tuple[int, ast.expr]]:
    try:
        with warnings.catch_warnings(action="ignore"):  # of the program's strings
            tree = ast.parse(source)
    except (SyntaxError, ValueError):  # what was compiled from a template
        return ()
    # An iteration stands at the line on which its statement or expression begins.
    return [
        (node.lineno, what)
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt | ast.expr)
        for what in _iterated_by(node)
    ]


def _iterated_by(node: ast.AST) -> Iterator[ast.expr]:
    """What a statement or an expression iterates itself."""
    match node:
        case ast.AsyncFor(iter=iterated):
            yield iterated
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            yield from (part.iter for part in node.generators if part.is_async)
        case ast.Call(func=ast.Name(id="anext"), args=[iterated, *_]):
            yield iterated
        case ast.Call(func=ast.Attribute(value=iterated, attr="__anext__" | "asend")):
            yield iterated
