"""Tests by their names, for what names them: promises and claims. ``test_closing::test_at_a_yield_break``."""

import ast
import functools
from pathlib import Path

TESTS = Path(__file__).parent


def is_there(name: str) -> bool:
    """Whether there is a function of that name in that file; a way out counts as well as the test that takes it."""
    file, function = name.split("::")
    return function in functions(file)


@functools.cache
def functions(file: str) -> set[str]:
    tree = ast.parse((TESTS / f"{file}.py").read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
