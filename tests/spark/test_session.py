# The session: what it is set to, what it finds, and what it leaves behind.

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.metadata import version

import pytest

import diskq.spark
from diskq.spark import sessions
from diskq.spark.sessions import cores_of, is_on_this_host

# --- in the session of the run ----------------------------------------------------------------


@pytest.mark.spark
def test_a_query_runs(spark):
    assert spark.range(10).count() == 10


@pytest.mark.spark
def test_python_workers_are_this_python(spark):
    told = spark.sparkContext.parallelize([0]).map(lambda _: (sys.executable, sys.version)).collect()
    assert told == [(sys.executable, sys.version)]


@pytest.mark.spark
def test_arrow_comes_back(spark):
    numbers = spark.createDataFrame([(number * number,) for number in range(10)], "square long")
    assert numbers.toArrow().column("square").to_pylist() == [number * number for number in range(10)]


@pytest.mark.spark
def test_settings_are_for_this_work(spark):
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") == "50000"
    assert spark.conf.get("spark.sql.execution.arrow.maxBytesPerBatch") == str(1024 * 1024)
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None


@pytest.mark.spark
def test_a_session_that_is_there_is_returned_and_keeps_its_settings(spark):
    spark.conf.set("spark.sql.shuffle.partitions", 3)
    try:
        assert diskq.spark.session().sparkContext is spark.sparkContext
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", 2)


@pytest.mark.spark
def test_a_setting_asked_for_reaches_a_session_that_is_there(spark):
    diskq.spark.session(conf={"spark.sql.shuffle.partitions": 4})
    try:
        assert spark.conf.get("spark.sql.shuffle.partitions") == "4"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", 2)


# --- in a process of its own ------------------------------------------------------------------

NOTHING_SAID = """
import os, sys, diskq.spark
os.environ["PYSPARK_DRIVER_PYTHON"] = "a notebook's shell"
spark = diskq.spark.session(conf={"spark.driver.memory": "512m", "spark.sql.session.timeZone": "Asia/Tokyo"})
print(spark.conf.get("spark.master"), spark.conf.get("spark.app.name"), spark.conf.get("spark.driver.memory"))
print(spark.conf.get("spark.sql.session.timeZone"), spark.conf.get("spark.driver.bindAddress"))
print(spark.sparkContext.parallelize([1, 2]).sum())
os._exit(9)
"""


@pytest.mark.exhaustive
@pytest.mark.spark
@pytest.mark.slow
def test_a_bare_call_is_enough_and_what_is_asked_for_stands_before_our_own(tmp_path, java):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    done = subprocess.run(
        [sys.executable, "-c", NOTHING_SAID], cwd=tmp_path, env=clean, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.splitlines()) == (
        9,
        ["local[*] diskq 512m", "Asia/Tokyo 127.0.0.1", "3"],
    ), done.stderr
    assert list(tmp_path.iterdir()) == []  # no metastore, no warehouse, no artifacts


# --- without one ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "master, here",
    [
        ("local", True),
        ("local[*]", True),
        ("local-cluster[2,1,1024]", True),
        ("spark://127.0.0.1:7077", True),
        ("spark://localhost:7077", True),
        ("spark://127.0.0.1.example.com:7077", False),
        ("spark://master:7077", False),
        ("yarn", False),
        ("k8s://https://127.0.0.1:6443", False),
    ],
)
def test_where_a_master_is(master, here):
    assert is_on_this_host(master) is here


@pytest.mark.parametrize(
    "master, cores",
    [
        ("local", 1),
        ("local[4]", 4),
        ("local[4,2]", 4),
        ("local[*]", os.cpu_count()),
        ("local[*,3]", os.cpu_count()),
        ("local-cluster[2, 3, 1024]", 6),
        ("spark://127.0.0.1:7077", None),
        ("yarn", None),
    ],
)
def test_how_many_cores_a_master_has(master, cores):
    assert cores_of(master) == cores


WITHOUT = """
import sys
sys.modules["pyspark"] = None
import diskq.spark
diskq.spark.session
"""


SOCKETS = "spark.python.unix.domain.socket"


@pytest.mark.parametrize("side", ["driver", "executor"])
def test_sockets_have_names_that_are_short_enough(side, monkeypatch):
    def chosen(directory: str, master: str = "local[2]") -> dict[str, sessions.Setting]:
        options = {f"spark.{side}.extraJavaOptions": f"-Xmx1g -Djava.io.tmpdir={directory} -Xms1g"}
        return sessions._settings(None, master, options)

    assert f"{SOCKETS}.dir" not in chosen("/" + 59 * "d")
    monkeypatch.setattr(tempfile, "tempdir", "/short")
    assert chosen("/" + 60 * "d")[f"{SOCKETS}.dir"] == "/short"
    assert chosen("/" + 60 * "d", "spark://elsewhere:7077")[f"{SOCKETS}.enabled"] is False
    monkeypatch.setattr(tempfile, "tempdir", "/" + 60 * "t")
    assert chosen("/" + 60 * "d")[f"{SOCKETS}.enabled"] is False


def test_without_pyspark_the_sentence_says_what_to_install():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    told = "ModuleNotFoundError: diskq.spark needs pyspark: `pip install 'diskqueue[spark]'`"
    assert done.stderr.splitlines()[-1] == told


TOO_OLD = """
import sys
import pyspark.sql.datasource as found
del found.DataSourceStreamArrowWriter
import diskq.spark
diskq.spark.register
"""


def test_with_a_pyspark_that_is_too_old_the_sentence_says_which_one_is_needed():
    done = subprocess.run([sys.executable, "-c", TOO_OLD], capture_output=True, text=True)
    told = f"ImportError: diskq.spark needs PySpark 4.2 or newer, and {version('pyspark')} is installed: "
    assert done.stderr.splitlines()[-1] == f"{told}`pip install 'diskqueue[spark]'`"


def test_the_package_itself_imports_neither_spark_nor_arrow():
    program = "import sys, diskq, diskq.spark; assert not {'pyspark', 'pyarrow', 'trio'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", program], check=True)
