"""`python -m streamguard trace`: a program runs as without it, and what it left suspended is reported."""

import json
import os
import pty
import py_compile
import signal
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from streamguard.__main__ import main

TRACE = ["-m", "streamguard", "trace"]
# The sources are ASCII; the children must not warn of what trio says of dropped generators.
ENVIRONMENT = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "NO_COLOR": ""}
NOT_MEASURED = {name: value for name, value in ENVIRONMENT.items() if not name.startswith("COVERAGE_")}

STREAM = """\
import asyncio, contextlib, sys, threading
import anyio, anyio.lowlevel
from streamguard import guarded_stream

async def numbers():
    try:
        yield 1  # yield
        yield 2
    finally:
        await anyio.lowlevel.checkpoint()

"""
LEAKS = (
    STREAM
    + """\
kept = []

async def by_break():
    async for _ in numbers():  # break
        break

async def by_return():
    async for _ in numbers():  # return
        return

async def by_exception():
    async for _ in numbers():  # exception
        raise ValueError

async def by_reference():
    kept.append(numbers())
    await anext(kept[0])  # reference

async def by_cancellation():
    with anyio.CancelScope() as scope:
        async for _ in numbers():  # cancellation
            scope.cancel()
            await anyio.sleep_forever()

async def main():
    await by_break()
    await by_return()
    with contextlib.suppress(ValueError):
        await by_exception()
    await by_cancellation()
    await by_reference()
    await library.deep(numbers)
    await clean()
    for _ in range(10):
        await anyio.lowlevel.checkpoint()

"""
)
LIBRARY = """\
async def deep(source):
    await deeper(source)

async def deeper(source):
    await deepest(source)

async def deepest(source):
    async for _ in source():  # deep
        return
"""
CLEAN = """\
async def clean():
    async with guarded_stream(numbers()) as stream:
        async for _ in stream:
            break
    async with contextlib.aclosing(numbers()) as stream:
        async for _ in stream:
            break
    async for _ in numbers():
        pass
    numbers()

"""
BY_HAND = """
def run(main):
    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
"""
RUNS = {
    "asyncio": "asyncio.run(main())",
    "uvloop": "import uvloop; uvloop.run(main())",
    "trio": "import trio; trio.run(main)",
    "anyio-asyncio": "anyio.run(main)",
    "anyio-trio": "anyio.run(main, backend='trio')",
    "hand-made": BY_HAND + "run(main)",
    "two-loops": "asyncio.run(main()); kept.clear(); asyncio.run(main())",
    "thread": BY_HAND + "threading.Thread(target=run, args=[main]).start()",
}
WAYS = ["break", "return", "exception", "reference", "cancellation"]


def python(*arguments: str | Path, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", *map(str, arguments)]
    options = {"capture_output": True, "text": True, "env": ENVIRONMENT, "timeout": 60, **options}
    return subprocess.run(command, cwd=cwd, check=False, **options)


def traced(*arguments: str | Path, cwd: Path, **options: Any) -> list[Any]:
    """The report of a program that leaks and is fine otherwise."""
    run = python(*TRACE, "--json", *arguments, cwd=cwd, **options)
    assert (run.returncode, run.stderr) == (1, "")
    return list(json.loads(run.stdout.splitlines()[-1]))


def write(path: Path, source: str) -> Path:
    path.write_text(source)
    return path


def line_of(source: str, tag: str) -> int:
    return next(number for number, line in enumerate(source.splitlines(), 1) if line.endswith(f"# {tag}"))


@pytest.fixture
def leaks(tmp_path: Path) -> Path:
    """A program that leaves one generator."""
    return write(tmp_path / "leaks.py", LEAKS + "asyncio.run(by_break())\n")


# -- what is found


@pytest.mark.parametrize("runner", RUNS)
def test_leaks(tmp_path: Path, runner: str) -> None:
    """Each way to leave a generator suspended is found, with its lines and its end, under each runner; nothing else."""
    write(tmp_path / "library.py", LIBRARY)
    script = write(tmp_path / "program.py", LEAKS + CLEAN + "import library\n" + RUNS[runner])
    found = traced(script, cwd=tmp_path)
    count = 2 if runner == "two-loops" else 1
    expected = {
        ("program.py", line_of(LEAKS, way)): "still open" if way == "reference" else "dropped" for way in WAYS
    } | {("library.py", line_of(LIBRARY, "deep")): "dropped"}
    assert {(Path(leak["first_file"]).name, leak["first_line"]): leak["how"] for leak in found} == expected
    for leak in found:
        assert list(leak) == ["name", "file", "line", "first_file", "first_line", "how", "count"]
        assert (leak["name"], leak["count"]) == ("numbers", count)
        assert (Path(leak["file"]), leak["line"]) == (script, line_of(LEAKS, "yield"))


@pytest.mark.parametrize("runner", ["asyncio", "trio"])
def test_clean(tmp_path: Path, runner: str) -> None:
    """What was guarded, closed, exhausted or never started is not reported, and the status is the program's."""
    script = write(tmp_path / "program.py", STREAM + CLEAN + RUNS[runner].replace("main", "clean"))
    run = python(*TRACE, "--json", "--all", script, cwd=tmp_path)
    assert (run.returncode, run.stdout, run.stderr) == (0, "\n[]\n", "")


def test_never_finalised(tmp_path: Path) -> None:
    """A loop that is closed without shutting its generators down leaves the open one for ever."""
    end = "loop = asyncio.new_event_loop(); loop.run_until_complete(by_reference()); loop.close()"
    script = write(tmp_path / "program.py", LEAKS + end)
    assert [leak["how"] for leak in traced(script, cwd=tmp_path)] == ["never finalised"]


def test_text(leaks: Path) -> None:
    """The report for people is on standard error, in plain text; the program's output is its own."""
    run = python(*TRACE, "leaks.py", cwd=leaks.parent)
    assert (run.returncode, run.stdout) == (1, "")
    assert (
        run.stderr
        == f"""
1 async generator was left suspended:

numbers
  at its yield    leaks.py:{line_of(LEAKS, "yield")}
                    yield 1  # yield
  first iterated  leaks.py:{line_of(LEAKS, "break")}
                    async for _ in numbers():  # break
  how it ended    dropped; closed by the event loop, later and in another task, or by Python
  the fix         async with guarded_stream(numbers()) as stream:
"""
    )


def test_colour(leaks: Path) -> None:
    """There is colour on a terminal, unless it is unwanted."""

    def on_a_terminal(**environment: str) -> bytes:
        ours, theirs = pty.openpty()
        clean = {name: value for name, value in ENVIRONMENT.items() if name != "NO_COLOR"}
        python(*TRACE, leaks, cwd=leaks.parent, capture_output=False, stderr=theirs, env={**clean, **environment})
        os.close(theirs)
        text = os.read(ours, 10_000)
        os.close(ours)
        return text

    assert b"\033[" in on_a_terminal(TERM="xterm")
    assert b"\033[" not in on_a_terminal(TERM="xterm", NO_COLOR="1")


def test_counted(tmp_path: Path) -> None:
    """A line that leaks a thousand times is reported once, with the count."""
    end = "async def often():\n    for _ in range(1000):\n        await by_break()\nasyncio.run(often())"
    script = write(tmp_path / "program.py", LEAKS + end)
    assert [leak["count"] for leak in traced(script, cwd=tmp_path)] == [1000]


def test_output_of_a_program_that_changes_its_folder(leaks: Path) -> None:
    """The file of `--output` is where it was named, wherever the program goes."""
    program = "import os\nos.chdir('/')\n" + leaks.read_text()
    write(leaks.parent / "moves.py", program)
    run = python(*TRACE, "--output", "moved.txt", "moves.py", cwd=leaks.parent)
    assert run.returncode == 1
    assert "numbers" in (leaks.parent / "moved.txt").read_text()


def test_output_that_cannot_be_written(leaks: Path) -> None:
    """A file that cannot be written is said at once; the program does not run."""
    run = python(*TRACE, "--output", "no/such/folder", "leaks.py", cwd=leaks.parent)
    assert (run.returncode, run.stdout) == (2, "")
    assert "--output: [Errno 2]" in run.stderr


@pytest.mark.parametrize(
    "line",
    [
        "sys.stderr = None",
        "import io; sys.stderr = io.StringIO()",
        "import io; sys.stderr = io.TextIOWrapper(sys.stderr.detach())",
    ],
)
def test_program_that_replaces_its_stderr(leaks: Path, line: str) -> None:
    """The report goes where standard error was when the program began."""
    write(leaks.parent / "replaces.py", f"import sys\n{line}\n" + leaks.read_text())
    run = python(*TRACE, "replaces.py", cwd=leaks.parent)
    assert run.returncode == 1
    assert "numbers" in run.stderr


def test_program_that_closes_its_stderr(tmp_path: Path) -> None:
    """A program without leaks that closes its standard error ends as it would."""
    write(tmp_path / "closes.py", "import sys\nsys.stderr.close()\n")
    run = python(*TRACE, "closes.py", cwd=tmp_path)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_leaks_of_a_program_that_closes_its_stderr(leaks: Path) -> None:
    """A report that cannot be told any more still counts: the status says that there was one."""
    write(leaks.parent / "closes.py", leaks.read_text() + "sys.stderr.close()\n")
    run = python(*TRACE, "closes.py", cwd=leaks.parent)
    assert (run.returncode, run.stdout, run.stderr) == (1, "", "")


def test_output(leaks: Path) -> None:
    """The report goes to a file if one is named, as text or as JSON."""
    run = python(*TRACE, "--output", "report.txt", "leaks.py", cwd=leaks.parent)
    assert (run.returncode, run.stdout, run.stderr) == (1, "", "")
    assert (leaks.parent / "report.txt").read_text().startswith("1 async generator was left")
    python(*TRACE, "--json", "--output=report.json", "leaks.py", cwd=leaks.parent)
    assert len(json.loads((leaks.parent / "report.json").read_text())) == 1


def test_json_after_a_line_without_end(leaks: Path) -> None:
    """The JSON is a line of its own, whatever the program has printed before."""
    write(leaks, leaks.read_text() + "print('no end', end='')\n")
    run = python(*TRACE, "--json", "leaks.py", cwd=leaks.parent)
    first, last = run.stdout.splitlines()
    assert (first, len(json.loads(last))) == ("no end", 1)


def test_file_in_a_zip_file(tmp_path: Path) -> None:
    """The lines of a program in a zip file are shown."""
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("leaks.py", LEAKS)
        main = "import asyncio, sys\nsys.modules['odd'] = object()\nimport leaks\nasyncio.run(leaks.by_break())\n"
        archive.writestr("__main__.py", main)
    run = python(*TRACE, "archive.zip", cwd=tmp_path)
    assert f"archive.zip/leaks.py:{line_of(LEAKS, 'yield')}\n                    yield 1  # yield\n" in run.stderr
    assert "guarded_stream(numbers())" in run.stderr


def test_json_that_nobody_reads(leaks: Path) -> None:
    """Where nobody reads the JSON there is no traceback of ours; Python may tell of it, as of any output."""
    read, write = os.pipe()
    os.close(read)
    run = python(*TRACE, "--json", leaks, cwd=leaks.parent, capture_output=False, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert "streamguard" + os.sep not in run.stderr


def test_name_that_is_no_text(tmp_path: Path) -> None:
    """A file whose name is no text has a report in a file as well."""
    script = tmp_path / os.fsdecode(b"le\xffks.py")
    write(script, LEAKS + "asyncio.run(by_break())\n")
    run = python(*TRACE, "--output", "report.txt", script.name, cwd=tmp_path)
    assert (run.returncode, run.stderr) == (1, "")
    assert r"le\udcffks.py:" in (tmp_path / "report.txt").read_text()


INSTALLED = """\
async def inner():
    yield 1

async def first():
    async for item in inner():
        return item
"""


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment in which a package is installed."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    write(folder / "thelib.py", INSTALLED + 'if __name__ == "__main__":\n    import asyncio; asyncio.run(first())\n')
    return {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(folder), ENVIRONMENT.get("PYTHONPATH", "")])}


