# Conversions between formats. Law: between any two formats the fields that both have arrive, in both
# directions; losses are reported before anything is written; and no target is incomplete.

from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskq._native.stream.codec import key_hash
from diskq.engine.journal.journal import Journal
from diskq.engine.priority.store import PriorityStore
from diskq.engine.queue.fifo_queue import Queue
from diskq.errors import (
    ConversionError,
    ConversionLossError,
    LineError,
    LockedError,
    NotFoundError,
    QueueNameError,
)
from diskq.messages import NULL_TIMESTAMP
from diskq.options import PriorityOptions
from diskq.storage.fs import OsFileSystem
from diskq.testing import CrashFS, FaultFS
from diskq.tools.convert.conversion import Conversion, convert
from diskq.tools.convert.field_mapping import KEPT, ConvertOptions, Format
from diskq.tools.convert.sources import LinesFile, Selection, Source
from diskq.tools.entries import Entry
from diskq.tools.stores import Store, stores_at
from tests.sampling import examples
from tests.tools.stores import FORMATS, HAS, at, found, made, told_by

FS = OsFileSystem()
PAIRS = [(source, target) for source in FORMATS for target in FORMATS]
of_every_pair = pytest.mark.parametrize("source, target", PAIRS, ids=lambda each: str(each))

MESSAGES = [
    Entry(b"one", b"k1", 1_000, 1, 5, "mail", 0),
    Entry(b'{"two": 2}', b"k2", 2_000, 0, -5, "events", 2),
    Entry(b"\xff\n\0", b"\xfe", -3, 255, 2**63 - 1, "mail", 2),
    Entry(b"vier", b"", 2**62, 7, -(2**63), "mail", 1),
    Entry(b"five", b"k" * 127, 0, 0, 0, "events", 0),
]


def converted(source: Any, path: Path | str, to: Format, fs: Any = FS, **options: Any) -> list[Source]:
    convert(source, str(path), to, ConvertOptions(**options), fs=fs)
    return at(fs, to, str(path))


def shared(source: Format, target: Format) -> tuple[str, ...]:
    return tuple(name for name in HAS[source] if name in HAS[target])


def in_any_order(entries: list[Entry]) -> Counter[Entry]:
    return Counter(entries)


# --- every pair -----------------------------------------------------------------------------------


@of_every_pair
def test_what_both_formats_have_arrives(tmp_path: Path, source: Format, target: Format) -> None:
    store = made(FS, source, f"{tmp_path}/from", MESSAGES)
    there = converted(store, tmp_path / "to", target, lossy=True)
    names = shared(source, target)
    told = told_by(target, found(FS, store, *names)) if target != "jsonl" else found(FS, store, *names)
    assert in_any_order(found(FS, there, *names)) == in_any_order(
        [Entry(m.value, **{name: getattr(m, name) for name in names}) for m in told]
    )


@of_every_pair
def test_there_and_back_what_both_formats_have_is_the_same(
    tmp_path: Path, source: Format, target: Format
) -> None:
    store = made(FS, source, f"{tmp_path}/from", MESSAGES)
    there = converted(store, tmp_path / "there", target, lossy=True)
    back = converted(there, tmp_path / "back", source, lossy=True)
    names = shared(source, target)
    assert in_any_order(found(FS, back, *names)) == in_any_order(found(FS, store, *names))


@pytest.mark.parametrize(
    "source, target",
    # Where a stream has to make keys they are spread.
    [pair for pair in PAIRS if pair not in (("nsq", "triplet"), ("taskflux", "triplet"))],
)
def test_what_one_source_hands_out_in_order_stays_in_order(
    tmp_path: Path, source: Format, target: Format
) -> None:
    messages = [Entry(b"%d" % n, b"key", n, 0, n, "q", 0) for n in range(50)]
    store = made(FS, source, f"{tmp_path}/from", messages)
    there = converted(store, tmp_path / "to", target, lossy=True)
    assert [entry.value for entry in found(FS, there)] == [message.value for message in messages]


