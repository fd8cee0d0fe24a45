"""A stream that somebody reads cannot be closed by others, but a guarded one can be told to stop.

Look at what the button gets, and at the order in which the loop ends and the stream is closed.
"""

import asyncio

from streamguard import guarded_stream


async def answer():
    try:
        yield "thinking"
        await asyncio.sleep(0.05)
        yield "final"
    finally:
        await asyncio.sleep(0)
        print("  closed")


async def show(stream, shown):
    async for event in stream:
        print(" ", event)
        shown.set()
    print("  the loop has ended")


async def bare():
    shown = asyncio.Event()
    stream = answer()
    showing = asyncio.create_task(show(stream, shown))
    await shown.wait()
    try:
        await stream.aclose()  # the button
    except RuntimeError as error:
        print("  the button gets:", error)
    await showing


async def guarded():
    shown = asyncio.Event()
    async with guarded_stream(answer()) as stream:
        showing = asyncio.create_task(show(stream, shown))
        await shown.wait()
        stream.stop()  # the button
        await showing
    print("  the block is left")


async def main():
    for turn in (bare, guarded):
        print(turn.__name__)
        await turn()


asyncio.run(main())
