"""streamguard imports anyio, typing-extensions and the standard library, nothing else, and these when it is used."""

import subprocess
import sys

import pytest

FOREIGN = ["trio", "pytest", "uvloop", "starlette", "fastapi", "google", "openai", "agents", "langgraph", "pydantic_ai"]
ALLOWED = {"streamguard", "anyio", "typing_extensions"}
# What anyio itself imports, and what this process was started with (an editable install, the seeds of coverage).
OF_ANYIO = {"idna", "sniffio", "exceptiongroup"}
OF_THE_START = {
    "__main__",
    "__mp_main__",
    "sitecustomize",
    "usercustomize",
    "coverage",
    "_virtualenv",
    "_distutils_hack",
}


def loaded_by(program: str) -> list[str]:
    """The top-level modules that a new interpreter has loaded after this program."""
    program += "\nimport sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return run.stdout.split()


@pytest.fixture(scope="module")
def loaded() -> list[str]:
    """With every name in use."""
    return loaded_by("from streamguard import *")


@pytest.mark.parametrize("module", FOREIGN)
def test_does_not_load(loaded: list[str], module: str) -> None:
    """It loads no agent SDK, no web framework, no test tool, no second event loop."""
    assert module not in loaded


def test_loads_only_its_dependencies(loaded: list[str]) -> None:
    """What it loads outside the standard library are its dependencies."""
    at_start = set(loaded_by(""))
    foreign = set(loaded) - at_start - set(sys.stdlib_module_names) - OF_ANYIO - OF_THE_START
    assert foreign <= ALLOWED


def test_loads_nothing_before_a_name_is_used() -> None:
    """The import alone loads neither an event loop nor anyio: it costs a program nothing until it guards a stream."""
    assert not {"asyncio", "anyio", "typing_extensions"} & set(loaded_by("import streamguard"))


def test_a_stream_on_asyncio_loads_no_trio() -> None:
    """A guarded stream on asyncio reaches for nothing more."""
    loaded = loaded_by(
        """
import asyncio, streamguard
async def numbers():
    yield 1
async def main():
    async with streamguard.guarded_stream(numbers()) as stream:
        async for _ in stream:
            break
asyncio.run(main())
"""
    )
    assert not set(FOREIGN) & set(loaded)


def test_names() -> None:
    """All public names are there, and nothing else is said to be public."""
    import streamguard

    for name in streamguard.__all__:
        assert hasattr(streamguard, name)
    assert list(streamguard.__all__) == sorted(streamguard.__all__, key=lambda name: (name.islower(), name))
    assert set(streamguard.__all__) <= set(dir(streamguard))


def test_name_that_is_not_there() -> None:
    """A name that is not public is an AttributeError that says so, and an ImportError for `from`."""
    import streamguard

    with pytest.raises(AttributeError, match="module 'streamguard' has no attribute 'guard'"):
        streamguard.guard  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'guard'"):
        from streamguard import guard  # noqa: F401
