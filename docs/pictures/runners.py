"""Records turns of real agent runners with offline models, and draws them: `python docs/pictures/runners.py`.

It needs google-adk and openai-agents, but no network and no key. The turns are those of `docs/examples/agent_turn.py`.
"""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "examples"))

from agents import RunResultStreaming, set_tracing_disabled  # noqa: E402
from google.adk.events import Event as AdkEvent  # noqa: E402
from google.adk.runners import InMemoryRunner  # noqa: E402

from agent_turn import adk_bare, adk_guarded, openai_bare, openai_guarded, until_quiet  # noqa: E402
from offline_adk import open_runner, two_agents  # noqa: E402
from offline_openai import start_run  # noqa: E402
from offline_wire import Wire  # noqa: E402
from streamguard import StreamEnd  # noqa: E402
from timeline import ENABLED, LEFT, Event, Recorder, draw  # noqa: E402


class Screen(Wire):
    """What the user sees, and the wire of the models: it writes down both."""

    def __init__(self) -> None:
        self.recorder = Recorder(others="a task of the run")
        self._calls = 0

    def open(self) -> None:
        self._calls += 1
        self.recorder.note(self._call, "opens")

    async def close(self) -> None:
        name = self._call
        self.recorder.note(name, "closing")
        await super().close()
        self.recorder.note(name, "closed")

    @property
    def _call(self) -> str:
        # One model call at a time, in these turns.
        return f"model call {self._calls}"

    def show(self, author: str, text: str) -> None: ...

    def show_adk(self, event: AdkEvent) -> None: ...

    def left_the_loop(self, why: str) -> None:
        self.recorder.note(LEFT)

    def enable_input(self, end: StreamEnd[object] | None = None) -> None:
        self.recorder.note(ENABLED)

    def find_order(self, number: str) -> str:
        """Finds an order by its number."""
        return f"{number} was lost in the mail"

    async def charge_card(self) -> str:
        """Charges the user's card."""
        self.recorder.note("the card is charged")
        return "charged"


async def record_adk(turn: Callable[[InMemoryRunner, Screen], Awaitable[None]]) -> list[Event]:
    screen = Screen()
    runner = await open_runner(two_agents(screen, screen.find_order))
    await turn(runner, screen)
    await until_quiet()
    await runner.close()
    return screen.recorder.events()


async def record_openai(turn: Callable[[RunResultStreaming, Screen], Awaitable[None]]) -> list[Event]:
    screen = Screen()
    await turn(start_run(screen, screen.charge_card), screen)
    await until_quiet()
    return screen.recorder.events()


async def record() -> dict[str, dict[str, list[Event]]]:
    """The panels of each picture."""
    asyncio.current_task().set_name("your task")
    set_tracing_disabled(True)
    logging.getLogger("google_adk").setLevel(logging.ERROR)
    return {
        "adk": {
            "google-adk, a bare loop": await record_adk(adk_bare),
            "google-adk, guarded": await record_adk(adk_guarded),
        },
        "openai": {
            "openai-agents, a bare loop": await record_openai(openai_bare),
            "openai-agents, guarded": await record_openai(openai_guarded),
        },
    }


TITLES = {
    "adk": "A turn of google-adk, left at the final response: in a bare loop, and guarded",
    "openai": "A turn of openai-agents, left when the user presses stop: in a bare loop, and guarded",
}

if __name__ == "__main__":
    asyncio.run(record())  # once without looking: the first time is slower
    for picture, panels in asyncio.run(record()).items():
        (HERE / f"{picture}.svg").write_text(draw(TITLES[picture], panels))
