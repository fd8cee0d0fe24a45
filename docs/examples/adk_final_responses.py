"""google-adk: is_final_response() is true once for each agent that takes part. The first is not the end.

Look at what the writer does in each turn. Skipping the events of others does not stop them.
"""

import asyncio
import logging

from google.adk.runners import InMemoryRunner
from google.adk.workflow import START, Workflow

from offline_adk import OfflineAgent, answer, start_turn
from offline_wire import Wire
from streamguard import guarded_stream


class Loud(Wire):
    """The wire of one agent, which says when its work begins and ends."""

    def __init__(self, name):
        self.name = name

    def open(self):
        print(f"  the {self.name} begins to work")

    async def close(self):
        await super().close()
        print(f"  the {self.name} is closed")


async def open_runner():
    planner = OfflineAgent(name="planner", wire=Loud("planner"), reply=answer("I", "have a plan"))
    writer = OfflineAgent(name="writer", wire=Loud("writer"), reply=answer("Here", "is your text"))
    team = Workflow(name="team", edges=[(START, planner), (planner, writer)])
    runner = InMemoryRunner(node=team, app_name="shop")
    await runner.session_service.create_session(app_name="shop", user_id="ada", session_id="today")
    return runner


def is_final(event):
    # It is also true for events without content.
    return event.is_final_response() and event.content is not None


async def leave_at_the_first(events):
    async for event in events:
        if is_final(event):
            print(f"  final response of the {event.author}: left")
            break


async def skip_the_others(events):
    async for event in events:
        if event.author != "planner":
            continue
        if is_final(event):
            print(f"  final response of the {event.author}: shown")


async def leave_at_the_writers(events):
    async for event in events:
        if is_final(event) and event.author == "writer":
            print(f"  final response of the {event.author}: left")
            break


def enable_input(end):
    print("  input is enabled")


async def main():
    for turn in (leave_at_the_first, skip_the_others, leave_at_the_writers):
        print(turn.__name__)
        runner = await open_runner()
        async with guarded_stream(start_turn(runner), tail=enable_input) as events:
            await turn(events)
        await runner.close()


logging.disable()
asyncio.run(main())
