"""To the stream, break and return are the same. What differs is what still holds it afterwards.

Look at "still open": after a break a variable holds the stream until its function ends. Leaving closes it in no case.
"""

import asyncio


async def answer(name):
    try:
        yield "final"
        yield "more"
    finally:
        print(f"  {name}: closed")


async def by_return():
    stream = answer("return")
    async for _ in stream:
        return


async def by_break():
    stream = answer("break")
    async for _ in stream:
        break
    await asyncio.sleep(0.1)
    print("  break: still open, 100 ms later")


async def by_break_without_a_variable():
    async for _ in answer("break without a variable"):
        break
    await asyncio.sleep(0.1)


async def main():
    for turn in (by_return, by_break, by_break_without_a_variable):
        await turn()
        print(f"{turn.__name__} has returned")
        await asyncio.sleep(0.1)


asyncio.run(main())
