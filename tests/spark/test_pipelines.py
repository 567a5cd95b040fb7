# The pipelines: whatever is run again, killed or interrupted, each message is there once, in its order, as
# it was. Few tests, as each query costs seconds: they follow one stream through all that can be done with it.

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from diskq import NULL_TIMESTAMP, Message
from diskq.engine.journal.journal import Item, Journal
from diskq.engine.stream.copy_job import Job
from diskq.engine.stream.reader import ReadableStream
from diskq.engine.stream.stream import Stream
from diskq.options import StreamOptions
from diskq.spark import pipelines
from diskq.spark.errors import DiskqSparkError, classify
from diskq.spark.pipelines.progress import PipelineProgress
from diskq.spark.pipelines.rounds import JobRun, carry_out
from diskq.tables.table import Table, open_table
from tests.cli.conftest import Terminal, start

pytestmark = pytest.mark.spark

SECOND = 10**9
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
# Some hours before 1970, and then on: hours are cut below zero, too.
BEGIN = -5 * HOUR + 123

Sent = tuple[bytes, bytes, int]


def sent(count: int, start: int = 0, begin: int = BEGIN) -> list[Sent]:
    """Messages of eleven keys, a minute apart, every tenth of them an hour back; to the nanosecond."""
    return [
        (b"key-%d" % (n * n % 11), b'{"n": %d}' % n, begin + n * MINUTE - (n % 10 == 9) * HOUR)
        for n in range(start, start + count)
    ]


def append(path: Path, messages: Iterable[Sent], **options: Any) -> None:
    with Stream(path, options=StreamOptions(**options)) as stream:
        stream.append_many(messages)


def found(path: Path) -> list[Message]:
    messages: list[Message] = []
    reader = ReadableStream(path)
    for partition in reader.partitions():
        with reader.open(partition) as its:
            messages += iter(its.read, None)
            assert not its.losses
    return messages


def facts(messages: Iterable[Message]) -> list[Sent]:
    return [(message.key, message.value, message.timestamp_ns) for message in messages]


def by_key(messages: Iterable[Message]) -> dict[bytes, list[bytes]]:
    orders: dict[bytes, list[bytes]] = {}
    for message in messages:
        orders.setdefault(message.key, []).append(message.value)
    return orders


def in_order(messages: Iterable[Sent]) -> dict[bytes, list[bytes]]:
    orders: dict[bytes, list[bytes]] = {}
    for key, value, _ in messages:
        orders.setdefault(key, []).append(value)
    return orders


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    """Of three partitions and 600 messages, in several segments."""
    path = tmp_path / "clicks"
    append(path, sent(600), partition_count=3, segment_size=4096)
    return path


def stopping(when: Callable[[PipelineProgress], bool]) -> Callable[[PipelineProgress], None]:
    """As Ctrl-C, at that moment."""

    def watch(progress: PipelineProgress) -> None:
        if when(progress):
            raise KeyboardInterrupt

    return watch


# --- a table, back into a stream ------------------------------------------------------------------


def in_table(stream: Path, table: Table) -> list[Message]:
    """Those of the messages that the table has."""
    ends = table.ends()
    return [message for message in found(stream) if message.offset < ends.get(message.partition, 0)]


