"""A pytest plugin: where the environment variable CI is set, a skipped or expected-to-fail test fails the session.

Loaded by tests/conftest.py. A test that does not run proves nothing, and in CI nobody reads the skips.
"""

from __future__ import annotations

import os

import pytest

UNPROVEN = ("skipped", "xfailed", "xpassed")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Turn a green session red when something in it did not count."""
    if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) and unproven(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name them; pytest's own closing line follows."""
    found = unproven(config)
    if found:
        terminalreporter.section("not proven: in CI this is a failure", red=True)
        for line in found:
            terminalreporter.line(line)


def unproven(config: pytest.Config) -> list[str]:
    """``node: outcome and reason`` for every test that was skipped or expected to fail; empty outside CI."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if not os.environ.get("CI") or reporter is None:
        return []
    return [f"{report.nodeid}: {outcome}{reason(report)}" for outcome in UNPROVEN for report in reporter.stats.get(outcome, [])]


def reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The reason that the skip gave, with ", " before it, or nothing."""
    if isinstance(report.longrepr, tuple):
        return f", {report.longrepr[2]}"
    return f", {report.wasxfail}" if getattr(report, "wasxfail", "") else ""
