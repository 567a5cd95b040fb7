# The benchmark of Spark's source and sink measures every row of its table. What it measures is not judged
# here: see tests/test_floors.py.

from __future__ import annotations

import pytest
from pyspark import cloudpickle

from benchmarks import bench_spark, harness
from benchmarks import tuple_source as tuplesource
from benchmarks.floors import SPARK
from benchmarks.harness import Scale
from benchmarks.spark_works import SparkWork

SMOKE = Scale("smoke", 0.002)


def test_what_is_measured_is_what_the_rows_name():
    named = {
        reading.partition(":")[0]
        for section in SPARK
        for row in section.rows
        for reading in (row.ours, row.peer)
        if reading
    }
    assert bench_spark.measurements(SMOKE).keys() == named


@pytest.mark.exhaustive
@pytest.mark.spark
@pytest.mark.slow
def test_every_row_is_measured(spark, tmp_path, monkeypatch):
    cloudpickle.register_pickle_by_value(tuplesource)  # the workers have no benchmarks
    monkeypatch.setattr(SparkWork, "_spark", spark)
    monkeypatch.setattr(SparkWork, "_inputs", tmp_path / "inputs")
    results = harness.run(SPARK, bench_spark.measurements(SMOKE), rounds=1, directory=tmp_path)
    assert [result.missing for result in results] == [""] * len(results)
    assert all(result.ours[result.row.figure].median > 0 for result in results)
