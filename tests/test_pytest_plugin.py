"""The pytest plugin: off unless asked, then each test answers for what it left, and each fixture for its own."""

import inspect
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from nothing_left import collect_until_quiet

LEAVING = """
import asyncio, contextlib
import pytest

kept = []

async def numbers():
    yield 1
    yield 2

async def leave():
    async for _ in numbers():
        break

async def keep():
    kept.append(generator := numbers())
    await anext(generator)

async def close():
    async with contextlib.aclosing(numbers()) as stream:
        async for _ in stream:
            break
"""
ANYIO = """
import pytest
from leaving import *

pytestmark = pytest.mark.anyio

@pytest.fixture
def anyio_backend():
    return {backend!r}
"""
ASYNCIO = """
import pytest
import pytest_asyncio
from leaving import *

pytestmark = pytest.mark.asyncio
"""
TRIO = """
import pytest
import pytest_trio
from leaving import *

pytestmark = pytest.mark.trio
"""
TESTS = """
async def test_drops():
    await leave()

async def test_keeps():
    await keep()

async def test_is_clean():
    await close()
"""
FIXTURES = """
{fixture}
async def leaves_before():
    await leave()
    yield

{fixture}
async def leaves_after():
    yield
    await leave()

async def test_before(leaves_before):
    pass

async def test_after(leaves_after):
    pass
"""
PLUGINS = [
    pytest.param(ANYIO.format(backend="asyncio"), "@pytest.fixture", id="anyio-asyncio"),
    pytest.param(ANYIO.format(backend="trio"), "@pytest.fixture", id="anyio-trio"),
    pytest.param(ASYNCIO, "@pytest_asyncio.fixture", id="pytest-asyncio"),
    pytest.param(TRIO, "@pytest_trio.trio_fixture", id="pytest-trio"),
]
of_each_plugin = pytest.mark.parametrize(("head", "fixture"), PLUGINS)


@pytest.fixture(autouse=True)
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project with helpers that leave generators."""
    pytester.makepyfile(leaving=LEAVING)
    configure(pytester)
    return pytester


TRIO_WARNS = "  ignore:Async generator .* was garbage collected:ResourceWarning"


def configure(project: pytest.Pytester, *lines: str, filter: str = "default", of_trio: str = TRIO_WARNS) -> None:
    """Write the ini file. Without a filter of its own the tests would inherit ours."""
    always = [
        "[pytest]",
        "asyncio_default_fixture_loop_scope = function",
        "filterwarnings =",
        f"  {filter}",
        of_trio,
    ]
    project.makeini("\n".join([*always, *lines]))


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """Collect here what other plugins leave open, an event loop for example: the next test would be blamed."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        collect_until_quiet()


def run(project: pytest.Pytester, tests: str, *arguments: str) -> pytest.RunResult:
    project.makepyfile(test_it=tests)
    return project.runpytest_inprocess("-p", "no:xdist", "-p", "no:hypothesispytest", *arguments)


def outcomes(result: pytest.RunResult, **expected: int) -> None:
    result.assert_outcomes(**{"warnings": 0, **expected})


SYNC = "import asyncio, pytest\nfrom leaving import *\n"
LEAVES = SYNC + "def test_leaves():\n    asyncio.run(leave())\n"


# -- off


def test_off_by_default(project: pytest.Pytester) -> None:
    """Nothing is watched, and nothing of ours but the option is there, unless somebody asks."""
    tests = (
        LEAVES
        + "\ndef test_nothing(request):\n    assert not request.config.pluginmanager.has_plugin('streamguard_leaks')\n"
    )
    outcomes(run(project, tests), passed=2)


