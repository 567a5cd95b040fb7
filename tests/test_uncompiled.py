# A source tree that nobody compiled says so, in one sentence.

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "diskq"
SENTENCE = (
    "diskq is not compiled: run `make build` or `pip install -e .` in the source tree; to Spark's executors"
    " ship what `python -m diskq.spark.shipping` makes"
)


@pytest.fixture
def uncompiled_tree(tmp_path):
    """diskq without its compiled modules, as a fresh clone has it."""
    shutil.copytree(PACKAGE, tmp_path / "diskq", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return tmp_path


def run_in(tree: Path, code: str) -> subprocess.CompletedProcess[str]:
    # Python puts the working directory first, before any installed diskq.
    return subprocess.run([sys.executable, "-c", code], cwd=tree, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("module", ["diskq._native", "diskq.storage.fs"])
def test_importing_an_uncompiled_tree_says_what_to_run(uncompiled_tree, module):
    done = run_in(uncompiled_tree, f"import {module}")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"ImportError: {SENTENCE}"


def test_importing_what_is_compiled_for_another_python_says_which(uncompiled_tree):
    (uncompiled_tree / "diskq/_native/queue/codec.cpython-39-s390x-linux-gnu.so").touch()
    done = run_in(uncompiled_tree, "import diskq")
    ours = sysconfig.get_config_var("SOABI")
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: diskq is compiled for cpython-39-s390x-linux-gnu, and this Python is {ours}:"
        " install diskq for it; to Spark's executors ship what `python -m diskq.spark.shipping` makes with"
        " the same Python"
    )


def test_importing_it_from_a_zip_file_says_that_python_cannot(uncompiled_tree):
    (uncompiled_tree / f"diskq/_native/queue/codec.{sysconfig.get_config_var('SOABI')}.so").touch()
    zipped = shutil.make_archive(str(uncompiled_tree / "zipped"), "zip", uncompiled_tree, "diskq")
    shutil.rmtree(uncompiled_tree / "diskq")
    done = run_in(uncompiled_tree, f"import sys; sys.path.insert(0, {zipped!r}); import diskq")
    assert done.stderr.splitlines()[-1] == (
        "ImportError: diskq is compiled, but Python imports no compiled modules from a zip file"
        f" ({zipped}/diskq/_native): install it; to Spark's executors ship what"
        " `python -m diskq.spark.shipping` makes"
    )


def test_the_sentence_hides_no_second_traceback(uncompiled_tree):
    done = run_in(uncompiled_tree, "import diskq._native")
    assert done.stderr.count("Traceback") == 1


def test_another_missing_module_is_not_blamed_on_the_compiler(uncompiled_tree):
    (uncompiled_tree / "diskq/_native/queue/codec.py").write_text("import a_module_that_nobody_has")
    done = run_in(uncompiled_tree, "import diskq._native")
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'a_module_that_nobody_has'"


def test_a_broken_compiled_module_is_not_called_uncompiled(uncompiled_tree):
    (uncompiled_tree / "diskq/_native/queue/codec.py").write_text("from math import no_such_name")
    done = run_in(uncompiled_tree, "import diskq._native")
    assert "cannot import name 'no_such_name'" in done.stderr.splitlines()[-1]
