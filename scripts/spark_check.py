"""Does `pip install diskqueue[spark]` make the README's Spark example run, for who has nothing of ours?

The wheel is installed into empty environments, and examples/spark.py is run twice in each: with the Java of
this machine, and through `diskqueue[spark-jre]` where there is none. Arguments are what else is to be
installed: `python -m scripts.spark_check pyspark==4.2.1`. It takes minutes and 2 GB, so `make test` does not
run it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Mapping
from pathlib import Path

from scripts.wheel_check import ROOT, build

EXAMPLE = ROOT / "examples" / "spark.py"
SHOWN = ["|  ada|    2|", "|  ada|    4|"]  # it appends, so the second run finds twice as much


def main() -> None:
    also = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="diskq-spark-") as name:
        directory = Path(name)
        wheel = build(directory / "dist")
        if shutil.which("java"):
            check(directory / "spark", f"{wheel}[spark]", also, os.environ)
        else:
            print("this machine has no Java: diskqueue[spark] is not checked")
        check(directory / "spark-jre", f"{wheel}[spark-jre]", also, without_java(directory))


def check(directory: Path, package: str, also: list[str], environment: Mapping[str, str]) -> None:
    """Install it into an empty environment, and run the example there, twice."""
    elsewhere = directory / "elsewhere"
    elsewhere.mkdir(parents=True)
    clean = {name: value for name, value in environment.items() if not name.startswith(("PY", "SPARK"))}
    began = time.monotonic()
    venv.create(directory / "venv", with_pip=True)
    python = str(directory / "venv" / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package, *also]
    subprocess.run(pip, check=True)
    print(f"{Path(package).name} {' '.join(also)}: installed in {time.monotonic() - began:.0f} s")
    for shown in SHOWN:
        began = time.monotonic()
        done = subprocess.run(
            [python, str(EXAMPLE)], cwd=elsewhere, env=clean, check=False, capture_output=True, text=True
        )
        if done.returncode != 0 or shown not in done.stdout.splitlines():
            sys.exit(f"{EXAMPLE.name} failed ({done.returncode})\n{done.stdout}\n{done.stderr}")
        print(f"{Path(package).name}: {shown!r} after {time.monotonic() - began:.1f} s")


def without_java(directory: Path) -> dict[str, str]:
    """The environment of a user on a machine without Java, who has never used diskq."""
    programs = directory / "programs"
    programs.mkdir()
    for entry in filter(None, os.environ["PATH"].split(os.pathsep)):
        for program in Path(entry).glob("*"):
            link = programs / program.name
            if not program.name.startswith("java") and not link.is_symlink():
                link.symlink_to(program)
    home = directory / "home"
    home.mkdir()
    ours = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "XDG_CACHE_HOME")}
    return ours | {"PATH": str(programs), "HOME": str(home)}


if __name__ == "__main__":
    main()