def test_libraries(tmp_path: Path, installed: dict[str, str]) -> None:
    """What an installed package leaves is not blamed on the program; `--all` shows it, `--package` claims it."""
    script = write(tmp_path / "program.py", "import asyncio, thelib\nasyncio.run(thelib.first())\n")

    def status_and_names(*options: str) -> tuple[int, list[str]]:
        run = python(*TRACE, "--json", *options, script, cwd=tmp_path, env=installed)
        return run.returncode, [leak["name"] for leak in json.loads(run.stdout)]

    assert status_and_names() == (0, [])
    assert status_and_names("--all") == (0, ["inner"])
    assert status_and_names("--package", "thelib") == (1, ["inner"])
    run = python(*TRACE, "--all", script, cwd=tmp_path, env=installed)
    assert run.stderr.startswith("\n1 async generator was left inside libraries:\n")


def test_package_that_was_not_imported(tmp_path: Path, installed: dict[str, str]) -> None:
    """A package that the program did not import, perhaps for its name is another, is told of."""
    script = write(tmp_path / "program.py", "import thelib\n")
    run = python(*TRACE, "--package", "the-lib", "--package", "thelib", script, cwd=tmp_path, env=installed)
    told = "streamguard: --package the-lib: the program imported no module of that name\n"
    assert (run.returncode, run.stderr) == (0, told)


