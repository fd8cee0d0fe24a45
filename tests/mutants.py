"""Changes the library one thing at a time, and tells what no test notices: `python tests/mutants.py MODULE...`.

mutmut makes the mutants. The tests are collected once, and run once to see which lines each of them reaches; then, for
each mutant, a fork of this process gives the changed function its new code and runs the tests that reach the change,
until one fails. So nothing is imported twice, and tests that look at frames see what they always see.

Those that no test can notice stand in `survivors`, with the reason; they are not tried, unless by ``--all``. Exits with
1 if another one survives.
"""

import argparse
import ast
import contextlib
import difflib
import functools
import gc
import hashlib
import importlib
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import libcst as cst
import pytest
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.file_mutation import Mutation, MutationVisitor
from mutmut.mutation.mutators import mutation_operators
from mutmut.mutation.pragma_handling import get_ignored_lines
from trio._core import _ki

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "src" / "streamguard"
MAP = TESTS.parent / "mutants" / "map.json"
SURVIVORS = TESTS / "survivors"
CORE = [
    "_guard",
    "_closing",
    "_leaving",
    "_outcome",
    "_owner",
    "_handoff",
    "_stepping",
    "_chain",
    "_sources",
    "_generators",
    "_hooks",
    "_asyncio",
    "_trio",
    "_task",
    "_runs",
    "_stream",
    "_aclosing",
    "_options",
    "_decorator",
    "_errors",
]
# They start programs, which see no mutant, or run pages; or take long.
NOT_HERE = {
    "client",
    "docs",
    "examples",
    "explanation",
    "finally",
    "import",
    "leaks",
    "many",
    "nothing_left",
    "pictures",
    "pytest_plugin",
    "readme",
    "reference",
    "starlette",
    "stress",
    "threads",
    "trace",
    "tracker",
}


class Mutant(NamedTuple):
    """One change: where it is, the whole module with it, and how it reads."""

    line: int
    last_line: int
    source: str
    text: str


class Name(NamedTuple):
    """What a change is known by, wherever its lines stand."""

    function: str
    change: tuple[str, ...]


def name_of(code: CodeType, mutant: Mutant) -> Name:
    lines = mutant.text.splitlines()
    return Name(code.co_qualname, tuple(f"{line[0]} {line[1:].strip()}" for line in lines))


def explained(module: str) -> dict[Name, str]:
    """The changes of a module that no test can notice, and why.

    Its file has a line ``== why``, and below it, for each change, the function and the lines that differ.
    """
    path = SURVIVORS / f"{module}.txt"
    found: dict[Name, str] = {}
    why = function = ""
    change: list[str] = []
    for line in [*(path.read_text().splitlines() if path.exists() else ()), ""]:
        if line[:2] in ("- ", "+ "):
            change.append(line)
            continue
        if change:
            found[Name(function, tuple(change))] = why
            change = []
        if line.startswith("== "):
            why = line[3:]
        elif line:
            function = line
    return found


class Visitor(MutationVisitor):
    """mutmut's, but it goes into properties and other decorated functions as well."""

    def _skip_node_and_children(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.FunctionDef) and node.decorators:
            return any(getattr(decorator.decorator, "value", "") == "overload" for decorator in node.decorators)
        if isinstance(node, cst.Call) and getattr(node.func, "value", "") == "cast":
            return True  # for type checkers alone
        return super()._skip_node_and_children(node)


class Calls(cst.CSTVisitor):
    """Finds statements that only call something, which mutmut never leaves out."""

    def __init__(self) -> None:
        self.found: list[Mutation] = []

    def visit_SimpleStatementLine(self, node: cst.SimpleStatementLine) -> None:  # noqa: N802 - so libcst calls it
        match node.body:
            case [cst.Expr(cst.Call() | cst.Await())]:
                self.found.append(Mutation(node, node.with_changes(body=[cst.Pass()]), None))


def mutants_of(path: Path) -> Iterator[Mutant]:
    source = path.read_text()
    wrapper = MetadataWrapper(cst.parse_module(source))
    visitor = Visitor(mutation_operators, get_ignored_lines(str(path), source, wrapper, None))
    module = wrapper.visit(visitor)
    calls = Calls()
    module.visit(calls)
    places = MetadataWrapper(module, unsafe_skip_copy=True).resolve(PositionProvider)
    for mutation in visitor.mutations + calls.found:
        place = places[mutation.original_node]
        changed = module.deep_replace(mutation.original_node, mutation.mutated_node).code
        lines = difflib.unified_diff(source.splitlines(), changed.splitlines(), n=0, lineterm="")
        text = "\n".join(line for line in lines if line[:2] not in ("--", "++", "@@"))
        yield Mutant(place.start.line, place.end.line, changed, text)


# -- functions and their code


