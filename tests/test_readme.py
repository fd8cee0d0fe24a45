"""What the README claims: sentence by sentence, each with the tests that hold it.

A sentence that is not here fails `test_every_sentence`: write its test first. Code blocks run by themselves.
"""

import asyncio
import contextvars
import gc
import inspect
import re
import subprocess
import sys
import tomllib
import weakref
from collections.abc import AsyncGenerator, Coroutine
from pathlib import Path
from typing import Any

import pytest

from named import TESTS, is_there
from streamguard import Aclosing

ROOT = TESTS.parent
README = ROOT / "README.md"

BLOCK = "the block under it, which Sybil runs"
ADVICE = "says what to use, not what happens"
MEASURED = "measured by hand, on a machine with two cores"

CLAIMS: dict[str, tuple[str, ...]] = {
    "**When the block has been left, by any way out, nothing of the stream is left.**": (
        "test_ways_out::test_way_out",
        "test_ways_out::test_way_out_of_asyncio",
        "test_ways_out::test_way_out_of_trio",
        "test_ways_out::test_never_iterated",
        "test_ways_out::test_cancelled_at_any_turn",
    ),
    "This loop leaks: the run is still open when the function returns.": (
        "test_readme::test_closed_later_elsewhere_or_never",
    ),
    "This one does not: the run is closed, and its cleanup has ended, before the function returns.": (
        "test_ways_out::by_return",
    ),
    "Real agent turns, google-adk and openai-agents with offline models: what is closed, when, and in which task, "
    "first with a bare loop, then guarded.": ("conformance/test_agent_turn::test_timelines",),
    "The tests, on each supported Python that is on the `PATH`:": ("test_readme::test_commands",),
    "Each command needs Python 3.11, 3.12 or 3.13 with pip, and installs the rest into the checkout.": (
        "test_readme::test_commands",
        "test_readme::test_pythons",
    ),
    "The first takes about a minute, the second two to four for each Python.": (MEASURED,),
    "From a clone, `pip install .` does the same.": ("test_readme::test_names",),
    "The import name is `streamguard`.": ("test_readme::test_names",),
    "The project that has this name on the package index is another one.": ("read there",),
    "Python does not call `aclose()` when a loop is left by `break`, `return` or an error.": (
        "test_readme::test_no_call_of_aclose",
    ),
    "The generator is closed later, by the event loop, in another task and another context; or never, while somebody "
    "holds a reference.": ("test_readme::test_closed_later_elsewhere_or_never",),
    "With `leaking` and `guarded` from above:": (BLOCK,),
    "A dropped generator does not leak memory without bound.": ("test_readme::test_memory_is_bounded",),
    "The damage is late cleanup in another task and context, work that goes on (tokens, tools), locked agents, log "
    "noise, and lost errors.": (
        "test_readme::test_closed_later_elsewhere_or_never",
        "conformance/test_openai_agents::test_bare_loop",
        "test_readme::test_locked",
        "test_hooks::test_span_of_an_inner_generator_without_a_guard",
        "test_readme::test_lost_error",
    ),
    "`python -m streamguard trace app.py` runs a program and names each async generator that it left suspended, with "
    "the line that iterates it.": ("test_readme::test_trace",),
    "`pytest --streamguard=error` fails each test that leaves one.": ("test_pytest_plugin::test_error",),
    "For a part of a program, with the turns from above:": (BLOCK,),
    "the source runs in": ("test_aclosing::test_closes_in_the_task_that_leaves", "test_owner::test_one_task"),
    "per item": ("test_aclosing::test_same_object", "test_handoff::test_one_switch_to_the_owner_for_each_item"),
    "for": (ADVICE,),
    "cancelled while the source awaits": (
        "test_ways_out::test_aclosing_is_cut_by_a_scope",
        "test_ways_out::test_aclosing_is_cut_by_a_second_cancel",
        "test_ways_out::by_a_scope_while_the_source_waits",
        "test_ways_out::by_cancels_while_it_closes",
    ),
    "an error in the body and one in the cleanup": (
        "test_aclosing::test_error_cleanup_fails",
        "test_errors::test_error_and_cleanup_fails",
    ),
    "deadline for the cleanup, tail, `stop()`": (
        "test_readme::test_aclosing_has_no_options",
        "test_closing::test_hang_in_the_cleanup",
        "test_closing::test_tail_has_a_limit_of_its_own",
        "test_stream::test_stop_from_another_task",
    ),
    "A source is an async generator or iterator, an async iterable, a *run handle* (an object with `stream_events()` "
    "whose run goes on in the background, such as openai-agents' `Runner.run_streamed(...)`: it is told to stop, and "
    "waited for), an async context manager or an awaitable that gives one of these, or a callable without arguments "
    "that makes one.": (
        "test_sources::test_every_way_out",
        "test_runs::test_run_left_early",
        "conformance/test_openai_agents::test_guarded",
    ),
    "Both run on asyncio, uvloop and trio.": ("conftest::anyio_backend", "test_ways_out::test_way_out"),
    "A `guarded_stream` with its options:": (BLOCK,),
    "`chain.hand_off(source)` replaces the member that speaks, `chain.then(source)` queues one behind the others.": (
        "test_chain_hand_off::test_in_the_middle_of_a_member",
        "test_chain::test_then_behind_all_others",
    ),
    "With `@guarded`, callers have to write `async with`; a bare loop gets a `RuntimeError` that says so.": (
        "test_decorator::test_bare_loop",
    ),
    "When a client goes away, Starlette and FastAPI leave the body of a streamed response open, or cut its cleanup.": (
        "test_starlette::test_starlette_leaves_the_body_open",
        "serving/test_clients_leave::test_starlette",
    ),
    "This response closes it, its cleanup complete, before it ends:": (
        "test_starlette::test_client_leaves_while_the_body_waits",
        "test_starlette::test_client_leaves_while_it_does_not_read",
        "serving/test_clients_leave::test_guarded",
    ),
    "A stored result of openai-agents holds its agents, with their tools, models and clients.": (
        "conformance/test_release::test_off_by_default",
    ),
    "With `release_agents=True`, by `release_agents(result)` or in a `ResultHistory` it lets go of them and keeps "
    "their names.": (
        "conformance/test_release::test_option_of_the_guard",
        "conformance/test_release::test_stored",
        "conformance/test_release::test_history",
        "conformance/test_readme_results::test_stored_results",
    ),
    "Inside the source of a `guarded_stream`, the deadlines of its reader and later changes of context variables are "
    "not visible.": (
        "test_owner::test_deadlines_of_the_consumer_are_not_seen",
        "test_owner::test_context_is_copied_on_entry",
    ),
    "In the body, context variables that the source sets (the current span, log context) are not.": (
        "test_owner::test_context_variables_do_not_leak",
        "test_ways_out::test_no_span_stays_current",
    ),
    "What is bound to the current task (task-scoped sessions, anyio locks) sees two tasks.": (
        "test_limits::test_lock_of_the_source_is_not_the_bodys",
    ),
    "Use `Aclosing` there.": ("test_limits::test_lock_of_the_source_under_aclosing",),
    "A source that is already in its own `finally` when a cancellation hits it gets that cancellation there.": (
        "test_closing::test_limit_already_in_its_own_finally",
    ),
    "Tasks that a source starts and detaches on purpose are not joined.": ("test_limits::test_detached_task",),
    "A source that ignores every cancellation is abandoned at the deadline, and that is reported.": (
        "test_limits::test_source_that_ignores_every_cancellation",
    ),
}


