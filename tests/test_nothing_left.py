"""The check that every test of behaviour relies on finds what it is there to find."""

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import nullcontext
from pathlib import Path

import anyio
import pytest
import trio

from nothing_left import Watch

pytestmark = pytest.mark.anyio


@pytest.fixture
async def inner(anyio_backend_name: str) -> AsyncIterator[Watch]:
    """A second watch, inside the one that the test itself is under."""
    watch = Watch()
    watch.start(anyio_backend_name)
    yield watch
    watch.stop()


async def numbers() -> AsyncGenerator[int, None]:
    yield 1
    yield 2


async def test_quiet(inner: Watch) -> None:
    """A test that closes what it opens has nothing left."""
    stream = numbers()
    await anext(stream)
    await stream.aclose()
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.lowlevel.checkpoint)
    assert inner.left() == []


async def test_task(inner: Watch) -> None:
    """A task that still runs is left, and is named."""
    release = anyio.Event()

    async def left_running() -> None:
        await release.wait()

    async with anyio.create_task_group() as group:
        group.start_soon(left_running)
        await anyio.wait_all_tasks_blocked()
        (line,) = inner.left()
        release.set()
    assert line.startswith("task: ")
    assert "left_running" in line
    assert inner.left() == []


async def test_system_task(inner: Watch, anyio_backend_name: str) -> None:
    """A task outside the test's own groups is seen as well."""
    release = anyio.Event()
    if anyio_backend_name == "trio":
        trio.lowlevel.spawn_system_task(release.wait)
        await anyio.wait_all_tasks_blocked()
    else:
        task = asyncio.create_task(release.wait())
    assert len(inner.left()) == 1
    release.set()
    await (anyio.wait_all_tasks_blocked() if anyio_backend_name == "trio" else task)


async def test_kept_generator(inner: Watch) -> None:
    """A generator that is suspended and referenced is left, and is named."""
    stream = numbers()
    await anext(stream)
    (line,) = inner.left()
    assert line.startswith("open: ")
    assert "numbers" in line
    await stream.aclose()
    assert inner.left() == []


@pytest.mark.may_leave("a dropped generator is closed by the loop, after the test has looked")
async def test_dropped_generator(inner: Watch, anyio_backend_name: str) -> None:
    """A generator that nobody holds is left until the loop has closed it."""
    # trio says so itself, when it is dropped.
    said = pytest.warns(ResourceWarning) if anyio_backend_name == "trio" else nullcontext()
    with said:
        async for _ in numbers():
            break
    assert any("numbers" in line for line in inner.left())


async def test_hooks(inner: Watch) -> None:
    """Hooks that were not put back are left."""
    before = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(firstiter=print)
    (line,) = inner.left()
    sys.set_asyncgen_hooks(*before)
    assert line.startswith("hooks: ")
    assert inner.left() == []


@pytest.mark.parametrize("logger", ["streamguard", "asyncio", "trio.async_generator_errors"])
async def test_log_record(inner: Watch, watch: Watch, logger: str) -> None:
    """A record is left until the test claims it, and only what matches is claimed."""
    logging.getLogger(logger).error("lost %s", "one")
    logging.getLogger(logger).error("lost another")
    assert len(inner.left()) == 2
    (report,) = inner.claim("lost one")
    assert "one" in report.text
    (line,) = inner.left()
    assert "lost another" in line
    watch.claim("lost")


async def test_claim_of_nothing(inner: Watch) -> None:
    """A claim that matches nothing fails, so an expected record cannot go missing."""
    with pytest.raises(AssertionError, match="no report matches 'lost'"):
        inner.claim("lost")


async def test_loop_error(inner: Watch, anyio_backend_name: str) -> None:
    """What a callback raises on the loop is left until it is claimed (trio has no such handler)."""
    if anyio_backend_name == "trio":
        return

    def fail() -> None:
        raise ValueError("in a callback")

    asyncio.get_running_loop().call_soon(fail)
    await anyio.wait_all_tasks_blocked()
    (line,) = inner.left()
    assert "ValueError('in a callback')" in line
    assert inner.claim("in a callback")


def test_it_fails_the_test(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is left, a warning that nobody can catch included, fails the test that left it."""
    here = Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", str(here))
    pytester.makeconftest((here / "conftest.py").read_text())
    pytester.makeini("[pytest]\nfilterwarnings = error\nmarkers = may_leave: -\n")
    pytester.makepyfile(
        """
        import logging

        import anyio
        import pytest

        pytestmark = pytest.mark.anyio
        kept = []

        async def numbers():
            yield 1

        async def test_clean():
            await anyio.lowlevel.checkpoint()

        async def test_generator():
            kept.append(numbers())
            await anext(kept[-1])

        @pytest.mark.may_leave("to show that it may")
        async def test_excused():
            kept.append(numbers())
            await anext(kept[-1])

        async def test_record():
            logging.getLogger("streamguard").error("lost")

        async def test_never_awaited():
            anyio.sleep(1)

        async def test_claimed(watch):
            logging.getLogger("streamguard").error("lost")
            watch.claim("lost")

        def test_sync():
            pass
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:asyncio")
    # On three backends each. What is left is an error of the teardown: such a test counts twice.
    result.assert_outcomes(passed=5 * 3 + 1, errors=2 * 3, failed=3)
    result.stdout.fnmatch_lines(
        [
            "*the test left something behind:",
            "*open: <async_generator object numbers*",
            "*not claimed: streamguard: ERROR lost",
            "*coroutine 'sleep' was never awaited*",
        ]
    )