def test_costs_nothing() -> None:
    """The plugin loads nothing of ours but itself until it is asked, and leaves `sys` alone."""
    program = """
import sys
hooks = sys.set_asyncgen_hooks
import streamguard.pytest_plugin
print([name for name in sys.modules if name.startswith("streamguard.")], sys.set_asyncgen_hooks is hooks)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "['streamguard.pytest_plugin'] True\n"


def test_off_for_all(project: pytest.Pytester) -> None:
    """`--streamguard=off` wins over the ini key and over markers."""
    configure(project, "streamguard = error")
    marked = LEAVES.replace("def test", "@pytest.mark.streamguard('error')\ndef test")
    outcomes(run(project, marked, "--streamguard=off"), passed=1)


# -- on


@of_each_plugin
def test_error(project: pytest.Pytester, head: str, fixture: str) -> None:
    """A test that leaves a generator fails, by its name; what is known only after its fixtures is an error of it."""
    result = run(project, head + TESTS, "--streamguard=error")
    if "asyncio = " in head or "pytest_asyncio" in head:  # its loop ends with the fixtures
        outcomes(result, passed=2, failed=1, errors=1)
    else:
        outcomes(result, passed=1, failed=2)
    result.stdout.fnmatch_lines_random(
        [
            "test_it.py::test_drops* left an async generator suspended:",
            "test_it.py::test_keeps* left an async generator suspended:",
            "  at its yield    leaving.py:7",
            "  first iterated  leaving.py:11",
            "  first iterated  leaving.py:16",
        ]
    )
    result.stdout.no_fnmatch_line("*test_is_clean*left*")
    result.stdout.no_fnmatch_line("*traceback entries*")


@of_each_plugin
def test_fixtures(project: pytest.Pytester, head: str, fixture: str) -> None:
    """What a fixture leaves is an error of it, not a failure of the test."""
    result = run(project, head + FIXTURES.format(fixture=fixture), "--streamguard=error")
    if "pytest_trio" in head or "pytest_asyncio" in head:
        outcomes(result, passed=2 if "pytest_trio" in head else 1, errors=2)
    else:
        outcomes(result, passed=1, errors=2)
    result.stdout.fnmatch_lines_random(
        [
            "the fixture 'leaves_before', in test_it.py::test_before*, left an async generator suspended:",
            "the fixture 'leaves_after', in test_it.py::test_after*, left an async generator suspended:",
        ]
    )
    result.stdout.no_fnmatch_line("test_it.py::*left*")


def test_fixture_that_is_not_async(project: pytest.Pytester) -> None:
    """A fixture that runs a loop of its own answers for what it leaves, before and after the test."""
    tests = """
@pytest.fixture
def leaves():
    asyncio.run(leave())
    yield
    asyncio.run(keep())

def test_it(leaves):
    pass
