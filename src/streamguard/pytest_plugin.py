"""The pytest plugin: ``pytest --streamguard=error`` fails each test that leaves an async generator suspended.

The rule kept here: nothing but options until somebody asks, so no import of ours, no hook, no cost.
"""

from __future__ import annotations

import pytest

MODES = ("off", "warn", "error")
_NAME = "streamguard_leaks"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option and the ini keys."""
    parser.getgroup("streamguard").addoption(
        "--streamguard",
        choices=MODES,
        default=None,
        help="what to do with a test that leaves async generators suspended; off counts for marked tests as well",
    )
    parser.addini("streamguard", "the same; the option and the marker win", default="off")
    parser.addini("streamguard_packages", "installed packages that count as your code", type="args", default=[])


def pytest_configure(config: pytest.Config) -> None:
    """Start to watch, if all tests are to be watched."""
    config.addinivalue_line("markers", "streamguard(mode): off, warn or error, if the test leaves generators suspended")
    if config.getini("streamguard") not in MODES:
        raise pytest.UsageError(f"streamguard = {config.getini('streamguard')!r}: choose from {', '.join(MODES)}")
    if default_mode(config) != "off":
        _watch(config)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Start to watch, if this test is marked."""
    if item.config.getoption("streamguard") != "off" and item.get_closest_marker("streamguard") is not None:
        _watch(item.config)


def default_mode(config: pytest.Config) -> str:
    """The mode of a test that is not marked."""
    return str(config.getoption("streamguard") or config.getini("streamguard"))


def _watch(config: pytest.Config) -> None:
    if not config.pluginmanager.has_plugin(_NAME):
        from ._pytest_leaks import LeakPlugin

        config.pluginmanager.register(LeakPlugin(config), _NAME)
