"""CPython's own tests of `contextlib.aclosing`, run on `Aclosing`."""

import unittest

import pytest

from installed import installed
from streamguard import Aclosing


def test_where_aclosing_stands_aclosing_of_ours_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """The standard library's tests agree, and none of them is skipped."""
    suite = installed("test.test_contextlib_async")
    monkeypatch.setattr(suite, "aclosing", Aclosing)
    tests = unittest.defaultTestLoader.loadTestsFromTestCase(suite.AclosingTestCase)
    result = unittest.TestResult()
    tests.run(result)
    assert result.wasSuccessful(), result.errors + result.failures
    assert result.testsRun >= 4
    assert not result.skipped


def test_a_python_without_its_tests_is_told() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"test\.no_such_test.*take a Python with them"):
        installed("test.no_such_test")
