"""A pytest plugin for what upstream's ``run_test.py`` starts: takes its stopping and retrying out.

It stops a file at the first failed test, tries each failed test again, and the file as well; so a failure
could pass for a success. With this plugin every test runs once, the journal of ``wheel_test_plugin`` tells
which failed, and the runner is told that all went well, as long as pytest itself did.
Standard library and pytest (7 to 9) alone.
"""

from __future__ import annotations

import pytest

_TESTS_FAILED = 1


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Take ``-x`` and ``--reruns`` back; marks of single tests stay."""
    config.option.maxfail = 0
    if hasattr(config.option, "reruns"):
        config.option.reruns = None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Report failed tests in the journal alone."""
    if exitstatus == _TESTS_FAILED:
        session.exitstatus = 0