def sentences() -> list[str]:
    """What the README says outside its code, headings and links; a row of a table goes by its first cell."""
    text = re.sub(r"^```.*?^```$", "", README.read_text(), flags=re.DOTALL | re.MULTILINE)
    found = []
    for block in re.split(r"\n\s*\n|\n(?=- |\|)", text):
        line = " ".join(block.split())
        if line.startswith("|"):
            found.append(line.strip("|").split("|")[0].strip())
        elif line and line[0] != "#" and "](docs/" not in line:
            found += re.split(r"(?<=[.:])\s(?=[A-Z`])", line.removeprefix("- "))
    return [sentence for sentence in found if sentence.strip("- ")]


def test_every_sentence() -> None:
    """No claim without a test, and no test here for what is not claimed."""
    assert sorted(sentences()) == sorted(CLAIMS)


@pytest.mark.parametrize("name", sorted({name for names in CLAIMS.values() for name in names if "::" in name}))
def test_every_test_is_there(name: str) -> None:
    """What is named here exists."""
    assert is_there(name)


# -- what Python does with a bare loop; on asyncio, where the README's programs run

var: contextvars.ContextVar[str] = contextvars.ContextVar("var", default="nothing")


class Agent:
    """An agent that writes down in which task and context its run is closed."""

    def __init__(self, error: Exception | None = None) -> None:
        self.log: list[str] = []
        self.tasks: list[str] = []
        self.error = error

    async def run(self) -> AsyncGenerator[str, None]:
        self.tasks.append(task_name())
        token = var.set("set by the run")
        try:
            yield "final"
            yield "more"
        finally:
            self.tasks.append(task_name())
            await asyncio.sleep(0)
            self.log.append(f"closed in {self._whose(token)} context")
            if self.error is not None:
                raise self.error

    def _whose(self, token: contextvars.Token[str]) -> str:
        try:
            var.reset(token)
        except ValueError:
            return "another"
        return "its"


def task_name() -> str:
    # Not the task itself: while somebody holds it, asyncio does not tell of its error.
    task = asyncio.current_task()
    assert task is not None
    return task.get_name()


async def first(stream: AsyncGenerator[str, None]) -> str:
    async for event in stream:
        return event
    raise AssertionError


async def turns_of_the_loop() -> None:
    """Enough of them for a close that was left to the loop; a time would not say how many."""
    for _ in range(20):
        await asyncio.sleep(0)


