"""CPython's own tests of `contextlib.aclosing`, run on `Aclosing`."""

import unittest

import pytest

from streamguard import Aclosing


def test_contextlib_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `contextlib.aclosing` stands, `Aclosing` can: the standard library's tests agree.

    They come with the interpreter. On one that was installed without its `test` package this fails, so
    that nobody takes tests that did not run for tests that passed.
    """
    from test import test_contextlib_async

    monkeypatch.setattr(test_contextlib_async, "aclosing", Aclosing)
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(test_contextlib_async.AclosingTestCase)
    result = unittest.TestResult()
    suite.run(result)
    assert result.testsRun > 0
    assert result.wasSuccessful(), result.errors + result.failures
    assert not result.skipped
