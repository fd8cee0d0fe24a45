"""Records a turn that needs no SDK, an agent that calls a model, and draws it: `python docs/pictures/plain.py`."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from streamguard import guarded_stream
from timeline import ENABLED, LEFT, Event, Recorder, draw

PICTURE = Path(__file__).with_suffix(".svg")
PIECES = ["Your order", "is on", "its way.", "Anything else?"]


async def call_model(recorder: Recorder) -> AsyncIterator[str]:
    recorder.note("model call", "opens")
    try:
        for piece in PIECES:
            await asyncio.sleep(0.004)
            yield piece
    finally:
        recorder.note("model call", "closing")
        await asyncio.sleep(0.008)
        recorder.note("model call", "closed")


async def run_agent(recorder: Recorder) -> AsyncIterator[str]:
    recorder.note("agent run", "opens")
    try:
        async for piece in call_model(recorder):
            yield piece
    finally:
        recorder.note("agent run", "closing")
        await asyncio.sleep(0.006)
        recorder.note("agent run", "closed")


async def bare(recorder: Recorder) -> None:
    async for piece in run_agent(recorder):
        if piece == PIECES[2]:
            recorder.note(LEFT)
            break
    recorder.note(ENABLED)


async def guarded(recorder: Recorder) -> None:
    async with guarded_stream(run_agent(recorder), tail=lambda end: recorder.note(ENABLED)) as stream:
        async for piece in stream:
            if piece == PIECES[2]:
                recorder.note(LEFT)
                break


async def record() -> dict[str, list[Event]]:
    asyncio.current_task().set_name("your task")
    panels = {}
    for name, turn in {"a bare loop": bare, "guarded": guarded}.items():
        recorder = Recorder(others="a task of the event loop")
        await turn(recorder)
        recorder.note("the next turn starts")
        await asyncio.sleep(0.05)  # the program goes on
        panels[name] = recorder.events()
    return panels


if __name__ == "__main__":
    asyncio.run(record())  # once without looking: the first time is slower
    PICTURE.write_text(draw("An agent's turn, left early: in a bare loop, and guarded", asyncio.run(record())))
