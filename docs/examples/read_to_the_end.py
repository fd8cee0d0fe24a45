"""Read to its end, a stream closes itself. But whoever plans to read to the end may not get there.

Look at the second turn: nobody wrote break or return, and the stream is left open all the same.
"""

import asyncio

from streamguard import guarded_stream


async def answer():
    try:
        for word in ("It", "is", "late"):
            yield word
    finally:
        print("  closed")


def show(word, broken_screen):
    if broken_screen and word == "is":
        raise OSError("the screen is gone")


async def bare(broken_screen):
    async for word in answer():
        show(word, broken_screen)


async def guarded(broken_screen):
    async with guarded_stream(answer()) as stream:
        async for word in stream:
            show(word, broken_screen)


async def main():
    for turn, broken_screen in ((bare, False), (bare, True), (guarded, True)):
        print(f"{turn.__name__}{', the screen breaks' if broken_screen else ''}")
        try:
            await turn(broken_screen)
        except OSError as error:
            print("  error:", error)
        print("  the turn is over")
        await asyncio.sleep(0.1)


asyncio.run(main())
