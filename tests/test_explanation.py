"""What `docs/explanation/what-python-does.md` says beside its programs, which Sybil runs."""

import asyncio
from collections.abc import Coroutine
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import pytest
import uvloop

from programs import DOCS, blocks


def run_under_uvloop(main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


def test_programs_under_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs print the same under uvloop, but for the stream that was dropped just before the loop's end."""
    monkeypatch.setattr(asyncio, "run", run_under_uvloop)
    namespace: dict[str, Any] = {}
    differ: list[str] = []
    printed = ""
    for language, text in blocks(DOCS / "explanation" / "what-python-does.md"):
        if language == "python":
            with redirect_stdout(StringIO()) as output:
                exec(text, namespace)
            printed = output.getvalue()
        elif language == "text":
            assert printed == text
        else:
            differ.append(printed)
    assert differ == ["the program ends\nletters() gets GeneratorExit\n"] * 2
