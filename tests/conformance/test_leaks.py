"""Turns of agent SDKs that are left early without a guard are reported with the user's own line, and only that."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import pytest
import uvloop
from google.adk.runners import InMemoryRunner
from google.adk.workflow import START, Workflow

from offline_adk import OfflineAgent, answer, open_runner, start_turn, two_agents
from offline_openai import is_whole_message, start_run
from offline_wire import Wire
from streamguard import guarded_stream
from streamguard.leaks import How, Leaks, track

Main = Callable[[], Awaitable[None]]
kept: list[object] = []


def run(main: Main, loop: str) -> Leaks:
    factory = uvloop.new_event_loop if loop == "uvloop" else None
    with track() as leaks, asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())  # type: ignore[arg-type]
    kept.clear()
    return leaks


def line_of(tag: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {tag}"))


def find_order(number: str) -> str:
    """Finds an order by its number."""
    return "lost in the mail"


async def charge_card() -> str:
    """Charges the card."""
    return "charged"


async def adk_runner() -> InMemoryRunner:
    return await open_runner(two_agents(Wire(), find_order))


async def adk_break() -> None:
    async for _ in start_turn(await adk_runner()):  # adk_break
        break


async def adk_at_final_response() -> None:
    async for event in start_turn(await adk_runner()):  # adk_at_final_response
        if event.is_final_response():
            return


async def adk_reference() -> None:
    kept.append(turn := start_turn(await adk_runner()))
    async for _ in turn:  # adk_reference
        break


async def openai_break() -> None:
    async for event in start_run(Wire(), charge_card).stream_events():  # openai_break
        if is_whole_message(event):
            break


async def openai_error() -> None:
    try:
        async for _ in start_run(Wire(), charge_card).stream_events():  # openai_error
            raise ConnectionError
    except ConnectionError:
        pass


loops = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])


@loops
@pytest.mark.parametrize(
    ("main", "name", "how"),
    [
        (adk_break, "Runner.run_async", How.DROPPED),
        (adk_at_final_response, "Runner.run_async", How.DROPPED),
        (adk_reference, "Runner.run_async", How.OPEN),
        (openai_break, "RunResultStreaming.stream_events", How.DROPPED),
        (openai_error, "RunResultStreaming.stream_events", How.DROPPED),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # ADK's, tracked or not
def test_left_early(loop: str, main: Main, name: str, how: How) -> None:
    """One leak: the SDK's generator, first iterated at the user's line."""
    (leak,) = run(main, loop).found
    assert (leak.name, leak.how, leak.count) == (name, how, 1)
    assert (leak.first_file, leak.first_line) == (__file__, line_of(main.__name__))
    assert "site-packages" in leak.file


async def adk_guarded() -> None:
    async with guarded_stream(start_turn(await adk_runner())) as stream:
        async for _ in stream:
            break


async def openai_guarded() -> None:
    async with guarded_stream(start_run(Wire(), charge_card)) as stream:
        async for event in stream:
            if is_whole_message(event):
                break


async def adk_to_its_end() -> None:
    async for _ in start_turn(await adk_runner()):
        pass


async def openai_to_its_end() -> None:
    async for _ in start_run(Wire(), charge_card).stream_events():
        pass


@loops
@pytest.mark.parametrize("main", [adk_guarded, openai_guarded, adk_to_its_end, openai_to_its_end])
def test_clean(loop: str, main: Main) -> None:
    """A guarded turn, and one that was read to its end, is not reported."""
    assert run(main, loop).found == ()


@pytest.mark.parametrize("main", [adk_guarded, openai_guarded])
def test_nothing_inside(main: Main) -> None:
    """Behind a guard nothing is left inside either."""
    assert run(main, "asyncio").inside == ()


@loops
def test_left_inside(loop: str) -> None:
    """What ADK drops inside when a workflow is closed is shown apart, not blamed on who closed it."""

    async def main() -> None:
        agent = OfflineAgent(name="talker", wire=Wire(), reply=answer("On its way.")[-1:])
        runner = InMemoryRunner(node=Workflow(name="desk", edges=[(START, agent)]), app_name="shop")
        await runner.session_service.create_session(app_name="shop", user_id="ada", session_id="today")
        async with aclosing(start_turn(runner)) as turn:
            async for _ in turn:
                break

    leaks = run(main, loop)
    assert leaks.found == ()
    assert leaks.inside
    assert all("site-packages" in leak.first_file for leak in leaks.inside)
    assert leaks.report() == ""
    assert "left inside libraries" in leaks.report(inside=True)
