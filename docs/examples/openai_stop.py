"""openai-agents: leaving the loop stops nothing. The run goes on to its end, tools included, unless a guard stops it.

Look at "THE CARD IS CHARGED", and at what the turn has cost when the user stopped it: one model call, or two.
"""

import asyncio

from agents import set_tracing_disabled

from offline_openai import is_whole_message, start_run, text_of
from offline_wire import Wire
from streamguard import guarded_stream


class Shop(Wire):
    def __init__(self):
        self.calls = 0

    def open(self):
        self.calls += 1

    async def charge_card(self):
        """Charges the user's card."""
        print("  THE CARD IS CHARGED")
        return "charged"


async def show(events):
    async for event in events:
        if is_whole_message(event):
            print(f"  seller: {text_of(event)}")
            print("  the user presses stop")
            return


async def bare(run):
    await show(run.stream_events())


async def guarded(run):
    async with guarded_stream(run) as events:
        await show(events)


async def main():
    for turn in (bare, guarded):
        print(turn.__name__)
        shop = Shop()
        run = start_run(shop, shop.charge_card)
        await turn(run)
        print("  the turn is over")
        await asyncio.wait([run.run_loop_task])  # a program that goes on
        print(f"  model calls: {shop.calls}")


set_tracing_disabled(True)
asyncio.run(main())