"""
    result = run(project, SYNC + tests, "--streamguard=warn")
    outcomes(result, passed=1, warnings=2)
    assert result.stdout.str().count("UnguardedStreamWarning: the fixture 'leaves', in test_it.py::test_it,") == 2


@of_each_plugin
def test_warn(project: pytest.Pytester, head: str, fixture: str) -> None:
    """In the mode `warn` all tests pass, and each leak is a warning that names its test."""
    result = run(project, head + TESTS + FIXTURES.format(fixture=fixture), "--streamguard=warn")
    outcomes(result, passed=5, warnings=4)
    result.stdout.fnmatch_lines_random(
        [
            "*UnguardedStreamWarning: test_it.py::test_drops* left an async generator suspended:",
            "*UnguardedStreamWarning: test_it.py::test_keeps* left an async generator suspended:",
            "*UnguardedStreamWarning: the fixture 'leaves_before', in *",
            "*UnguardedStreamWarning: the fixture 'leaves_after', in *",
        ]
    )


def test_ini(project: pytest.Pytester) -> None:
    """The mode may stand in the ini file; the option wins."""
    configure(project, "streamguard = error")
    outcomes(run(project, LEAVES), failed=1)
    outcomes(run(project, LEAVES, "--streamguard=warn"), passed=1, warnings=1)


@pytest.mark.parametrize("mode", ["off", "warn", "error"])
def test_marker(project: pytest.Pytester, mode: str) -> None:
    """A marker alone watches its test, and no other; it wins over the mode of all."""
    tests = LEAVES + f"\n@pytest.mark.streamguard({mode!r})\ndef test_marked():\n    asyncio.run(leave())\n"
    marked = {"off": {"passed": 1}, "warn": {"passed": 1, "warnings": 1}, "error": {"failed": 1}}[mode]
    outcomes(run(project, tests), **{**marked, "passed": marked.get("passed", 0) + 1})
    outcomes(run(project, tests, "--streamguard=error"), **{**marked, "failed": marked.get("failed", 0) + 1})


@pytest.mark.parametrize("marker", ["'loud'", "", "mode='error'"])
def test_wrong_marker(project: pytest.Pytester, marker: str) -> None:
    """A marker that says nothing known is told of, by the name of its test."""
    result = run(project, LEAVES.replace("def test", f"@pytest.mark.streamguard({marker})\ndef test"))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_it.py::test_leaves: @pytest.mark.streamguard takes one of off, warn, error*"])


def test_wrong_mode(project: pytest.Pytester) -> None:
    """A mode that nobody knows is told of."""
    configure(project, "streamguard = loud")
    result = run(project, LEAVES)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*streamguard = 'loud': choose from off, warn, error*"])


# -- with others


def test_warnings_that_are_errors(project: pytest.Pytester) -> None:
    """Where warnings are errors, a warned test fails with the report; others are not disturbed."""
    configure(project, filter="error")
    result = run(project, ANYIO.format(backend="asyncio") + TESTS, "--streamguard=warn")
    outcomes(result, passed=1, failed=2)
    result.stdout.fnmatch_lines(["test_it.py::test_drops* left an async generator suspended:"])


def test_warnings_that_are_ignored(project: pytest.Pytester) -> None:
    """A filter for the category can ignore them."""
    ignore = "ignore::streamguard.leaks.UnguardedStreamWarning"
    outcomes(run(project, LEAVES, "--streamguard=warn", "-W", ignore), passed=1)


def test_without_cache(project: pytest.Pytester) -> None:
    """It needs no cache."""
    outcomes(run(project, LEAVES, "--streamguard=error", "-p", "no:cacheprovider"), failed=1)


def test_xdist(project: pytest.Pytester) -> None:
    """Tests that run in several processes are reported as well."""
    marked = LEAVES.replace("def test", "@pytest.mark.streamguard('error')\ndef test")
    project.makepyfile(test_it=LEAVES, test_other=marked)
    project.makeini("[pytest]\nfilterwarnings = default\n")
    without = [f"-pno:{plugin}" for plugin in ("anyio", "asyncio", "cacheprovider", "trio")]
    result = project.runpytest_subprocess("-n2", "--streamguard=warn", *without)
    outcomes(result, passed=1, failed=1, warnings=1)
    result.stdout.fnmatch_lines_random(
        [f"*test_{name}.py::test_leaves left an async generator suspended:" for name in ("it", "other")]
    )


def test_failure_of_the_test(project: pytest.Pytester) -> None:
    """A test that fails by itself fails with its own error; what it left stands beside it."""
    result = run(project, LEAVES + "    assert 1 == 2\n", "--streamguard=error")
    outcomes(result, failed=1)
    result.stdout.fnmatch_lines(["*assert 1 == 2*", "*Captured streamguard call*", "test_it.py::test_leaves left *"])


def test_failure_of_a_clean_test(project: pytest.Pytester) -> None:
    """A test that fails and left nothing is reported as if the plugin were off."""
    result = run(
        project, SYNC + "def test_fails():\n    asyncio.run(close())\n    assert 1 == 2\n", "--streamguard=error"
    )
    outcomes(result, failed=1)
    result.stdout.no_fnmatch_line("*Captured streamguard*")
    result.stdout.no_fnmatch_line("*left an async generator*")


def test_left_by_the_error(project: pytest.Pytester) -> None:
    """A generator that the traceback of a failing test holds is left, and told of after the test."""
    tests = (
        SYNC + "async def fail():\n    generator = numbers()\n    async for _ in generator:\n        assert 1 == 2\n"
    )
    result = run(project, tests + "def test_fails():\n    asyncio.run(fail())\n", "--streamguard=error")
    result.stdout.fnmatch_lines_random(["*assert 1 == 2*", "test_it.py::test_fails left *", "*still open*"])


FAILING = {
    "setup": "def test_it(fails):\n    pass\n",
    "teardown": "def test_it(fails_later):\n    pass\n",
    "call": TRIO + "async def test_it():\n    await leave()\n",
    "first iteration": """
import asyncio, leaving

async def after_the_shutdown():
    await asyncio.get_running_loop().shutdown_asyncgens()
    await leaving.close()

def test_it():
    asyncio.run(after_the_shutdown())
