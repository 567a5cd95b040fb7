# Programs of the pages, and examples, as a reader's type checker sees them.

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.documents import DOCUMENTS, ROOT
from tests.docs.pages import extras_of, steps
from tests.type_checkers import mypy, pyright

EXAMPLES = sorted(ROOT.glob("examples/**/*.py"))


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory with each program, named for its page and its line."""
    for page in DOCUMENTS:
        if any(find_spec(module) is None for module in extras_of(page)):
            continue
        for step in steps(page):
            if step.kind in ("program", "file"):
                name = "_".join(page.relative_to(ROOT).with_suffix("").parts).replace("-", "_")
                (tmp_path / f"{name}_{step.line}.py").write_text(step.text, encoding="utf-8")
    return tmp_path


@pytest.mark.slow
@pytest.mark.exhaustive
def test_mypy_takes_each_program_of_the_pages(programs: Path) -> None:
    # pyarrow, which some of them import, has no types.
    assert not mypy(programs, "--check-untyped-defs", "--disable-error-code=import-untyped")


@pytest.mark.slow
@pytest.mark.exhaustive
def test_pyright_takes_each_example_and_each_program_of_the_pages(programs: Path) -> None:
    assert not pyright(programs, "standard", EXAMPLES)