@pytest.mark.exhaustive
def test_a_table_comes_back_as_its_stream_was(spark, stream, tmp_path):
    into = tmp_path / "lake"
    table = open_table(stream, into)
    table.update()
    kept = in_table(stream, table)
    count = len(kept)
    assert count > 300

    # Into as many partitions all is where it was; into another number of them, where its key belongs.
    back = pipelines.replay(spark, str(into), str(tmp_path / "back"), max_messages=200)
    assert (back.messages, back.rounds, back.was_resumed) == (count, -(-count // 200), False)
    assert found(tmp_path / "back") == kept
    pipelines.replay(spark, str(table.directory), str(tmp_path / "other"), partition_count=2)
    assert sorted(facts(found(tmp_path / "other"))) == sorted(facts(kept))

    # And when the table has grown, the rest follows: also while small files and the large one are there.
    append(stream, sent(300, 600))
    table.update()
    small = {file.path: Path(file.path).read_bytes() for file in table.files()}
    table.compact()
    for path, content in small.items():
        Path(path).write_bytes(content)
    rest = pipelines.replay(spark, str(into), str(tmp_path / "back"))
    assert (rest.messages, rest.was_resumed) == (table.statistics().offsets - count, True)
    kept = in_table(stream, table)
    assert found(tmp_path / "back") == kept


def test_a_table_that_spark_lists_is_exact_while_it_is_compacted(spark, stream, tmp_path):
    """Where only Spark has the credentials: a URI, whose names Hadoop lists."""
    table = open_table(stream, tmp_path / "lake")
    table.update()
    small = {file.path: Path(file.path).read_bytes() for file in table.files()}
    assert table.compact().removed
    for path, content in small.items():
        Path(path).write_bytes(content)
    uri = (tmp_path / "lake").as_uri()
    for source, into in ((uri, "one"), (f"{uri}/topic=clicks/", "other")):
        pipelines.replay(spark, source, str(tmp_path / into))
        assert found(tmp_path / into) == in_table(stream, table)
    open_table(stream, tmp_path / "lake", host="web1").update()
    with pytest.raises(DiskqSparkError, match=r"DISKQ_OPTION: .* name one of topic=clicks, host=web1"):
        pipelines.replay(spark, uri, str(tmp_path / "back"))
    (tmp_path / "lake" / "topic=none").mkdir()
    with pytest.raises(DiskqSparkError, match=r"DISKQ_NOT_FOUND: .* has no files yet"):
        pipelines.replay(spark, f"{uri}/topic=none", str(tmp_path / "back"))


def test_of_several_tables_one_is_named(spark, stream, tmp_path):
    lake = tmp_path / "lake"
    (lake / "topic=empty").mkdir(parents=True)
    with pytest.raises(DiskqSparkError, match=r"DISKQ_NOT_FOUND: .* has no files yet"):
        pipelines.replay(spark, str(lake), str(tmp_path / "back"))
    for host in (None, "web1"):
        open_table(stream, lake, host=host).update()
        with pytest.raises(DiskqSparkError, match=r"DISKQ_OPTION: .* name one of topic=clicks, topic=empty"):
            pipelines.replay(spark, str(lake), str(tmp_path / "back"))


@pytest.mark.exhaustive
def test_a_replay_keeps_the_pace_and_the_order(spark, tmp_path):
    source, into = tmp_path / "source", tmp_path / "into"
    # Two seconds, at twice the speed; the last but one has an earlier time, and waits all the same.
    times = [0, 0.1, 0.9, 1.0, 0.2, 2.0]
    messages = [(b"k", b"%d" % n, BEGIN + int(time * SECOND)) for n, time in enumerate(times)]
    append(source, messages, partition_count=1)
    progress: list[PipelineProgress] = []
    done = pipelines.replay(spark, str(source), str(into), speed=2.0, every=0.2, watch=progress.append)
    assert facts(found(into)) == messages
    assert done.seconds >= 1.0
    assert done.rounds >= 2
    assert progress[-1].messages == 6
    assert progress[-1].lag == 0

    spark.createDataFrame(
        [(k, v, 0, n, t) for n, (k, v, t) in enumerate(messages)],
        "key binary, value binary, partition int, offset long, timestampNanos long",
    ).write.parquet(str(tmp_path / "parquet"))
    done = pipelines.replay(spark, str(tmp_path / "parquet"), str(tmp_path / "p"), speed=2.0, every=0.2)
    assert facts(found(tmp_path / "p")) == messages
    assert done.seconds >= 1.0
    assert done.rounds >= 2


# --- aggregate ------------------------------------------------------------------------------------


def hourly(messages: Iterable[Sent]) -> Counter[tuple[int, str]]:
    return Counter((time // (HOUR), key.decode()) for key, _, time in messages)


def hours_of(rows: Iterable[Any]) -> Counter[tuple[int, str]]:
    assert all(row["window_end"] - row["window_start"] for row in rows)
    counts: Counter[tuple[int, str]] = Counter()
    for row in rows:
        counts[row["hours"], row["by"]] += row["count"]
    return counts


@pytest.mark.exhaustive
def test_windows_are_counted_at_once_and_step_by_step(spark, stream, tmp_path):
    at_once, by_steps = tmp_path / "at once", tmp_path / "by steps"
    hours = "floor(unix_micros(window_start) / 3600e6) AS hours"
    for _ in range(2):  # the second time replaces the first
        measures = {"largest": "max(octet_length(value))"}
        done = pipelines.aggregate(spark, str(stream), str(at_once), window=3600, measures=measures)
    assert done.messages == 600
    rows = spark.read.parquet(str(at_once)).selectExpr("*", hours).collect()
    assert hours_of(rows) == hourly(sent(600))
    assert done.windows == len(rows) == len(hourly(sent(600)))
    assert sum(row["bytes"] for row in rows) == sum(len(value) for _, value, _ in sent(600))
    assert all(row["per_second"] == row["count"] / 3600 for row in rows)
    assert {row["largest"] for row in rows} <= {8, 9, 10}

    # For Spark time begins in 1970, so that step by step whatever is before is late.
    later = tmp_path / "later"
    how: dict[str, Any] = {"window": 3600, "watermark": 7200}
    append(later, [*sent(600, begin=HOUR), (b"key-0", b"late", BEGIN)], partition_count=3)
    first = pipelines.aggregate(spark, str(later), str(by_steps), **how)
    append(later, [*sent(100, 600, begin=HOUR), (b"key-0", b"late", HOUR)])
    second = pipelines.aggregate(spark, str(later), str(by_steps), **how)
    third = pipelines.aggregate(spark, str(later), str(by_steps), **how)
    assert (first.messages, second.messages, third.messages) == (601, 101, 0)
    assert (first.late, second.late, third.late) == (1, 1, 0)
    rows = spark.read.parquet(str(by_steps)).selectExpr("*", hours).collect()
    assert first.windows + second.windows + third.windows == len(rows)
    wanted = hourly(sent(700, begin=HOUR))
    assert second.open_windows == len(wanted) - len(rows) > 0
    assert hours_of(rows).items() <= wanted.items()


# --- a machine that is too busy to start a Python worker ------------------------------------------

LATE = "Python worker failed to connect back."


class Busy:
    """Fails as Spark does then: the first `times` times that it is asked."""

    def __init__(self, times: int) -> None:
        self.times = times

    def __call__(self) -> None:
        self.times -= 1
        if self.times >= 0:
            raise RuntimeError(LATE)


@pytest.mark.exhaustive
def test_a_query_that_follows_goes_on_when_a_worker_was_late(spark, stream, tmp_path):
    append(stream, sent(300, 600))
    busy, seen = Busy(1), []

    def each(rows: list[Any]) -> None:
        busy()
        seen.extend(rows)

    how: dict[str, Any] = {"each": each, "window": 3600, "watermark": 7200, "max_messages": 500}
    how["checkpoint"] = str(tmp_path / "checkpoint")
    with pytest.raises(KeyboardInterrupt):
        pipelines.aggregate(spark, str(stream), follow=0.1, watch=stopping(lambda _: bool(seen)), **how)
    assert busy.times < 0
    assert not spark.streams.active


def test_a_round_is_repeated_under_its_number_when_a_worker_was_late(stream):
    busy, rounds = Busy(2), []

    def copy(number: int, ranges: Any, more: Any) -> int:
        rounds.append((number, ranges))
        busy()
        return 9

    def carried_out(job: str, follow: float | None) -> Any:
        def next_round(places: Any) -> Any:
            if not places:
                return {("clicks", 0): (0, 9)}, {}
            if follow is not None:
                raise KeyboardInterrupt
            return {}, {}

        run = JobRun(None, str(stream), job, follow, 10, 1.0, None, None)  # type: ignore[arg-type]
        return carry_out(run, of={}, source=None, next_round=next_round, copy=copy)

    with pytest.raises(KeyboardInterrupt):
        carried_out("one", 0.01)
    assert rounds == [(0, {("clicks", 0): (0, 9)})] * 3
    busy.times = 1
    with pytest.raises(RuntimeError, match=LATE) as failed:
        carried_out("two", None)
    assert classify(failed.value) == ("DISKQ_WORKER_LATE", LATE)
    assert carried_out("two", None).messages == 9


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"into": "a", "table": "b"},
        {"into": "a", "follow": 1.0},
        {"table": "b", "watermark": 1.0},
        {"into": "a", "measures": {"count": "max(offset)"}},
    ],
)
def test_what_does_not_go_together_is_refused(spark, stream, wrong):
    with pytest.raises(DiskqSparkError, match="DISKQ_OPTION"):
        pipelines.aggregate(spark, str(stream), window=1.0, **wrong)


# --- reshard --------------------------------------------------------------------------------------


class Killed(BaseException):
    """As a kill -9 at that place."""


def kill_at(monkeypatch: pytest.MonkeyPatch, nth: int, when: str) -> None:
    """The job dies with its `nth` plan: when it is about to be durable, when it is, or when it was done."""
    keep, plans = Job.keep, []

    def dying(self: Job, plan: Any) -> None:
        plans.append(plan)
        if len([plan for plan in plans if plan["is_done"] == (when == "done")]) == nth:
            if when == "planned":
                keep(self, plan)
            raise Killed
        keep(self, plan)

    monkeypatch.setattr(Job, "keep", dying)


@pytest.mark.exhaustive
def test_a_stream_is_resharded_once_whatever_is_killed_when(spark, stream, tmp_path):
    into, count = tmp_path / "five", 600
    for nth, when in ((1, "planning"), (1, "planned"), (2, "done"), (1, "done")):
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, nth, when)
            with pytest.raises(Killed):
                pipelines.reshard(spark, str(stream), str(into), 5, max_messages=100)
        # What comes in between must not get into a round that is done again.
        append(stream, sent(10, count))
        count += 10
    last = pipelines.reshard(spark, str(stream), str(into), max_messages=250)
    assert last.was_resumed
    assert by_key(found(into)) == in_order(sent(count))
    assert sorted(facts(found(into))) == sorted(facts(found(stream)))
    assert len(ReadableStream(into).partitions()) == 5
    assert pipelines.reshard(spark, str(stream), str(into)).messages == 0

    with pytest.raises(DiskqSparkError, match=r"DISKQ_OPTION: .* has 5 partitions, not 6"):
        pipelines.reshard(spark, str(stream), str(into), 6)
    with pytest.raises(DiskqSparkError, match=r"DISKQ_OPTION: job 'reshard' .* is another one"):
        pipelines.replay(spark, str(stream), str(into), job="reshard")
    os.rename(stream, tmp_path / "old")
    append(stream, sent(3), partition_count=3)
    with pytest.raises(DiskqSparkError, match="DISKQ_STREAM_CHANGED"):
        pipelines.reshard(spark, str(stream), str(into))


