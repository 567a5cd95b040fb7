"""The Go side of the interop tests: programs built once a session.

Where Go or a module is missing, whoever asks for them is skipped with the reason; with
DISKQ_REQUIRE_GO=1 it fails instead, because a test that was skipped has shown nothing.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest

from tests.compat.go_peer import GoPeer
from tests.compat.golang import GoUnavailableError
from tests.compat.nsqd import Nsqd

T = TypeVar("T")
StartNsqd = Callable[..., Nsqd]


def built(build: Callable[[], T]) -> T:
    try:
        return build()
    except GoUnavailableError as reason:
        if os.environ.get("DISKQ_REQUIRE_GO") == "1":
            pytest.fail(f"DISKQ_REQUIRE_GO=1, but {reason}", pytrace=False)
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def go() -> GoPeer:
    """go-diskqueue, a process per call."""
    return built(GoPeer.build)


@pytest.fixture(scope="session")
def go_1_0() -> GoPeer:
    """go-diskqueue v1.0.0, which rolls and reads by another rule."""
    return built(lambda: GoPeer.build("go.v1.0.0.mod"))


@pytest.fixture(scope="session")
def nsqd_program() -> Path:
    return built(Nsqd.build)


@pytest.fixture
def start_nsqd(nsqd_program: Path) -> Iterator[StartNsqd]:
    """Start an nsqd on a directory; what the test does not stop is stopped after it."""
    with ExitStack() as running:

        def start(directory: Path, **options: str | int) -> Nsqd:
            return running.enter_context(Nsqd(nsqd_program, directory, **options))

        yield start
