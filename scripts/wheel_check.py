"""Does what we would upload work for somebody who has nothing of ours?

Builds the sdist, the wheel from that sdist, and installs the wheel with its command into an empty
environment outside the tree. There a queue is opened, sent into and received from.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
SHIPPED = {".py", ".pyi", ".pxd", ".h", ".typed"}
SPARKS_DOOR = "pyspark_diskq.py"  # beside the package, where Spark looks

USE = """
import pathlib, sys
import diskq, trio

assert pathlib.Path(diskq.__file__).is_relative_to(sys.prefix), f"imported from {diskq.__file__}"

async def main():
    bodies = [b"message %d" % number for number in range(1000)]
    pathlib.Path("data").mkdir()
    async with diskq.open_queue("data", "events") as queue:
        for body in bodies:
            await queue.send(body)
    async with diskq.open_queue("data", "events") as queue:
        with trio.fail_after(60):
            assert [await queue.receive() for _ in bodies] == bodies

trio.run(main)

import diskq.spark
assert "pyspark" not in sys.modules
try:
    diskq.spark.session
except ModuleNotFoundError as missing:
    assert "pip install 'diskqueue[spark]'" in str(missing), missing
else:
    raise AssertionError("pyspark is here, and was not asked for")

print("sent and received 1000 messages with diskq", diskq.__version__)
"""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="diskq-wheel-") as name:
        directory = Path(name)
        wheel = build(directory / "dist")
        complaints = judge(wheel)
        if complaints:
            sys.exit("\n".join([f"{wheel.name} is not fit to upload:", *complaints]))
        use(wheel, directory / "venv", directory / "elsewhere")
    print(f"{wheel.name} works in an empty environment")


def build(into: Path) -> Path:
    """The wheel, made from the sdist, so that a file missing there is missed here."""
    run(sys.executable, "-m", "build", "--outdir", str(into), str(ROOT), quiet=True)
    (wheel,) = into.glob("*.whl")
    return wheel


def judge(wheel: Path) -> list[str]:
    """What the wheel lacks, and what it holds and should not."""
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    package = {path.relative_to(ROOT) for path in (ROOT / "diskq").rglob("*") if path.is_file()}
    wanted = {path.as_posix() for path in package if path.suffix in SHIPPED} | {SPARKS_DOOR}
    code = {name for name in held if ".dist-info/" not in name}
    compiled = {name.partition(".")[0] for name in code if name.endswith((".so", ".pyd"))}
    sources = {path.as_posix().partition(".")[0] for path in package if path.suffix == ".pyx"}
    return [
        *(f"  lacks {name}" for name in sorted(wanted - held)),
        *(f"  lacks {name}, compiled" for name in sorted(sources - compiled)),
        *(f"  holds {name}" for name in sorted(code - wanted) if not name.endswith((".so", ".pyd"))),
        *(["  lacks the licence"] if not any(name.endswith("/LICENSE") for name in held) else []),
    ]


def use(wheel: Path, environment: Path, elsewhere: Path) -> None:
    """Install the wheel into a new environment and work with it, far from the source tree."""
    venv.create(environment, with_pip=True)
    elsewhere.mkdir()
    programs = environment / "bin"
    python = str(programs / "python")
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{wheel}[cli]")
    run(python, "-c", USE, cwd=elsewhere)
    run(str(programs / "diskq"), "--help", cwd=elsewhere, quiet=True)


def run(*command: str, cwd: Path | None = None, quiet: bool = False) -> None:
    """Run, or stop with the command's own words. `quiet`: those words only where it fails."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    output = subprocess.PIPE if quiet else None
    done = subprocess.run(
        command, cwd=cwd, env=clean, check=False, text=True, stdout=output, stderr=subprocess.STDOUT
    )
    if done.returncode != 0:
        sys.exit(f"{done.stdout or ''}{command[0]} failed ({done.returncode})")


if __name__ == "__main__":
    main()
