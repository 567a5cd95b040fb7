"""For all tests: ^C is what it is in a terminal, and two processes may share the run.

A shell lets what it runs in its background ignore SIGINT, and so do all whom that starts. Tests that
interrupt would wait for ever.

`make test` has two processes run the tests (pytest-xdist). What shares something that is costly
to make stays in one of them.
"""

from __future__ import annotations

import signal

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Whose tests share one thing: a Spark session, Go programs that were built, a benchmark's run.
_SHARING = ("tests/compat/", "tests/spark/", "tests/test_demo.py", "tests/test_floors.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        path = item.path.relative_to(config.rootpath).as_posix()
        for shared in _SHARING:
            if path.startswith(shared) or ("spark" in shared and "spark" in item.nodeid.partition("::")[0]):
                item.add_marker(pytest.mark.xdist_group(shared))
