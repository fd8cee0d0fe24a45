"""What the pages say about the package is complete."""

from pathlib import Path

import pytest

import streamguard

REFERENCE = Path(__file__).parent.parent / "docs" / "reference.md"


@pytest.mark.parametrize("name", streamguard.__all__)
def test_reference(name: str) -> None:
    """Every public name has an entry in the reference."""
    assert f":: {name}" in REFERENCE.read_text()
