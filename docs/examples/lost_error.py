"""When the body fails and the cleanup fails as well, contextlib.aclosing loses the error of the body.

Look at which error arrives. (streamguard also writes the other one to the log; that is switched off here.)
"""

import asyncio
import logging
from contextlib import aclosing

from streamguard import Aclosing, guarded_stream

logging.disable()


async def answer():
    try:
        yield "nonsense"
    finally:
        raise OSError("the connection is gone")


async def main():
    for close in (aclosing, Aclosing, guarded_stream):
        try:
            async with close(answer()) as stream:
                async for event in stream:
                    raise ValueError(f"cannot read {event!r}")
        except Exception as error:
            print(f"{close.__name__}: {error!r}", *getattr(error, "__notes__", ()), sep="\n  ")


asyncio.run(main())
