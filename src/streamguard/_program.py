"""Running a program as Python itself would: a script, a folder or zip file, or a module.

The rule kept here: the program cannot tell, and neither can who reads its output: its own ``__main__``, arguments and
``sys.path``, tracebacks without our frames, and Python's words and status where there is nothing to run.
"""

from __future__ import annotations

import contextlib
import io
import marshal
import os
import pkgutil
import runpy
import sys
import threading
import types
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from importlib.util import MAGIC_NUMBER
from typing import TextIO, cast

_OURS = os.path.dirname(__file__) + os.sep


def run_script(path: str, arguments: Sequence[str]) -> int:
    """Run a script, or a folder or zip file with a ``__main__.py``; its exit status."""
    sys.argv = [path, *arguments]
    if not sys.flags.safe_path:  # else `python -P -m` has put no folder there
        del sys.path[0]
    if _has_main(path):
        sys.path.insert(0, os.getcwd() if path == "." else os.path.join(os.getcwd(), path))
        return _exit_status(lambda: _run_as_main("__main__", alter_argv=False))
    if not sys.flags.safe_path:
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    return _exit_status(lambda: _run_file(os.path.join(os.getcwd(), path)))


def run_module(name: str, arguments: Sequence[str]) -> int:
    """Run a module as ``python -m`` does; its exit status."""
    sys.argv = ["-m", *arguments]
    return _exit_status(lambda: _run_as_main(name, alter_argv=True))


def _has_main(path: str) -> bool:
    # Python has an importer for whatever it can import from; also for folders that are not there.
    return pkgutil.get_importer(path) is not None and os.path.exists(path)


def _run_as_main(name: str, *, alter_argv: bool) -> None:
    # What `python -m` itself calls, so that its errors and tracebacks are Python's own.
    _new_main()
    runpy._run_module_as_main(name, alter_argv)  # type: ignore[attr-defined]


def _run_file(path: str) -> None:
    try:
        with io.open_code(path) as file:  # once: it may be a pipe
            content = file.read()
    except OSError as error:
        _write(f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}\n")
        sys.exit(2)
    main = vars(_new_main())
    is_compiled = content.startswith(MAGIC_NUMBER)
    loader = SourcelessFileLoader if is_compiled else SourceFileLoader
    main |= {"__file__": path, "__cached__": None, "__loader__": loader("__main__", path)}
    code = marshal.loads(content[16:]) if is_compiled else compile(content, path, "exec", dont_inherit=True)
    exec(code, main)


def _new_main() -> types.ModuleType:
    main = types.ModuleType("__main__")
    vars(main)["__builtins__"] = sys.modules["builtins"]
    vars(main)["__annotations__"] = {}
    sys.modules["__main__"] = main
    return main


def _exit_status(run: Callable[[], None]) -> int:
    """Run to the end, the program's threads included; only a KeyboardInterrupt comes out, when it has been shown."""
    error = _error_of(run)
    status = 0 if error is None else _end_with(error)
    # Python does this at its end, so a loop in a thread of its own is still seen to end; a second time does nothing.
    # Whoever interrupts it sees the report; then Python does it once more, and tells what goes wrong there.
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    return status


def _error_of(run: Callable[[], None]) -> BaseException | None:
    try:
        run()
    except BaseException as error:
        return error
    return None


def _end_with(error: BaseException) -> int:
    """Say what Python says of an error that ends the program; the status it ends with."""
    if isinstance(error, SystemExit):
        return _status_of(error)
    _hide_ours(error)
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as its_own:
        return _status_of(its_own)
    except BaseException as failure:
        _tell_of_hook(failure, error)
    if isinstance(error, KeyboardInterrupt):
        # Python ends the process by the signal itself; but it must not tell of it once more.
        sys.excepthook = lambda *_: None
        raise error
    return 1


def _status_of(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code
    _write(f"{error.code}\n")
    return 1


def _tell_of_hook(failure: BaseException, error: BaseException) -> None:
    _hide_ours(failure)
    _write("Error in sys.excepthook:\n")
    sys.__excepthook__(type(failure), failure, failure.__traceback__)
    _write("\nOriginal exception was:\n")
    sys.__excepthook__(type(error), error, error.__traceback__)


def _write(text: str) -> None:
    stderr = cast("TextIO", sys.stderr or sys.__stderr__)
    with contextlib.suppress(AttributeError, ValueError):  # there is none, or the program has closed it
        stderr.write(text)


def _hide_ours(error: BaseException) -> None:
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(_OURS):
        traceback = traceback.tb_next
    error.__traceback__ = traceback
