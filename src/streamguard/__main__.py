"""``python -m streamguard trace SCRIPT``: run a program and report the async generators that it left suspended."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import IO, TextIO

from . import _program
from ._report import as_json, report
from .leaks import Leaks, track

_WITH_A_VALUE = ("--output", "--package")
_PROGRAMS = "name a SCRIPT or -m MODULE; code on standard input, or behind -c, cannot be traced"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; its exit status."""
    ours, theirs = _split(list(sys.argv[1:] if arguments is None else arguments))
    options = _parsed(ours)
    # The program may replace or close them.
    out, err = sys.stdout, sys.stderr
    process = os.getpid()
    interrupt: KeyboardInterrupt | None = None
    with track(packages=[*options.package, *_packages_of(options.module)]) as leaks:
        try:
            if options.module is not None:
                status = _program.run_module(options.module, theirs)
            else:
                status = _program.run_script(options.script, theirs)
        except KeyboardInterrupt as error:
            status, interrupt = 1, error
    if os.getpid() != process:  # a child that the program forked
        return status
    _tell(leaks, options, out, err)
    if interrupt is not None:
        raise interrupt
    return status or int(bool(leaks.found))


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """What comes up to the program, and its own arguments: argparse would take a ``--`` out of them."""
    at = 1  # behind the command
    while at < len(arguments) and arguments[at].startswith("-") and arguments[at] != "-":
        option = arguments[at]
        if option.startswith("-m"):
            at += option == "-m"
            break
        at += 2 if option in _WITH_A_VALUE else 1
    return arguments[: at + 1], arguments[at + 1 :]


def _packages_of(module: str | None) -> list[str]:
    """The package of a module that is run: the first one that is not a namespace, which many share."""
    names = (module or "").split(".")
    for count in range(1, len(names)):
        package = ".".join(names[:count])
        with contextlib.suppress(ImportError, ValueError):  # Python will say it
            spec = importlib.util.find_spec(package)
            if spec is None or spec.origin is not None:
                return [package]
    return [module] if module else []


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
    trace.add_argument("--json", action="store_true", help="report as one line of JSON, on standard output")
    trace.add_argument("--all", action="store_true", help="report also what libraries left inside")
    trace.add_argument("--output", metavar="FILE", help="write the report to a file")
    trace.add_argument(
        "--package", metavar="NAME", action="append", default=[], help="an installed package that counts as your code"
    )
    trace.add_argument("-m", metavar="MODULE", dest="module", help="run a module, as `python -m` does")
    trace.set_defaults(fail=trace.error)
    trace.add_argument("script", metavar="SCRIPT", nargs="?", help="the script, folder or zip file to run")
    return parser


def _parsed(arguments: list[str]) -> argparse.Namespace:
    options, unknown = _parser().parse_known_args(arguments)
    if unknown:
        options.fail(f"unrecognized arguments: {' '.join(unknown)}; {_PROGRAMS}")
    if options.module is None and options.script in (None, "-"):
        options.fail(_PROGRAMS)
    if options.output is not None:
        # Wherever the program goes; said at once if it cannot be written.
        options.output = os.path.abspath(options.output)
        try:
            _open(options.output, "a").close()
        except OSError as error:
            options.fail(f"--output: {error}")
    return options


def _open(file: str, mode: str) -> IO[str]:
    # The name of a file, which the report tells, may hold what is no text.
    return open(file, mode, encoding="utf-8", errors="backslashreplace")


def _tell(leaks: Leaks, options: argparse.Namespace, out: TextIO | None, err: TextIO | None) -> None:
    for package in options.package:
        if package not in sys.modules and package != options.module:
            _write(f"streamguard: --package {package}: the program imported no module of that name\n", err, sys.stderr)
    if options.json:
        text = as_json([*leaks.found, *(leaks.inside if options.all else ())])
    else:
        colour = options.output is None and _has_colours(err)
        text = report(leaks.found, leaks.inside, list_inside=options.all, how_to_list="--all", colour=colour)
    if options.output is not None:
        with _open(options.output, "w") as file:
            file.write(text + "\n" if text else "")
    elif options.json:
        # The program's last line may have no end.
        _write(f"\n{text}\n", out, sys.stdout)
    elif text:
        _write(f"\n{text}\n", err, sys.stderr)


def _write(text: str, *streams: TextIO | None) -> None:
    """Write to the first stream that can be written to: the program may have closed the first, or wrapped it anew."""
    for stream in filter(None, streams):
        with contextlib.suppress(ValueError, OSError):
            stream.write(text)
            stream.flush()
            return


def _has_colours(stream: TextIO | None) -> bool:
    with contextlib.suppress(ValueError):
        if stream is not None and stream.isatty():
            return "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return False


if __name__ == "__main__":
    sys.exit(main())
