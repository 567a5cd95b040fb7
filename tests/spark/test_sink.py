# The sink without Spark: what its tasks and its driver do, called as Spark calls them.

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.reader import make_stream
from diskq.engine.stream.settings import StreamSettings, settings_at
from diskq.engine.stream.stream import Stream
from diskq.options import StreamOptions
from diskq.spark.driver import is_dead, job_name
from diskq.spark.errors import DiskqSparkError
from diskq.spark.sink import DiskqStreamWriter
from diskq.spark.sink_options import WriteOptions, sink_name
from diskq.storage.fs import OsFileSystem
from diskq.storage.lock import Lock
from diskq.testing import FaultFS
from tests.spark.sinks import batch, found, options_of, rows, schema, write, writer


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out"


def refused(code, says=""):
    return pytest.raises(DiskqSparkError, match=f"^{code}: .*{says}")


def values(count, start=0):
    return [value for _, value in rows(count, start)]


# --- a batch ------------------------------------------------------------------------------------


def test_all_tasks_are_appended_and_nothing_is_left_beside_the_stream(path):
    write(path, rows(100), rows(50, 100), partitionCount=2)
    assert found(path) == found(path)._replace(staged=[], is_pending=False)
    assert found(path).values == values(150)


def test_a_key_goes_where_a_producer_sends_it(path):
    write(path, rows(60), partitionCount=4)
    with Stream(str(path.with_name("by hand")), options=StreamOptions(partition_count=4)) as stream:
        stream.append_many([(key, value) for key, value in rows(60)])
    ours, theirs = (
        [(m.partition, m.key, m.value) for m in found(at).messages]
        for at in (path, path.with_name("by hand"))
    )
    assert ours == theirs


def test_tasks_are_appended_in_their_order(path):
    job = writer(path, partitionCount=1)
    messages = [job.write(iter([batch(rows(10, start))])) for start in (20, 0, 10)]
    job.commit([messages[1], messages[2], messages[0]])
    assert [m.value for m in found(path).messages] == values(30)


def test_before_the_commit_nobody_sees_anything(path):
    job = writer(path)
    job.write(iter([batch(rows(10))]))
    assert found(path).messages == []
    assert len(found(path).staged) == 1


def test_a_stream_is_created_by_the_first_commit(path):
    job = writer(path, partitionCount=2)
    staged = job.write(iter([batch(rows(10))]))
    assert settings_at(path) is None
    job.commit([staged])
    assert settings_at(path) == StreamSettings(partition_count=2)
    assert (found(path).values, found(path).staged) == (values(10), [])


def test_a_stream_that_was_created_with_other_partitions_meanwhile_keeps_them(path):
    job = writer(path, partitionCount=2)
    staged = job.write(iter([batch(rows(10))]))
    write(path, rows(10, 10), partitionCount=4)
    with refused("DISKQ_STAGED", "2 partitions.*4 with"):
        job.commit([staged])
    job.abort([staged])
    assert settings_at(path) == StreamSettings(partition_count=4)
    assert (found(path).values, found(path).staged) == (values(10, 10), [])


def test_a_stream_that_is_created_while_a_commit_waits_keeps_its_partitions(path, monkeypatch):
    job = writer(path, partitionCount=2, wait="30s")
    staged = job.write(iter([batch(rows(10))]))
    fs = OsFileSystem()
    lock = Lock(fs, StreamFiles(fs, str(path)).lock, "the stream")

    def create(_: float) -> None:
        lock.release()
        write(path, rows(10, 10), partitionCount=4)

    # Not `time.sleep` itself: a thread of py4j calls it.
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=create)
    monkeypatch.setattr("diskq.spark.patience.time", clock)
    with refused("DISKQ_STAGED", "2 partitions.*4 with"):
        job.commit([staged])
    assert settings_at(path) == StreamSettings(partition_count=4)
    assert found(path).values == values(10, 10)


@pytest.mark.parametrize("who", ["a consumer was first", "its creation was interrupted"])
def test_a_stream_without_settings_gets_those_of_the_job(path, who):
    fs = OsFileSystem()
    make_stream(fs, str(path))
    if who == "its creation was interrupted":
        partition = StreamFiles(fs, str(path)).partition(0)
        os.makedirs(partition.directory)
        open(partition.data(0), "x").close()
    write(path, rows(10), partitionCount=4)
    assert settings_at(path) == StreamSettings(partition_count=4)
    assert found(path).values == values(10)


