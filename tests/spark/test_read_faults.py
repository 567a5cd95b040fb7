# Damage, met by Spark itself: what a task finds comes out with its code, or costs what is damaged alone.
# What each fault costs, exactly, is in test_arrow.py and test_committed_offset.py.

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from diskq.spark import classify
from tests.spark.readers import data_files, numbers, rot, write

pytestmark = pytest.mark.spark


def found(spark: SparkSession, path: Path, **options: Any) -> list[int]:
    return sorted(numbers(spark.read.format("diskq").options(**options).load(str(path)).toArrow()))


def code_of(spark: SparkSession, path: Path, **options: Any) -> str:
    with pytest.raises(PySparkException) as caught:
        found(spark, path, **options)
    fault = classify(caught.value)
    assert fault is not None, caught.value
    assert str(path) in fault.sentence
    return fault.code


def test_a_rotten_byte(spark, tmp_path):
    write(tmp_path, 3000, partitions=2)
    rot(tmp_path, 1500)
    assert code_of(spark, tmp_path) == "DISKQ_CORRUPT"
    left = found(spark, tmp_path, failOnDataLoss="false")
    assert 1500 not in left
    assert 2800 < len(left) < 3000


@pytest.mark.exhaustive
def test_a_file_that_was_cut_and_files_that_are_gone(spark, tmp_path):
    write(tmp_path, 5000)
    chosen = {"startingOffsets": '{"0": 5}'}
    frame = spark.read.format("diskq").options(failOnDataLoss="false", **chosen).load(str(tmp_path))
    with data_files(tmp_path)[5].open("r+b") as handle:
        handle.truncate(100)
    assert code_of(spark, tmp_path) == "DISKQ_CORRUPT"
    first, cut, behind = (int(data_files(tmp_path)[number].stem) for number in (2, 5, 6))
    for file in data_files(tmp_path)[:2]:
        file.unlink()
    assert code_of(spark, tmp_path, **chosen) == "DISKQ_DATA_LOSS"
    left = sorted(numbers(frame.toArrow()))
    assert [number for number in left if not cut <= number < behind] == [
        *range(first, cut),
        *range(behind, 5000),
    ]
