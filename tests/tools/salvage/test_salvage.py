# What can still be read, carried out. Law: all of it, each message once, and nothing is touched.

from __future__ import annotations

import base64
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from diskq._native.journal import codec as journal_codec
from diskq._native.priority import codec as priority_codec
from diskq.engine.queue.fifo_queue import Queue
from diskq.errors import LockedError
from diskq.tools.repair.repair import repair
from diskq.tools.salvage.fragments import (
    journal_fragments,
    priority_fragments,
    queue_fragments,
    stream_fragments,
)
from diskq.tools.salvage.salvage import Salvaged, new_file, salvage
from diskq.tools.stores import Kind, Store, stores_at
from tests.reference import nsq_oracle, triplet_oracle
from tests.tools.damaged import COUNT, KINDS, body, digest, flip, made

GOLDEN = Path(__file__).parents[2] / "golden"
ALL = {body(number) for number in range(COUNT)}

of_each_kind = pytest.mark.parametrize("kind", KINDS)


def rotten(kind: Kind, tmp_path: Path) -> Store:
    """A bit of a message's text has rotted."""
    store = made(kind, str(tmp_path))
    names = ("*.0*.dat", "*025.data", "*018.jnl", "*.log")
    file = sorted(path for name in names for path in tmp_path.rglob(name))[0]
    flip(file, 1000)
    return store


def salvaged(store: Store) -> tuple[Salvaged, list[bytes]]:
    lines: list[bytes] = []
    done = salvage(store, lines.append)
    told = [json.loads(line) for line in b"".join(lines).splitlines()]
    return done, [base64.b64decode(each["value"]) for each in told]


@of_each_kind
def test_every_message_whose_bytes_were_not_touched_is_salvaged(kind, tmp_path):
    _, values = salvaged(rotten(kind, tmp_path))
    assert len(ALL - set(values)) <= 1


@of_each_kind
def test_each_message_is_salvaged_once(kind, tmp_path):
    _, values = salvaged(rotten(kind, tmp_path))
    assert max(Counter(values).values()) == 1


@of_each_kind
def test_before_a_repair_and_after_it_is_the_same(kind, tmp_path):
    store = rotten(kind, tmp_path)
    before = salvaged(store)
    repair(store, apply=True)
    done, values = salvaged(store)
    assert sorted(values) == sorted(before[1])
    assert (done.messages, done.fragments) == (before[0].messages, before[0].fragments)


@of_each_kind
def test_nothing_is_touched(kind, tmp_path):
    store = rotten(kind, tmp_path)
    before = digest(tmp_path)
    salvaged(store)
    assert digest(tmp_path) == before


@of_each_kind
def test_everything_of_a_whole_store_is_salvaged(kind, tmp_path):
    done, values = salvaged(made(kind, str(tmp_path)))
    assert (done.messages, done.fragments, done.unread) == (COUNT, 0, ())
    assert values == [body(number) for number in range(COUNT)]


def test_what_go_diskqueue_has_set_aside_is_salvaged(tmp_path):
    with Queue(tmp_path, "events") as queue:
        queue.put(b"here")
    (tmp_path / "events.diskqueue.000007.dat.bad").write_bytes(nsq_oracle.frame(b"there") + b"\xff\xff")
    done, values = salvaged(Store("queue", str(tmp_path), "events"))
    assert values == [b"here", b"there"]
    assert [each.size for each in done.unread] == [2]


def test_of_copies_that_are_the_same_one_counts(tmp_path):
    with Queue(tmp_path, "events"):
        pass
    for name in ("bad", "bad-1"):
        (tmp_path / f"events.diskqueue.000007.dat.{name}").write_bytes(nsq_oracle.frame(b"there"))
    assert salvaged(Store("queue", str(tmp_path), "events"))[1] == [b"there"]


def test_what_is_in_a_live_file_is_not_salvaged_again_from_a_copy(tmp_path):
    store = made("stream", str(tmp_path))
    private = tmp_path / ".diskq/parts/000000"
    shutil.copy(
        next((tmp_path / "parts/000000").glob("*025.data")), private / "00000000000000000025.data.bad"
    )
    done, values = salvaged(store)
    assert done.fragments == 0
    assert len(values) == COUNT


def test_a_store_in_use_is_left_alone(tmp_path):
    with Queue(tmp_path, "events"), pytest.raises(LockedError):
        salvaged(Store("queue", str(tmp_path), "events"))


def test_the_whole_messages_of_a_damaged_golden_queue_are_salvaged(tmp_path):
    shutil.copytree(GOLDEN / "nsq/corrupt_len/data", tmp_path / "copy")
    (store,) = stores_at(tmp_path / "copy")
    done, values = salvaged(store)
    assert done.fragments > 0
    assert len(values) == done.messages + done.fragments


def test_a_file_is_there_only_when_all_is_in_it(tmp_path):
    out = tmp_path / "out.jsonl"
    with pytest.raises(RuntimeError), new_file(out) as write:
        fail_after(write(b"half"))
    assert not out.exists()


def test_a_file_that_is_there_is_not_written_over(tmp_path):
    out = tmp_path / "out.jsonl"
    out.write_text("mine")
    with pytest.raises(FileExistsError), new_file(out):
        pass
    assert out.read_text() == "mine"


def fail_after(_: object) -> None:
    raise RuntimeError


# --- fragments ---------------------------------------------------------------------------------------


def test_after_a_broken_length_a_chain_that_leads_to_the_end_is_believed():
    frames = b"".join(nsq_oracle.frame(b"x" * size) for size in (9, 8, 7))
    found = queue_fragments(b"\xff" * 13 + frames, "q")
    assert [len(entry.value) for entry in found.entries] == [9, 8, 7]
    assert found.unread == 13


def test_zeros_are_no_chain():
    found = queue_fragments(b"\xff" * 9 + bytes(40), "q")
    assert (found.entries, found.unread) == ([], 49)


def test_a_stream_goes_on_after_a_broken_record():
    records = [triplet_oracle.record(b"key", 5, b"value %d" % number) for number in range(3)]
    found = stream_fragments(b"\xff\xff\xff\xff" + records[0][4:] + records[1] + records[2], 2, False)
    assert [entry.value for entry in found.entries] == [b"value 1", b"value 2"]
    assert {entry.partition for entry in found.entries} == {2}


def test_a_journal_goes_on_after_each_broken_record():
    encoded = [journal_codec.encode([(b"k", 7, 1, b"v%d" % number)], number) for number in range(4)]
    content = encoded[0] + b"\x00\x01" + encoded[1] + b"\xff" * 30 + encoded[2] + encoded[3]
    found = journal_fragments(content)
    assert [(entry.offset, entry.value) for entry in found.entries] == [(n, b"v%d" % n) for n in range(4)]
    assert found.unread == 32


def test_a_store_goes_on_after_each_broken_command():
    adds = [priority_codec.encode_adds(b"mail", [b"m%d" % number], number)[0][:-4] for number in range(3)]
    broken = bytearray(adds[1])
    broken[-1] ^= 1
    found = priority_fragments(
        priority_codec.FILE_HEAD + adds[0] + bytes(broken) + adds[2] + priority_codec.END_MARKER
    )
    assert [(entry.queue, entry.priority, entry.value) for entry in found.entries] == [
        ("mail", 0, b"m0"),
        ("mail", 2, b"m2"),
    ]
    assert found.unread == len(broken)
