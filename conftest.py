"""Runs the examples: the Python blocks in README and docs, and those in the docstrings."""

from sybil import Sybil
from sybil.document import PythonDocStringDocument
from sybil.parsers import myst, rest

pytest_plugins = ["pytester"]  # only the root may ask for it

_pages = Sybil(
    parsers=[myst.PythonCodeBlockParser()],
    patterns=["README.md", "docs/*.md", "docs/howto/*.md"],
)
_docstrings = Sybil(
    parsers=[rest.PythonCodeBlockParser(), rest.DocTestParser()],
    patterns=["src/streamguard/*.py"],
    document_types={".py": PythonDocStringDocument},
)
pytest_collect_file = (_pages + _docstrings).pytest()
