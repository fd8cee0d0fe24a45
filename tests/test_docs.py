"""What the pages say about the package is complete."""

import subprocess
import sys
from pathlib import Path

import pytest

import streamguard

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference.md"
RUNNER_PAGES = ["google-adk", "langgraph", "openai-agents", "pydantic-ai"]


@pytest.mark.parametrize("name", streamguard.__all__)
def test_reference(name: str) -> None:
    """Every public name has an entry in the reference."""
    assert f":: {name}" in REFERENCE.read_text()


@pytest.mark.parametrize("page", RUNNER_PAGES)
def test_page_of_a_runner(page: str) -> None:
    """A page that needs an SDK is run by the session that has them, with every program and output on it."""
    assert f'"{page}"' in (ROOT / "noxfile.py").read_text()
    file = ROOT / "docs" / "howto" / f"{page}.md"
    blocks = [line for line in file.read_text().splitlines() if line in ("```python", "```text")]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", str(file)]
    collected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert collected.stdout.count(f"{page}.md::") == len(blocks) > 5
