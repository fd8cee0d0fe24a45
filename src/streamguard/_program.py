"""Running a program as Python itself would: a script, a folder or zip file, or a module.

The rule kept here: the program cannot tell, and neither can who reads its output: its own ``__main__``, arguments and
``sys.path``, tracebacks without our frames, and Python's words and status where there is nothing to run.
"""

from __future__ import annotations

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
from types import TracebackType

_OURS = os.path.dirname(__file__) + os.sep


def run_script(path: str, arguments: Sequence[str]) -> int:
    """Run a script, or a folder or zip file with a ``__main__.py``; its exit status."""
    sys.argv = [path, *arguments]
    if _has_main(path):
        _put_first(os.path.abspath(path))
        return _exit_status(lambda: _run_as_main("__main__", alter_argv=False))
    _put_first(os.path.dirname(os.path.realpath(path)))
    return _exit_status(lambda: _run_file(os.path.join(os.getcwd(), path)))


def run_module(name: str, arguments: Sequence[str]) -> int:
    """Run a module as ``python -m`` does; its exit status."""
    sys.argv = ["-m", *arguments]
    return _exit_status(lambda: _run_as_main(name, alter_argv=True))


def _has_main(path: str) -> bool:
    # Python has an importer for whatever it can import from; also for folders that are not there.
    return pkgutil.get_importer(path) is not None and os.path.exists(path)


def _put_first(folder: str) -> None:
    if not sys.flags.safe_path:  # else `python -P -m` has put nothing there
        sys.path[0] = folder


def _run_as_main(name: str, *, alter_argv: bool) -> None:
    # What `python -m` itself calls, so that its errors and tracebacks are Python's own.
    _new_main()
    runpy._run_module_as_main(name, alter_argv)  # type: ignore[attr-defined]


def _run_file(path: str) -> None:
    try:
        with io.open_code(path) as file:  # once: it may be a pipe
            content = file.read()
    except OSError as error:
        sys.stderr.write(f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}\n")
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
    try:
        run()
        status = 0
    except SystemExit as error:
        status = _status_of(error)
    except BaseException as error:
        _show(error)
        if isinstance(error, KeyboardInterrupt):
            # Python ends the process by the signal itself; but it must not tell of it once more.
            sys.excepthook = lambda *_: None
            raise
        status = 1
    # Python does this at its end, so a loop in a thread of its own is still seen to end; a second time does nothing.
    threading._shutdown()  # type: ignore[attr-defined]
    return status


def _status_of(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code
    sys.stderr.write(f"{error.code}\n")
    return 1


def _show(error: BaseException) -> None:
    traceback = _theirs(error.__traceback__)
    error.__traceback__ = traceback
    sys.excepthook(type(error), error, traceback)


def _theirs(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(_OURS):
        traceback = traceback.tb_next
    return traceback
