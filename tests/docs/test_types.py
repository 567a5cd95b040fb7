# Programs of the pages, and examples, as a reader's type checker sees them when it is as strict as it can be.

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from textwrap import indent

import pytest

from tests.docs.documents import DOCUMENTS, ROOT, blocks
from tests.docs.pages import extras_of, steps
from tests.type_checkers import mypy, pyright

EXAMPLES = sorted(ROOT.glob("examples/**/*.py"))

# Packages without types, or without those of what is called: pyright's strict mode refuses each use of them,
# so programs that import one are read in its standard mode, and mypy takes the imports.
UNTYPED = {
    "django": "no types",
    "hypercorn": "a `dict` without what it holds, in what `serve` takes",
    "matplotlib": "a `PathLike` without what it holds, in what `savefig` takes",
    "pyarrow": "no types",
    "pyiceberg": "what it reads is of pyarrow",
    "pyspark": "types of Pandas, which is not installed, in what `createDataFrame` takes",
}
# diskq's face of such a package hands out what the package makes.
OPENS_UNTYPED = {"diskq.spark": "pyspark"}


def pages() -> Iterator[tuple[str, str]]:
    """The programs of the pages, each with a name made of its page's and the line where it begins.

    Those of Spark go on with each other's names, so they are one program to a page.
    """
    for page in DOCUMENTS:
        if any(find_spec(module) is None for module in extras_of(page)):
            continue
        name = "_".join(page.relative_to(ROOT).with_suffix("").parts).replace("-", "_")
        for step in steps(page):
            if step.kind in ("program", "file"):
                yield f"{name}_{step.line}", step.text
        spark = [block for block in blocks(page) if block.info == "python spark"]
        if spark and find_spec("pyspark"):
            yield f"{name}_{spark[0].line}", "\n".join(block.text for block in spark)


def notebooks() -> Iterator[tuple[str, str]]:
    """The cells of each notebook, which await, as one function."""
    for path in ROOT.glob("examples/*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        yield path.stem, f"async def {path.stem}() -> None:\n{indent(code, ' ' * 4)}\n"


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory with each program of a page or notebook."""
    for name, text in (*pages(), *notebooks()):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    return tmp_path


def imported_by(program: Path) -> set[str]:
    """The packages that it imports, and those whose objects it gets from diskq."""
    found = set()
    for node in ast.walk(ast.parse(program.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    opened = {package for face, package in OPENS_UNTYPED.items() if any(_is_in(face, name) for name in found)}
    return {name.partition(".")[0] for name in found} | opened


def _is_in(package: str, name: str) -> bool:
    return f"{name}.".startswith(f"{package}.")


@pytest.mark.slow
@pytest.mark.exhaustive
def test_strict_mypy_takes_each_example_and_each_program_of_the_pages(programs: Path) -> None:
    assert not mypy(programs, "--strict", programs=EXAMPLES, untyped=UNTYPED)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_strict_pyright_takes_each_example_and_each_program_of_the_pages(programs: Path) -> None:
    every = [*programs.glob("*.py"), *EXAMPLES]
    lenient = [program for program in every if imported_by(program) & set(UNTYPED)]
    assert 0 < len(lenient) < len(every) / 4
    assert not pyright(programs, "strict", [program for program in every if program not in lenient])
    assert not pyright(programs, "standard", lenient)


def test_each_package_without_types_is_imported_by_a_program(programs: Path) -> None:
    """One that no program imports any more is not excused."""
    if any(find_spec(package) is None for package in UNTYPED):
        pytest.skip("not all extras are installed")
    imported = set().union(*map(imported_by, [*programs.glob("*.py"), *EXAMPLES]))
    assert set(UNTYPED) <= imported