# --- merge ----------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_clients_are_merged_without_what_they_sent_twice(spark, tmp_path):
    ada, grace, joan = (tmp_path / name for name in ("ada", "grace", "joan"))
    into = tmp_path / "all"

    def message(client: str, n: int | None, time: int) -> Sent:
        return b"k", json.dumps({"of": client, "n": n}).encode(), time

    # What a client did not get confirmed it sends again, later; without an id nothing is like another.
    first = [message("ada", n, n) for n in range(50)]
    append(ada, [*first, *[message("ada", n, 1000 + n) for n in range(40, 50)], message("ada", None, 7)])
    append(grace, [message("grace", n, n) for n in range(30)])
    id_of = "get_json_object(cast(value AS string), '$.n')"
    done = pipelines.merge(spark, [str(ada), str(grace)], str(into), 1, id_of=id_of, max_messages=35)
    assert (done.read, done.messages) == (91, 81)

    with pytest.MonkeyPatch.context() as patch:
        append(ada, [message("ada", n, 2000 + n) for n in range(45, 60)] + [message("ada", None, 7)])
        append(joan, [message("joan", n, n) for n in range(5)])
        kill_at(patch, 1, "done")
        with pytest.raises(Killed):
            pipelines.merge(spark, [str(ada), str(grace), str(joan)], str(into), id_of=id_of)
    pipelines.merge(spark, [str(ada), str(grace), str(joan)], str(into), id_of=id_of)
    kept = [(json.loads(m.value)["of"], json.loads(m.value)["n"], m.timestamp_ns) for m in found(into)]
    assert [(n, time) for of, n, time in kept if of == "ada" and n is not None] == [
        (n, n if n < 50 else 2000 + n) for n in range(60)
    ]
    assert [n for of, n, _ in kept if of == "grace"] == list(range(30))
    assert [n for of, n, _ in kept if of == "joan"] == list(range(5))
    assert kept.count(("ada", None, 7)) == 2

    # Without an id: who sent the very same message, at the same nanosecond, sent it once.
    shadow = tmp_path / "shadow"
    append(shadow, first)
    same = pipelines.merge(spark, [str(ada), str(shadow)], str(tmp_path / "same"), 1)
    assert same.messages == len(set(facts(found(ada)))) == same.read - 51


