"""A cleanup that hangs is cut at the deadline, and the error says where it hangs.

Look at the last lines: the tail runs all the same, and the error names the function and the line.
"""

import asyncio

from streamguard import CleanupTimeoutError, guarded_stream


async def say_goodbye():
    await asyncio.Event().wait()  # the server never answers


async def answer():
    try:
        yield "final"
    finally:
        await say_goodbye()


async def main():
    try:
        async with guarded_stream(
            answer(),
            cleanup_timeout=0.05,
            tail=lambda end: print("the tail runs; cleanup errors:", len(end.cleanup_errors)),
        ) as stream:
            async for event in stream:
                print(event)
                break
    except CleanupTimeoutError as error:
        for line in str(error).splitlines():
            print("|", line.split("examples/")[-1])


asyncio.run(main())
