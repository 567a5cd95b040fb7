# What the documents show of Spark is run: the blocks of a document in their order, in one process.

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.documents import DOCUMENTS, ROOT, blocks
from tests.spark.cluster import LIGHT

RUN = """
import collections, json, sys
documents = collections.defaultdict(lambda: {"__name__": "__main__"})
for name, line, text in json.load(sys.stdin):
    exec(compile(text, f"{name}:{line}", "exec"), documents[name])
"""


@pytest.mark.exhaustive
@pytest.mark.spark
@pytest.mark.slow
def test_what_is_shown_of_spark_runs(java: None, tmp_path: Path) -> None:
    shown = [
        (str(path.relative_to(ROOT)), block.line, block.text)
        for path in DOCUMENTS
        for block in blocks(path)
        if block.info == "python spark"
    ]
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps(shown),
        cwd=tmp_path,
        env=os.environ | {"JDK_JAVA_OPTIONS": LIGHT},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "|  ada|    2|" in done.stdout.splitlines()
    # No metastore, no warehouse: what is left is what the programs made.
    assert not {"metastore_db", "spark-warehouse", "derby.log", "artifacts"} & {
        path.name for path in tmp_path.iterdir()
    }
