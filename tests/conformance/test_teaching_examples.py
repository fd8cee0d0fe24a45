"""The teaching programs that need agent SDKs print what the page shows."""

from pathlib import Path

import pytest

from programs import TEACHING, WITH_RUNNERS, expected, output_of


@pytest.mark.parametrize(
    "program", [path for path in TEACHING if path.stem in WITH_RUNNERS], ids=lambda path: path.stem
)
def test_output(program: Path) -> None:
    """A program prints exactly what its page shows."""
    assert output_of(program) == expected(program)
