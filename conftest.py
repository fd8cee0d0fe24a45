"""Runs the examples: the Python blocks in README and docs, and those in the docstrings."""

import io
from contextlib import redirect_stdout

from sybil import Example, Sybil
from sybil.document import PythonDocStringDocument
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers import myst, rest
from sybil.sybil import SybilCollection

pytest_plugins = ["pytester"]  # only the root may ask for it

# These need agent SDKs: collected only where they are named, as `nox -s conformance` does.
RUNNER_PAGES = [f"docs/howto/{name}.md" for name in ("google-adk", "langgraph", "openai-agents", "pydantic-ai")]
collect_ignore = RUNNER_PAGES

_run = PythonEvaluator()


def _run_and_keep_output(example: Example) -> None:
    with redirect_stdout(io.StringIO()) as output:
        _run(example)
    example.namespace["output"] = output.getvalue()


def _check_output(example: Example) -> None:
    """A text block is the output of the program above it."""
    assert example.namespace.pop("output") == example.parsed


_pages = Sybil(
    parsers=[myst.PythonCodeBlockParser()],
    patterns=["README.md", "docs/*.md", "docs/howto/*.md"],
    excludes=RUNNER_PAGES,
)
_runner_pages = Sybil(
    parsers=[myst.CodeBlockParser("python", _run_and_keep_output), myst.CodeBlockParser("text", _check_output)],
    patterns=RUNNER_PAGES,
)
_docstrings = Sybil(
    parsers=[rest.PythonCodeBlockParser(), rest.DocTestParser()],
    patterns=["src/streamguard/*.py"],
    document_types={".py": PythonDocStringDocument},
)
pytest_collect_file = SybilCollection([_pages, _runner_pages, _docstrings]).pytest()
