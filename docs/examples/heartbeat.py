"""A time limit around one read ends a bare stream. Around a guarded one it ends only the wait.

Look at what comes after the first "ping".
"""

import asyncio

import anyio

from streamguard import Aclosing, guarded_stream


async def answer(has_thought):
    yield "It"
    await has_thought.wait()
    yield "is late"


async def main():
    for close in (Aclosing, guarded_stream):
        print(close.__name__)
        has_thought = asyncio.Event()
        async with close(answer(has_thought)) as stream:
            try:
                while True:
                    with anyio.move_on_after(0.1):
                        print(" ", await anext(stream))
                        continue
                    print("  ping")
                    has_thought.set()
            except StopAsyncIteration:
                print("  the end")


asyncio.run(main())
