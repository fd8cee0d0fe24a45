"""Leaves agent turns early, by a bare loop and then guarded, and prints what was closed, when, and in which task.

It needs google-adk and openai-agents, but no network and no key. Times are milliseconds since the loop was left.
The exit status is 1 if a guarded turn left anything behind.
"""

import asyncio
import gc
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from types import AsyncGeneratorType

from agents import RunResultStreaming, set_tracing_disabled
from google.adk.events import Event
from google.adk.runners import InMemoryRunner

from offline_adk import open_runner, start_turn, two_agents
from offline_openai import is_whole_message, start_run, text_of
from offline_wire import Wire
from streamguard import StreamEnd, guarded_stream

# google-adk: a concierge calls a tool, then transfers to a specialist, whose final response ends the turn.


async def adk_bare(runner: InMemoryRunner, screen: "Screen") -> None:
    try:
        async for event in start_turn(runner):
            screen.show_adk(event)
            if event.author == "refunds" and event.is_final_response():
                screen.left_the_loop("the specialist's final response")
                return
    finally:
        screen.enable_input()


async def adk_guarded(runner: InMemoryRunner, screen: "Screen") -> None:
    async with guarded_stream(start_turn(runner), tail=screen.enable_input) as stream:
        async for event in stream:
            screen.show_adk(event)
            if event.author == "refunds" and event.is_final_response():
                screen.left_the_loop("the specialist's final response")
                return


# openai-agents: the user presses stop when the model has said what it is about to do. It must not do it.


async def openai_bare(run: RunResultStreaming, screen: "Screen") -> None:
    try:
        async for event in run.stream_events():
            if is_whole_message(event):
                screen.show("seller", text_of(event))
                screen.left_the_loop("the user pressed stop")
                return
    finally:
        screen.enable_input()


async def openai_guarded(run: RunResultStreaming, screen: "Screen") -> None:
    async with guarded_stream(run, tail=screen.enable_input) as stream:
        async for event in stream:
            if is_whole_message(event):
                screen.show("seller", text_of(event))
                screen.left_the_loop("the user pressed stop")
                return


class Screen(Wire):
    """What the user sees. It is also the wire of the offline models, so it sees each model call close."""

    def __init__(self, title: str) -> None:
        print(f"\n{title}")
        self.left_at = 0.0
        self.open_calls = 0
        self.charged = False
        self.generators_before = open_generators()

    def show(self, author: str, text: str) -> None:
        print(f"{author:>11}: {text}")

    def show_adk(self, event: Event) -> None:
        # A real screen would show the partial texts as they come.
        for part in event.content.parts if event.content and not event.partial else []:
            if part.function_call:
                self.show(event.author, f"{part.function_call.name} {part.function_call.args}")
            if part.text:
                self.show(event.author, part.text)

    def note(self, what: str) -> None:
        """Prints what happens once the loop was left, and in which task."""
        if self.left_at:
            passed = (time.perf_counter() - self.left_at) * 1000
            task = asyncio.current_task()
            print(f"{passed:8.1f} ms: {what:<72}{task.get_name() if task else ''}")

    def left_the_loop(self, why: str) -> None:
        self.left_at = time.perf_counter()
        self.note(f"left the loop: {why}")

    def enable_input(self, end: StreamEnd[object] | None = None) -> None:
        """The last thing that a turn does: now the user may write again."""
        still_open = self.still_open() or "nothing"
        self.note(f"input enabled, still open: {still_open}")

    def still_open(self) -> str:
        began = time.perf_counter()
        counts = {
            "model call": self.open_calls,
            "task": len(asyncio.all_tasks()) - 1,
            "async generator": open_generators() - self.generators_before,
        }
        # Looking through the whole heap takes a while; that is not the turn's time.
        self.left_at += time.perf_counter() - began
        return ", ".join(f"{count} {what}{'s' * (count > 1)}" for what, count in counts.items() if count)

    def open(self) -> None:
        self.open_calls += 1

    async def close(self) -> None:
        self.note("a model call is being closed ...")
        await super().close()
        self.open_calls -= 1
        self.note("... and is closed")

    def find_order(self, number: str) -> str:
        """Finds an order by its number."""
        return f"{number} was lost in the mail"

    async def charge_card(self) -> str:
        """Charges the user's card."""
        self.charged = True
        self.note("THE CARD IS CHARGED")
        return "charged"


def open_generators() -> int:
    return sum(type(thing) is AsyncGeneratorType and thing.ag_frame is not None for thing in gc.get_objects())


async def run_adk(turn: Callable[[InMemoryRunner, Screen], Awaitable[None]], title: str) -> bool:
    """Whether the turn left nothing behind."""
    screen = Screen(title)
    runner = await open_runner(two_agents(screen, screen.find_order))
    await turn(runner, screen)
    clean = not screen.still_open()
    await until_quiet()
    await runner.close()
    return clean


async def run_openai(turn: Callable[[RunResultStreaming, Screen], Awaitable[None]], title: str) -> bool:
    """Whether the run left nothing behind, and did not charge the card."""
    screen = Screen(title)
    await turn(start_run(screen, screen.charge_card), screen)
    clean = not screen.still_open()
    await until_quiet()
    return clean and not screen.charged


async def until_quiet() -> None:
    """A program that goes on sees what a turn has left finish behind its back."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)


async def main() -> int:
    if task := asyncio.current_task():
        task.set_name("your task")
    await run_adk(adk_bare, "google-adk, a bare loop")
    adk_is_clean = await run_adk(adk_guarded, "google-adk, guarded")
    await run_openai(openai_bare, "openai-agents, a bare loop")
    openai_is_clean = await run_openai(openai_guarded, "openai-agents, guarded")
    return 0 if adk_is_clean and openai_is_clean else 1


if __name__ == "__main__":
    set_tracing_disabled(True)
    logging.getLogger("google_adk").setLevel(logging.ERROR)
    sys.exit(asyncio.run(main()))
