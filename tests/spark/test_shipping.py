# What is shipped to executors, and that it is enough.

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import subprocess
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from diskq.spark import shipping
from tests.spark.bare import bare_python

PACKAGE = Path(shipping.__file__).parents[1]


@pytest.fixture(scope="module")
def shipped(tmp_path_factory) -> Path:
    """Made by the command, as a user does."""
    directory: Path = tmp_path_factory.mktemp("shipped")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        shipping.main([f"{directory}/made/"])
    (directory / "out.txt").write_text(out.getvalue())
    return Path(out.getvalue().partition("\n")[0])


@pytest.fixture(scope="module")
def unpacked(shipped: Path) -> Path:
    directory = shipped.parents[1] / "unpacked"
    with tarfile.open(shipped) as tar:
        tar.extractall(directory, filter="data")
    return directory


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Callable[[Path, str], str]:
    """Run it where there is this directory, Spark and Arrow, and no diskq but that."""
    python = bare_python(tmp_path_factory.mktemp("bare"))

    def run(directory: Path, code: str) -> str:
        environment = {"PYTHONPATH": str(directory)}
        done = subprocess.run(
            [python, "-c", code], cwd=directory, env=environment, capture_output=True, text=True
        )
        return done.stdout.strip() or done.stderr.strip().rpartition("\n")[2]

    return run


def test_the_name_says_version_and_abi(shipped):
    soabi = sysconfig.get_config_var("SOABI")
    assert shipped.name == f"diskq-{importlib.metadata.version('diskqueue')}-{soabi}.tar.gz"


@pytest.mark.exhaustive
def test_the_same_files_make_the_same_bytes(shipped, tmp_path):
    assert shipping.archive(tmp_path / "again.tar.gz").read_bytes() == shipped.read_bytes()


def test_every_compiled_module_and_sparks_door_are_in_it(unpacked):
    compiled = {path.name for path in (PACKAGE / "_native").glob("*.so")}
    assert {path.name for path in (unpacked / "diskq" / "_native").glob("*.so")} == compiled
    assert (unpacked / "pyspark_diskq.py").exists()


def test_without_it_there_is_no_diskq(run, tmp_path):
    assert run(tmp_path, "import diskq") == "ModuleNotFoundError: No module named 'diskq'"


def test_where_nothing_is_installed_the_archive_is_enough(run, unpacked, tmp_path):
    told = run(
        unpacked,
        f"""
import diskq
with diskq.Stream({str(tmp_path)!r} + "/clicks") as stream:
    stream.append(b"hello", key="ada")
import pyspark_diskq
print(diskq.__file__, pyspark_diskq.DefaultSource.name())
""",
    )
    assert told == f"{unpacked}/diskq/__init__.py diskq"


def test_a_name_that_ends_with_zip_makes_a_zip_file_of_the_same(shipped, tmp_path):
    made = shipping.archive(tmp_path / "diskq.zip")
    with tarfile.open(shipped) as tar:
        assert zipfile.ZipFile(made).namelist() == tar.getnames()


def test_a_tree_that_is_not_compiled_is_not_shipped(tmp_path, monkeypatch):
    monkeypatch.setattr(shipping, "_PACKAGE", tmp_path / "diskq")
    (tmp_path / "diskq").mkdir()
    (tmp_path / "pyspark_diskq.py").touch()
    with pytest.raises(FileNotFoundError, match="no compiled modules to ship"):
        shipping.archive(tmp_path / "out.tar.gz")
    assert not (tmp_path / "out.tar.gz").exists()


def test_the_command_makes_it_and_prints_the_settings(shipped):
    made, archives, path = (shipped.parents[1] / "out.txt").read_text().splitlines()
    assert shipped.parent.name == "made"
    assert shipped.exists()
    assert archives == f"--conf spark.archives={made}#diskq_shipped"
    assert path == "--conf spark.executorEnv.PYTHONPATH=diskq_shipped"
