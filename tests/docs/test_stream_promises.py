# What docs/streams.md, docs/durability.md and docs/format/triplet.md say of streams, where the proof is short
# enough to stand here. Law: one act, one claim, in the words of the document.

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import trio

import diskq
from diskq.testing import CrashFS, FaultFS

ONE = diskq.StreamOptions(partition_count=1)
PART = "/s/parts/000000/00000000000000000000"


def disk() -> CrashFS:
    fs = CrashFS()
    fs.make_directory_durably("/s")
    return fs


def writes(fs: FaultFS[CrashFS]) -> list[str]:
    """The kinds of files of the stream that were written to since it was asked last."""
    found = [call.path for call in fs.calls if call.verb == "pwrite" and "/parts/" in call.path]
    fs.calls.clear()
    return [path.rpartition(".")[2] for path in found if ".diskq" not in path]


def test_a_streams_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    with diskq.Stream(tmp_path / "stream", options=ONE) as stream:
        stream.append(b"x", durability="synced")
    paths = [tmp_path / "stream", *(tmp_path / "stream").rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_dir()} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_file()} == {0o600}


def test_a_message_alone_is_three_writes_and_so_is_a_batch() -> None:
    fs = FaultFS(disk())
    with diskq.Stream("/s", options=ONE, fs=fs) as stream:
        writes(fs)
        stream.append(b"x")
        assert writes(fs) == ["data", "timeindex", "index"]
        stream.append_many([b"x"] * 200)
        assert writes(fs) == ["data", "timeindex", "index"]


async def test_a_partition_that_vanishes_is_reported_and_the_others_are_received(tmp_path: Path) -> None:
    with diskq.Stream(tmp_path, options=diskq.StreamOptions(partition_count=2)) as stream:
        stream.append_many([(f"key-{number}", b"before") for number in range(10)])
    async with diskq.open_consumer(tmp_path, start="newest") as consumer:
        assert [message.value for message in await consumer.receive_many(10)] == [b"before"] * 2
        shutil.rmtree(tmp_path / "parts/000001")
        with diskq.Stream(tmp_path, options=diskq.StreamOptions(partition_count=1)) as stream:
            stream.append(b"after")
        received: list[bytes] = []
        told = 0
        with trio.fail_after(30):
            while not (received and told):
                try:
                    received.append((await consumer.receive()).value)
                except diskq.NotFoundError:
                    told += 1
        assert received == [b"after"]


def test_an_offset_is_not_given_again_while_a_row_tells_that_it_was() -> None:
    fs = disk()
    with diskq.Stream("/s", options=ONE, fs=fs) as stream:
        stream.append(b"synced", durability="synced")
        stream.append_many([b"written"] * 20)
        after = [fs.crash(random.Random(seed)) for seed in range(40)]
    gaps = 0
    for left in after:
        rows = left.read(f"{PART}.index")
        told = [int.from_bytes(rows[at : at + 8], "little") for at in range(0, len(rows) - 23, 24)]
        with diskq.Stream("/s", fs=left) as stream:
            assert stream.next_offsets[0] > max(told, default=0)
            gaps += any(repair.records for repair in stream.repairs)
    assert gaps


@pytest.mark.parametrize("is_strict", [True, False])
def test_strict_raises_where_messages_are_gone(is_strict: bool) -> None:
    fs = disk()
    with diskq.Stream("/s", options=ONE, fs=fs) as stream:
        stream.append_many([b"x"] * 3)
    fs.write_durably(f"{PART}.data", b"")
    if is_strict:
        with pytest.raises(diskq.CorruptionError):
            diskq.Stream("/s", options=diskq.StreamOptions(strict=True), fs=fs)
    else:
        with diskq.Stream("/s", fs=fs) as stream:
            assert sum(repair.records or 0 for repair in stream.repairs) == 3
            assert stream.next_offsets == (3,)