def test_more_inside_libraries(tmp_path: Path, installed: dict[str, str]) -> None:
    """Beside a leak of yours those of libraries are counted, and the option that lists them is named."""
    script = write(
        tmp_path / "program.py", LEAKS + "import thelib\nasyncio.run(thelib.first())\nasyncio.run(by_break())\n"
    )
    run = python(*TRACE, script, cwd=tmp_path, env=installed)
    assert run.stderr.endswith("\n1 more inside libraries; --all lists what is inside\n")


def test_installed_program(tmp_path: Path, installed: dict[str, str]) -> None:
    """A module that is run is the program, wherever it is installed."""
    assert [leak["name"] for leak in traced("-mthelib", cwd=tmp_path, env=installed)] == ["inner"]


def test_installed_program_in_a_namespace(tmp_path: Path, installed: dict[str, str]) -> None:
    """The package of a module that is run is the program; the namespace around it is shared with others."""
    shared = tmp_path / "site-packages" / "shared"
    (shared / "app").mkdir(parents=True)
    write(shared / "lib.py", INSTALLED)
    write(shared / "app" / "parts.py", INSTALLED)
    main = "import asyncio, shared.lib, shared.app.parts as parts\nasyncio.run(parts.first())\n"
    write(shared / "app" / "__init__.py", "")
    write(shared / "app" / "__main__.py", main + "asyncio.run(shared.lib.first())\n")
    (leak,) = traced("-m", "shared.app.__main__", cwd=tmp_path, env=installed)
    assert Path(leak["first_file"]).name == "parts.py"


# -- as without the tracer

# Shells have what they start in the background ignore the signal.
INTERRUPTED = """
import os, signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
os.kill(os.getpid(), signal.SIGINT)
time.sleep(9)
"""
TELLS = """
import sys, json
print(json.dumps([sys.argv, sys.path[0], __name__, __file__, __package__, __cached__]), __spec__ and __spec__.origin)
print(type(__loader__).__name__, sorted(vars(sys.modules["__main__"])) == sorted(globals()), __builtins__)
print(sys.stdin.read())
"""


