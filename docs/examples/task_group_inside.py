"""A generator that yields inside a task group puts its group over your task, and a late close cancels you.

Look at who is cancelled. (The log of the event loop is switched off: it would show an error of the late close.)
"""

import asyncio
import logging

import anyio

from streamguard import guarded_stream

logging.disable()


async def events():
    async with anyio.create_task_group() as group:
        group.start_soon(asyncio.sleep, 60)  # something that fills a queue
        try:
            yield 1
            yield 2
        finally:
            group.cancel_scope.cancel()


async def bare():
    async for _ in events():
        break


async def guarded():
    async with guarded_stream(events()) as stream:
        async for _ in stream:
            break


async def main():
    for turn in (guarded, bare):  # bare comes last: its task does not recover
        await turn()
        try:
            await asyncio.sleep(0.1)
            print(f"{turn.__name__}: we go on")
        except asyncio.CancelledError:
            print(f"{turn.__name__}: we are cancelled, and nobody asked for it")


asyncio.run(main())
