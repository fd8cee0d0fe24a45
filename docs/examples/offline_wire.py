"""The connection that an offline model holds: the part of a real one that matters for closing.

A model call opens a wire, waits for each piece of its reply, and closes the wire in a `finally`.
Closing takes an `await`, as it does for HTTP and websockets.
"""

import asyncio


class Wire:
    """Opens at once, delivers a piece every two milliseconds, needs five to close."""

    def open(self) -> None:
        """A model call starts."""

    async def receive(self, piece: object) -> None:
        """Waits until this piece of the reply is there."""
        await asyncio.sleep(0.002)

    async def close(self) -> None:
        """A model call ends, in whatever task its `finally` runs."""
        await asyncio.sleep(0.005)