def same(cwd: Path, *arguments: str | Path, status: int = 0, options: Sequence[str] = (), **more: Any) -> str:
    """What a program printed, with and without the tracer."""
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(python, *options, *arguments, cwd=cwd, env=NOT_MEASURED, **more)
        trace = python(*options, *TRACE, *arguments, cwd=cwd, **more)
        plain = running.result()
    assert (trace.returncode, trace.stdout, trace.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    assert plain.returncode == status
    return plain.stdout + plain.stderr


def test_script(tmp_path: Path) -> None:
    """A script sees its own arguments, `__main__`, path and standard input, wherever it is called from."""
    (tmp_path / "below").mkdir()
    write(tmp_path / "below" / "program.py", TELLS)
    arguments = ["below/program.py", "--json", "-m", "--", "-x", "two words", ""]
    assert '"two words", ""' in same(tmp_path, *arguments, input="hello\n")
    same(tmp_path / "below", "../below/program.py", "--")
    same(tmp_path, "below/program.py", options=["-P"])


def test_script_behind_a_link(tmp_path: Path) -> None:
    """A script behind a link imports what stands beside it."""
    (tmp_path / "real").mkdir()
    write(tmp_path / "real" / "program.py", TELLS)
    (tmp_path / "link.py").symlink_to("real/program.py")
    same(tmp_path, "link.py")


def test_module(tmp_path: Path) -> None:
    """The same for modules and packages."""
    write(tmp_path / "module.py", TELLS)
    (tmp_path / "package").mkdir()
    write(tmp_path / "package" / "__init__.py", "import sys; print(sys.argv)")
    write(tmp_path / "package" / "__main__.py", TELLS)
    same(tmp_path, "-m", "module", "--json", "--", "-m", input="hello\n")
    same(tmp_path, "-m", "package", "-x")


def test_folder_and_zip_file(tmp_path: Path) -> None:
    """A folder or zip file with a `__main__` is run."""
    (tmp_path / "folder").mkdir()
    write(tmp_path / "folder" / "__main__.py", TELLS)
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.write(tmp_path / "folder" / "__main__.py", "__main__.py")
    same(tmp_path, "./folder", "x")
    same(tmp_path, "archive.zip", "x")
    same(tmp_path, ".", status=1)


@pytest.mark.parametrize("option", ["-P", "-I"])
def test_folder_on_a_safe_path(tmp_path: Path, option: str) -> None:
    """What is run is importable, also where Python trusts no other folder."""
    (tmp_path / "folder").mkdir()
    write(tmp_path / "folder" / "__main__.py", TELLS)
    same(tmp_path, "folder", options=[option])


def test_compiled_script(tmp_path: Path) -> None:
    """A compiled script is run."""
    py_compile.compile(str(write(tmp_path / "tells.py", TELLS)), str(tmp_path / "tells.pyc"))
    assert "tells.pyc" in same(tmp_path, "tells.pyc")


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("sys.exit()", 0),
        ("sys.exit(3)", 3),
        ("sys.exit('gone wrong')", 1),
        ("raise KeyError(1)", 1),
        ("def f():\n    raise ExceptionGroup('several', [KeyError(1)])\nf()", 1),
        ("sys.excepthook = lambda *a: print('mine', a[0], a[2].tb_lineno)\nraise KeyError", 1),
        ("sys.excepthook = lambda *a: sys.exit(5)\nraise KeyError", 5),
        ("sys.excepthook = lambda *a: 1 / 0\nraise KeyError", 1),
        ("sys.stderr = None\nsys.exit('gone wrong')", 1),
        ("import traceback\ntry:\n    sys.set_asyncgen_hooks(1)\nexcept TypeError:\n    traceback.print_exc()", 0),
        ("sys.set_asyncgen_hooks(1)", 1),
        ("import threading\nthreading.Thread(target=lambda: print('later'), daemon=False).start()", 0),
        ("import threading\nthreading._register_atexit(lambda: 1 / 0)", 0),
        ("import atexit\natexit.register(print, 'bye')\nprint('on')", 0),
        ("import os\nos.kill(os.getpid(), 15)", -signal.SIGTERM),
        (INTERRUPTED, -signal.SIGINT),
    ],
)
def test_end(tmp_path: Path, end: str, status: int) -> None:
    """The status, the traceback and what is printed at the end are the program's."""
    write(tmp_path / "program.py", f"import sys\n{end}\n")
    same(tmp_path, "program.py", status=status)
    if "raise" in end:
        same(tmp_path, "-m", "program", status=status)


def test_workers(tmp_path: Path) -> None:
    """Idle workers of an executor do not keep the tracer waiting, and processes find what they are to run."""
    write(
        tmp_path / "program.py",
        "import concurrent.futures, multiprocessing\n"
        "def double(number):\n    return 2 * number\n"
        "if __name__ == '__main__':\n"
        "    threads = concurrent.futures.ThreadPoolExecutor(1)\n"
        "    print(threads.submit(double, 4).result())\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(double, [1]))\n",
    )
    assert same(tmp_path, "program.py") == "8\n[2]\n"


