"""For all tests: ^C is what it is in a terminal, and several processes may share the run.

A shell lets what it runs in its background ignore SIGINT, and so do all whom that starts. Tests that
interrupt would wait for ever.

`make test` has three processes run the tests (pytest-xdist). What shares something that is costly
to make stays in one of them, and so do the tests of one file.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Generator, Iterator
from typing import Any

import hypothesis
import pytest

# How long an example takes says more of the machine than of the code; a test that hangs has a timeout.
hypothesis.settings.register_profile("diskq", deadline=None)
hypothesis.settings.load_profile("diskq")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Whose tests share one thing: Go programs that were built, a Spark session, a benchmark's run.
_SHARING = (
    "tests/compat/",
    "tests/spark/",
    "tests/soak/test_spark.py",
    "tests/test_demo.py",
    "tests/test_floors.py",
)
# Tests that take seconds each: one by one, at the end, so that no process ends long before the others.
_LONG = ("tests/crash/", "tests/soak/", "tests/torture/", "tests/contract/test_each_call.py")


@pytest.fixture
def quiet_log() -> Iterator[None]:
    """For tests in which thousands of repairs are logged: keeping the records would take longer."""
    logging.getLogger("diskq").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("diskq").setLevel(logging.NOTSET)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What was captured can be sent to the process that collects reports, whatever a program printed.

    A lone surrogate cannot be sent: xdist would end the whole run with an internal error, and name no test.
    """
    report = yield
    report.sections = [(name, _encodable(text)) for name, text in report.sections]
    if report.longrepr is not None and not _is_encodable(str(report.longrepr)):
        report.longrepr = _encodable(str(report.longrepr))
    return report


def _encodable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def _is_encodable(text: str) -> bool:
    return text == _encodable(text)


def pytest_configure(config: pytest.Config) -> None:
    if config.pluginmanager.hasplugin("xdist"):
        config.pluginmanager.register(_Sharing())


class _Sharing:
    """By whom xdist has the tests parted."""

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        from xdist.scheduler import LoadScopeScheduling

        class BySharing(LoadScopeScheduling):  # type: ignore[misc] # it has no types
            """The largest shares first, as they take longest; the tests that are alone in theirs last."""

            def _split_scope(self, nodeid: str) -> str:
                for shared in _SHARING:
                    if nodeid.startswith(shared):
                        return shared
                return nodeid if nodeid.startswith(_LONG) else nodeid.partition("::")[0]

            def _reschedule(self, node: Any) -> None:
                # Each time it counts what is left of all that a process was given: what is done goes.
                given = self.assigned_work[node]
                for scope in [scope for scope, tests in given.items() if all(tests.values())]:
                    del given[scope]
                super()._reschedule(node)

        return BySharing(config, log)


@pytest.fixture(autouse=True)
def _logs_are_on() -> None:
    """What a test, or a program that it runs in this process, turned off is on again for the next one."""
    logging.disable(logging.NOTSET)
    logger = logging.getLogger("diskq")
    logger.disabled, logger.propagate = False, True
