"""What the pages say about the package is complete."""

import subprocess
import sys
from pathlib import Path

import pytest

import streamguard

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference.md"


@pytest.mark.parametrize("name", streamguard.__all__)
def test_reference(name: str) -> None:
    """Every public name has an entry in the reference."""
    assert f":: {name}" in REFERENCE.read_text()


def blocks(page: Path) -> list[tuple[str, str]]:
    """The fenced blocks of a page: the language of each, and what it holds."""
    found: list[tuple[str, str]] = []
    inside = False
    for line in page.read_text().splitlines(keepends=True):
        if line.startswith("```"):
            inside = not inside
            if inside:
                found.append((line.strip("`\n"), ""))
        elif inside:
            language, text = found[-1]
            found[-1] = (language, text + line)
    return found


def test_trace_in_the_tutorial(tmp_path: Path) -> None:
    """The tutorial shows what `streamguard trace` says of its leaking program; of the mended one it says nothing."""
    on_the_page = blocks(ROOT / "docs" / "tutorial.md")
    shop, leaking, mended, *_ = [text for language, text in on_the_page if language == "python"]
    _, *shown = next(text for language, text in on_the_page if " trace chat.py" in text).split("...\n")
    for handler, status, report in ((leaking, 1, shown), (mended, 0, [])):
        (tmp_path / "chat.py").write_text(f"{shop}\n\n{handler}")
        command = [sys.executable, "-m", "streamguard", "trace", "chat.py"]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert bool(result.stderr) == bool(report)
        assert all(part in result.stderr for part in report)
        assert result.returncode == status