def test_child_that_was_forked(tmp_path: Path) -> None:
    """A child process that the program forked tells nothing of its own."""
    end = "asyncio.run(by_break())\nimport os\nif pid := os.fork():\n    os.waitpid(pid, 0)\n"
    script = write(tmp_path / "program.py", LEAKS + end)
    run = python(*TRACE, "--json", script, cwd=tmp_path)
    assert len(json.loads(run.stdout)) == 1


def test_status_of_the_program_wins(leaks: Path) -> None:
    """A program that leaks and fails keeps its own status, and its report."""
    write(leaks, leaks.read_text() + "sys.exit(7)\n")
    run = python(*TRACE, leaks, cwd=leaks.parent)
    assert run.returncode == 7
    assert "1 async generator was left" in run.stderr


def test_interrupted(leaks: Path) -> None:
    """A program that is interrupted ends by the signal, with its report."""
    write(leaks, leaks.read_text() + INTERRUPTED)
    run = python(*TRACE, leaks, cwd=leaks.parent)
    assert run.returncode == -signal.SIGINT
    assert run.stderr.count("KeyboardInterrupt") == 1
    assert "1 async generator was left" in run.stderr


def test_interrupted_while_it_waits_for_a_thread(leaks: Path) -> None:
    """Who is tired of waiting for the program's threads sees the report; nothing of ours is told."""
    end = """
import os, signal
handled = threading.Event()

def on_interrupt(*args):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    handled.set()
    raise KeyboardInterrupt

def interrupt():
    threading.main_thread().join()
    # More than once: one that comes just before the wait does not end it.
    while not handled.wait(0.1):
        os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, on_interrupt)
threading.Thread(target=interrupt).start()
"""
    write(leaks, leaks.read_text() + end)
    run = python(*TRACE, leaks, cwd=leaks.parent)
    assert run.returncode == 1
    assert "1 async generator was left" in run.stderr
    assert "streamguard" + os.sep not in run.stderr


# -- nothing to run


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["missing.py"], 2, "can't open file"),
        (["missing/program.py", "x"], 2, "can't open file"),
        (["-m", "missing"], 1, "No module named missing"),
        (["-m", "json.missing"], 1, "No module named json.missing"),
        (["-m", "email"], 1, "cannot be directly executed"),
        (["wrong.py"], 1, "SyntaxError"),
        (["-m", "wrong"], 1, "SyntaxError"),
        (["latin.py"], 1, "SyntaxError"),
    ],
)
def test_nothing_to_run(tmp_path: Path, arguments: list[str], status: int, words: str) -> None:
    """Where there is nothing to run, the message and the status are Python's."""
    write(tmp_path / "wrong.py", "x = (\n")
    (tmp_path / "latin.py").write_bytes(b"# -*- coding: utf-8 -*-\nx = '\xe9'\n")
    assert words in same(tmp_path, *arguments, status=status)


@pytest.mark.parametrize("arguments", [[], ["--jsn", "x.py"], ["-m"], ["-"], ["-c", "print(1)"]])
def test_usage(tmp_path: Path, arguments: list[str]) -> None:
    """A wrong command line is told of, with status 2 and what may be run."""
    run = python(*TRACE, *arguments, cwd=tmp_path)
    assert run.returncode == 2
    assert run.stderr.startswith("usage: python -m streamguard trace [OPTIONS] (SCRIPT | -m MODULE)")


@pytest.mark.parametrize("arguments", [[], ["other"]])
def test_wrong_command(tmp_path: Path, arguments: list[str]) -> None:
    """The same without a command, or with one that is not there."""
    run = python("-m", "streamguard", *arguments, cwd=tmp_path)
    assert run.returncode == 2
    assert run.stderr.startswith("usage: python -m streamguard")


def test_called_by_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    """The module can be imported, which runs nothing, and its command line called."""
    with pytest.raises(SystemExit) as ended:
        main(["trace", "--help"])
    assert ended.value.code == 0
    assert "standard error" in capsys.readouterr().out


def test_help(tmp_path: Path) -> None:
    """The help says what it does."""
    run = python(*TRACE, "--help", cwd=tmp_path)
    assert (run.returncode, run.stderr) == (0, "")
    assert "left" in run.stdout