def test_a_stream_with_messages_whose_settings_are_gone_is_refused_with_another_count(path):
    write(path, rows(10))
    (path / "settings.json").unlink()
    with refused("DISKQ_OPTION", "has 3"):
        writer(path, partitionCount=4)


def test_a_path_where_no_stream_can_be_is_an_error_before_any_task(path):
    path.write_text("a file")
    with pytest.raises((DiskqSparkError, OSError)):
        writer(path)


def test_a_job_of_no_rows_is_done(path):
    job = writer(path)
    job.commit([job.write(iter([])), job.write(iter([batch([])]))])
    assert found(path) == ([], [], False)
    assert settings_at(path) is not None


def test_a_job_of_no_tasks_creates_the_stream(path):
    writer(path, partitionCount=2).commit([])
    assert settings_at(path) == StreamSettings(partition_count=2)


def test_a_task_that_failed_has_no_message_and_what_it_staged_is_swept_up(path):
    job = writer(path)
    lost = job.write(iter([batch(rows(10))]))
    again = job.write(iter([batch(rows(10))]))
    assert lost is not None
    job.commit([again])
    assert (found(path).values, found(path).staged) == (values(10), [])


def test_abort_removes_what_was_staged(path):
    job = writer(path)
    job.abort([job.write(iter([batch(rows(10))])), None])
    assert found(path) == ([], [], False)


def test_columns_that_the_source_gives_beyond_a_message_s_are_passed_over(path):
    all_of_them = schema(
        "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
        "timestampType int"
    )
    job = writer(path, all_of_them, partitionCount=3)
    read = [(b"k", b"v", "t", 2, 77, -5_000_001, 0), (b"k", b"w", "t", None, 78, None, 0)]
    before = OsFileSystem().wall_clock()
    job.commit([job.write(iter([batch(read, all_of_them)]))])
    by_hash, by_name = sorted(found(path).messages, key=lambda m: -ord(m.value))
    assert (by_name.partition, by_name.timestamp_ns) == (2, -5_000_001_000)
    assert by_hash.timestamp_ns / 1e9 >= before - 1


def test_nanoseconds_are_kept_and_go_before_microseconds(path):
    times = schema("value string, timestamp timestamp, timestampNanos long")
    job = writer(path, times, partitionCount=1)
    job.commit([job.write(iter([batch([("a", 7, 123), ("b", 7, None)], times)]))])
    assert [(m.value, m.timestamp_ns) for m in found(path).messages] == [(b"a", 123), (b"b", 7000)]


def test_a_slice_of_a_batch_is_what_is_written(path):
    job = writer(path, partitionCount=1)
    job.commit([job.write(iter([batch(rows(20)).slice(5, 7)]))])
    assert [m.value for m in found(path).messages] == values(7, 5)


def test_a_message_without_a_key_gets_one(path):
    write(path, [(None, b"a"), (b"", b"b")])
    keys = {m.key for m in found(path).messages}
    assert len(keys) == 2
    assert all(len(key) == 32 for key in keys)


# --- once ---------------------------------------------------------------------------------------


def test_a_version_is_written_once_however_often_the_job_is_run(path):
    for _ in range(3):
        write(path, rows(10), txnAppId="nightly", txnVersion=4)
    write(path, rows(10, 10), txnAppId="nightly", txnVersion=5)
    write(path, rows(10), txnAppId="nightly", txnVersion=4)
    assert (found(path).values, found(path).staged) == (values(20), [])


def test_other_jobs_have_versions_of_their_own(path):
    write(path, rows(10), txnAppId="nightly", txnVersion=4)
    write(path, rows(10, 10), txnAppId="hourly", txnVersion=4)
    assert found(path).values == values(20)


def test_of_a_job_without_a_version_nothing_is_remembered(path):
    write(path, rows(10))
    write(path, rows(10), txnAppId="nightly", txnVersion=4)
    assert [name for name in os.listdir(path / ".diskq") if name.endswith(".committed")] == [
        "app.nightly.committed"
    ]


def test_without_a_version_a_job_that_is_run_again_writes_again(path):
    for _ in range(2):
        write(path, rows(10))
    assert len(found(path).messages) == 20


def test_each_name_of_a_sink_has_a_file_name_of_its_own():
    names = [
        sink_name(kind, name) for kind in ("app", "sink") for name in ("a", "a.b", "a-b", "a.2Eb", "ä", "A")
    ]
    assert len(set(names)) == len(names)
    assert all(
        set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.") for name in names
    )