messages = st.lists(
    st.builds(
        Entry,
        st.binary(max_size=20),
        st.binary(max_size=127) | st.just(b""),
        st.integers(-(2**63) + 1, 2**63 - 1),
        st.integers(0, 255),
        st.integers(-(2**63), 2**63 - 1),
        st.sampled_from(["a", "b-2"]),
        st.integers(0, 2),
    ),
    max_size=6,
)


@settings(max_examples=examples(60))
@given(messages, st.sampled_from(PAIRS))
def test_any_messages_arrive_and_come_back(written: list[Entry], pair: tuple[Format, Format]) -> None:
    source, target = pair
    fs = CrashFS()
    fs.make_directory_durably("/d")
    store = made(fs, source, "/d/from", written)
    if not store:
        return  # no message, no queue
    there = converted(store, "/d/there", target, fs, lossy=True)
    back = converted(there, "/d/back", source, fs, lossy=True)
    names = shared(source, target)
    assert in_any_order(found(fs, there, *names)) == in_any_order(found(fs, store, *names))
    assert in_any_order(found(fs, back, *names)) == in_any_order(found(fs, store, *names))


# --- what is lost ---------------------------------------------------------------------------------


@of_every_pair
def test_what_would_be_lost_is_refused_and_nothing_is_there(
    tmp_path: Path, source: Format, target: Format
) -> None:
    store = made(FS, source, f"{tmp_path}/from", MESSAGES)
    lost = {*HAS[source]} - {*HAS[target]} - {"partition"}
    if not lost:
        converted(store, tmp_path / "to", target)
        return
    with pytest.raises(ConversionLossError) as refused:
        converted(store, tmp_path / "to", target)
    assert refused.value.losses.keys() == {name.removesuffix("_ns") for name in lost}
    assert [path.name for path in tmp_path.iterdir()] == ["from"]


def test_a_loss_is_counted_by_those_that_have_it(tmp_path: Path) -> None:
    store = made(FS, "sej", f"{tmp_path}/j", MESSAGES)
    with pytest.raises(ConversionLossError, match=r"loses: key \(4 messages have one\), timestamp \(5 mess"):
        converted(store, tmp_path / "to", "nsq")


def test_nothing_is_lost_where_no_message_has_it(tmp_path: Path) -> None:
    store = made(FS, "sej", f"{tmp_path}/j", [Entry(b"v", b"", None, 0)])
    assert found(FS, converted(store, tmp_path / "to", "nsq")) == [Entry(b"v")]


def test_several_queues_come_into_one_log_only_where_that_is_allowed(tmp_path: Path) -> None:
    store = made(FS, "nsq", f"{tmp_path}/q", MESSAGES)
    with pytest.raises(ConversionLossError, match="5 messages of several queues come into one"):
        converted(store, tmp_path / "to", "sej")
    assert len(found(FS, converted(store, tmp_path / "to", "sej", lossy=True))) == 5


def test_a_key_that_is_the_priority_is_not_lost(tmp_path: Path) -> None:
    store = made(FS, "sej", f"{tmp_path}/j", [Entry(b"v", b"-7", None, 0)])
    assert found(FS, converted(store, tmp_path / "to", "taskflux", priority="key"), "priority") == [
        Entry(b"v", priority=-7)
    ]


