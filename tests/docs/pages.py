# Pages that run: the programs and commands of a page, in their order, in one directory and one process.
#
# ```python            a program. A block ```text right behind it is what it prints
# ```python NAME.py    a program that is saved under this name, for a command to run
# ```python EXTRA      a program that needs diskqueue[EXTRA]; those of `spark` are run in tests/spark
# ```python fragment   a piece of one: it is compiled, not run
# ```console           commands behind `$ `, each with what it prints below it
#
# In what is printed `...` stands for anything. A block without a word behind its fence is only shown.

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path

from tests.docs.documents import ROOT, Block, blocks

__all__ = ["EXTRAS", "PROGRAM_INFO", "Step", "agrees", "extras_of", "run_page", "steps"]

EXTRAS = {
    **{name: name for name in ("duckdb", "polars")},
    "arrow": "pyarrow",
    "examples": "httpx",
    "hub": "grpc",
    "iceberg": "pyiceberg",
}
"""Of each extra that a page may need, besides Spark's: a module by which it is known."""

PROGRAM_INFO = re.compile(r"python( (fragment|spark|arrow|duckdb|polars|hub|iceberg|examples|\w+\.py))?")


@dataclass(frozen=True)
class Step:
    """A program, a file to be saved, or a command; `prints` is None where the page does not tell."""

    kind: str
    text: str
    line: int
    name: str = ""
    prints: str | None = None


def steps(path: Path) -> list[Step]:
    """What running a page means."""
    return list(_steps(path))


def _steps(path: Path) -> Iterator[Step]:
    found = list(blocks(path))
    for block, after in zip_longest(found, found[1:]):
        if block.info == "console":
            yield from _commands(block)
        elif (kind := _kind(block)) == "file":
            yield Step("file", block.text, block.line, name=block.info.split()[1])
        elif kind == "program":
            is_output = after is not None and after.info == "text" and after.line == _end(block) + 2
            yield Step("program", block.text, block.line, prints=after.text if after and is_output else None)


def _kind(block: Block) -> str | None:
    word = block.info.removeprefix("python").strip()
    if not PROGRAM_INFO.fullmatch(block.info) or word in ("fragment", "spark"):
        return None
    return "file" if word.endswith(".py") else "program"


def _end(block: Block) -> int:
    return block.line + block.text.count("\n") + 1


def _commands(block: Block) -> Iterator[Step]:
    """`$ command`, on several lines where they end with a backslash, and what it prints."""
    assert block.text.startswith("$ "), f"line {block.line}"
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, printed = re.sub(r"\\\n\s*", "", part).partition("\n")
        yield Step("command", command, block.line, prints=printed)


def extras_of(path: Path) -> set[str]:
    """The modules without which a page's programs do not run."""
    words = {block.info.removeprefix("python ") for block in blocks(path)}
    return {EXTRAS[word] for word in words & set(EXTRAS)}


def run_page(path: Path, directory: Path) -> None:
    """Run it in the directory; AssertionError, with page and line, where it is not as the page says."""
    name = str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name)
    wanted = steps(path)
    runner = [sys.executable, str(ROOT / "tests" / "docs" / "page_process.py"), name]
    request = json.dumps([asdict(step) for step in wanted])
    done = subprocess.run(
        runner, input=request, cwd=directory, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{name}: {done.stderr}"
    results = json.loads(done.stdout)
    for step, (printed, complaints) in zip(wanted, results, strict=True):
        where = f"{name}:{step.line}: {step.text if step.kind == 'command' else ''}"
        assert complaints == "", f"{where}\n{complaints}"
        if step.prints is not None:
            assert agrees(step.prints, printed), f"{where}\nthe page: {step.prints}\nprinted:  {printed}"


def agrees(told: str, printed: str) -> bool:
    """Whether it is what a page tells, of which `...` may be anything, several lines too."""
    pattern = re.escape(_trimmed(told)).replace(re.escape("..."), ".*")
    return re.fullmatch(pattern, _trimmed(printed), re.DOTALL) is not None


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())
