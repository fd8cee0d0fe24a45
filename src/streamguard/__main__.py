"""``python -m streamguard trace SCRIPT``: run a program and report the async generators that it left suspended."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from . import _program
from ._report import as_json
from .leaks import Leaks, track

_WITH_A_VALUE = ("--output", "--package")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; its exit status."""
    ours, theirs = _split(list(sys.argv[1:] if arguments is None else arguments))
    parser = _parser()
    options = parser.parse_args(ours)
    if options.output is not None:
        options.output = _writable(parser, options.output)
    # The program may replace or close its own.
    out, err = sys.stdout, sys.stderr
    process = os.getpid()
    packages = [*options.package, *([options.program.partition(".")[0]] if options.m else [])]
    run = _program.run_module if options.m else _program.run_script
    interrupt: KeyboardInterrupt | None = None
    with track(packages=packages) as leaks:
        try:
            status = run(options.program, theirs)
        except KeyboardInterrupt as error:
            status, interrupt = 1, error
    if os.getpid() != process:  # a child that the program forked
        return status
    _tell(leaks, options, out, err)
    if interrupt is not None:
        raise interrupt
    return status or int(bool(leaks.found))


def _writable(parser: argparse.ArgumentParser, file: str) -> str:
    """Where a file is, whatever folder the program changes to; said at once if it cannot be written."""
    try:
        with open(file, "a", encoding="utf-8"):
            return os.path.abspath(file)
    except OSError as error:
        parser.error(f"--output: {error}")


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """What comes up to the program, and its own arguments: argparse would take a ``--`` out of them."""
    at = 1  # behind the command
    while at < len(arguments) and arguments[at].startswith("-"):
        at += 2 if arguments[at] in _WITH_A_VALUE else 1
    return arguments[: at + 1], arguments[at + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m streamguard", allow_abbrev=False)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    trace = commands.add_parser(
        "trace",
        help="run a program and report the async generators that it left suspended",
        description="Run a program as Python would, then report the async generators that it left suspended, on "
        "standard error. The exit status is the program's own if that is not 0, else 1 if there was one.",
        usage="%(prog)s [OPTIONS] (SCRIPT | -m MODULE) [ARGUMENTS]",
        allow_abbrev=False,
    )
    trace.add_argument("-m", action="store_true", help="run a module, as `python -m` does")
    trace.add_argument("--json", action="store_true", help="report as one line of JSON, on standard output")
    trace.add_argument("--all", action="store_true", help="report also what libraries left inside")
    trace.add_argument("--output", metavar="FILE", help="write the report to a file")
    trace.add_argument(
        "--package", metavar="NAME", action="append", default=[], help="an installed package that counts as your code"
    )
    trace.add_argument("program", metavar="SCRIPT | MODULE", help="what to run")
    return parser


def _tell(leaks: Leaks, options: argparse.Namespace, out: TextIO | None, err: TextIO | None) -> None:
    if options.json:
        text = as_json([*leaks.found, *(leaks.inside if options.all else ())])
    else:
        text = leaks.report(inside=options.all, colour=options.output is None and _has_colours(err))
    if options.output is not None:
        with open(options.output, "w", encoding="utf-8") as file:
            file.write(text + "\n" if text else "")
    elif options.json:
        _write(out, text + "\n")
    elif text:
        _write(err, f"\n{text}\n")


def _write(stream: TextIO | None, text: str) -> None:
    if stream is not None and not stream.closed:
        stream.write(text)
        stream.flush()


def _has_colours(stream: TextIO | None) -> bool:
    if stream is None or stream.closed:
        return False
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


if __name__ == "__main__":
    sys.exit(main())
