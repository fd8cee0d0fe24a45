"""What is no stream is refused at once, by a message that names it and the fix."""

import functools
import io
import warnings
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import wrapt

from stories import Run, Story, generator
from streamguard import guarded_stream
from test_sources import Bare, WithClose

pytestmark = pytest.mark.anyio


class NeedsArguments:
    def __init__(self, prompt: str) -> None:
        self.prompt = prompt


async def needs_arguments(prompt: str, *, model: str) -> AsyncIterator[int]:
    yield 1


async def optional_arguments(prompt: str = "", *models: str, **more: str) -> AsyncIterator[int]:
    yield 1


class EnteredOnly:
    """Half a context manager."""

    async def __aenter__(self) -> AsyncIterator[int]:
        return generator(Story())


WRAP = "wrap it in an async generator, or use a plain `for`"
GIVE = "or a callable that makes one"
CALL = "call it yourself, or wrap the call in a lambda"
NO_SOURCES: dict[str, tuple[Callable[[], object], str, str]] = {
    "None": (lambda: None, "None is not an async stream", GIVE),
    "int": (lambda: 1, "int object is not an async stream", GIVE),
    "object": (object, "object object is not an async stream", GIVE),
    "str": (lambda: "text", "str object is not an async stream", WRAP),
    "bytes": (lambda: b"text", "bytes object is not an async stream", WRAP),
    "list": (lambda: [1, 2], "list object is not an async stream", WRAP),
    "dict": (lambda: {1: 2}, "dict object is not an async stream", WRAP),
    "file": (lambda: io.StringIO("text"), "StringIO object is not an async stream", WRAP),
    "generator": (lambda: (n for n in (1, 2)), "generator .*<genexpr>' is not an async stream", WRAP),
    "sync context manager": (lambda: warnings.catch_warnings(), "catch_warnings object is not an async stream", GIVE),
    "half a context manager": (EnteredOnly, "EnteredOnly object is not an async stream", GIVE),
    "generator function with arguments": (
        lambda: needs_arguments,
        "function 'needs_arguments' cannot be called without arguments .*'prompt'",
        CALL,
    ),
    "class with arguments": (
        lambda: NeedsArguments,
        "type 'NeedsArguments' cannot be called without arguments .*'prompt'",
        CALL,
    ),
    "lambda with arguments": (lambda: lambda end: None, "<lambda>' cannot be called without arguments .*'end'", CALL),
    "partial with arguments": (
        lambda: functools.partial(needs_arguments, "hello"),
        "cannot be called without arguments .*'model'",
        CALL,
    ),
}


@pytest.mark.parametrize("name", NO_SOURCES)
async def test_no_source(name: str) -> None:
    """What is no stream is refused at once; the message names it and says what to do."""
    make, what, fix = NO_SOURCES[name]
    thing: Any = make()
    with pytest.raises(TypeError, match=what) as caught:
        guarded_stream(thing)
    assert str(caught.value).endswith(fix)
    if name == "generator":
        assert list(thing) == [1, 2]  # untouched


async def test_no_source_leaves_no_warning() -> None:
    """A refused source makes no guard that could be said to be abandoned."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TypeError):
            guarded_stream(None)  # type: ignore[arg-type]


async def test_generator_function_with_defaults() -> None:
    """An async generator function that can do without arguments is called at the first read."""
    async with guarded_stream(optional_arguments) as stream:
        assert [item async for item in stream] == [1]


async def test_class_as_a_callable() -> None:
    """A class that can be called without arguments makes the source, at the first read."""
    story = Story()

    class Made(WithClose):
        def __init__(self) -> None:
            story.note("made")
            super().__init__(story)

    async with guarded_stream(Made) as stream:
        assert story.log == []
        await anext(stream)
    story.check("made", "close")


async def test_class_of_runs_is_a_callable() -> None:
    """A class with `stream_events` is no run handle, only its instances are."""
    story = Story()

    class Made(Run):
        def __init__(self) -> None:
            super().__init__(story)

    async with guarded_stream(Made) as stream:
        assert await anext(stream) == 1
    story.check("closed")


async def test_class_of_iterators_is_not_an_iterator() -> None:
    """A class of iterators that needs arguments is refused with the fix, not stepped."""
    with pytest.raises(TypeError, match="type 'Bare' cannot be called without arguments"):
        guarded_stream(Bare)  # type: ignore[type-var]


async def test_plain_proxy_of_a_generator() -> None:
    """A proxy that does not pass ``__anext__`` on is refused, as by Python's own ``async for``."""
    numbers = generator(Story())
    with pytest.raises(TypeError, match="not an async stream"):
        guarded_stream(wrapt.BaseObjectProxy(numbers))
    await numbers.aclose()


async def test_entered_guard_as_a_source() -> None:
    """A guard that was entered already is no source: RuntimeError, and its own block goes on."""
    story = Story()
    async with guarded_stream(generator(story)) as inner:
        assert await anext(inner) == 1
        with pytest.raises(RuntimeError, match="entered before"):
            async with guarded_stream(inner) as outer:
                await anext(outer)
        assert await anext(inner) == 2
    story.check("closed")
