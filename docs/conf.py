"""Sphinx: built without a network and with every warning an error (`nox -s docs`)."""

from importlib.metadata import version as version_of

project = "streamguard"
author = copyright = "streamguard contributors"
version = release = version_of("streamguard-aio")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "examples"]
html_theme = "furo"
html_title = f"streamguard {version}"

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
# Written out, this union is longer than the page is wide; the text says what it takes.
autodoc_type_aliases = {"Given": "streamguard._sources.Given"}
napoleon_numpy_docstring = False
# `Name` in a docstring means what it means in Python: the object of that name.
default_role = "py:obj"

# Offline, the names of other packages have no page to point to, and private ones never; public ones must have one.
nitpick_ignore_regex = [("py:.*", r"(?!streamguard\.(?!_)).*")]
