"""A run that goes on in the background is not stopped by closing its events. A guard stops it, and waits for it.

Look at "the card is charged". The class has the shape of real run handles: `stream_events()` and `cancel()`.
"""

import asyncio
from contextlib import aclosing

from streamguard import guarded_stream


class Run:
    def __init__(self):
        self.queue = asyncio.Queue()
        self.run_loop_task = asyncio.create_task(self.work())

    async def work(self):
        try:
            await self.queue.put("I will charge your card")
            await asyncio.sleep(0.02)
            print("  the card is charged")
        finally:
            print("  the run has ended")

    async def stream_events(self):
        while True:
            yield await self.queue.get()

    def cancel(self):
        self.run_loop_task.cancel()


async def main():
    for name, close in (
        ("closing the events", lambda run: aclosing(run.stream_events())),
        ("guarding the run", guarded_stream),
    ):
        print(name)
        async with close(Run()) as stream:
            async for event in stream:
                print(" ", event)
                break
        print("  the block is left")
        await asyncio.sleep(0.2)


asyncio.run(main())