def codes_of(code: CodeType) -> Iterator[CodeType]:
    """The code of each function and class of a module, in order; what is inside a function belongs to it."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and not constant.co_name.startswith("<"):
            yield constant
            if not constant.co_flags & 1:  # a class
                yield from codes_of(constant)


def pairs_of(before: CodeType, after: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """The code of a function before and after its change, and of those inside it, some of which exist already."""
    yield before, after
    inside = [[it for it in code.co_consts if isinstance(it, CodeType)] for code in (before, after)]
    if len(inside[0]) == len(inside[1]):
        for pair in zip(*inside, strict=True):
            yield from pairs_of(*pair)


def place_of(code: CodeType) -> tuple[str, int, str]:
    # Not the code itself: pytest has rewritten the asserts of what is part of a plugin.
    return code.co_filename, code.co_firstlineno, code.co_qualname


def last_line(code: CodeType) -> int:
    inside = [last_line(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return max([code.co_firstlineno, *inside, *(line for *_, line in code.co_lines() if line)])


def defaults_of(source: str, function: FunctionType) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The defaults that a function has in a changed module."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name != function.__name__:
            continue
        if min(it.lineno for it in (node, *node.decorator_list)) == function.__code__.co_firstlineno:
            named = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            return (
                tuple(_value(default, function) for default in node.args.defaults),
                {argument.arg: _value(default, function) for argument, default in named if default is not None},
            )
    return None


def _value(node: ast.expr, function: FunctionType) -> Any:
    return eval(compile(ast.Expression(node), "default", "eval"), function.__globals__)


# -- running


class Failures:
    """Whether a test has failed."""

    def __init__(self) -> None:
        self.seen = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seen = self.seen or report.failed


class Runner:
    """The plugin that runs mutants, where pytest would run the tests."""

    def __init__(self, modules: list[str], seconds: float, *, all_of_them: bool) -> None:
        self.modules = modules
        self.all_of_them = all_of_them
        """Whether those that are explained are tried as well."""
        self.seconds = seconds
        """How long the tests of one mutant may take."""
        self.counts: dict[str, Counter[str]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.session = session
        self.items = {item.nodeid: item for item in session.items}
        newest = max(path.stat().st_mtime for folder in (PACKAGE, TESTS) for path in folder.rglob("*.py"))
        if not MAP.exists() or MAP.stat().st_mtime < newest:
            in_fork(self.record)
        self.lines, self.took = json.loads(MAP.read_text())
        self.names = list(self.took)
        for module in self.modules:
            importlib.import_module(f"streamguard.{module}")
        self.functions = [thing for thing in gc.get_objects() if isinstance(thing, FunctionType)]
        for module in self.modules:
            self.run_module(module)
        for module, count in self.counts.items():
            left = count.total() - count["killed"] - count["explained"]
            say(f"| `{module}` | {count.total()} | {count['killed']} | {count['explained']} | {left} |")
            session.testsfailed += left
        return True

    def watch(self) -> Failures:
        """In a fork: have failures noted, and not printed."""
        plugins = self.session.config.pluginmanager
        plugins.unregister(name="terminalreporter")
        failures = Failures()
        plugins.register(failures)
        return failures

    def record(self) -> str:
        """Write down which lines each test reaches, and how long it takes."""
        lines: dict[str, dict[int, list[int]]] = {}
        took: dict[str, float] = {}
        hits: set[tuple[str, int]] = set()

        def hit(code: CodeType, line: int) -> object:
            if code.co_filename.startswith(str(PACKAGE)):
                hits.add((Path(code.co_filename).stem, line))
            return sys.monitoring.DISABLE

        failures = self.watch()
        sys.monitoring.use_tool_id(sys.monitoring.PROFILER_ID, "mutants")
        sys.monitoring.register_callback(sys.monitoring.PROFILER_ID, sys.monitoring.events.LINE, hit)
        sys.monitoring.set_events(sys.monitoring.PROFILER_ID, sys.monitoring.events.LINE)
        for name, item in self.items.items():
            hits.clear()
            sys.monitoring.restart_events()
            start = time.perf_counter()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            seconds = time.perf_counter() - start
            if failures.seen:
                say(f"{name} fails without any change, and is left out")
                failures.seen = False
                continue
            for module, line in hits:
                lines.setdefault(module, {}).setdefault(line, []).append(len(took))
            took[name] = seconds
        MAP.parent.mkdir(exist_ok=True)
        MAP.write_text(json.dumps((lines, took)))
        return "recorded"

    def run_module(self, module: str) -> None:
        path = PACKAGE / f"{module}.py"
        before = list(codes_of(compile(path.read_text(), str(path), "exec")))
        count = self.counts[module] = Counter()
        known = {} if self.all_of_them else explained(module)
        for mutant in mutants_of(path):
            around = [it for it in before if it.co_flags & 1 and it.co_firstlineno <= mutant.line <= last_line(it)]
            after = list(codes_of(compile(mutant.source, str(path), "exec")))
            if not around or len(before) != len(after):
                continue  # at the top level, which has run
            code = around[-1]
            new = after[before.index(code)]
            if new.co_freevars != code.co_freevars:
                continue  # without super() there is no cell for the class, and the code does not fit
            name = name_of(code, mutant)
            if name in known:
                count["explained"] += 1
                continue
            tests = self.tests_for(module, code, mutant)
            fate = in_fork(functools.partial(self.try_out, code, new, mutant, tests)) if tests else "reached by no test"
            count[fate] += 1
            if fate != "killed":
                change = "\n".join(name.change)
                say(f"{module}:{mutant.line}: {fate} ({len(tests)} tests)\n{name.function}\n{change}\n")

    def tests_for(self, module: str, code: CodeType, mutant: Mutant) -> list[str]:
        """Those that reach the change; asyncio first, then trio, then uvloop; as many as there is time for."""
        lines = self.lines.get(module, {})
        reaching: set[int] = set()
        for line in range(mutant.line, mutant.last_line + 1):
            reaching.update(lines.get(str(line), ()))
        if not reaching:  # the default of an argument, for example
            for line in range(code.co_firstlineno, last_line(code) + 1):
                reaching.update(lines.get(str(line), ()))
        names = sorted((name for number in reaching if (name := self.names[number]) in self.items), key=mixed)
        # Of each test function one case first: its cases resemble each other.
        seen: Counter[str] = Counter()
        turn = {}
        for name in names:
            function = name.partition("[")[0] + backend_of(name)
            turn[name] = seen[function]
            seen[function] += 1
        own = f"test{module}"  # also test_chain_ways_out and the like
        left, chosen = self.seconds, []
        for name in sorted(
            names, key=lambda name: (backend_of(name), own not in name, self.took[name] > 0.1, turn[name])
        ):
            left -= self.took[name]
            if left > 0:
                chosen.append(name)
        return chosen

    def try_out(self, code: CodeType, new: CodeType, mutant: Mutant, tests: list[str]) -> str:
        """In a fork: give the function its new code, and run the tests until one fails."""
        found = False
        for before, after in pairs_of(code, new):
            for function in self.functions:
                if place_of(function.__code__) == place_of(before) and before.co_freevars == after.co_freevars:
                    change(function, after, mutant.source)
                    found = True
        if not found:
            return "not found"
        failures = self.watch()
        for name in tests:
            signal.setitimer(signal.ITIMER_REAL, 3 + 8 * self.took[name])  # a test that hangs has noticed, too
            self.items[name].config.hook.pytest_runtest_protocol(item=self.items[name], nextitem=None)
            signal.setitimer(signal.ITIMER_REAL, 0)
            if failures.seen:
                return "killed"
        return "survived"


def backend_of(name: str) -> str:
    """In the order in which they are tried: what asyncio does is found soonest."""
    return next((backend for backend in ("uvloop", "trio") if backend in name), "asyncio")


def mixed(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def change(function: FunctionType, new: CodeType, source: str) -> None:
    protected = _ki._CODE_KI_PROTECTION_STATUS_WMAP
    with contextlib.suppress(KeyError):
        protected[new] = protected[function.__code__]
    defaults = defaults_of(source, function)
    function.__code__ = new
    if defaults is not None:
        function.__defaults__, function.__kwdefaults__ = defaults


def in_fork(function: Callable[[], str]) -> str:
    """What a function returns in a fork of this process; "killed" if that dies or hangs."""
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            os.write(writer, function().encode())
        except Exception as error:
            os.write(writer, f"failed by {error!r}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        said = answer.read()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)  # what its tests have started
    os.waitpid(process, 0)
    return said or "killed"


def say(text: str) -> None:
    os.write(2, f"{text}\n".encode())


def main() -> int:
    parser = argparse.ArgumentParser(description="Tell which changes of the library no test notices.")
    parser.add_argument("modules", nargs="*", default=CORE, help="such as _closing; by default the core")
    parser.add_argument("--seconds", type=float, default=20, help="how long the tests of one mutant may take")
    parser.add_argument("--all", action="store_true", help="try those that are explained as well")
    arguments = parser.parse_args()
    runner = Runner(arguments.modules, arguments.seconds, all_of_them=arguments.all)
    tests = [str(path) for path in sorted(TESTS.glob("test_*.py")) if path.stem[5:] not in NOT_HERE]
    return int(pytest.main(["-q", "-pno:cacheprovider", "-pno:faulthandler", *tests], [runner]))


if __name__ == "__main__":
    sys.exit(main())
