# The producer of a stream. Law: the files are those that go-diskq would have written, byte for byte; a
# message's offset is returned once, and is where the message is; and what an error denies did not happen.

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskq._native.core.message import Position
from diskq.engine.stream.stream import Stream
from diskq.errors import (
    ForeignFilesError,
    KeySizeError,
    LockedError,
    MessageSizeError,
    UnsupportedFormatError,
)
from diskq.options import StreamOptions
from diskq.storage.fs import OsFileSystem
from diskq.testing import CrashFS
from tests.contract.counting import without_collections
from tests.engine.streams import (
    LOCK,
    OWNER,
    ROOT,
    SETTINGS,
    Triple,
    data,
    disk,
    held,
    index,
    items,
    listed,
    opened,
    part,
    parted,
    partitions,
    segments,
    stored,
    timeindex,
    triple,
    triples,
)
from tests.golden.streams import STREAMS, case, golden_stream, hash_vectors
from tests.reference import triplet_oracle as oracle
from tests.sampling import examples

ONE: dict[str, Any] = {"partition_count": 1}


def bases(fs: CrashFS, partition: int = 0) -> list[int]:
    return list(segments(fs.files(), partition))


def append(stream: Stream, one: Triple) -> Position:
    key, timestamp, value = one
    return stream.append(value, key, timestamp)


# --- as the peer's own tests have it ------------------------------------------------------------


def test_diskq_create():
    """Test_Diskq_create."""
    fs = disk()
    with opened(fs) as stream:
        positions = [stream.append(b"data-%d" % i) for i in range(100)]
        assert len(set(positions)) == 100
        assert set(listed(fs)) - {".diskq"} == {"owner", "parts", "settings.json"}
        assert listed(fs, f"{ROOT}/parts") == ["000000", "000001", "000002"]
    assert set(listed(fs)) - {".diskq"} == {"parts", "settings.json"}


def test_diskq_sentinel_failure():
    """Test_Diskq_sentinelFailure."""
    fs = disk()
    with opened(fs), pytest.raises(LockedError):
        opened(fs)


def test_diskq_create_then_open():
    """Test_Diskq_create_thenOpen: the hash and the roll, exactly."""
    fs = disk()
    with opened(fs, segment_size=1024) as stream:
        for i in range(100):
            stream.append(b"data-%06d" % i, key=("aaa", "bbb", "ccc")[i % 3])
    with opened(fs) as stream:
        actives = [stream.steps.live(partition) for partition in range(3)]
        assert [active and (active.base, active.next_offset) for active in actives] == [
            (31, 34),
            (31, 33),
            (31, 33),
        ]
        assert stream.repairs == ()


def test_diskq_sync():
    """Test_Diskq_Sync."""
    fs = disk()
    with opened(fs) as stream:
        stream.append(b"data")
        stream.sync()
        assert not stream.unsynced_bytes


@pytest.mark.parametrize("count, files", [(11, 3), (23, 6)])
def test_diskq_creates_new_segments(count, files):
    """Test_Diskq_createsNewSegments."""
    fs = disk()
    with opened(fs, segment_size=1024, **ONE) as stream:
        for _ in range(count):
            stream.append(b"d" * 32, key="aaa")  # 55 bytes
    assert len(listed(fs, part().directory)) == files


def test_partition_create_and_open():
    """Test_Partition_create, Test_Partition_open."""
    fs = disk()
    for _ in range(2):
        with opened(fs, **ONE):
            pass
        assert bases(fs) == [0]


def test_partition_write_to_new_active_segment():
    """Test_Partition_writeToNewActiveSegment."""
    fs = disk()
    with opened(fs, segment_size=3 * 53, **ONE) as stream:
        for number in range(7):
            active = stream.steps.live(0)
            assert active is not None
            assert active.base == number // 3 * 3
            stream.append(b"v" * 22, key=f"test-key-{number:02}")
    rows = b"".join(oracle.index_row(offset, offset % 3 * 53, 53) for offset in range(7))
    assert [fs.read(index(base)) for base in (0, 3, 6)] == [rows[:72], rows[72:144], rows[144:]]


