# What type checkers say of programs that use diskq from outside. They run in processes of their own.

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

__all__ = ["Complaint", "Declared", "mypy", "pyright", "verified_types"]

ROOT = Path(__file__).parent.parent


class Complaint(NamedTuple):
    file: str
    line: int
    text: str


def mypy(
    directory: Path, *settings: str, programs: Iterable[Path] = (), untyped: Iterable[str] = ()
) -> list[Complaint]:
    """The errors in the programs of a directory, and in others; `untyped` packages may be imported.

    The settings and the cache are written into the directory.
    """
    others = sorted(programs)
    ignored = "".join(f"[mypy-{package}.*]\nignore_missing_imports = True\n" for package in untyped)
    (directory / "mypy.ini").write_text(f"[mypy]\n{ignored}", encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", str(directory / "mypy.ini")]
    command += [
        "--cache-dir",
        str(directory / "cache"),
        "--no-error-summary",
        "--output",
        "json",
        "--follow-imports=silent",  # diskq itself is judged with its own settings
        *settings,
        *map(str, [*sorted(directory.glob("*.py")), *others]),
    ]
    path = os.pathsep.join(map(str, [ROOT, *sorted({program.parent for program in others})]))
    environment = {**os.environ, "MYPYPATH": path}
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [
        Complaint(Path(each["file"]).name, each["line"], each["message"])
        for each in found
        if each["severity"] == "error"
    ]


def pyright(directory: Path, mode: str, programs: Iterable[Path] | None = None) -> list[Complaint]:
    """The errors and warnings in programs, by default those of the directory, in one of pyright's modes.

    Its settings are written into the directory.
    """
    given = sorted(directory.glob("*.py") if programs is None else programs)
    settings = {
        "typeCheckingMode": mode,
        "extraPaths": [str(ROOT), *sorted({str(program.parent) for program in given})],
        "include": [*map(str, given)],
    }
    (directory / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--project", str(directory)]
    command += ["--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return [
        Complaint(Path(each["file"]).name, each["range"]["start"]["line"] + 1, each["message"])
        for each in json.loads(done.stdout)["generalDiagnostics"]
    ]


class Declared(NamedTuple):
    """A name of diskq's, as `pyright --verifytypes` sees it."""

    name: str
    is_unknown: bool
    complaints: tuple[str, ...]
    """What is missing where it is declared; not what follows from the type of another name."""


def verified_types() -> list[Declared]:
    """All names that can be imported from diskq, with what pyright misses in their types."""
    # It asks the first Python of the PATH where packages are.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "basedpyright", "--verifytypes", "diskq"]
    command += ["--ignoreexternal", "--outputjson"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    return [
        Declared(
            each["name"],
            not each["isTypeKnown"] and not each["isTypeAmbiguous"],
            tuple(text for said in each["diagnostics"] if _is_of_its_own(text := said["message"])),
        )
        for each in found
        if each["isExported"]
    ]


def _is_of_its_own(complaint: str) -> bool:
    return "docstring" not in complaint and "partially unknown" not in complaint