def run_alone(main: Coroutine[Any, Any, None]) -> None:
    """In a context of its own, so that one test sees nothing of the other."""
    contextvars.copy_context().run(asyncio.run, main)


def test_no_call_of_aclose() -> None:
    """Leaving a loop calls nothing: an iterator with `aclose()` hears nothing of it, however the loop is left."""
    calls: list[str] = []

    class Iterator:
        def __aiter__(self) -> "Iterator":
            return self

        async def __anext__(self) -> str:
            return "item"

        async def aclose(self) -> None:
            calls.append("aclose")

    async def by_return() -> None:
        async for _ in Iterator():
            return

    async def by_error() -> None:
        async for _ in Iterator():
            raise ValueError

    async def main() -> None:
        async for _ in Iterator():
            break
        await by_return()
        with pytest.raises(ValueError, match=r"^$"):
            await by_error()

    asyncio.run(main())
    gc.collect()
    assert calls == []


def test_closed_later_elsewhere_or_never() -> None:
    """Dropped, a generator is closed by another task in another context, later; kept, it stays as it is."""
    agent, other = Agent(), Agent()

    async def main() -> None:
        await first(agent.run())
        assert agent.log == []
        await turns_of_the_loop()
        assert agent.log == ["closed in another context"]
        assert agent.tasks[0] != agent.tasks[1]

        kept = other.run()
        await first(kept)
        gc.collect()
        await turns_of_the_loop()
        assert other.log == []
        await kept.aclose()

    run_alone(main())


def test_memory_is_bounded() -> None:
    """What a thousand bare loops have dropped is gone some turns of the event loop later."""
    agent = Agent()
    generators = weakref.WeakSet[AsyncGenerator[str, None]]()

    async def main() -> None:
        for _ in range(1000):
            stream = agent.run()
            generators.add(stream)
            await first(stream)
            del stream
            await asyncio.sleep(0)
        await turns_of_the_loop()
        gc.collect()
        assert len(generators) == 0

    run_alone(main())


def test_locked() -> None:
    """A lock that a left generator holds is held on: the next turn of the agent waits for it."""

    async def run(lock: asyncio.Lock) -> AsyncGenerator[str, None]:
        async with lock:
            yield "final"
            yield "more"

    async def main() -> None:
        lock = asyncio.Lock()
        kept = run(lock)
        await first(kept)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(lock.acquire(), 0.01)
        await kept.aclose()

    asyncio.run(main())


def test_lost_error() -> None:
    """What a late cleanup raises reaches no `except` of yours, only the loop's exception handler."""
    agent = Agent(OSError("the wire broke"))
    told: list[object] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
        await first(agent.run())
        await turns_of_the_loop()

    run_alone(main())
    assert told == [agent.error]


# -- commands, names, versions


def test_commands() -> None:
    """The commands are those of CI, and the sessions that they name are there."""
    commands = re.findall(r"-s (\w+)$", README.read_text(), flags=re.MULTILINE)
    assert commands == ["agent_turn", "tests"]
    sessions = (ROOT / "noxfile.py").read_text()
    for name in commands:
        assert f"\ndef {name}(session" in sessions
    assert "error_on_missing_interpreters = False" in sessions


def test_pythons() -> None:
    """The Pythons that the README names are those that are tested."""
    named = re.search(r"Python ([\d., or]+) with pip", README.read_text())
    assert named
    classifiers = _project()["classifiers"]
    tested = [line.rpartition(" ")[2] for line in classifiers if re.search(r":: 3\.\d+$", line)]
    assert re.findall(r"3\.\d+", named[1]) == tested


def test_names() -> None:
    """What is installed has the name that the README says, and so has what is imported."""
    installs = re.findall(r"pip install ([\w-]+|\.)$", README.read_text(), flags=re.MULTILINE)
    assert installs == [_project()["name"]] == ["streamguard-aio"]
    assert (ROOT / "src" / "streamguard" / "__init__.py").exists()


def _project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]  # type: ignore[no-any-return]


def test_aclosing_has_no_options() -> None:
    """`Aclosing` takes the thing, and nothing else."""
    assert list(inspect.signature(Aclosing).parameters) == ["thing"]


# -- the leak finder, on the README's own programs


def test_trace(tmp_path: Path) -> None:
    """Traced, the README's program is told of its leaking loop and of that alone, by the line that iterates it."""
    blocks = re.findall(r"^```python\n(.*?)^```$", README.read_text(), flags=re.DOTALL | re.MULTILINE)
    program = tmp_path / "app.py"
    program.write_text("\n".join(block for block in blocks[:3]))
    command = [sys.executable, "-m", "streamguard", "trace", "app.py"]
    traced = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert traced.returncode == 1
    assert "1 async generator was left suspended" in traced.stderr
    assert "Agent.run" in traced.stderr
    assert "async for event in agent.run():" in traced.stderr
