"""A break closes nothing: the stream is closed later, when the program already does something else.

Look at the order of "closed" and "the next turn starts".
"""

import asyncio

from streamguard import guarded_stream


async def answer():
    try:
        yield "final"
        yield "more"
    finally:
        await asyncio.sleep(0.01)  # says goodbye to the server
        print("  closed")


async def bare():
    async for event in answer():
        print(" ", event)
        break


async def guarded():
    async with guarded_stream(answer()) as stream:
        async for event in stream:
            print(" ", event)
            break


async def main():
    for turn in (bare, guarded):
        print(turn.__name__)
        await turn()
        print("  the next turn starts")
        await asyncio.sleep(0.1)


asyncio.run(main())
