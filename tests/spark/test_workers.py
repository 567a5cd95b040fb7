# What Spark's Python processes import is walked through by one garbage collection, not by each.

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import gc
from diskq.spark.workers import spare_collections

before = gc.get_freeze_count()
spare_collections()
first = gc.get_freeze_count()
more = [[] for _ in range(1000)]
spare_collections()
print(before == first, gc.get_freeze_count() < first + 500)
"""


REUSED = {"SPARK_REUSE_WORKER": "1"}


@pytest.mark.parametrize("environment, says", [(REUSED, "False True"), ({}, "True True")])
def test_a_worker_that_is_used_again_leaves_out_what_it_had_at_first_and_others_nothing(environment, says):
    others = {name: value for name, value in os.environ.items() if name != "SPARK_REUSE_WORKER"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=others | environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == says


def test_spark_says_to_its_workers_that_they_are_used_again(spark):
    says = spark.sparkContext.parallelize([0], 1).map(lambda _: os.environ.get("SPARK_REUSE_WORKER"))
    assert says.collect() == ["1"]
