# Groups. Law: a partition has one reader of a group at a time, another takes over when it is gone,
# and what the slowest group has yet to process is known.

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.groups import ConsumerGroup, GroupOffsets, check_group_name, groups, slowest
from diskq.errors import DiskFullError, GroupNameError, NotFoundError
from diskq.storage.fs import OsFileSystem
from diskq.testing import CrashFS, FaultFS
from tests.engine.offsets import GROUP, MARKER, ROOT, committed, disk, files, group, packed

THREE_PARTS = Path(__file__).parents[2] / "golden" / "diskq" / "three_parts"

HOLD = """
import sys
from diskq.engine.stream.groups import ConsumerGroup
from diskq.engine.stream.files import StreamFiles
from diskq.storage.fs import OsFileSystem
fs = OsFileSystem()
group = ConsumerGroup(fs, StreamFiles(fs, sys.argv[1]), "g")
claim = group.claim(0)
with group.committed_offset(0) as committed_offset:
    committed_offset.commit(7)
    committed_offset.sync()
    committed_offset.commit(9)
    print(claim is not None, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def fs():
    return disk()


# --- names ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["billing", "group-α", "a b", "%d", "a..b", "000000", "ü" * 127, "\udce4", "-", "💩", "x.1.tmp"]
)
def test_a_name_is_any_that_a_directory_can_have(fs, name):
    check_group_name(name)
    group(fs, name).committed_offset(0).close()
    assert [each.name for each in groups(fs, files(fs))] == [name]


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a/b",
        "/a",
        "../a",
        ".hidden",
        "a\0",
        "a\n",
        "\x1b[31m",
        "\x7f",
        "x" * 256,
        "ü" * 128,
        "\ud800",
    ],
)
def test_a_name_that_leads_elsewhere_or_nowhere_is_refused(fs, name):
    before = fs.files()
    with pytest.raises(GroupNameError) as refused:
        group(fs, name)
    assert refused.value.name == name
    assert isinstance(refused.value, ValueError)
    assert fs.files() == before


@pytest.mark.parametrize("name", [b"bytes", 7, None])
def test_a_name_is_a_str(fs, name):
    with pytest.raises(TypeError):
        group(fs, name)


def test_there_is_no_group_without_a_stream():
    fs = CrashFS()
    fs.make_directory_durably(ROOT)
    with pytest.raises(NotFoundError, match=ROOT):
        group(fs)
    assert fs.list_directory(ROOT) == []


# --- claims -----------------------------------------------------------------------------------


def test_a_partition_has_one_reader_of_a_group(fs):
    first, second = group(fs), group(fs)
    claim = first.claim(0)
    assert claim is not None
    assert claim.partition == 0
    assert second.claim(0) is None
    assert first.claim(0) is None
    assert second.claim(1) is not None
    claim.release()
    claim.release()
    assert second.claim(0) is not None


def test_groups_do_not_share_claims(fs):
    claims = [group(fs, name).claim(0) for name in ("a", "b")]
    assert None not in claims


def test_a_killed_reader_has_no_claims_and_its_marker_is_taken_up(fs):
    killed = group(fs)
    claims = [killed.claim(partition) for partition in range(3)]
    with killed.committed_offset(0) as committed_offset:
        committed_offset.commit(5)
        committed_offset.sync()
        committed_offset.commit(8)
        after = fs.kill()
    assert None not in claims
    next_one = group(after)
    assert all(next_one.claim(partition) is not None for partition in range(3))
    assert next_one.committed_offset(0).next_offset == 9


@contextmanager
def another_process(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has partition 0, and has committed 9; durable is 7."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        yield process
        process.kill()


def test_a_second_process_takes_over_when_the_first_one_dies(tmp_path):
    (tmp_path / "parts").mkdir()
    fs = OsFileSystem()
    mine = ConsumerGroup(fs, StreamFiles(fs, str(tmp_path)), GROUP)
    with another_process(tmp_path) as process:
        assert mine.claim(0) is None
        assert mine.offsets().offsets == {0: 9}
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        claim = mine.claim(0)
        assert claim is not None
        with mine.committed_offset(0) as committed_offset:
            assert (committed_offset.next_offset, committed_offset.durable) == (10, 7)
        claim.release()


def test_the_claim_says_for_people_who_has_it(tmp_path):
    (tmp_path / "parts").mkdir()
    fs = OsFileSystem()
    claim = ConsumerGroup(fs, StreamFiles(fs, str(tmp_path)), GROUP).claim(0)
    assert claim is not None
    content = json.loads((tmp_path / ".diskq" / "groups" / GROUP / "000000.claim").read_text())
    assert content["pid"] == os.getpid()
    claim.release()


def test_on_a_full_disk_a_partition_that_was_claimed_before_can_be_claimed():
    fs = FaultFS(disk())
    claim = group(fs).claim(0)
    assert claim is not None
    claim.release()
    fs.capacity(0)
    assert group(fs).claim(0) is not None
    fs.fail("pwrite", error=errno.ENOSPC)
    assert group(fs).claim(1) is not None


@pytest.mark.parametrize("verb", ["make_directory", "open"])
def test_a_new_group_finds_no_room_on_a_full_disk_and_says_so(verb):
    fs = FaultFS(disk())
    fs.fail(verb, error=errno.ENOSPC)
    with pytest.raises(DiskFullError, match="disk is full"):
        group(fs).claim(0)


def test_a_disk_that_cannot_lock_is_no_other_reader():
    fs = FaultFS(disk())
    fs.fail("try_lock", error=errno.ENOLCK)
    with pytest.raises(OSError, match="lock"):
        group(fs).claim(0)


# --- all groups -------------------------------------------------------------------------------


def test_go_diskqs_groups_are_read_as_they_are():
    fs = CrashFS.from_directory(THREE_PARTS / "data", at=ROOT)
    told = json.loads((THREE_PARTS / "manifest.json").read_text())["markers"]
    before = fs.files()
    assert groups(fs, files(fs)) == [
        GroupOffsets("fresh", {0: None}, ()),
        *(GroupOffsets(name, {int(p): at for p, at in marks.items()}, ()) for name, marks in told.items()),
    ]
    assert [slowest(fs, files(fs), partition) for partition in range(4)] == [0, 1, 12, None]
    assert fs.files() == before


@pytest.mark.parametrize("partition, following", [(0, 8), (1, 1), (2, 12)])
def test_and_taken_up_where_they_left_off(partition, following):
    fs = CrashFS.from_directory(THREE_PARTS / "data", at=ROOT)
    path = f"{ROOT}/groups/group-α/{partition:06d}"
    before = fs.read(path)
    with group(fs, "group-α").committed_offset(partition) as committed_offset:
        assert (committed_offset.next_offset, committed_offset.repairs) == (following, ())
        assert fs.read(path) == before
        committed_offset.commit(following)
    assert fs.read(path) == packed(following)


def test_a_stream_without_groups_has_none(fs):
    assert groups(fs, files(fs)) == []
    assert slowest(fs, files(fs), 0) is None


def test_the_slowest_group_decides_and_only_groups_that_read_the_partition_count(fs):
    for name, offsets in {"fast": {0: 90, 1: 5}, "slow": {0: 10}, "done": {1: 7}}.items():
        for partition, offset in offsets.items():
            with group(fs, name).committed_offset(partition) as committed_offset:
                committed_offset.commit(offset)
    assert [slowest(fs, files(fs), partition) for partition in range(3)] == [11, 6, None]


def test_a_group_that_reads_a_partition_and_has_processed_nothing_needs_all_of_it(fs):
    committed(fs, 10)
    group(fs, "new").committed_offset(0).close()
    assert slowest(fs, files(fs), 0) == 0


def test_a_rotten_marker_does_not_let_go_of_what_is_needed(fs):
    committed(fs, 10)
    fs.rot(MARKER, packed(10 | 1 << 40))
    assert slowest(fs, files(fs), 0) == 11
    (found,) = groups(fs, files(fs))
    assert found.offsets == {0: 10}
    assert [repair.path for repair in found.repairs] == [MARKER]


def test_what_go_takes_for_a_group_is_one_here(fs):
    fs.write_durably(f"{ROOT}/groups/a/b/000000", packed(3))
    fs.write_durably(f"{ROOT}/groups/.hidden/000000", packed(4))
    assert [each.name for each in groups(fs, files(fs))] == [".hidden", "a/b"]
    assert slowest(fs, files(fs), 0) == 4


def test_other_files_among_the_groups_are_nobodys(fs):
    committed(fs, 1)
    fs.write_durably(f"{ROOT}/groups/notes.txt", b"x")
    fs.write_durably(f"{ROOT}/groups/{GROUP}/notes.txt", b"x")
    assert [each.name for each in groups(fs, files(fs))] == [GROUP]
    assert slowest(fs, files(fs), 0) == 2


def test_what_cannot_be_read_is_not_taken_for_processed():
    fs = FaultFS(disk())
    committed(fs, 1)
    fs.fail("open", path=MARKER, error=errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        slowest(fs, files(fs), 0)
