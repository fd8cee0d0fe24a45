"""A program that Ctrl-C interrupts at each line of the library in turn, on trio: ``python interrupted_lines.py CASE``.

The signal is raised by a tracer, in the reader's task. Says at how many lines it was, and what it found open.
"""

import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from types import FrameType
from typing import Any

import trio

import streamguard
from streamguard import GuardedChain, GuardedStream, guarded_chain, guarded_stream

PACKAGE = str(streamguard.__path__[0])
Guard = GuardedStream[int] | GuardedChain[int]


class Trial:
    """One run, interrupted at a certain line."""

    def __init__(self, line: int) -> None:
        self.left = line
        """How many lines are still to be passed."""
        self.where = ""
        self.open = 0
        self.log: list[str] = []
        self._task: object = None

    async def source(self) -> AsyncIterator[int]:
        self.open += 1
        try:
            for number in range(3):
                yield number
        finally:
            with trio.CancelScope(shield=True):
                await trio.lowlevel.checkpoint()
            self.open -= 1

    async def cancel(self, *_: object) -> None:
        self.log.append("cancel")
        await trio.lowlevel.checkpoint()

    async def interrupted(self, step: Callable[[], Awaitable[object]]) -> None:
        """Make this step, with the tracer at work."""
        self._task = trio.lowlevel.current_task()
        sys.settrace(self._trace)
        try:
            await step()
        finally:
            sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        # The tracer stays where it is: to take it away here crashes Python 3.11.
        if event == "line" and not self.where and self._is_ours():
            self.left -= 1
            if not self.left:
                self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                signal.raise_signal(signal.SIGINT)
        return self._trace

    def _is_ours(self) -> bool:
        return trio.lowlevel.in_trio_task() and trio.lowlevel.current_task() is self._task


async def read(trial: Trial) -> None:
    async with guarded_stream(trial.source(), cleanup_timeout=5) as stream:
        await trial.interrupted(stream.__anext__)


async def read_again(trial: Trial) -> None:
    async with guarded_stream(trial.source(), cleanup_timeout=5) as stream:
        await anext(stream)
        await trial.interrupted(stream.__anext__)


async def aclose(trial: Trial) -> None:
    async with guarded_stream(trial.source(), cleanup_timeout=5, cancel=trial.cancel) as stream:
        await anext(stream)
        await trial.interrupted(stream.aclose)


async def aclose_chain(trial: Trial) -> None:
    async with guarded_chain(trial.source(), cleanup_timeout=5, cancel=trial.cancel) as chain:
        await anext(chain)
        await trial.interrupted(chain.aclose)


async def hand_off(trial: Trial) -> None:
    async with guarded_chain(trial.source(), cleanup_timeout=5, cancel=trial.cancel) as chain:
        await anext(chain)
        chain.hand_off(trial.source())
        await trial.interrupted(chain.__anext__)


CASES = {case.__name__: case for case in (read, read_again, aclose, aclose_chain, hand_off)}


def find_faults(case: Callable[[Trial], Awaitable[None]], line: int) -> tuple[str, str]:
    """Where it was interrupted, if it was, and what was wrong afterwards."""
    trial = Trial(line)
    faults: list[str] = []

    async def main() -> None:
        began = trio.current_time()
        try:
            await case(trial)
            await trio.lowlevel.checkpoint()
        except KeyboardInterrupt:
            trial.log.append("interrupted")
        if trial.open:
            faults.append("left open")
        if trio.current_time() - began > 4:
            faults.append("late")

    try:
        trio.run(main)
    except BaseException as error:
        faults.append(repr(error))
    if trial.where and "interrupted" not in trial.log:
        faults.append("the interrupt was lost")
    if case not in (read, read_again) and "cancel" not in trial.log:
        faults.append("cancel was not called")
    return trial.where, ", ".join(faults)


def main() -> None:
    case = CASES[sys.argv[1]]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored in what a shell runs in the background
    line = 1
    while True:
        where, faults = find_faults(case, line)
        if faults:
            sys.stdout.write(f"{where}: {faults}\n")
        if not where:
            break
        line += 1
    sys.stdout.write(f"{line - 1} lines\n")


if __name__ == "__main__":
    main()
