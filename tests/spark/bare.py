# A Python with what a Spark cluster's has, and no diskq.

from __future__ import annotations

import importlib.util
import shlex
import sys
from pathlib import Path

__all__ = ["bare_python"]

_THERE = ("pyspark", "py4j", "pyarrow", "numpy")


def bare_python(directory: Path) -> Path:
    """A program that is this Python, without its packages but for Spark's and Arrow's."""
    library = directory / "library"
    library.mkdir(parents=True)
    for name in _THERE:
        found = importlib.util.find_spec(name)
        if found is not None and found.origin is not None:
            package = Path(found.origin).parent
            (library / name).symlink_to(package)
            beside = package.with_name(f"{name}.libs")  # the shared libraries of a wheel
            if beside.exists():
                (library / beside.name).symlink_to(beside)
    program = directory / "python"
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{library}" exec {shlex.quote(sys.executable)} -S "$@"\n'
    )
    program.chmod(0o755)
    return program
