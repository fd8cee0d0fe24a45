"""Several agents in one loop: each is closed before the next one starts, and one tail runs at the very end.

Look at the order: no agent is open while another one speaks, and input is enabled last.
"""

import asyncio

from streamguard import guarded_chain


async def triage(question):
    try:
        yield "-> refunds"
        yield "this is never said"
    finally:
        await asyncio.sleep(0)
        print("triage is closed")


async def refunds(question):
    try:
        yield "your money is on its way"
        yield "good bye"
    finally:
        await asyncio.sleep(0)
        print("refunds is closed")


def enable_input(end):
    print(f"input is enabled; {end.items} items from {len(end.members)} agents")


async def main():
    question = "Where is my money?"
    async with guarded_chain(triage(question), tail=enable_input) as chain:
        async for event in chain:
            print(" ", event)
            if event == "-> refunds":
                chain.hand_off(refunds(question))
            elif event == "your money is on its way":
                break


asyncio.run(main())
