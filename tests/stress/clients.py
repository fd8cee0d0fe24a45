"""Clients that connect and vanish at random, for a while: is anything left, does memory grow?

``python tests/stress/clients.py [--seconds 30] [--clients 200] [--uvloop] [--starlette] [--seed N]``. Exits with 1 if
something was left. With ``--starlette`` its own response answers, for comparison.
"""

import argparse
import asyncio
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from loopback import Client, Server
from nothing_left import open_generators, tasks
from streamguard import StreamEnd
from streamguard.starlette import GuardedStreamingResponse
from stress.memory import blocks, rss

CHUNK = b"x" * 100_000
PATIENCE = 30.0
"""Seconds without a new request until what is open has hung."""
GROWTH = 0.02
"""The part by which the number of Python's memory blocks may differ, after a collection, with nothing open."""

TELLING = 10.0
"""Seconds that a run has to take before its memory tells anything."""


class Soak:
    """The server's side: bodies that count themselves."""

    def __init__(self, *, guarded: bool) -> None:
        self.counts: Counter[str] = Counter()
        self._guarded = guarded
        self.app = Starlette(routes=[Route("/{pause:float}/{count:int}", self._answer)])

    async def _answer(self, request: Request) -> Response:
        self.counts["requests"] += 1
        body = self._body(**request.path_params)
        return GuardedStreamingResponse(body, tail=self._tail) if self._guarded else StreamingResponse(body)

    def _tail(self, end: StreamEnd[object]) -> None:
        self.counts["tails"] += 1
        self.counts[end.reason.value] += 1

    async def _body(self, pause: float, count: int) -> AsyncIterator[bytes]:
        self.counts["started"] += 1
        try:
            async for chunk in self._model(pause, count):
                yield chunk
        finally:
            await asyncio.sleep(0.001)
            self.counts["closed"] += 1

    async def _model(self, pause: float, count: int) -> AsyncIterator[bytes]:
        self.counts["models started"] += 1
        try:
            for _ in range(count):
                await asyncio.sleep(pause)
                yield CHUNK
        finally:
            await asyncio.sleep(0.001)
            self.counts["models closed"] += 1


async def vanish_at_random(server: Server, chance: random.Random, until: float) -> None:
    """One client: it asks, reads a little or nothing, and goes away; again and again."""
    while time.monotonic() < until:
        client = await Client.connect(server)
        client.ask(f"/{chance.choice((0, 0.001, 0.01, 60))}/{chance.choice((0, 1, 20, 1000))}")
        try:
            match chance.randrange(3):
                case 0:
                    await asyncio.sleep(chance.random() / 10)
                case 1:
                    async with asyncio.timeout(chance.random() / 10):
                        await client.read_until(b"\r\n0\r\n\r\n")
                case _:
                    async with asyncio.timeout(chance.random() / 10):
                        await client.read_head()
        except (TimeoutError, asyncio.LimitOverrunError):
            pass
        client.leave(reset=chance.random() < 0.5)


async def crowd(server: Server, clients: int, seconds: float, seed: int) -> None:
    until = time.monotonic() + seconds
    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(vanish_at_random(server, random.Random(f"{seed} {number}"), until))


async def quiet(server: Server, counts: Counter[str]) -> None:
    """Wait until the server has noticed that everybody is gone; it may be behind with accepting them."""
    loop = asyncio.get_running_loop()
    seen = 0
    async with asyncio.timeout(PATIENCE) as limit:
        while server.server_state.tasks or server.server_state.connections:
            if seen != (seen := counts["requests"]):
                limit.reschedule(loop.time() + PATIENCE)
            await asyncio.sleep(0.01)


async def soak(options: argparse.Namespace) -> list[str]:
    """What is left, one line each."""
    soak = Soak(guarded=not options.starlette)
    before = {"tasks": len(tasks("asyncio")), "generators": len(open_generators())}
    server = Server(soak.app, [], lifespan="off", http="h11", timeout_keep_alive=1)
    sizes = []
    async with server.run(limit=options.seconds * 10 + 300):
        # The first one fills caches and pools.
        for part in (0.1, 0.3, 0.3, 0.3):
            await crowd(server, options.clients, options.seconds * part, options.seed)
            await quiet(server, soak.counts)
            server.log.clear()
            if options.seconds >= TELLING:
                await asyncio.sleep(1.5)  # the server's timers keep what it has closed
            sizes.append(blocks())
            say(f"{soak.counts['requests']:>7} requests, {sizes[-1]:>8,} blocks, {rss():.1f} MiB")
        files = len(os.listdir("/proc/self/fd"))
    after = {"tasks": len(tasks("asyncio")), "generators": len(open_generators())}
    say(f"{dict(soak.counts)}, {files} files open")
    left = [f"{after[what] - before[what]} {what}" for what in before if after[what] > before[what]]
    counts = soak.counts
    for begun, ended in (("started", "closed"), ("models started", "models closed")):
        if counts[begun] != counts[ended]:
            left.append(f"{begun}: {counts[begun]}, {ended}: {counts[ended]}")
    if not options.starlette and counts["tails"] != counts["requests"]:
        left.append(f"requests: {counts['requests']}, tails: {counts['tails']}")
    if options.seconds >= TELLING and sizes[-1] > sizes[0] * (1 + GROWTH):
        left.append(f"memory blocks grew from {sizes[0]:,} to {sizes[-1]:,}")
    return left + server.errors


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--uvloop", action="store_true")
    parser.add_argument("--starlette", action="store_true")
    options = parser.parse_args()
    factory: Any = None
    if options.uvloop:
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        left = runner.run(soak(options))
    say("\n".join(["left:", *left]) if left else "nothing is left")
    return bool(left)


if __name__ == "__main__":
    sys.exit(main())
