"""A time limit around the loop cuts the cleanup of the stream at its first await, unless a guard closes it.

Look at whether "the connection is given back" is there.
"""

import asyncio
from contextlib import aclosing

import anyio

from streamguard import guarded_stream


async def rows():
    try:
        yield 1
        await asyncio.sleep(60)  # a slow query
    finally:
        print("  the stream ends ...")
        await asyncio.sleep(0.01)
        print("  ... and the connection is given back")


async def main():
    for close in (aclosing, guarded_stream):
        print(close.__name__)
        with anyio.CancelScope() as limit:
            async with close(rows()) as stream:
                async for _ in stream:
                    limit.deadline = anyio.current_time() + 0.02
        print("  the time was over:", limit.cancelled_caught)


asyncio.run(main())