# --- who has the stream -------------------------------------------------------------------------


def test_a_commit_while_a_producer_has_the_stream_is_locked_and_can_be_repeated(path):
    job = writer(path)
    staged = job.write(iter([batch(rows(10))]))
    with Stream(str(path)) as stream, refused("DISKQ_LOCKED"):
        stream.append(b"mine")
        job.commit([staged])
    job.commit([staged])
    assert found(path).values == sorted([b"mine", *values(10)])


def test_a_commit_where_another_machine_staged_says_that_both_must_see_one_file_system(path, tmp_path):
    job = writer(path)
    staged = job.write(iter([batch(rows(10))]))
    (path / ".diskq" / "staging").rename(tmp_path / "staging of the machine of the task")
    with refused("DISKQ_STAGED", "is gone; .*one shared file system at this path"):
        job.commit([staged])
    assert found(path).messages == []


def test_abort_removes_what_was_staged_whoever_has_the_stream(path):
    job = writer(path)
    staged = job.write(iter([batch(rows(10))]))
    with Stream(str(path)):
        job.abort([staged])
        assert found(path).staged == []


def test_what_a_dead_application_staged_is_swept_up_and_what_a_living_one_did_is_not(path):
    code = "from tests.spark.test_sink import leave_behind; import sys; leave_behind(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    living = writer(path)
    living.sink = sink_name("job", f"{own_boot()}_{os.getpid()}_{own_start()}_{'1' * 16}")
    living.write(iter([batch(rows(5))]))
    assert len(found(path).staged) == 2
    write(path, rows(10))
    assert [name.split("-")[0] for name in found(path).staged] == [living.sink]


def leave_behind(path):
    job = writer(path)
    job.sink = sink_name("job", f"{own_boot()}_{os.getpid()}_{own_start()}_{'0' * 16}")
    job.write(iter([batch(rows(5))]))


def own_boot():
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read(8)


def own_start():
    with open(f"/proc/{os.getpid()}/stat") as file:
        return file.read().rpartition(")")[2].split()[19]


def test_a_process_number_that_is_used_again_is_another_application():
    assert is_dead(f"{own_boot()}_{os.getpid()}_1_{'0' * 16}")
    assert not is_dead(f"{own_boot()}_{os.getpid()}_{own_start()}_{'0' * 16}")
    assert not is_dead(f"00000000_{os.getpid()}_1_{'0' * 16}")  # another machine's, or another boot's
    assert not is_dead(job_name())


# --- what cannot be -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "row, code",
    [
        ((b"k", None), "DISKQ_NULL_VALUE"),
        ((b"k", b"x" * (16 * 1024 * 1024 + 1)), "DISKQ_MESSAGE_SIZE"),
        ((b"k" * (64 * 1024 + 1), b"x"), "DISKQ_MESSAGE_SIZE"),
    ],
    ids=["null value", "value size", "key size"],
)
def test_a_row_that_is_no_message_fails_its_task_and_leaves_nothing(path, row, code):
    job = writer(path)
    with refused(code):
        job.write(iter([batch(rows(3)), batch([*rows(3), row])]))
    assert found(path) == ([], [], False)


def test_a_partition_that_is_not_there_is_named(path):
    placed = schema("value binary, partition int")
    job = writer(path, placed, partitionCount=2)
    with refused("DISKQ_SINK", "row 1.*partition 2"):
        job.write(iter([batch([(b"a", 1), (b"b", 2)], placed)]))


@pytest.mark.parametrize(
    "ddl, says",
    [
        ("key binary", "no column value"),
        ("value int", "value is int, and has to be binary or string"),
        ("value binary, weight int", "weight has no place in a message"),
        ("value binary, timestamp long", "timestamp is bigint"),
    ],
)
def test_columns_that_no_message_has_are_errors(path, ddl, says):
    with refused("DISKQ_OPTION", says):
        writer(path, schema(ddl))
    assert not path.exists()


