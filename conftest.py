"""Runs the examples: the Python blocks in README and docs, and those in the docstrings."""

import sys
from contextlib import redirect_stdout
from difflib import unified_diff
from io import StringIO

from sybil import Example, Sybil
from sybil.document import PythonDocStringDocument
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers import myst, rest

pytest_plugins = ["pytester"]  # only the root may ask for it

# These need agent SDKs: collected only where they are named, as `nox -s conformance` does.
RUNNER_PAGES = [
    "docs/tutorial-runners.md",
    *(f"docs/howto/{name}.md" for name in ("google-adk", "langgraph", "openai-agents", "pydantic-ai")),
]
# And this one FastAPI, as in `nox -s serving`.
collect_ignore = [*RUNNER_PAGES, "docs/howto/serve-with-fastapi.md"]

_python = PythonEvaluator()


def run(example: Example) -> None:
    """Run a Python block, and keep what it prints."""
    example.namespace["_printed"] = ""
    with redirect_stdout(StringIO()) as printed:
        _python(example)
    example.namespace["_printed"] = printed.getvalue()


def compare(example: Example) -> str | None:
    """A text block is what the Python block above it prints; say how it differs."""
    shown = example.parsed.splitlines(keepends=True)
    printed = example.namespace["_printed"].splitlines(keepends=True)
    return "".join(unified_diff(shown, printed, "page", "printed")) or None


def compare_before_3_13(example: Example) -> str | None:
    return compare(example) if sys.version_info < (3, 13) else None


def compare_since_3_13(example: Example) -> str | None:
    return compare(example) if sys.version_info >= (3, 13) else None


_pages = Sybil(
    parsers=[
        myst.CodeBlockParser("python", run),
        myst.CodeBlockParser("text", compare),
        myst.CodeBlockParser("text before 3.13", compare_before_3_13),
        myst.CodeBlockParser("text since 3.13", compare_since_3_13),
    ],
    patterns=["README.md", "docs/*.md", "docs/explanation/*.md", "docs/howto/*.md"],
)
_docstrings = Sybil(
    parsers=[rest.PythonCodeBlockParser(), rest.DocTestParser()],
    patterns=["src/streamguard/*.py"],
    document_types={".py": PythonDocStringDocument},
)
pytest_collect_file = (_pages + _docstrings).pytest()
