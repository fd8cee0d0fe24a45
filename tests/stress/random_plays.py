"""Plays random operations on streams and chains, and compares each with the model.

``python -m stress.random_plays [BACKEND [EXAMPLES [SEED]]]`` in ``tests``; the backend is asyncio, uvloop or trio, or
all. Prints how many plays and states there were; the first play that goes another way than the model ends it.
"""

import functools
import logging
import sys
import time
import warnings
from collections.abc import Callable

import anyio
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from . import plays
from .play import Play, Stage

PATIENCE = 60.0
"""Seconds after which a play has hung."""


def test_of(
    drawn: st.SearchStrategy[Play], backend: str, examples: int, number: int, states: set[object]
) -> Callable[[], None]:
    """A function that draws plays, and fails with the smallest that breaks a promise."""
    name = "trio" if backend == "trio" else "asyncio"
    run = functools.partial(
        anyio.run, backend=name, backend_options={"use_uvloop": True} if backend == "uvloop" else {}
    )

    async def perform(play: Play) -> Stage:
        stage = Stage(play)
        with anyio.fail_after(PATIENCE):
            await stage.run()
        return stage

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @seed(number)
    @given(drawn)
    def test(play: Play) -> None:
        stage = run(perform, play)
        states.update(stage.states)
        assert not stage.faults, "\n".join(map(str, stage.faults))

    return test


def main(backend: str = "all", examples: str = "1000", number: str = "") -> None:
    warnings.simplefilter("error")
    logging.getLogger("streamguard").setLevel(logging.CRITICAL + 1)  # the model compares what is told otherwise
    chosen = int(number or time.time())
    for each in ("asyncio", "uvloop", "trio") if backend == "all" else (backend,):
        for what, drawn in (("streams", plays.streams), ("chains", plays.chains)):
            states: set[object] = set()
            began = time.monotonic()
            test_of(drawn, each, int(examples), chosen, states)()
            sys.stdout.write(
                f"{each}: {examples} plays of {what} with seed {chosen}, {len(states)} states, "
                f"0 violations, {time.monotonic() - began:.0f} s\n"
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