@pytest.mark.parametrize(
    "options, says",
    [
        ({"partition": 3}, "did you mean partitionCount"),
        ({"partitionCount": 0}, "partitionCount is '0'"),
        ({"txnAppId": "a"}, "go together"),
        ({"txnVersion": 1}, "go together"),
        ({"txnAppId": "", "txnVersion": 1}, "txnAppId"),
        ({"sinkId": "a"}, "for streaming queries"),
        ({"topic": "a/b"}, "the name of a directory"),
        ({"wait": "soon"}, "a time as Spark writes it"),
    ],
)
def test_senseless_options_of_the_sink_are_errors(path, options, says):
    with refused("DISKQ_OPTION", says):
        writer(path, **options)


def test_a_stream_is_appended_to_and_never_overwritten(path):
    with refused("DISKQ_OPTION", 'mode."overwrite".*append'):
        writer(path, overwrite=True)


def test_a_stream_keeps_its_partitions(path):
    write(path, rows(3), partitionCount=2)
    with refused("DISKQ_OPTION", "partitionCount is 3: .* has 2"):
        writer(path, partitionCount=3)


def test_topic_is_the_stream_below_path(path):
    write(path, rows(3), topic="clicks")
    assert found(path / "clicks").values == values(3)


OF_TOPICS = "key binary, value binary, topic string"


@pytest.mark.parametrize("tasks", [[[("a", b"1"), ("b", b"2")]], [[("a", b"1")], [("b", b"2")]]])
def test_rows_of_several_topics_are_not_mixed_in_silence(path, tasks):
    job = writer(path, schema(OF_TOPICS))
    batches = [batch([(b"k", value, topic) for topic, value in task], schema(OF_TOPICS)) for task in tasks]
    with pytest.raises(DiskqSparkError, match=r"^DISKQ_OPTION: rows of several topics \(a, b\)"):
        job.commit([job.write(iter([each])) for each in batches])
    job.abort([None])
    assert found(path) == ([], [], False)


def test_with_the_option_topic_rows_of_all_topics_go_there(path):
    job = writer(path, schema(OF_TOPICS), topic="clicks")
    its = batch([(b"k", b"1", "a"), (b"k", b"2", "b"), (b"k", b"3", None)], schema(OF_TOPICS))
    job.commit([job.write(iter([its]))])
    assert found(path / "clicks").values == [b"1", b"2", b"3"]


def test_a_query_takes_no_version_option(path):
    with refused("DISKQ_OPTION", "txnAppId"):
        WriteOptions.parse(options_of(path=path, txnAppId="a", txnVersion=1), is_streaming=True)


def test_a_task_of_no_query_is_refused(path):
    stream = DiskqStreamWriter(options_of(path=path), schema("value binary"), False)
    with refused("DISKQ_SINK", "no query id"):
        stream.write(iter([]))


# --- a full disk --------------------------------------------------------------------------------


def test_a_disk_that_is_full_while_a_task_stages_fails_the_task_and_leaves_nothing(path, monkeypatch):
    job = writer(path)
    disk = FaultFS(OsFileSystem())
    disk.capacity(100_000)
    monkeypatch.setattr(job, "_file_system", lambda: disk)
    with refused("DISKQ_DISK_FULL"):
        job.write(iter([batch([(b"k", b"x" * 50_000)] * 4)]))
    assert found(path) == ([], [], False)


@pytest.mark.parametrize("room", [0, 500, 3_000, 20_000, 60_000])
def test_a_disk_that_is_full_while_it_is_committed_costs_nothing(path, monkeypatch, room):
    """Before the intent: nothing happened. Behind it: it will. Which of the two, the next open shows."""
    job = writer(path, partitionCount=2, txnAppId="a", txnVersion=1)
    staged = job.write(iter([batch([(b"k%d" % n, b"x" * 2_000) for n in range(40)])]))
    disk = FaultFS(OsFileSystem())
    disk.capacity(room)
    monkeypatch.setattr(job, "_file_system", lambda: disk)
    with refused("DISKQ_DISK_FULL"):
        job.commit([staged])
    job.abort([staged])
    monkeypatch.undo()
    if not found(path).staged:
        staged = job.write(iter([batch([(b"k%d" % n, b"x" * 2_000) for n in range(40)])]))
    job.commit([staged])
    assert len(found(path).messages) == 40
    assert (found(path).staged, found(path).is_pending) == ([], False)


def test_a_task_that_stages_imports_no_engine_that_it_does_not_open():
    """A sink is made in a new process for each write, and for each batch of a query."""
    program = (
        "import sys, diskq.spark.source, diskq.spark.sink; "
        "assert not {'diskq.engine.stream.stream', 'diskq.engine.stream.steps', 'difflib'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