def test_damage_is_a_loss(tmp_path: Path) -> None:
    store = made(FS, "sej", f"{tmp_path}/j", [Entry(b"%d" % n, b"", None, 0) for n in range(9)])
    file = next((tmp_path / "j" / "jnl").glob("*.jnl"))
    rotten = bytearray(file.read_bytes())
    rotten[len(rotten) // 2] ^= 0xFF
    file.write_bytes(rotten)
    with pytest.raises(ConversionLossError, match="cannot be read"):
        converted(store, tmp_path / "to", "sej")
    assert not (tmp_path / "to").exists()
    result = convert(store, tmp_path / "to", "sej", ConvertOptions(lossy=True))
    assert result.messages + result.lost["messages"] == 9


# --- what is made up ------------------------------------------------------------------------------


def test_what_a_stream_needs_is_made_and_counted(tmp_path: Path) -> None:
    store = made(FS, "nsq", f"{tmp_path}/q", [Entry(b"v", queue="q")] * 3)
    result = convert(store, tmp_path / "s", "triplet")
    assert result.invented == {"key": 3, "timestamp": 3}
    entries = found(FS, at(FS, "triplet", f"{tmp_path}/s"), "key", "timestamp_ns")
    assert len({entry.key for entry in entries}) == 3
    assert {len(entry.key or b"") for entry in entries} == {32}
    assert len({entry.timestamp_ns for entry in entries}) == 1


def test_a_journal_may_have_no_time_or_the_time_it_is(tmp_path: Path) -> None:
    store = made(FS, "nsq", f"{tmp_path}/q", [Entry(b"v", queue="q")])
    assert found(FS, converted(store, tmp_path / "a", "sej"), "timestamp_ns") == [Entry(b"v")]
    [entry] = found(FS, converted(store, tmp_path / "b", "sej", timestamp="now"), "timestamp_ns")
    assert entry.timestamp_ns


VALUE = b'{"user": "anna", "n": 7, "at": "1970-01-01T00:00:01Z", "ns": 5, "no": null}'


@pytest.mark.parametrize(
    "to, options, wanted",
    [
        ("triplet", {"key": "json:user", "timestamp": "json:at"}, Entry(VALUE, b"anna", 1_000_000_000)),
        ("sej", {"key": "json:n", "timestamp": "json:ns"}, Entry(VALUE, b"7", 5)),
        ("taskflux", {"priority": "json:n"}, Entry(VALUE, priority=7)),
        ("taskflux", {"priority": 3}, Entry(VALUE, priority=3)),
        ("taskflux", {}, Entry(VALUE, priority=0)),
    ],
    ids=["stream", "journal", "priority", "number", "default"],
)
def test_a_field_may_come_from_the_value(tmp_path: Path, to: Format, options: Any, wanted: Entry) -> None:
    store = made(FS, "nsq", f"{tmp_path}/q", [Entry(VALUE, queue="q")])
    there = converted(store, tmp_path / "to", to, **options)
    assert found(FS, there, "key", "timestamp_ns", "priority") == [wanted]


@pytest.mark.parametrize(
    "to, options, reason",
    [
        ("triplet", {"key": "json:no"}, "field 'no': it is not text"),
        ("triplet", {"key": "json:which"}, "no field 'which'"),
        ("triplet", {"timestamp": "json:user"}, "field 'user': 'anna' is not a time"),
        ("triplet", {"timestamp": "json:no"}, "it is not a time"),
        ("taskflux", {"priority": "json:user"}, "not a whole number"),
        ("taskflux", {"priority": "key"}, "its key is to be the priority, and is not a number"),
    ],
    ids=str,
)
def test_a_value_without_the_field_is_refused_by_its_message(
    tmp_path: Path, to: Format, options: Any, reason: str
) -> None:
    store = made(FS, "nsq", f"{tmp_path}/q", [Entry(VALUE, queue="q")])
    with pytest.raises(ConversionError, match=rf"message 1 \(queue 'q'\): .*{reason}"):
        converted(store, tmp_path / "to", to, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["q"]


# --- partitions and queues ------------------------------------------------------------------------


def test_partitions_stay_as_they_are_or_go_by_the_key(tmp_path: Path) -> None:
    store = made(FS, "triplet", f"{tmp_path}/s", MESSAGES)
    kept = converted(store, tmp_path / "kept", "triplet")
    assert found(FS, kept, "partition") == found(FS, store, "partition")
    hashed = converted(store, tmp_path / "hashed", "triplet", partition_count=5)
    assert all(
        entry.partition == key_hash(entry.key or b"") % 5 for entry in found(FS, hashed, "key", "partition")
    )


def test_lines_make_as_many_partitions_as_they_name(tmp_path: Path) -> None:
    lines = made(FS, "jsonl", f"{tmp_path}/l", [Entry(b"a", b"k", 1, partition=6)])
    there = converted(lines, tmp_path / "s", "triplet")
    assert found(FS, there, "partition") == [Entry(b"a", partition=6)]


def test_queues_keep_their_names_or_come_into_one(tmp_path: Path) -> None:
    store = made(FS, "nsq", f"{tmp_path}/q", MESSAGES)
    jobs = converted(store, tmp_path / "store", "taskflux")
    assert {entry.queue for entry in found(FS, jobs, "queue")} == {"mail", "events"}
    one = converted(store, tmp_path / "one", "nsq", into="all", lossy=True)
    assert one == [Store("queue", f"{tmp_path}/one", "all")]


def test_a_queue_without_a_name_is_called_as_its_directory(tmp_path: Path) -> None:
    store = made(FS, "taskflux", f"{tmp_path}/t", [Entry(b"v", priority=0, queue="")])
    assert converted(store, tmp_path / "web", "nsq") == [Store("queue", f"{tmp_path}/web", "web")]


def test_an_empty_queue_stays_a_queue(tmp_path: Path) -> None:
    with Queue(tmp_path, "empty"):
        pass
    there = converted(Store("queue", str(tmp_path), "empty"), tmp_path / "to", "nsq")
    assert there == [Store("queue", f"{tmp_path}/to", "empty")]


def test_one_queue_of_several_may_be_chosen(tmp_path: Path) -> None:
    store = made(FS, "nsq", f"{tmp_path}/q", MESSAGES)
    there = converted(store, tmp_path / "to", "sej", selection=Selection(queues=("events",)))
    assert [entry.value for entry in found(FS, there)] == [b'{"two": 2}', b"five"]
    with pytest.raises(NotFoundError):
        converted(store, tmp_path / "no", "sej", selection=Selection(queues=("letters",)))


def test_stores_keep_what_their_queues_allow(tmp_path: Path) -> None:
    with PriorityStore(tmp_path / "t", options=PriorityOptions(preallocate=False)) as store:
        store.create_queue(
            "q", implementation="QA", max_messages=9, max_message_size=99, priority_range=(1, 5)
        )
        store.put(store.queue("q"), b"v", 2)
    converted(Store("jobs", f"{tmp_path}/t"), tmp_path / "to", "taskflux")
    with PriorityStore(tmp_path / "to") as store:
        info = next(info for info in store.queues() if info.name == "q")
    assert (
        info.implementation,
        info.max_messages,
        info.max_message_size,
        info.priority_range,
        info.stored,
    ) == (
        "QA",
        9,
        99,
        (1, 5),
        1,
    )


def test_a_limit_is_for_all_sources_together(tmp_path: Path) -> None:
    store = made(FS, "nsq", f"{tmp_path}/q", MESSAGES)
    there = converted(store, tmp_path / "to", "jsonl", selection=Selection(max_messages=3))
    assert [entry.value for entry in found(FS, there)] == [b'{"two": 2}', b"five", b"one"]


# --- what has no place ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source, message, to, options, reason",
    [
        ("triplet", Entry(b"v", b"k" * 128, 1), "sej", {}, "a key of 128 bytes: a journal's has at most 127"),
        (
            "triplet",
            Entry(b"v", b"k", NULL_TIMESTAMP),
            "sej",
            {},
            "with which a journal says that it has none",
        ),
        ("nsq", Entry(b"", queue="q"), "sej", {"min_message_size": 1}, "a value of 0 bytes"),
        ("nsq", Entry(b"long", queue="q"), "sej", {"max_message_size": 3}, "a value of 4 bytes"),
        ("nsq", Entry(b"v", queue="a b"), "taskflux", {}, "no blank; say into which queue"),
        ("taskflux", Entry(b"v", queue="a/b", priority=0), "nsq", {}, "'/'.*; say into which queue"),
    ],
    ids=["key", "null", "small", "large", "store-name", "nsq-name"],
)
def test_a_message_that_has_no_place_is_named_and_nothing_is_there(
    tmp_path: Path, source: Format, message: Entry, to: Format, options: Any, reason: str
) -> None:
    store = made(FS, source, f"{tmp_path}/from", [message])
    with pytest.raises(ConversionError, match=rf"message 1 \(.*{reason}"):
        converted(store, tmp_path / "to", to, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["from"]


def test_where_it_may_be_lost_a_long_key_is_left_out(tmp_path: Path) -> None:
    store = made(FS, "triplet", f"{tmp_path}/s", [Entry(b"v", b"k" * 128, NULL_TIMESTAMP)])
    result = convert(store, tmp_path / "to", "sej", ConvertOptions(lossy=True))
    assert result.lost == {"key": 1, "timestamp": 1}
    assert found(FS, at(FS, "sej", f"{tmp_path}/to"), "key", "timestamp_ns") == [Entry(b"v", b"")]


@pytest.mark.parametrize(
    "to, options, reason",
    [
        ("nsq", {"key": "random"}, "key is of no use for messages of nsq"),
        ("nsq", {"timestamp": "now"}, "timestamp is of no use"),
        ("sej", {"priority": 1}, "priority is of no use"),
        ("sej", {"partition_count": 1}, "partition_count is of no use"),
        ("jsonl", {"partition_count": 1}, "partition_count is of no use"),
        ("triplet", {"into": "q"}, "into is of no use"),
        ("sej", {"text": True}, "text is for jsonl"),
        ("triplet", {"timestamp": "none"}, "timestamp is now or json:FIELD"),
        ("sej", {"key": "yes"}, "key is random or json:FIELD, got 'yes'"),
        ("sej", {"key": "json:"}, "the name of a field is missing"),
        ("taskflux", {"priority": "high"}, "priority is key or json:FIELD"),
        ("taskflux", {"priority": 2**63}, "64 bits"),
        ("triplet", {"partition_count": 0}, "partition_count is 1 to"),
        ("sej", {"max_message_size": 2**40}, "sizes of sej"),
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(
    tmp_path: Path, to: Format, options: Any, reason: str
) -> None:
    store = made(FS, "jsonl", f"{tmp_path}/l", MESSAGES)
    with pytest.raises(ValueError, match=reason):
        converted(store, tmp_path / "to", to, **options)


def test_a_queue_name_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    store = made(FS, "jsonl", f"{tmp_path}/l", MESSAGES)
    with pytest.raises(QueueNameError):
        converted(store, tmp_path / "to", "nsq", into="a/b")


# --- where it goes --------------------------------------------------------------------------------


@pytest.mark.parametrize("to", FORMATS)
def test_what_is_there_is_not_touched(tmp_path: Path, to: Format) -> None:
    store = made(FS, "nsq", f"{tmp_path}/q", MESSAGES[:1])
    made(FS, to, f"{tmp_path}/to", MESSAGES)
    before = found(FS, at(FS, to, f"{tmp_path}/to"))
    with pytest.raises(FileExistsError, match="append to it, or convert into another place"):
        converted(store, tmp_path / "to", to, lossy=True)
    assert found(FS, at(FS, to, f"{tmp_path}/to")) == before


def test_an_empty_directory_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    store = made(FS, "nsq", f"{tmp_path}/q", MESSAGES[:1])
    assert len(found(FS, converted(store, tmp_path / "to", "sej"))) == 1


@pytest.mark.parametrize("to", FORMATS)
def test_it_is_appended_to_what_is_there(tmp_path: Path, to: Format) -> None:
    store = made(FS, to, f"{tmp_path}/from", MESSAGES)
    made(FS, to, f"{tmp_path}/to", MESSAGES)
    there = converted(store, tmp_path / "to", to, append=True)
    assert in_any_order(found(FS, there, *HAS[to])) == in_any_order(2 * found(FS, store, *HAS[to]))


def test_a_directory_of_queues_gets_another_one(tmp_path: Path) -> None:
    made(FS, "nsq", f"{tmp_path}/to", MESSAGES)
    lines = made(FS, "jsonl", f"{tmp_path}/l", [Entry(b"v")])
    converted(lines, tmp_path / "to", "nsq", append=True, into="new")
    assert [store.name for store in stores_at(tmp_path / "to")] == ["events", "mail", "new"]


@pytest.mark.parametrize(
    "to, hold",
    [("nsq", lambda path: Queue(path, "mail")), ("sej", Journal), ("taskflux", PriorityStore)],
    ids=["nsq", "sej", "taskflux"],
)
def test_a_store_in_use_is_not_appended_to(tmp_path: Path, to: Format, hold: Any) -> None:
    made(FS, to, f"{tmp_path}/to", MESSAGES)
    store = made(FS, "jsonl", f"{tmp_path}/l", [Entry(b"v", queue="mail")])
    with hold(tmp_path / "to"), pytest.raises(LockedError):
        converted(store, tmp_path / "to", to, append=True)


def test_there_must_be_something_to_append_to(tmp_path: Path) -> None:
    store = made(FS, "jsonl", f"{tmp_path}/l", [Entry(b"v")])
    with pytest.raises(FileNotFoundError, match="nothing to append to"):
        converted(store, tmp_path / "no", "sej", append=True)
    made(FS, "sej", f"{tmp_path}/j", MESSAGES)
    with pytest.raises(FileExistsError, match="no stream is here to append to, but journal"):
        converted(store, tmp_path / "j", "triplet", append=True)


def test_what_is_appended_to_is_asked_what_it_allows_before_anything_is_written(tmp_path: Path) -> None:
    with PriorityStore(tmp_path / "t", options=PriorityOptions(preallocate=False)) as store:
        store.create_queue("q", max_messages=2, priority_range=(0, 5))
    lines = made(FS, "jsonl", f"{tmp_path}/l", [Entry(b"a", queue="q"), Entry(b"b", queue="q", priority=6)])
    with pytest.raises(ConversionError, match="priority 6: allowed are 0 to 5"):
        converted(lines, tmp_path / "t", "taskflux", append=True)
    more = made(FS, "jsonl", f"{tmp_path}/more", [Entry(b"a", queue="q")] * 3)
    with pytest.raises(ConversionError, match="2 are allowed"):
        converted(more, tmp_path / "t", "taskflux", append=True)
    assert found(FS, at(FS, "taskflux", f"{tmp_path}/t")) == []


def test_a_partition_that_a_stream_does_not_have_is_refused(tmp_path: Path) -> None:
    made(FS, "triplet", f"{tmp_path}/s", MESSAGES)
    lines = made(FS, "jsonl", f"{tmp_path}/l", [Entry(b"a", b"k", 1, partition=3)])
    with pytest.raises(ConversionError, match="partition 3, and the stream has 3"):
        converted(lines, tmp_path / "s", "triplet", append=True)
    with pytest.raises(ValueError, match="has 3 partitions, and keeps them"):
        converted(lines, tmp_path / "s", "triplet", append=True, partition_count=4)
    converted(lines, tmp_path / "s", "triplet", append=True, partition_count=3)


def test_a_directory_above_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    store = made(FS, "nsq", f"{tmp_path}/q", MESSAGES[:1])
    with pytest.raises(FileNotFoundError, match="no such directory"):
        converted(store, tmp_path / "a" / "b", "sej")
    assert not (tmp_path / "a").exists()


def test_lines_go_to_a_function(tmp_path: Path) -> None:
    store = made(FS, "nsq", f"{tmp_path}/q", MESSAGES[:1])
    taken: list[bytes] = []
    convert(store, taken.append, "jsonl", ConvertOptions(text=True))
    assert b"".join(taken) == b'{"queue":"mail","text":"one"}\n'


def test_a_dry_run_counts_and_leaves_nothing(tmp_path: Path) -> None:
    store = made(FS, "sej", f"{tmp_path}/j", MESSAGES)
    result = convert(store, tmp_path / "to", "nsq", ConvertOptions(dry_run=True))
    assert result == Conversion(
        sources=(f"journal {tmp_path}/j",),
        target=f"{tmp_path}/to",
        to="nsq",
        messages=5,
        bytes=24,
        lost={"key": 4, "timestamp": 5, "type": 3},
        invented={},
        unreadable=(),
        is_dry=True,
    )
    assert [path.name for path in tmp_path.iterdir()] == ["j"]


def test_progress_counts_processed_messages(tmp_path: Path) -> None:
    store = made(FS, "sej", f"{tmp_path}/j", MESSAGES)
    told: list[tuple[int, int | None]] = []
    options = ConvertOptions(lossy=True)
    convert(store, tmp_path / "to", "nsq", options, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (10, 10)


def test_a_line_that_is_no_message_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "l").write_text('{"text":"a"}\n{"text":\n')
    with pytest.raises(LineError, match="line 2"):
        converted(LinesFile(f"{tmp_path}/l"), tmp_path / "to", "sej")
    assert [path.name for path in tmp_path.iterdir()] == ["l"]


def test_reading_leaves_every_byte_of_a_source(tmp_path: Path) -> None:
    for kind in FORMATS:
        store = made(FS, kind, f"{tmp_path}/{kind}", MESSAGES)
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        convert(store, lambda lines: None, "jsonl")
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_the_table_is_what_the_code_maps() -> None:
    assert {kind: {*names} for kind, names in HAS.items()} == {kind: {*KEPT[kind]} for kind in FORMATS}


@pytest.mark.slow
def test_no_more_than_some_batches_are_in_memory(tmp_path: Path) -> None:
    lines = made(FS, "jsonl", f"{tmp_path}/l", [Entry(b"v" * 200, b"k", 1)] * 30_000)
    convert(lines, tmp_path / "s", "triplet")
    tracemalloc.start()
    try:
        convert(at(FS, "triplet", f"{tmp_path}/s"), tmp_path / "j", "sej")
        assert tracemalloc.get_traced_memory()[1] < 6 * 1024 * 1024
    finally:
        tracemalloc.stop()


# --- what a disk does -----------------------------------------------------------------------------


@pytest.mark.parametrize("to", [kind for kind in FORMATS if kind != "taskflux"])
def test_a_full_disk_leaves_nothing(to: Format) -> None:
    inner = CrashFS()
    inner.make_directory_durably("/d")
    fs = FaultFS(inner)
    store = made(fs, "jsonl", "/d/l", [Entry(b"v" * 100_000, b"", 1, queue="q")] * 20)
    fs.capacity(1_000_000)
    with pytest.raises(Exception, match=r"(?i)full|no space"):
        converted(store, "/d/to", to, fs, lossy=True)
    assert fs.list_directory("/d") == ["l"]


def test_lines_that_find_no_room_are_taken_back() -> None:
    inner = CrashFS()
    inner.make_directory_durably("/d")
    fs = FaultFS(inner)
    made(fs, "jsonl", "/d/to", [Entry(b"before")])
    store = made(fs, "jsonl", "/d/l", [Entry(b"v" * 100_000)] * 20)
    fs.capacity(1_000_000)
    with pytest.raises(OSError, match=r"(?i)no space"):
        converted(store, "/d/to", "jsonl", fs, append=True)
    assert [entry.value for entry in found(fs, LinesFile("/d/to"))] == [b"before"]


def test_what_a_killed_conversion_left_is_swept(tmp_path: Path) -> None:
    (tmp_path / ".to.converting").mkdir()
    (tmp_path / ".to.converting" / "half").write_bytes(b"half")
    (tmp_path / ".to.converting.lock").touch()
    store = made(FS, "nsq", f"{tmp_path}/q", MESSAGES[:1])
    converted(store, tmp_path / "to", "sej")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["q", "to"]


def test_two_conversions_into_one_place_keep_out_of_each_others_way(tmp_path: Path) -> None:
    store = made(FS, "nsq", f"{tmp_path}/q", MESSAGES[:1])

    def meanwhile(done: int, total: int | None) -> None:
        with pytest.raises(LockedError, match="the conversion into"):
            converted(store, tmp_path / "to", "sej")

    convert(store, tmp_path / "to", "sej", progress=meanwhile)
    assert len(found(FS, at(FS, "sej", f"{tmp_path}/to"))) == 1


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    store = made(FS, "nsq", f"{tmp_path}/q", MESSAGES[:1])

    def interrupted(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    for to in FORMATS:
        with pytest.raises(KeyboardInterrupt):
            convert(store, tmp_path / "to", to, progress=interrupted)
    assert [path.name for path in tmp_path.iterdir()] == ["q"]


def test_a_result_has_everything_for_programs(tmp_path: Path) -> None:
    store = made(FS, "nsq", f"{tmp_path}/q", MESSAGES[:1])
    told = json.loads(json.dumps(convert(store, tmp_path / "s", "triplet").told()))
    assert told["messages"] == 1
    assert told["invented"] == {"key": 1, "timestamp": 1}