@pytest.mark.exhaustive
def test_what_a_hub_keeps_is_merged_without_what_was_sent_twice(spark, tmp_path):
    root, into = tmp_path / "hub", tmp_path / "all"

    def keep(name: str, *items: Item) -> None:
        with Journal(root / name) as journal:
            journal.append_many(items)

    with pytest.raises(DiskqSparkError, match="DISKQ_NOT_FOUND"):
        pipelines.dedupe_merge(spark, str(root), str(into))
    first: list[Item] = [(b"k", b"%d" % n, n, 0) for n in range(20)]
    keep("ada.web", *first, *first[5:10], (b"k", b"5", 5, 1), (b"k", b"5", NULL_TIMESTAMP, 0))
    keep("ada.log.errors", first[3], (b"k", b"alone", 1, 0))
    keep("grace.web", (b"k", b"5", NULL_TIMESTAMP, 0), (b"k", b"grace", 0, 0))
    keep("no client's", (b"k", b"no", 0, 0))
    done = pipelines.dedupe_merge(spark, str(root), str(into), 1)
    assert (done.read, done.messages) == (31, 24)

    keep("grace.web", first[7], (b"k", b"grace", 1, 0))
    keep("joan.web", first[8], (b"k", b"joan", 0, 0))
    again = pipelines.dedupe_merge(spark, str(root), str(into))
    assert (again.read, again.messages, again.was_resumed) == (4, 2, True)
    kept = [m.value for m in found(into)]
    twice = [b"5", b"5", b"grace", b"grace"]
    assert Counter(kept) == Counter([b"%d" % n for n in range(20)] + [b"alone", b"joan"] + twice)
    assert [n for n in map(int, filter(bytes.isdigit, kept)) if n > 5] == list(range(6, 20))

    shutil.rmtree(root / "ada.web")
    keep("ada.web", *first)
    with pytest.raises(DiskqSparkError, match="DISKQ_STREAM_CHANGED"):
        pipelines.dedupe_merge(spark, str(root), str(into))
    with pytest.raises(DiskqSparkError, match="DISKQ_NOT_FOUND"):
        pipelines.dedupe_merge(spark, str(root), str(into), journal="errors")


