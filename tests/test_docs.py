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


def test_pages_of_runners() -> None:
    """Pages that need SDKs are run by the session that has them, with every program and output on them."""
    files = [ROOT / "docs" / "howto" / f"{page}.md" for page in RUNNER_PAGES]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *files]
    collected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60).stdout
    session = (ROOT / "noxfile.py").read_text()
    for file in files:
        assert f'"{file.stem}"' in session
        blocks = [line for line in file.read_text().splitlines() if line in ("```python", "```text")]
        assert collected.count(f"{file.name}::") == len(blocks) > 5


def test_map_of_the_code() -> None:
    """CONTRIBUTING says of every module where it stands."""
    _, block, *_ = (ROOT / "CONTRIBUTING.md").read_text().split("```")
    words = set(block.replace(",", " ").split())
    assert {file.stem for file in (ROOT / "src" / "streamguard").glob("*.py")} <= words
