# The same jobs on a cluster: a master and two workers on the loopback, whose executors have diskq from the
# archive and from nowhere else; and `local-cluster`. What they read and write is what one process does.

from __future__ import annotations

import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import diskq
from diskq.spark import shipping
from tests.sampling import IS_FULL
from tests.spark.bare import bare_python
from tests.spark.cluster import Cluster, Driver
from tests.spark.jobs import pipeline, read_messages
from tests.spark.jobs import read as rows

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MESSAGES = 40_000
PARTITIONS = 4


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("streams") / "clicks"
    with diskq.Stream(path, options=diskq.StreamOptions(partition_count=PARTITIONS)) as stream:
        stream.append_many(
            [(f"user-{number % 97}", b"click %d" % number + bytes(200)) for number in range(MESSAGES)]
        )
    return str(path)


@pytest.fixture(scope="module")
def driver(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """A driver on the cluster. Its executors' Python has Spark and Arrow, and diskq from the archive."""
    directory = tmp_path_factory.mktemp("cluster")
    archive = shipping.archive(directory)
    with tarfile.open(archive) as tar:  # for the workers on the driver's side: they are the same Python
        tar.extractall(directory / "unpacked", filter="data")
    environment = {
        "PYSPARK_PYTHON": str(bare_python(directory / "bare")),
        "PYTHONPATH": str(directory / "unpacked"),
    }
    with (
        Cluster(directory) as cluster,
        Driver(cluster.url, directory, conf=shipping.conf(archive), environment=environment) as driver,
    ):
        yield driver


def test_executors_have_diskq_from_the_archive_and_from_nowhere_else(driver):
    for imported, *able in driver.run("places", tasks=4):
        assert "/diskq_shipped/" in imported
        assert able == [imported]


def test_a_cluster_reads_what_one_process_reads(driver, spark, clicks):
    assert driver.run("read", path=clicks) == rows(spark, clicks)


def test_an_executor_killed_in_the_middle_of_a_read_changes_nothing(driver, spark, clicks, tmp_path):
    marker = tmp_path / "killed"
    assert driver.run("read_and_kill", path=clicks, marker=str(marker), at=5000) == rows(spark, clicks)
    assert marker.exists()


def test_an_executor_killed_in_the_middle_of_a_write_changes_nothing(driver, spark, clicks, tmp_path):
    marker, to = tmp_path / "killed", tmp_path / "copy"
    diskq.Stream(to, options=diskq.StreamOptions(partition_count=PARTITIONS)).close()
    driver.run("write_and_kill", path=clicks, to=str(to), marker=str(marker), at=9000)
    assert ".staged" in marker.read_text()  # it was in the middle
    assert read_messages(spark, str(to)) == read_messages(spark, clicks)
    assert list((to / ".diskq" / "staging").iterdir()) == []


def test_a_pipeline_gives_on_a_cluster_what_it_gives_here(driver, spark, clicks, tmp_path):
    there, here = tmp_path / "there", tmp_path / "here"
    found = driver.run("pipeline", path=clicks, to=str(there))
    assert found == pipeline(spark, clicks, str(here))
    assert found[:2] == [MESSAGES, MESSAGES]


@pytest.mark.skipif(
    not IS_FULL, reason="a cluster of its own reads the same; DISKQ_EVERY_FAULT=1 tries this, too"
)
def test_local_cluster_reads_the_same(java, spark, clicks, tmp_path):
    environment = {"PYSPARK_PYTHON": sys.executable}
    with Driver("local-cluster[2,1,1024]", tmp_path, conf={}, environment=environment) as driver:
        assert driver.run("read", path=clicks) == rows(spark, clicks)
