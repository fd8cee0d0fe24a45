"""The blocks of the pages, and the teaching programs in `docs/examples`, which run alone, in a Python of their own."""

import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
EXAMPLES = DOCS / "examples"
TEACHING = sorted(path for path in EXAMPLES.glob("*.py") if "\nLook at " in path.read_text())
WITH_RUNNERS = {"adk_final_responses", "openai_stop", "stored_results"}
"""These need agent SDKs: they run with the conformance tests."""


def output_of(program: Path, *options: str) -> str:
    """What a program prints; it has to end well, and say nothing on standard error."""
    result = subprocess.run(
        [sys.executable, *options, str(program)], capture_output=True, text=True, encoding="utf-8", timeout=120
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def expected(program: Path) -> str:
    return (EXAMPLES / "expected" / f"{program.stem}.txt").read_text(encoding="utf-8")


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
