# What `import diskq` costs, and what it offers.

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import diskq
import diskq.spark
from diskq.storage.fs import IS_PORTABLE
from tests.public_names import public_names

ROOT = Path(__file__).parent.parent


def test_trio_is_imported_when_a_channel_is_first_asked_for() -> None:
    before, after = "assert 'trio' not in sys.modules", "assert 'trio' in sys.modules"
    program = f"import sys, diskq; {before}; diskq.open_queue; {after}"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_engines_are_imported_when_they_are_first_asked_for() -> None:
    before, after = (
        "assert not any('.engine' in name for name in sys.modules)",
        "assert 'diskq.engine.queue.fifo_queue' in sys.modules",
    )
    program = f"import sys, diskq; {before}; diskq.Queue; {after}"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_command_imports_no_other_one(tmp_path: Path) -> None:
    program = (
        "import sys; from diskq.cli import main; main(['queue', 'info', sys.argv[1]]); print(*sys.modules)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    others = {name.split(".")[2] for name in done.stdout.split() if name.startswith("diskq.cli.")}
    assert others == {"core", "queue"}


# What takes long to import, or is not everybody's: none of it comes before it is used.
HEAVY = {
    *("asyncio", "concurrent", "email", "http", "json", "logging", "multiprocessing", "selectors", "socket"),
    *("sqlite3", "ssl", "subprocess", "tempfile", "threading", "urllib", "unittest", "xml"),
    *("attr", "crc32c", "grpc", "opentelemetry", "outcome", "portalocker", "prometheus_client", "pyarrow"),
    *("pyspark", "rich", "trio"),
}


def test_import_brings_little() -> None:
    # Without site: what an environment imports for itself is not ours.
    program = "import sys; sys.path.insert(0, sys.argv[1]); import diskq; print(*sys.modules)"
    command = [sys.executable, "-E", "-S", "-c", program, str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    modules = done.stdout.split()
    assert not {name.partition(".")[0] for name in modules} & HEAVY
    assert len(modules) < 110  # a bare Python has about 30; dataclasses bring half of the rest
    assert not {
        name for name in modules if name.startswith(("diskq.channels", "diskq.engine", "diskq.storage"))
    }


@pytest.mark.skipif(IS_PORTABLE, reason="locks by portalocker")
def test_an_open_imports_no_lock_library(tmp_path: Path) -> None:
    """portalocker takes 40 ms, and 150 where the SDK of a lock server is installed."""
    opened, after = "diskq.Queue(sys.argv[1], 'q').close()", "assert 'portalocker' not in sys.modules"
    program = f"import sys, diskq; {opened}; {after}"
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)


def test_every_public_name_is_there() -> None:
    for name in diskq.__all__:
        assert getattr(diskq, name).__doc__
    shown = {name for name in dir(diskq) if not name.startswith("__")}
    assert shown <= set(diskq.__all__)
    assert {"Queue", "Spool", "open_queue", "NotFoundError", "QueueOptions"} <= shown
    assert not {"Durations", "JournalTimes", "QueueStatistics", "importlib"} & shown
    assert len(shown) < 100
    assert diskq.__all__ == public_names("diskq")
    assert diskq.spark.__all__ == public_names("diskq.spark")


# A package that imports its names when they are first used has them twice: in `_HOMES`, for Python, and in
# imports for type checkers, which run no code. `__all__` follows from `_HOMES`.


def imports_in(body: list[ast.stmt]) -> Iterator[tuple[str, str, str | None]]:
    for node in body:
        if isinstance(node, ast.ImportFrom):
            yield from ((str(node.module), alias.name, alias.asname) for alias in node.names)


@pytest.mark.parametrize("package", [diskq, diskq.spark], ids=lambda package: package.__name__)
def test_type_checkers_know_what_is_imported_when_it_is_first_used(package: ModuleType) -> None:
    tree = ast.parse(Path(str(package.__file__)).read_text(encoding="utf-8"))
    (checked,) = (node for node in tree.body if isinstance(node, ast.If))
    # `X as X`: without it, a strict type checker takes an imported name for a private one.
    assert [*imports_in(checked.body)] == [
        (f"{package.__name__}.{module}", name, name)
        for module in package._HOMES
        for name in package._HOMES[module]
    ]
    assert list(package._HOMES) == sorted(package._HOMES)


# The public names at commit 969f1e4, by their packages. Programs use them: names may be added, none may go.
NAMES_BEFORE = json.loads((ROOT / "tests/public_names.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("package", NAMES_BEFORE)
def test_no_public_name_is_gone(package: str) -> None:
    assert set(NAMES_BEFORE[package]) <= set(public_names(package))


def test_the_version_is_the_packages() -> None:
    assert diskq.__version__[0].isdigit()