""",
    "wrong hooks": "import sys\ndef test_it():\n    sys.set_asyncgen_hooks(1)\n",
}


@pytest.mark.parametrize("where", FAILING)
def test_place_of_a_failure(project: pytest.Pytester, where: str) -> None:
    """A failure is shown where it came about, not where we saw it pass."""
    configure(project, filter="error", of_trio="")
    project.makeconftest("""
        import pytest
        @pytest.fixture
        def fails():
            raise ConnectionError("gone")
        @pytest.fixture
        def fails_later():
            yield
            raise ConnectionError("gone")
    """)
    result = run(project, FAILING[where], "--streamguard=warn")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["E   *"])
    result.stdout.no_re_match_line(r".*streamguard[/\\]_\w+\.py")


def test_reference_cycle(project: pytest.Pytester) -> None:
    """A generator that only a reference cycle holds when its test ends is the test's."""
    tests = """
async def in_a_cycle():
    class Holder: pass
    holder = Holder()
    holder.me, holder.generator = holder, numbers()
    await anext(holder.generator)

loop = asyncio.new_event_loop()

def test_cycle():
    loop.run_until_complete(in_a_cycle())

def test_other():
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
"""
    result = run(project, SYNC + tests, "--streamguard=error")
    outcomes(result, passed=1, failed=1)
    result.stdout.fnmatch_lines(["test_it.py::test_cycle left *"])


def test_left_when_another_test_runs(project: pytest.Pytester) -> None:
    """What a task of an earlier test leaves while another one runs is the first's, in its mode."""
    tests = """
loop = asyncio.new_event_loop()
tasks = []

async def start():
    tasks.append(asyncio.create_task(work()))
    await asyncio.sleep(0)

async def work():
    async for _ in numbers():
        await asyncio.sleep(60)

@pytest.mark.streamguard("error")
def test_starts():
    loop.run_until_complete(start())

def test_cancels():
    tasks[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(tasks.pop())

def test_next():
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
"""
    result = run(project, SYNC + tests)
    outcomes(result, passed=3, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_cancels*", "test_it.py::test_starts left *"])


def test_fixture_that_closes_it(project: pytest.Pytester) -> None:
    """What a fixture closes after the test was not left."""
    tests = """
@pytest.fixture
async def streams():
    streams = []
    yield streams
    for stream in streams:
        await stream.aclose()

async def test_opens(streams):
    streams.append(numbers())
    await anext(streams[0])
"""
    outcomes(run(project, ANYIO.format(backend="asyncio") + tests, "--streamguard=error"), passed=1)


def test_fixture_of_the_module(project: pytest.Pytester) -> None:
    """What a fixture holds open is judged when the fixture is over, not after the first test that uses it."""
    tests = """
loop = asyncio.new_event_loop()

@pytest.fixture(scope="module")
def connection():
    generator = numbers()
    loop.run_until_complete(anext(generator))
    yield generator
    {closing}

def test_one(connection):
    pass

def test_two(connection):
    pass
"""
    closing = "loop.run_until_complete(generator.aclose()); loop.close()"
    outcomes(run(project, SYNC + tests.format(closing=closing), "--streamguard=error"), passed=2)
    result = run(project, SYNC + tests.format(closing="kept.append(generator)"), "--streamguard=error")
    outcomes(result, passed=2, errors=1)
    result.stdout.fnmatch_lines(["the fixture 'connection', in test_it.py::test_two, left *"])


def test_packages(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an installed package leaves counts if the project says that it is its own."""
    folder = project.path / "site-packages"
    folder.mkdir()
    Path(folder / "thelib.py").write_text(LEAVING)
    monkeypatch.syspath_prepend(folder)
    tests = "import asyncio, thelib\ndef test_leaves():\n    asyncio.run(thelib.leave())\n"
    outcomes(run(project, tests, "--streamguard=error"), passed=1)
    configure(project, "streamguard_packages = thelib")
    outcomes(run(project, tests, "--streamguard=error"), failed=1)


@pytest.mark.parametrize("name", ["thelibs", "streamguard-aio", ".thelib"])
def test_packages_that_are_not_there(project: pytest.Pytester, name: str) -> None:
    """A name that nothing can be imported by is told at once: else the tests would pass for the wrong reason."""
    configure(project, f"streamguard_packages = {name}")
    result = run(project, "def test_nothing(): pass\n", "--streamguard=error")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*streamguard_packages: there is no package '{name}'; give import names"])
    outcomes(run(project, "def test_nothing(): pass\n"), passed=1)
    marked = "import pytest\n@pytest.mark.streamguard('error')\ndef test_nothing(): pass\n"
    assert run(project, marked).ret == pytest.ExitCode.USAGE_ERROR


def test_hooks_are_back(project: pytest.Pytester) -> None:
    """After the session the hooks are as before."""
    outcomes(run(project, LEAVES, "--streamguard=error"), failed=1)
    assert inspect.isbuiltin(sys.set_asyncgen_hooks)
    assert sys.get_asyncgen_hooks() == (None, None)
