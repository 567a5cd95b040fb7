"""Go programs for tests: built once for each content of their sources.

The programs stay in `.cache/` at the root of the tree, which git ignores. A module that was
fetched once is found again without a network.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

CACHE = Path(__file__).parents[2] / ".cache" / "go"


class GoUnavailableError(Exception):
    """This machine has no Go, or cannot fetch the peers' modules. Not: our own code is wrong."""


def build(module: Path, package: str = ".", modfile: str = "go.mod") -> Path:
    """The program of `package`, in or required by the Go module in `module`.

    `modfile`: a file of that directory that says which versions of other modules it is built with.
    """
    go = shutil.which("go")
    if go is None:
        raise GoUnavailableError("go is not installed")
    program = CACHE / f"{module.name}-{_content(go, module, package, modfile)}" / module.name
    if not program.exists():
        fetched = _run(go, "mod", "download", f"-modfile={modfile}", cwd=module)
        if fetched.returncode != 0:
            raise GoUnavailableError(f"no modules for {module.name}: {' '.join(fetched.stderr.split())}")
        _build(go, module, package, modfile, program)
    return program


def _content(go: str, module: Path, package: str, modfile: str) -> str:
    digest = hashlib.sha256(_run(go, "version", cwd=module).stdout.encode())
    digest.update(f"{package} {modfile}".encode())
    for path in sorted([*module.glob("*.go"), *module.glob("go.*")]):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _build(go: str, module: Path, package: str, modfile: str, program: Path) -> None:
    # Beside its place, then renamed: two sessions may build at the same time.
    program.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=program.parent) as scratch:
        made = Path(scratch) / module.name
        flags = ("-buildvcs=false", "-trimpath", f"-modfile={modfile}", "-o", str(made))
        built = _run(go, "build", *flags, package, cwd=module)
        if built.returncode != 0:
            raise RuntimeError(f"go build {module.name}: {built.stderr}")
        os.replace(made, program)


def _run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
