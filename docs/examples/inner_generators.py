"""Closing the outer generator does not close the inner ones. A guard closes them all, one after the other.

Look at which are closed when the block is left.
"""

import asyncio
from contextlib import aclosing

from streamguard import guarded_stream


async def model():
    try:
        yield "word"
        yield "word"
    finally:
        await asyncio.sleep(0)
        print("  model is closed")


async def agent():
    try:
        async for word in model():
            yield word
    finally:
        print("  agent is closed")


async def runner():
    try:
        async for word in agent():
            yield word
    finally:
        print("  runner is closed")


async def main():
    for close in (aclosing, guarded_stream):
        print(close.__name__)
        async with close(runner()) as stream:
            async for _ in stream:
                break
        print("  the block is left")
        await asyncio.sleep(0.1)


asyncio.run(main())
