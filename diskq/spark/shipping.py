"""diskq for executors without it: one archive, and the settings that use it.

    python -m diskq.spark.shipping dist/        dist/diskq-0.1.0-cpython-311-x86_64-linux-gnu.tar.gz

Spark unpacks the archive for each executor (`spark.archives`), where it takes precedence over an installed
diskq. The executors need pyarrow of their own, and a Python of the version that made the archive.
"""

# Law: the archive holds the code that runs here; the same files make the same bytes.
#
# An archive, not `--py-files`: those stay zipped, and compiled modules cannot be imported from a zip file.
# Their names contain the Python and the machine they are for; so does the archive's.

from __future__ import annotations

import argparse
import gzip
import io
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import distribution, version
from pathlib import Path
from typing import IO

from diskq.distribution import DISTRIBUTION

__all__ = ["archive", "archive_name", "conf"]

# What the engine imports beyond the standard library.
_WITH = ("crc32c", "portalocker")

_PACKAGE = Path(__file__).parents[1]
# The command and the channels are left out: executors do not have Trio.
_LEFT_OUT = {"channels", "cli", "testing", "__pycache__"}
_DIRECTORY = "diskq_shipped"
_LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the oldest time in a zip file


def conf(shipped: Path | str) -> dict[str, str]:
    """Return the settings with which executors import diskq from this archive, for `session(conf=...)`."""
    return {
        "spark.archives": f"{shipped}#{_DIRECTORY}",
        "spark.executorEnv.PYTHONPATH": _DIRECTORY,
    }


def archive(into: Path | str) -> Path:
    """Make the archive, and return its path. `into` is a file, or a directory for the usual name."""
    out = Path(into)
    if out.is_dir() or str(into).endswith("/"):
        out.mkdir(parents=True, exist_ok=True)
        out = out / archive_name()
    held = dict(sorted(_files()))
    if not any(name.endswith(".so") for name in held if name.startswith("diskq/")):
        raise FileNotFoundError(f"{_PACKAGE} has no compiled modules to ship")
    with open(out, "wb") as file:
        if out.suffix == ".zip":
            _write_zip(file, held)
        else:
            _write_tar(file, held)
    return out


def archive_name() -> str:
    """Return a name with the version, and the Python and machine of the compiled modules."""
    return f"diskq-{version(DISTRIBUTION)}-{sysconfig.get_config_var('SOABI')}.tar.gz"


# --- what goes in ---------------------------------------------------------------------------------


def _files() -> Iterator[tuple[str, bytes]]:
    yield from _package(_PACKAGE, {".py", ".so"})
    for name in _WITH:
        # Its metadata as well: a package may look up its own version.
        for file in distribution(name).files or ():
            if ".." not in file.parts and file.suffix not in (".pyc", ".pyi", ".c", ".h"):
                yield str(file), file.locate().read_bytes()  # type: ignore[attr-defined]


def _package(root: Path, suffixes: set[str]) -> Iterator[tuple[str, bytes]]:
    for path in root.rglob("*"):
        if path.suffix in suffixes and not _LEFT_OUT & {*path.relative_to(root).parts}:
            yield path.relative_to(root.parent).as_posix(), path.read_bytes()
    entry_point = root.parent / "pyspark_diskq.py"
    yield entry_point.name, entry_point.read_bytes()


def _write_tar(file: IO[bytes], held: Mapping[str, bytes]) -> None:
    # Neither gzip's time of creation nor the times and owners of files: the same files make the same bytes.
    with (
        gzip.GzipFile("", "wb", fileobj=file, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as tar,
    ):
        for name, content in held.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def _write_zip(file: IO[bytes], held: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, content in held.items():
            zipped.writestr(zipfile.ZipInfo(name, _LONG_AGO), content, zipfile.ZIP_DEFLATED)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m diskq.spark.shipping",
        description="Make an archive of diskq for Spark's executors, and print the settings that use it.",
    )
    parser.add_argument("out", help="the file (.tar.gz, .zip), or a directory (with a / at the end, created)")
    given = parser.parse_args(arguments)
    made = archive(given.out)
    sys.stdout.write(f"{made}\n")
    for name, value in conf(made).items():
        sys.stdout.write(f"--conf {name}={value}\n")


if __name__ == "__main__":
    main()
