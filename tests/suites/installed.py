"""Other people's tests, as they are installed: nothing of them is copied."""

import importlib
from types import ModuleType


def installed(name: str) -> ModuleType:
    """A module of tests; where there is none this fails, so that what did not run is not taken for passed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        message = f"cannot import {name} ({error}): some distributions leave the tests out; take a Python with them"
        raise ModuleNotFoundError(message) from error
