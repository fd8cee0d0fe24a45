"""Sphinx: built without a network and with every warning an error (`nox -s docs`)."""

from importlib import import_module
from importlib.metadata import version as version_of
from inspect import isclass
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.logging import getLogger

import streamguard

project = "streamguard"
author = copyright = "streamguard contributors"
version = release = version_of("streamguard-aio")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "examples", "pictures"]
myst_heading_anchors = 3  # headings can be linked to, by the name that code hosts give them
html_theme = "furo"
html_title = f"streamguard {version}"

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
# Written out, these unions are longer than the page is wide; the text says what they take.
autodoc_type_aliases = {"Given": "streamguard._sources.Given", "Member": "streamguard._chain.Member"}
napoleon_numpy_docstring = False
# `Name` in a docstring means what it means in Python: the object of that name.
default_role = "py:obj"

# Offline, the names of other packages have no page to point to, and private ones never; public ones must have one.
nitpick_ignore_regex = [("py:.*", r"(?!streamguard\.(?!_)).*")]


def public_names() -> set[str]:
    """Every public name of the package, and the public members of its classes."""
    files = [file for file in Path(streamguard.__file__).parent.glob("[a-z]*.py") if "__all__" in file.read_text()]
    modules = [streamguard, *(import_module(f"streamguard.{file.stem}") for file in files)]
    objects = {f"{module.__name__}.{name}": getattr(module, name) for module in modules for name in module.__all__}
    members = {f"{name}.{member}" for name, thing in objects.items() if isclass(thing) for member in members_of(thing)}
    return {*objects, *members}


def members_of(kind: type) -> set[str]:
    """What the package says that a class has, less what exceptions, enumerations and sequences have anyway."""
    own = [base for base in kind.__mro__ if base.__module__.startswith("streamguard")]
    return {name for base in own for name in (*vars(base), *vars(base).get("__annotations__", ())) if name[0] != "_"}


def check_complete(app: Sphinx, env: BuildEnvironment) -> None:
    """What is public and not on a page fails the build, as every warning does."""
    for name in sorted(public_names() - env.domains["py"].objects.keys()):
        getLogger(__name__).warning("%s is public and not in the reference", name)


def setup(app: Sphinx) -> None:
    app.connect("env-check-consistency", check_complete)
