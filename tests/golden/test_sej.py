# The journals that sej left behind, whole and damaged. Law: every message that was appended and is there is
# read, under its offset; what is missing is told; and an open leaves the files that sej leaves.

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from diskq.engine.journal.journal import Journal
from diskq.engine.journal.reader import JournalReader
from diskq.errors import CorruptionError
from diskq.messages import NULL_TIMESTAMP
from diskq.options import JournalOptions
from tests.golden.journals import JOURNALS, Case, case, every_journal, golden_journal, told_of
from tests.reference import sej_oracle as oracle

TORN = {"torn_tail", "torn_first"}
EMPTY_IN_THE_MIDDLE = range(10, 20)


def found_in(directory: Path) -> dict[str, tuple[int, str]]:
    """The peer's files, as the accounts tell of them."""
    files = [path for path in directory.rglob("*") if path.is_file() and ".diskq" not in path.parts]
    return {
        path.relative_to(directory).as_posix(): (
            path.stat().st_size,
            hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in files
        if path.name != "jnl.lck"
    }


def expected_of(its: Case) -> list[object]:
    missing = EMPTY_IN_THE_MIDDLE if its.name == "empty_middle_file" else range(0)
    return [told for told in its.put if told.offset not in missing and told.offset < its.next_offset]


def test_all_are_here():
    assert JOURNALS == ["empty_middle_file", "live_lock", "segments", "single", "torn_first", "torn_tail"]


@every_journal
def test_every_message_is_read_and_missing_ones_are_reported(name, tmp_path):
    its = case(name)
    with JournalReader(golden_journal(name, tmp_path)) as reader:
        reader.seek_oldest()
        assert told_of(reader.read_many(10**6)) == expected_of(its)
        assert reader.tail == ("TORN" if name in TORN else "END")
        told = [(gap.offset, gap.count) for gap in reader.losses]
        assert told == ([(10, 10)] if name == "empty_middle_file" else [])
        assert reader.position == its.next_offset
        assert reader.read() is None


@every_journal
def test_reading_leaves_the_directory_as_it_is(name, tmp_path):
    directory = golden_journal(name, tmp_path)
    before = sorted(path for path in directory.rglob("*"))
    with JournalReader(directory) as reader:
        reader.read_many(10**6)
    assert sorted(path for path in directory.rglob("*")) == before


@every_journal
def test_from_behind_they_are_the_same(name, tmp_path):
    its = case(name)
    with JournalReader(golden_journal(name, tmp_path)) as reader:
        reader.seek(its.next_offset)
        assert told_of(reader.read_back(10**6)) == expected_of(its)[::-1]


@every_journal
def test_one_open_repairs_and_goes_on(name, tmp_path):
    its = case(name)
    directory = golden_journal(name, tmp_path)
    with Journal(directory) as journal:
        assert journal.next_offset == its.next_offset
        reasons = [(repair.path.rsplit("/")[-1], repair.records) for repair in journal.repairs]
        torn = {"torn_tail": "0000000000000014.jnl", "torn_first": "000000000000000a.jnl"}
        assert reasons == ([(torn[name], 0)] if name in TORN else [])
    assert found_in(directory) == its.files_after


@every_journal
def test_strictness_does_not_refuse_a_torn_tail(name, tmp_path):
    with Journal(golden_journal(name, tmp_path), options=JournalOptions(strict=True)) as journal:
        assert journal.append(b"more") == case(name).next_offset


def test_what_was_cut_is_kept_aside(tmp_path):
    directory = golden_journal("torn_tail", tmp_path)
    with Journal(directory) as journal:
        (repair,) = journal.repairs
    assert (repair.kept, repair.dropped) == (400, 50)
    assert repair.saved_as is not None
    whole = golden_journal("torn_tail", tmp_path / "again") / "jnl/0000000000000014.jnl"
    assert Path(repair.saved_as).read_bytes() == whole.read_bytes()[400:]


def test_a_lock_file_without_a_holder_is_no_obstacle(tmp_path):
    directory = golden_journal("live_lock", tmp_path)
    assert (directory / "jnl.lck").exists()
    with Journal(directory) as journal:
        assert (journal.next_offset, journal.repairs) == (3, ())


@pytest.mark.parametrize("name", ["single", "segments", "live_lock"])
def test_the_same_messages_make_the_same_files(name, tmp_path):
    its = case(name)
    size = 2000 if name == "segments" else 2**30
    with JournalReader(golden_journal(name, tmp_path)) as reader:
        messages = reader.read_many(10**6)
    with Journal(tmp_path / "again", options=JournalOptions(segment_size=size)) as journal:
        for message in messages:
            timestamp = NULL_TIMESTAMP if message.timestamp_ns is None else message.timestamp_ns
            journal.append(message.value, message.key, timestamp, message.type)
    ours = found_in(tmp_path / "again")
    assert ours == {path: told for path, told in its.files.items() if path.startswith("jnl/")}


@pytest.mark.parametrize("name", ["single", "segments", "live_lock"])
def test_the_oracle_reads_them_as_we_do(name, tmp_path):
    directory = golden_journal(name, tmp_path)
    with JournalReader(directory) as reader:
        ours = [
            (m.offset, NULL_TIMESTAMP if m.timestamp_ns is None else m.timestamp_ns, m.type, m.key, m.value)
            for m in reader.read_many(10**6)
        ]
    assert ours == oracle.read_journal(directory)


def test_a_message_without_a_key_has_none(tmp_path):
    """Where sej's own scanner repeats the key of the message before it."""
    its = case("segments")
    assert [told.key for told in its.put] != [told.key for told in its.scanned]
    with JournalReader(golden_journal("segments", tmp_path)) as reader:
        assert [message.key for message in reader.read_many(100)] == [told.key for told in its.put]


def test_each_shard_is_a_journal(tmp_path):
    its = case("shards")
    directory = golden_journal("shards", tmp_path)
    for shard, expected in its.shards.items():
        with JournalReader(directory / f"blue.3.{shard:03x}", partition=shard) as reader:
            messages = reader.read_many(100)
        assert told_of(messages) == expected
        assert {message.partition for message in messages} == {shard}


def test_a_flip_in_the_middle_costs_one_message_and_is_reported(tmp_path):
    directory = golden_journal("segments", tmp_path)
    last = directory / "jnl/0000000000000027.jnl"
    content = bytearray(last.read_bytes())
    content[17] ^= 0x80
    last.write_bytes(content)
    with pytest.raises(CorruptionError):
        Journal(directory, options=JournalOptions(strict=True))
    with Journal(directory) as journal:
        assert (journal.next_offset, [repair.records for repair in journal.repairs]) == (44, [1])
    assert last.read_bytes() == content, "what is behind it is not cut"
    with JournalReader(directory) as reader:
        assert [m.offset for m in reader.read_many(100)] == [n for n in range(44) if n != 39]
        assert [(gap.offset, gap.count) for gap in reader.losses] == [(39, 1)]
