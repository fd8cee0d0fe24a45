"""The teaching programs print what the page shows."""

import ast
from pathlib import Path

import pytest

from programs import DOCS, EXAMPLES, TEACHING, WITH_RUNNERS, expected, output_of

PAGE = (DOCS / "examples.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "program", [path for path in TEACHING if path.stem not in WITH_RUNNERS], ids=lambda path: path.stem
)
def test_output(program: Path) -> None:
    """A program prints exactly what its page shows, and nothing goes wrong on the way."""
    assert output_of(program, "-W", "error") == expected(program)


@pytest.mark.parametrize("program", TEACHING, ids=lambda path: path.stem)
def test_page(program: Path) -> None:
    """The page has the point of a program, then the program, then what it prints."""
    code = PAGE.index(f"literalinclude}} examples/{program.name}\n")
    point = " ".join(str(ast.get_docstring(ast.parse(program.read_text()))).split())
    assert " ".join(PAGE[:code].split()).endswith(f"{point} ```{{")
    assert PAGE.index(f"literalinclude}} examples/expected/{program.stem}.txt\n") > code


def test_nothing_is_left_over() -> None:
    """There is an output for each program, and no other."""
    assert {path.stem for path in (EXAMPLES / "expected").iterdir()} == {path.stem for path in TEACHING}
