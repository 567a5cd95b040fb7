# The session, and what a session leaves behind.

from __future__ import annotations

import pytest

pytestmark = pytest.mark.spark


def test_a_query_runs(spark):
    assert spark.range(10).count() == 10


def test_python_workers_run_and_arrow_comes_back(spark):
    numbers = spark.sparkContext.parallelize(range(10), 2).map(lambda number: (number * number,))
    squares = spark.createDataFrame(numbers, "square long").toArrow()
    assert squares.column("square").to_pylist() == [number * number for number in range(10)]
