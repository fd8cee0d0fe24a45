"""Stands for trio, which cannot be imported without a selector; the tests name it, those that run do not use it."""

from types import SimpleNamespace
from typing import Any


def _current_task() -> None:
    raise RuntimeError("this is not trio")


lowlevel = SimpleNamespace(current_task=_current_task, in_trio_task=lambda: False, Task=object)
abc = SimpleNamespace(Instrument=object)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # no package: anyio sees that its backend cannot be had
        raise AttributeError(name)
    return type(name, (Exception,), {})
