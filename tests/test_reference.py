"""The reference names all that is public."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src" / "streamguard"
REFERENCE = ROOT / "docs" / "reference.md"


def public_names() -> list[str]:
    """What the package and its public modules say that they bring; not imported, since one may need an extra."""
    files = [*SOURCES.glob("[a-z]*.py"), SOURCES / "__init__.py"]
    found = [re.search(r"^__all__ = (\[.*?\])", file.read_text(), flags=re.DOTALL | re.MULTILINE) for file in files]
    return [name for names in found if names for name in ast.literal_eval(names[1])]


@pytest.mark.parametrize("name", public_names())
def test_name(name: str) -> None:
    """Every public name has an entry in the reference."""
    assert re.search(rf":: {name}(\(\))?$", REFERENCE.read_text(), flags=re.MULTILINE)


def test_modules() -> None:
    """Every public module is named in the reference."""
    for file in SOURCES.glob("[a-z]*.py"):
        assert f"streamguard.{file.stem}" in REFERENCE.read_text()