def test_segment_write_unsafe():
    """Test_Segment_writeUnsafe."""
    fs = disk()
    with opened(fs, **ONE) as stream:
        stream.append(b"test-data-test-data-22", key="test-key-01", timestamp=12345)
    assert fs.read(index()) == oracle.index_row(0, 0, 53)
    assert fs.read(timeindex()) == oracle.timeindex_row(0, 12345)
    assert fs.read(data()) == oracle.record(b"test-key-01", 12345, b"test-data-test-data-22")


def test_get_segment_offsets():
    """Test_getSegmentOffsets: 84-byte records, 1 KiB."""
    fs = disk()
    with opened(fs, segment_size=1024, **ONE) as stream:
        for _ in range(32):
            stream.append(b"v" * 61, key="aaa")
    assert bases(fs) == [0, 13, 26]


@pytest.mark.parametrize("year", [1968, 2024])
@pytest.mark.parametrize("key", ["test-key", "💩", "日本語"])
def test_encode_decode(year, key):
    """Test_Encode_Decode, _dateInPast, _unicodePartitionKey: through the files."""
    fs = disk()
    when = datetime(year, 3, 1, 12, 30, 15, 123456, tzinfo=UTC)
    with opened(fs, **ONE) as stream:
        stream.append(b"value", key=key, timestamp=when)
    (message,) = stored(fs)[0]
    assert (message.key.decode(), message.value) == (key, b"value")
    assert datetime.fromtimestamp(0, UTC) + timedelta(microseconds=message.timestamp // 1000) == when


# --- byte for byte ------------------------------------------------------------------------------

WHOLE = [name for name in STREAMS if not name.startswith("torn")]


@pytest.mark.parametrize("how", ["one by one", "in one batch", "in small batches", "from memory"])
@pytest.mark.parametrize("name", WHOLE)
def test_the_same_messages_make_the_files_that_go_diskq_made(name, how, tmp_path):
    theirs = golden_stream(name, tmp_path)
    told = case(name)
    values = {(m.partition, m.offset): m.value for part in oracle.read_stream(theirs).values() for m in part}
    pushed = [
        (m.key, values.get((m.partition, m.offset), bytes(m.size)), m.timestamp_ns) for m in told.pushed
    ]
    said = told.settings
    options = StreamOptions(
        partition_count=said.get("partition_count"),
        segment_size=said.get("segment_size_bytes"),
        retention_max_bytes=said.get("retention_max_bytes"),
        retention_max_age=said["retention_max_age"] / 1e9 if "retention_max_age" in said else None,
    )
    ours = tmp_path / "ours"
    with Stream(ours, options=options) as stream:
        if how == "in one batch":
            stream.append_many(pushed)
        elif how == "in small batches":
            for start in range(0, len(pushed), 7):
                stream.append_many(pushed[start : start + 7])
        else:
            word: Any = "memory" if how == "from memory" else "written"
            positions = [stream.append(value, key, time, durability=word) for key, value, time in pushed]
            assert positions == [(m.partition, m.offset) for m in told.pushed]
    assert (ours / "settings.json").read_bytes() == (theirs / "settings.json").read_bytes()
    expected = {path.relative_to(theirs): path.read_bytes() for path in theirs.glob("parts/*/*")}
    found = {path.relative_to(ours): path.read_bytes() for path in ours.glob("parts/*/*")}
    if name == "vacuumed":
        found = {path: content for path, content in found.items() if path in expected}
    assert found == expected


@pytest.mark.parametrize("key, hashed", hash_vectors())
@pytest.mark.parametrize("count", [1, 3, 7])
def test_a_message_goes_where_go_diskq_would_have_pushed_it(key, hashed, count):
    fs = disk()
    with opened(fs, partition_count=count) as stream:
        position = stream.append(b"value", key)
        assert position.partition == (hashed % count if key else position.partition)
    (message,) = stored(fs)[position.partition]
    assert message.key == key or not key


sizes = st.integers(0, 300)


@settings(max_examples=examples(150), deadline=None)
@given(
    lengths=st.lists(sizes, max_size=60),
    segment_size=st.integers(1, 1200),
    count=st.integers(1, 4),
    cuts=st.lists(st.integers(1, 9), min_size=1),
    varuint=st.booleans(),
    held_every=st.integers(1, 5),
)
def test_however_they_come_in_the_files_are_the_same(lengths, segment_size, count, cuts, varuint, held_every):
    sent = [triple(number, length, keys=5) for number, length in enumerate(lengths)]
    fs = disk()
    encoding = "varuint" if varuint else "fixed"
    with opened(fs, partition_count=count, segment_size=segment_size, encoding=encoding) as stream:
        start = 0
        for number in range(len(sent)):
            size = cuts[number % len(cuts)]
            batch = sent[start : start + size]
            stream.append_many(items(batch), durability="memory" if number % held_every == 0 else "written")
            start += size
    found = held(fs, varuint=varuint)
    assert {partition: found.get(partition, []) for partition in range(count)} == parted(sent, count)
    for partition, its_own in parted(sent, count).items():
        expected, filled = [0], 0
        for following, one in enumerate(its_own, 1):
            filled += len(oracle.record(*one, varuint=varuint))
            if filled >= segment_size:
                expected.append(following)
                filled = 0
        assert bases(fs, partition) == expected


def test_segments_roll_within_a_batch_as_they_do_one_by_one():
    sent = triples(300)
    one_by_one, at_once = disk(), disk()
    with opened(one_by_one, segment_size=500) as stream:
        positions = [append(stream, one) for one in sent]
    with opened(at_once, segment_size=500) as stream:
        offsets = stream.append_many(items(sent))
    assert {p: range(n) for p, n in Counter(p for p, _ in positions).items()} == offsets
    for path, content in one_by_one.files().items():
        if path.startswith(f"{ROOT}/parts"):
            assert at_once.read(path) == content
    assert sum(len(bases(at_once, partition)) for partition in partitions(at_once.files())) > 5


# --- offsets ------------------------------------------------------------------------------------


def test_offsets_are_dense_in_each_partition_and_go_on_after_a_reopen():
    fs = disk()
    sent = triples(60)
    given: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for start in range(0, 60, 20):
        with opened(fs, segment_size=300) as stream:
            for one in sent[start : start + 20]:
                partition, offset = append(stream, one)
                given[partition].append(offset)
    assert given == {partition: list(range(len(offsets))) for partition, offsets in given.items()}
    assert held(fs) == parted(sent, 3)


def test_a_batch_returns_the_offsets_that_its_messages_got():
    fs = disk()
    with opened(fs) as stream:
        stream.append_many(items(triples(10)))
        before = stream.next_offsets
        offsets = stream.append_many(items(triples(20, start=10)))
        assert {p: o.start for p, o in offsets.items()} == {p: before[p] for p in offsets}
        assert sum(map(len, offsets.values())) == 20
    for partition, its_own in offsets.items():
        found = [message for message in stored(fs)[partition] if message.offset in its_own]
        assert [m[2:] for m in found] == [
            (t, k, v) for k, t, v in parted(triples(20, start=10), 3)[partition]
        ]


def test_an_empty_batch_is_no_message():
    fs = disk()
    with opened(fs) as stream:
        assert stream.append_many([]) == {}
        assert stream.next_offsets == (0, 0, 0)


# --- keys, times, values ------------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, "", b""])
@pytest.mark.parametrize("is_batch", [False, True])
def test_a_message_without_a_key_gets_32_hex_digits_of_a_random_uuid(key, is_batch, tmp_path):
    with Stream(tmp_path / "s", options=StreamOptions(partition_count=1)) as stream:
        for _ in range(600):
            stream.append_many([(key, b"v")]) if is_batch else stream.append(b"v", key)
    keys = [message.key.decode() for message in oracle.read_partition(tmp_path / "s", 0)]
    assert len(set(keys)) == 600
    assert all(len(key) == 32 and set(key) <= set("0123456789abcdef") for key in keys)
    assert {key[12] for key in keys} == {"4"}
    assert {key[16] for key in keys} == set("89ab")
    others = [digit for number in range(32) if number not in (12, 16) for digit in [number]]
    assert all(len({key[place] for key in keys}) == 16 for place in others)


def test_messages_without_a_key_come_to_all_partitions(tmp_path):
    with Stream(tmp_path / "s", options=StreamOptions(partition_count=4)) as stream:
        offsets = stream.append_many([b"v"] * 400)
    assert min(map(len, offsets.values())) > 50


def test_a_batch_may_give_its_messages_a_key_and_a_time_that_they_do_not_have():
    fs = disk()
    with opened(fs, **ONE) as stream:
        stream.append_many(
            [
                b"a",
                ("own", b"b"),
                (None, b"c"),
                ("own", b"d", 7),
                (None, b"e", None),
                (b"own", bytearray(b"f")),
                (None, memoryview(b"g"), None),
            ],
            key="its",
            timestamp=5,
        )
    its, own = b"its", b"own"
    assert held(fs)[0] == [
        (its, 5, b"a"),
        (own, 5, b"b"),
        (its, 5, b"c"),
        (own, 7, b"d"),
        (its, 5, b"e"),
        (own, 5, b"f"),
        (its, 5, b"g"),
    ]


def test_without_a_time_it_is_the_time_it_is():
    fs = disk()
    with opened(fs, **ONE) as stream:
        stream.append(b"a")
        fs.clock = 2.5
        stream.append_many([b"b", ("key", b"c", None)])
    start = int(fs.epoch) * 10**9
    assert [message.timestamp - start for message in stored(fs)[0]] == [0, 2_500_000_000, 2_500_000_000]


def test_the_time_it_is_on_a_real_disk(tmp_path):
    before = datetime.now(UTC)
    with Stream(tmp_path / "s", options=StreamOptions(partition_count=1)) as stream:
        stream.append(b"a")
    (message,) = oracle.read_partition(tmp_path / "s", 0)
    when = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=message.timestamp // 1000)
    assert before - timedelta(milliseconds=1) <= when <= datetime.now(UTC)


@pytest.mark.parametrize(
    "when, ns",
    [
        (0, 0),
        (-(2**63), -(2**63)),
        (2**63 - 1, 2**63 - 1),
        (datetime(1968, 12, 31, tzinfo=UTC), -31_622_400 * 10**9),
        (datetime(1970, 1, 1, 2, 0, 0, 1, tzinfo=timezone(timedelta(hours=2))), 1000),
    ],
)
def test_times_before_1970_and_at_the_ends_of_64_bits_are_kept(when, ns):
    fs = disk()
    with opened(fs, **ONE) as stream:
        stream.append(b"a", timestamp=when)
        stream.append_many([b"b", ("key", b"c", when)], timestamp=when)
    assert [message.timestamp for message in stored(fs)[0]] == [ns] * 3
    assert fs.read(timeindex()) == b"".join(oracle.timeindex_row(i, ns) for i in range(3))


class OwnBytes(bytes):
    """A user's subclass."""


class OwnStr(str):
    """Another one."""


@pytest.mark.parametrize("value", [b"v", bytearray(b"v"), memoryview(b"v"), OwnBytes(b"v")])
@pytest.mark.parametrize("key", ["k", b"k", OwnBytes(b"k"), OwnStr("k")])
@pytest.mark.parametrize("word", ["memory", "written", "synced"])
def test_values_and_keys_may_be_of_any_kind_of_bytes(value, key, word):
    fs = disk()
    with opened(fs, **ONE) as stream:
        stream.append(value, key, 1, durability=word)
        stream.append_many([(key, value, 1), value], key, 1, durability=word)
    assert held(fs)[0] == [(b"k", 1, b"v")] * 3


def test_a_view_of_other_than_bytes_is_measured_in_bytes():
    numbers = memoryview(random.Random(1).randbytes(80)).cast("q")
    fs = disk()
    with opened(fs, max_message_size=80, **ONE) as stream:
        stream.append(numbers, "k", 1)
        stream.append_many([numbers], "k", 1)
    assert held(fs)[0] == [(b"k", 1, bytes(numbers))] * 2
    with opened(fs, max_message_size=79) as stream, pytest.raises(MessageSizeError):
        stream.append(numbers)


def test_an_empty_value_is_a_message():
    fs = disk()
    with opened(fs, **ONE) as stream:
        assert stream.append(b"", "k", 1) == (0, 0)
        stream.append_many([b"", b"x", b""], "k", 1)
    assert [message.value for message in stored(fs)[0]] == [b"", b"", b"x", b""]


# --- what is refused ----------------------------------------------------------------------------

REFUSED: list[tuple[Any, ...]] = [
    ("text", None, None, TypeError, "encode it first"),
    (7, None, None, TypeError, "a message's value is bytes, not int"),
    (None, None, None, TypeError, "a message's value is bytes, not NoneType"),
    (b"v" * 11, None, None, MessageSizeError, "11 bytes: allowed are 2 to 10"),
    (b"v", None, None, MessageSizeError, "1 bytes: allowed are 2 to 10"),
    (bytearray(11), None, None, MessageSizeError, "11 bytes"),
    (b"vv", 7, None, TypeError, "a message's key is a str or bytes, not int"),
    (b"vv", b"k" * 33, None, KeySizeError, "key of 33 bytes: at most 32"),
    (b"vv", "é" * 17, None, KeySizeError, "key of 34 bytes: at most 32"),
    (b"vv", "\ud800", None, ValueError, "surrogates"),
    (b"vv", None, datetime(2024, 1, 1), ValueError, "no time zone"),
    (b"vv", None, 1.5, TypeError, "a moment is"),
    (b"vv", None, True, TypeError, "a moment is"),
    (b"vv", None, 2**63, ValueError, "64 bits"),
    (b"vv", None, -(2**63) - 1, ValueError, "64 bits"),
]


@pytest.mark.parametrize("value, key, timestamp, error, words", REFUSED)
def test_what_is_refused_is_refused_before_anything_is_written(value, key, timestamp, error, words):
    fs = disk()
    with opened(fs, min_message_size=2, max_message_size=10, max_key_size=32) as stream:
        stream.append_many([b"vv"] * 5)
        before, offsets = fs.files(), stream.next_offsets
        for call in (
            lambda: stream.append(value, key, timestamp),
            lambda: stream.append(value, key, timestamp, durability="memory"),
            lambda: stream.append_many([b"vv", (key, value, timestamp)]),
            lambda: stream.append_many([(b"k", b"vv"), value], key, timestamp),
            lambda: stream.append_many([("k", b"vv", 1), (key, value)], timestamp=timestamp),
        ):
            with pytest.raises(error, match=words):
                call()
        assert (fs.files(), stream.next_offsets) == (before, offsets)
        stream.append(b"vv")


@pytest.mark.parametrize("item", [(), (b"v",), ("k", b"v", 1, 2)])
def test_an_item_of_a_batch_is_a_value_with_a_key_and_a_time_perhaps(item):
    fs = disk()
    with opened(fs) as stream, pytest.raises(TypeError, match=f"not {len(item)} items"):
        stream.append_many([b"v", item])
    assert not any(stored(fs).values())


def test_where_go_programs_read_empty_values_can_be_refused():
    """D2: they are valid on disk, and no reader of go-diskq gets past them."""
    fs = disk()
    with opened(fs, min_message_size=1) as stream:
        with pytest.raises(MessageSizeError):
            stream.append(b"")
        with pytest.raises(MessageSizeError):
            stream.append_many([b"v", b""])
    assert not any(stored(fs).values())


def test_a_word_for_durability_is_one_of_three():
    fs = disk()
    with opened(fs) as stream:
        wrong: Any = "durable"
        for call in (
            lambda: stream.append(b"v", durability=wrong),
            lambda: stream.append_many([b"v"], durability=wrong),
        ):
            with pytest.raises(ValueError, match="durability is one of memory, written, synced"):
                call()
    assert not any(stored(fs).values())


# --- settings -----------------------------------------------------------------------------------


def test_what_options_leave_open_is_as_it_was():
    fs = disk()
    with opened(fs, partition_count=2, segment_size=100, retention_max_bytes=5000, retention_max_age=1.5):
        pass
    before = fs.read(SETTINGS)
    with opened(fs) as stream:
        assert stream.partition_count == 2
        assert stream.settings.roll_size == 100
        assert fs.read(SETTINGS) == before
    with opened(fs, segment_size=200) as stream:
        assert json.loads(fs.read(SETTINGS)) == {
            "partition_count": 2,
            "segment_size_bytes": 200,
            "retention_max_bytes": 5000,
            "retention_max_age": 1_500_000_000,
        }


def test_defaults_are_not_written_down():
    fs = disk()
    with opened(fs) as stream:
        assert stream.partition_count == 3
        assert stream.settings.roll_size == 32 * 1024 * 1024
    assert fs.read(SETTINGS) == b"{}\n"


def test_a_stream_with_varuint_lengths_is_reopened_without_the_option():
    fs = disk()
    sent = triples(20)
    with opened(fs, encoding="varuint") as stream:
        stream.append_many(items(sent[:10]))
    with opened(fs) as stream:
        assert stream.settings.encoding == "varuint"
        stream.append_many(items(sent[10:]))
        assert stream.repairs == ()
    assert held(fs, varuint=True) == parted(sent, 3)
    fs = fs.kill()
    with opened(fs) as stream:
        assert stream.repairs == ()
    assert held(fs, varuint=True) == parted(sent, 3)


@pytest.mark.parametrize("had, wanted", [("fixed", "varuint"), ("varuint", "fixed")])
def test_the_other_encoding_is_refused_and_nothing_is_changed(had, wanted):
    fs = disk()
    with opened(fs, encoding=had) as stream:
        stream.append(b"v")
    before = {path: content for path, content in fs.files().items() if path != LOCK}
    with pytest.raises(UnsupportedFormatError):
        opened(fs, encoding=wanted)
    assert {path: content for path, content in fs.files().items() if path != LOCK} == before
    with opened(fs) as stream:
        assert stream.repairs == ()


def test_partitions_beyond_the_count_are_kept_and_not_written_to():
    fs = disk()
    sent = triples(30)
    with opened(fs, partition_count=3) as stream:
        stream.append_many(items(sent))
    with opened(fs, partition_count=1) as stream:
        assert stream.append(b"v", "key-1").partition == 0
        assert stream.steps.live(1) is None
        assert stream.steps.live(0) is not None
    found, expected = held(fs), parted(sent, 3)
    assert (found[1], found[2]) == (expected[1], expected[2])
    assert partitions(fs.files()) == [0, 1, 2]
    with opened(fs, partition_count=3) as stream:
        assert stream.next_offsets == (len(expected[0]) + 1, len(expected[1]), len(expected[2]))
        assert stream.repairs == ()


def test_more_partitions_are_made_when_they_are_asked_for():
    fs = disk()
    with opened(fs, partition_count=1) as stream:
        stream.append_many([b"v"] * 10)
    with opened(fs, partition_count=4) as stream:
        assert stream.next_offsets == (10, 0, 0, 0)
        assert {stream.append(b"v", f"{i}").partition for i in range(40)} == {0, 1, 2, 3}


def test_a_directory_is_made_with_those_above_it(tmp_path):
    with Stream(tmp_path / "a/b/c") as stream:
        stream.append(b"v")
    assert oracle.partitions(tmp_path / "a/b/c") == [0, 1, 2]


def test_a_path_is_kept_as_it_was_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Stream("s") as stream:
        assert stream.path == "s"
    assert (tmp_path / "s/settings.json").is_file()


# --- who else is there --------------------------------------------------------------------------


def test_a_second_producer_is_refused_with_the_name_of_the_first_and_changes_nothing():
    """D10: go-diskq's rewrites the settings of the running one before it fails."""
    fs = disk()
    with opened(fs, partition_count=2, segment_size=1000) as stream:
        stream.append(b"v")
        before = fs.files()
        with pytest.raises(LockedError, match=f"stream {ROOT} is in use by process 1 on crashfs since"):
            opened(fs, partition_count=5, segment_size=10)
        assert fs.files() == before
        stream.append(b"v")
    assert sum(map(len, stored(fs).values())) == 2


def test_while_it_is_open_go_diskq_finds_an_owner_and_afterwards_none():
    fs = disk()
    with opened(fs):
        assert len(fs.read(OWNER)) == 16
    assert fs.size_of(OWNER) is None


def test_a_live_go_producer_is_not_disturbed(tmp_path):
    stream = golden_stream("live_owner", tmp_path)
    before = {path: path.read_bytes() for path in stream.rglob("*") if path.is_file()}
    with pytest.raises(LockedError, match="a go-diskq producer") as locked:
        Stream(stream, options=StreamOptions(partition_count=7))
    assert case("live_owner").manifest["owner_hex"] in locked.value.holder
    assert "take_over=True" in str(locked.value)
    after = {path: path.read_bytes() for path in stream.rglob("*") if path.is_file()}
    assert {path: content for path, content in after.items() if ".diskq" not in path.parts} == before


def test_a_dead_go_producers_stream_can_be_taken_over(tmp_path):
    path = golden_stream("live_owner", tmp_path)
    with Stream(path, take_over=True) as stream:
        assert stream.next_offsets == tuple(len(found) for found in case("live_owner").messages.values())
        stream.append(b"v")
        assert (path / "owner").read_bytes().hex() != case("live_owner").manifest["owner_hex"]
    assert not (path / "owner").exists()
    assert sum(map(len, oracle.read_stream(path).values())) == 6


def test_an_owner_file_that_a_kill_left_is_ours_and_needs_no_word():
    """D9: go-diskq refuses until the file is removed by hand."""
    fs = disk()
    opened(fs).append(b"v", "k")
    fs = fs.kill()
    assert fs.size_of(OWNER) == 16
    with opened(fs) as stream:
        assert sum(stream.next_offsets) == 1
        assert stream.repairs == ()
    assert fs.size_of(OWNER) is None


@pytest.mark.parametrize("name", ["notes.txt", ".hidden", "0.data", "00000000000000000000.data.bak"])
def test_strangers_files_in_a_partition_are_named_and_left_alone(name):
    fs = disk()
    with opened(fs) as stream:
        stream.append(b"v", "aaa")
    fs.write_durably(f"{part(1).directory}/{name}", b"mine")
    before = {path: content for path, content in fs.files().items() if path != LOCK}
    with pytest.raises(ForeignFilesError, match="go-diskq stops at it") as foreign:
        opened(fs)
    assert foreign.value.names == [name]
    assert {path: content for path, content in fs.files().items() if path != LOCK} == before
    fs.unlink(f"{part(1).directory}/{name}")
    with opened(fs) as stream:
        assert stream.repairs == ()


def test_an_open_that_failed_leaves_no_owner_behind():
    """Go-diskq's does, and refuses from then on."""
    fs = disk()
    fs.write_durably(f"{part().directory}/notes.txt", b"mine")
    with pytest.raises(ForeignFilesError):
        opened(fs)
    assert fs.size_of(OWNER) is None


def test_files_beside_the_stream_are_nobodys_business():
    fs = disk()
    fs.write_durably(f"{ROOT}/README", b"mine")
    fs.write_durably(f"{ROOT}/parts/README", b"mine")
    with opened(fs) as stream:
        stream.append(b"v")
    assert fs.read(f"{ROOT}/README") == fs.read(f"{ROOT}/parts/README") == b"mine"


# --- the end ------------------------------------------------------------------------------------


def test_after_a_close_everything_is_durable_and_nothing_is_looked_for_again():
    fs = disk()
    sent = triples(200)
    with opened(fs, segment_size=600) as stream:
        stream.append_many(items(sent))
    after = fs.crash()
    assert held(after) == parted(sent, 3)
    before = after.files()
    with opened(after) as stream:
        assert stream.repairs == ()
    unchanged = [path for path in before if "/.diskq/" not in path and path != OWNER]
    assert all(after.read(path) == before[path] for path in unchanged)


def test_what_is_held_in_memory_is_written_by_flush_sync_and_close():
    fs = disk()
    with opened(fs, **ONE) as stream:
        for number, act in enumerate((stream.flush, stream.sync, stream.close)):
            stream.append(b"v", durability="memory")
            assert not stream.log.is_flushed
            assert len(stored(fs)[0]) == number
            act()
            assert len(stored(fs)[0]) == number + 1
            assert stream.log.is_flushed


def test_what_is_written_has_its_rows_when_append_returns():
    fs = disk()
    with opened(fs, segment_size=200) as stream:
        for number in range(50):
            append(stream, triple(number))
            assert sum(map(len, stored(fs).values())) == number + 1


def test_no_handle_is_left_open(tmp_path):
    fs = OsFileSystem()
    with without_collections():
        before = len(fs.list_directory("/proc/self/fd"))
        for _ in range(3):
            with Stream(tmp_path / "s", options=StreamOptions(segment_size=300)) as stream:
                stream.append_many(items(triples(500)))
        assert len(fs.list_directory("/proc/self/fd")) == before


def test_a_batch_over_very_many_segments_needs_few_handles(tmp_path):
    """D12: the peer leaks three of them at each roll."""
    fs = OsFileSystem()
    before = len(fs.list_directory("/proc/self/fd"))
    with Stream(tmp_path / "s", options=StreamOptions(segment_size=1, partition_count=2)) as stream:
        stream.append_many(items(triples(600)))
        assert len(fs.list_directory("/proc/self/fd")) < before + 400
    assert {p: len(found) for p, found in oracle.read_stream(tmp_path / "s").items()} == {
        p: len(its_own) for p, its_own in parted(triples(600), 2).items()
    }
