"""Which files hold code of yours: neither Python's, nor installed, nor streamguard's, unless you say so."""

from __future__ import annotations

import os.path
import sysconfig
from collections.abc import Iterable

_OURS = os.path.dirname(__file__) + os.sep
_INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
_PYTHONS = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))


class Yours:
    """Tells code of yours by its file; asked for each generator, so it remembers."""

    __slots__ = ("_known", "_packages")

    def __init__(self, packages: Iterable[str] = ()) -> None:
        self._known: dict[str, bool] = {}
        self._packages = tuple(packages)

    def __call__(self, file: str) -> bool:
        known = self._known.get(file)
        if known is None:
            known = self._known[file] = self._look_at(file)
        return known

    def _look_at(self, file: str) -> bool:
        if file.startswith((_OURS, "<frozen ")):
            return False
        for folder in _INSTALLED:
            _, found, inside = file.rpartition(folder)
            if found:
                return self._is_of_package(inside)
        return not file.startswith(_PYTHONS)

    def _is_of_package(self, inside: str) -> bool:
        module = os.path.splitext(inside)[0].replace(os.sep, ".") + "."
        return any(module.startswith(package + ".") for package in self._packages)
