"""For all tests: ^C is what it is in a terminal, and several processes may share the run.

A shell lets what it runs in its background ignore SIGINT, and so do all whom that starts. Tests that
interrupt would wait for ever.

`make test` has three processes run the tests (pytest-xdist). What shares something that is costly
to make stays in one of them, and so do the tests of one file.

`make test` leaves out the tests that are marked `exhaustive`, and the end of the run says how many; see
tests/sampling.py.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import signal
import sys
from collections import Counter
from collections.abc import Generator, Hashable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import trio.testing

from tests.contract.counting import without_collections
from tests.cut_counting import CutCount
from tests.jumping_clock import jumping_clock
from tests.sampling import IS_EXHAUSTIVE, covering, examples, is_set

# How long an example takes says more of the machine than of the code; a test that hangs has a timeout.
hypothesis.settings.register_profile("diskq", deadline=None, max_examples=examples(100))
hypothesis.settings.load_profile("diskq")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_TESTS = Path(__file__).parent
# Whose tests share one thing: Go programs that were built, a Spark session, a benchmark's run.
_SHARING = (
    "tests/compat/",
    "tests/spark/",
    "tests/soak/test_spark.py",
    "tests/test_demo.py",
    "tests/test_floors.py",
)
# How many values of a parameter `make test` tries: seeds only repeat, and whether tests notice changed code
# is asked in `make test-all`.
_IN_MAKE_TEST = {"seed": 1, "mutation": 0}
_SEARCH = 1800
"""Seconds in which a mutation is to be noticed: in every crash, which takes minutes on a busy machine."""
# Something that a kind can do: each kind is tried, and each of these things, not all that each kind can do.
_APART = ({"handle", "name"}, {"kind", "act"})
# What takes long, and shows nothing else than tests of its parts; and tests of programs that measure diskq or
# look for faults in it.
_AT_LENGTH = (
    "tests/soak/",
    "tests/spark/test_cluster.py",
    "tests/test_bench_compare.py",
    "tests/test_bench_overview.py",
    "tests/test_bench_report.py",
    "tests/test_floors.py",
    "tests/torture/test_killed.py",
)
# Tests that take seconds each: one by one, at the end, so that no process ends long before the others.
_LONG = ("tests/crash/", "tests/soak/", "tests/torture/", "tests/contract/test_each_call.py")


@pytest.fixture(autouse=True)
def no_delivery_goes_on() -> Iterator[None]:
    """A spool that counts as killed has a thread; the next test is not to find it."""
    yield
    if (kinds := sys.modules.get("tests.contract.kinds")) is not None:
        kinds.end_deliveries()


@pytest.fixture
def autojump_clock(monkeypatch: pytest.MonkeyPatch) -> trio.testing.MockClock:
    """Trio's clock that jumps to the next deadline while no task can run, and no thread works for one."""
    return jumping_clock(monkeypatch)


@pytest.fixture
def no_collections() -> Iterator[None]:
    """For tests that count what is open: what an earlier test has left behind is not closed meanwhile."""
    with without_collections():
        yield


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
    if hasattr(signal, "SIGHUP"):  # `nohup` ignores it, and so would each command that a test ends by it
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    left_out = _LeftOut()
    config.pluginmanager.register(left_out)
    if is_set("DISKQ_COUNT_CUTS"):
        config.pluginmanager.register(CutCount())
    if config.pluginmanager.hasplugin("xdist"):
        config.pluginmanager.register(_Sharing())
        config.pluginmanager.register(_LeftOutElsewhere(left_out))


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Let each of several processes import another part of the test modules first.

    pytest compiles a test module at its first import, which takes 25 s for all of them, and keeps the result
    on the disk. Processes that import them in the same order all do the same work. It is a part of the
    collection, in which a warning is an error.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    for path in sorted(_TESTS.rglob("test_*.py"))[number::count]:
        name = ".".join(path.relative_to(_TESTS.parent).with_suffix("").parts)
        # What cannot be imported is reported, or skipped, when it is collected.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(name)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as `exhaustive` what its place or its parameters show to be so; give searches more time."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.nodeid.startswith(_AT_LENGTH):
            item.add_marker(pytest.mark.exhaustive)
        elif hasattr(item, "callspec"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for of_one_test in cases.values():
        chosen = _of_few_seeds(of_one_test)
        kept = {chosen[number] for number in covering(list(map(_values, chosen)))}
        for item in of_one_test:
            if item not in kept:
                item.add_marker(pytest.mark.exhaustive)
            if "mutation" in item.callspec.params:  # type: ignore[attr-defined]
                item.add_marker(pytest.mark.timeout(_SEARCH))


def _values(item: pytest.Item) -> set[Hashable]:
    """What tells the cases of one test apart: the value of each parameter, or of each group of them."""
    parameters: dict[str, object] = item.callspec.params  # type: ignore[attr-defined]
    group_of = {name: name for name in parameters}
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0]
        together = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
        if set(together) not in _APART:
            group_of.update(dict.fromkeys(together, ",".join(together)))
    groups: dict[str, list[Hashable]] = {}
    for name, value in parameters.items():
        groups.setdefault(group_of[name], []).append(value if isinstance(value, str) else id(value))
    return {(group, *values) for group, values in groups.items()}


def _of_few_seeds(items: list[pytest.Item]) -> list[pytest.Item]:
    """The cases of one test that no rule leaves out for the name of their parameter."""
    tried: Counter[object] = Counter()
    chosen = []
    for item in items:
        if item.get_closest_marker("exhaustive") is not None:
            continue
        is_tried = True
        parameters: dict[str, object] = item.callspec.params  # type: ignore[attr-defined]
        for name in _IN_MAKE_TEST.keys() & parameters.keys():
            others = tuple(repr(value) for other, value in parameters.items() if other != name)
            tried[name, others] += 1
            is_tried &= tried[name, others] <= _IN_MAKE_TEST[name]
        if is_tried:
            chosen.append(item)
    return chosen


def pytest_collection_finish() -> None:
    """Tests that collect garbage look at their own: not at those of 20,000 tests, each time for a second."""
    gc.collect()
    gc.freeze()


class _LeftOut:
    """The end of a run: what it left out, and how that is run."""

    def __init__(self) -> None:
        self.tests = 0
        self.samples = 0

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        # Those that -m leaves out are told together; others, as by -k, are not of interest here.
        if all(item.get_closest_marker("exhaustive") is not None for item in items):
            self.tests += len(items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if not IS_EXHAUSTIVE:
            marks = ("sampled", "hypothesis")
            self.samples = sum(any(map(item.get_closest_marker, marks)) for item in session.items)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["left_out"] = self.tests, self.samples

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.tests or self.samples:
            terminalreporter.write_line(
                f"Left out: {self.tests} tests that repeat or try more; {self.samples} took a small sample. "
                "`make test-all` runs everything."
            )


class _LeftOutElsewhere:
    """The same where other processes run the tests: each has collected all of them."""

    def __init__(self, here: _LeftOut) -> None:
        self.here = here

    def pytest_testnodedown(self, node: Any) -> None:
        found = getattr(node, "workeroutput", {}).get("left_out")
        if found is not None:
            self.here.tests, self.here.samples = found


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