# --- the command -----------------------------------------------------------------------


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], spark: object) -> Callable[..., tuple[int, str, str]]:
    """`diskq pipeline` in this process, in the session of this run."""
    from diskq.cli import main

    def run(*argv: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(["pipeline", *map(str, argv)])
        return code, *capfd.readouterr()

    return run


@pytest.mark.exhaustive
def test_the_command_prints_what_was_done(stream, tmp_path, run):
    code, out, _ = run("reshard", stream, tmp_path / "one", "--partition-count", "1", "--json")
    told = json.loads(out)
    assert (code, told["messages"], told["rounds"], told["was_resumed"]) == (0, 600, 1, False)
    code, out, err = run("aggregate", stream, "--window", "30d", "--json-field", "n", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert (code, len(rows), {row["count"] for row in rows}) == (0, 600, {1})
    assert err == "diskq: 600 messages in 600 rows\n"
    code, _, err = run("aggregate", stream, "--window", "30d", "--by", "nonsense")
    assert (code, err.split(".")[0]) == (1, "diskq: error: Spark: [UNRESOLVED_COLUMN")
    code, _, err = run("reshard", stream, tmp_path / "one", "--partition-count", "2")
    assert code == 1
    assert err.startswith(f"diskq: error: DISKQ_OPTION: {tmp_path / 'one'} has 1 partitions, not 2")


@pytest.mark.slow
@pytest.mark.exhaustive
def test_an_interrupt_stops_it_and_nothing_is_lost(spark, stream, tmp_path):
    into = tmp_path / "mirror"
    with Terminal() as terminal:
        command = ["pipeline", "replay", stream, into, "--follow", "200ms", "--master", "local[1]"]
        with start(*command, stdout=subprocess.DEVNULL, stderr=terminal.outer) as process:
            terminal.read_until("replaying: 600 messages")
            process.send_signal(signal.SIGINT)
            assert process.wait(240) == 130
        terminal.read_until("stopped after 600 messages")
    append(stream, sent(100, 600))
    assert pipelines.replay(spark, str(stream), str(into)).messages == 100
    assert found(into) == found(stream)
