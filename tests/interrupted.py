"""A program whose event loops a test ends by Ctrl-C: ``python interrupted.py BACKEND POINT[,POINT] ...``.

For each argument a loop consumes one guarded stream, and says what happens to it. At each point it says ``ready`` once
all tasks wait (or it spins). A body and a source wait for ever there, a cleanup and a tail until the interrupt came.
What Ctrl-C raises from the last loop ends the program.
"""

import asyncio
import faulthandler
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import anyio.lowlevel

from streamguard import StreamEnd, guarded_stream

BACKEND, *RUNS = sys.argv[1:]
POINTS: list[str] = []
"""Where the loop that runs is still to be interrupted."""
PATIENCE = 10
"""Seconds until a loop that hangs ends the program."""

if BACKEND == "trio":  # each costs a moment
    import trio
elif BACKEND == "uvloop":
    import uvloop


def say(what: str) -> None:
    os.write(1, f"{what}\n".encode())


class Interrupts:
    """Lets the tasks know that an interrupt came, whatever the event loop makes of it."""

    def __init__(self) -> None:
        self.number = 0
        """How many came."""
        self._came = anyio.Event()
        self._of_the_loop: Any = signal.getsignal(signal.SIGINT)
        self._watchers: list[object] = []
        if BACKEND == "trio":
            self._call_soon: Callable[..., object] = trio.lowlevel.current_trio_token().run_sync_soon
            self._start: Callable[..., object] = trio.lowlevel.spawn_system_task
        else:
            self._call_soon = asyncio.get_running_loop().call_soon_threadsafe
            self._start = lambda function: asyncio.create_task(function())
            self._tick()
        signal.signal(signal.SIGINT, self._handle)

    def _handle(self, number: int, frame: object) -> None:
        self.number += 1
        self._call_soon(self._came.set)
        self._of_the_loop(number, frame)

    def _tick(self) -> None:
        # A signal that arrives just before asyncio waits in the kernel is seen only when that wait ends.
        asyncio.get_running_loop().call_later(0.02, self._tick)

    async def wait(self) -> None:
        """Wait for the next one."""
        self._came = came = anyio.Event()
        self._watchers.append(self._start(self._say_ready))
        await came.wait()

    async def _say_ready(self) -> None:
        await anyio.wait_all_tasks_blocked()
        self._call_soon(say, "ready")  # the interrupt is not to hit this task


def spin(interrupts: Interrupts) -> None:
    """Never let the event loop run.

    In a frame of its own: CPython 3.13.0 leaves some jumps of a loop out of the ``try`` around it. And with a system
    call: CPython 3.12 may miss a signal that arrives just when a thread takes the interpreter back, until the next one.
    """
    while POINTS:
        del POINTS[0]
        before = interrupts.number
        say("ready")
        while interrupts.number == before:
            time.sleep(0)
    while True:
        time.sleep(0)


async def source(interrupts: Interrupts) -> AsyncIterator[int]:
    try:
        yield 1
        if POINTS[:1] == ["source"]:
            del POINTS[0]
            await interrupts.wait()
            await anyio.sleep_forever()
        if POINTS[:1] == ["skipped"]:
            del POINTS[0]
            say("ready")
            while True:
                yield 0
        if POINTS[:1] == ["busy"]:
            spin(interrupts)
        yield 2
    except BaseException as error:
        say(type(error).__name__)
        raise
    finally:
        await clean_up("close", interrupts)


async def clean_up(name: str, interrupts: Interrupts) -> None:
    say(name)
    try:
        while POINTS[:1] == [name]:
            del POINTS[0]
            await interrupts.wait()
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
    except BaseException as error:
        say(f"{name} cut: {type(error).__name__}")
        raise
    say(f"{name} done")


async def main() -> None:
    interrupts = Interrupts()

    async def tail(_: StreamEnd[int]) -> None:
        await clean_up("tail", interrupts)

    stream = guarded_stream(source(interrupts), where=bool, tail=tail)
    try:
        async with stream:
            async for _ in stream:
                if POINTS[:1] in (["body"], ["end"]):
                    del POINTS[0]
                    await interrupts.wait()
                    await anyio.sleep_forever()
                if POINTS[:1] in (["close"], ["tail"]):
                    break
    finally:
        say("left")


def run(points: str) -> None:
    """Run one loop to its end."""
    say(f"run {points}")
    POINTS[:] = points.split(",")
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the loops take over only that
    if BACKEND == "uvloop":
        uvloop.run(main())
    elif BACKEND == "asyncio":
        asyncio.run(main())
    else:
        anyio.run(main, backend=BACKEND)


if __name__ == "__main__":
    logging.getLogger("streamguard").setLevel(logging.CRITICAL)  # what is cut is told; not here
    *all_but_last, last = RUNS
    for points in all_but_last:
        try:
            run(points)
        except KeyboardInterrupt:
            say("KeyboardInterrupt")
    run(last)
