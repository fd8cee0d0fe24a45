"""What the pages say is complete, and every block on them runs."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from programs import DOCS, blocks

ROOT = DOCS.parent
FOUND = [ROOT / "README.md", *(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)]
PAGES = sorted(page.relative_to(ROOT) for page in FOUND)
OUTPUT = {"text", "text before 3.13", "text since 3.13"}
SDK_IMPORT = re.compile(r"^(from|import) (agents|fastapi|google|langgraph|offline_|pydantic_ai)", re.MULTILINE)
NOT_RUN = {"", "diff", "json", "toml", "{eval-rst}", "{glossary}", "{include}", "{literalinclude}", "{toctree}"}


def collected(*arguments: object) -> Counter[str]:
    """How many blocks of each page pytest runs when it is called like this."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--assert=plain", *map(str, arguments)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout
    return Counter(re.findall(r"^(.+\.md)::line:", result.stdout, re.MULTILINE))


def test_every_block_runs() -> None:
    """Each program on a page, and each output below one, is an item of the tests; nothing else could skip it."""
    counted = {str(page): sum(language in {"python", *OUTPUT} for language, _ in blocks(ROOT / page)) for page in PAGES}
    assert collected(*PAGES) == Counter(counted)
    assert sum(counted.values()) > 100


def test_pages_of_runners() -> None:
    """The pages that need SDKs, and no others, are left to the session that has them."""
    here = collected("README.md", "docs")
    session = (ROOT / "noxfile.py").read_text()
    for page in PAGES:
        programs = "".join(text for language, text in blocks(ROOT / page) if language == "python")
        if programs and str(page) not in here:
            assert SDK_IMPORT.search(programs)
            assert page.stem in session


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_kinds_of_blocks(page: Path) -> None:
    """A block is of a kind that is run, or of one that has nothing to run."""
    for language, _ in blocks(ROOT / page):
        kind = language.split(" ")[0] if language.startswith("{") else language
        assert kind in {"python", *OUTPUT, *NOT_RUN}


def test_map_of_the_code() -> None:
    """CONTRIBUTING says of every module where it stands."""
    _, block, *_ = (ROOT / "CONTRIBUTING.md").read_text().split("```")
    words = set(block.replace(",", " ").split())
    assert {file.stem for file in (ROOT / "src" / "streamguard").glob("*.py")} <= words


def test_trace_in_the_tutorial(tmp_path: Path) -> None:
    """The tutorial shows what `streamguard trace` says of its leaking program; of the mended one it says nothing."""
    on_the_page = blocks(DOCS / "tutorial.md")
    shop, leaking, mended, *_ = [text for language, text in on_the_page if language == "python"]
    _, *shown = next(text for language, text in on_the_page if " trace chat.py" in text).split("...\n")
    for handler, status, report in ((leaking, 1, shown), (mended, 0, [])):
        (tmp_path / "chat.py").write_text(f"{shop}\n\n{handler}")
        command = [sys.executable, "-m", "streamguard", "trace", "chat.py"]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert bool(result.stderr) == bool(report)
        assert all(part in result.stderr for part in report)
        assert result.returncode == status
