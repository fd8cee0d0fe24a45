"""CPython's own tests of async generators, with the generators passed through `Aclosing`."""

import contextlib
import unittest

from installed import installed
from streamguard import Aclosing
from through_aclosing import through

# In these the test wants what no block around the generator can give.
OUT_OF_REACH = {
    "test_async_gen_asyncio_aclose_11": "closes once more what yields while closing: Python says StopAsyncIteration",
    "test_async_gen_asyncio_shutdown_exception_01": "leaves the generator open, so that asyncio.run() has to close it",
    "test_async_gen_asyncio_shutdown_exception_02": "the same, with a generator that is dropped",
}
# These work with `Aclosing` alone.
OUT_OF_REACH_OF_CONTEXTLIB = {
    "test_async_gen_asyncio_03": "reads an iterator that has nothing to close",
    "test_async_gen_asyncio_aclose_06": "the generator yields while it closes; the second error replaces the first",
}


def failures_with(aclosing: type) -> set[str]:
    """The names of the tests that fail when each generator is in a block of this class."""
    suite, done = through(aclosing, installed("test.test_asyncgen"))
    # As many as in the oldest Python that we support.
    assert done["blocks"] >= 27
    assert done["loops"] >= 8
    assert done["closes"] >= 8
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromModule(suite).run(result)
    assert result.testsRun >= 65
    assert not result.skipped
    return {test.id().rpartition(".")[2] for test, _ in result.errors + result.failures}


def test_generators_are_what_they_were_when_aclosing_closes_them() -> None:
    assert failures_with(Aclosing) == OUT_OF_REACH.keys()


def test_contextlib_aclosing_cannot_do_more() -> None:
    assert failures_with(contextlib.aclosing) == OUT_OF_REACH.keys() | OUT_OF_REACH_OF_CONTEXTLIB.keys()
