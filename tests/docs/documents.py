# The documents, as tests read them: fenced blocks, links, and the tests they name.

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["DOCUMENTS", "ROOT", "Block", "blocks", "hex_block", "links", "named_tests", "prose", "table_rows"]

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    [
        *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/README.md")),
        *ROOT.glob("docs/**/*.md"),
    ]
)

_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
_TEST = re.compile(r"\b(tests/[\w/]+\.py)::(\w+)")


class Block(NamedTuple):
    """A fenced block: what stands behind the fence, its text, and the line where it begins."""

    info: str
    text: str
    line: int


def blocks(path: Path) -> Iterator[Block]:
    content = path.read_text(encoding="utf-8")
    for found in _FENCE.finditer(content):
        yield Block(found["info"].strip(), found["text"], content.count("\n", 0, found.start()) + 1)


def prose(path: Path) -> str:
    """The document without its blocks."""
    return _FENCE.sub("", path.read_text(encoding="utf-8"))


def links(path: Path) -> list[str]:
    return _LINK.findall(prose(path))


def named_tests(text: str) -> list[tuple[str, str]]:
    """Every `tests/....py::test_name` in it, as (file, name)."""
    return _TEST.findall(text)


def hex_block(path: Path, info: str) -> bytes:
    """The bytes of the one block headed `info`; what stands behind a semicolon is comment."""
    (block,) = [block for block in blocks(path) if block.info == info]
    return bytes.fromhex(" ".join(line.partition(";")[0] for line in block.text.splitlines()))


def table_rows(path: Path, heading: str) -> list[list[str]]:
    """The cells of the first table under the heading, without its head."""
    section = prose(path).split(f"\n{heading}\n", 1)[1]
    lines = section.split("\n#", 1)[0].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows
