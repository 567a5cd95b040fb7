# What diskq had not synced when a disk died, in a file that a peer found too long and left. Law: the peer
# counts none of it, so it is not taken for the peer's; what checksums or the log verify stays, and what the
# peer counts is delivered.

from __future__ import annotations

from collections.abc import Sequence

import pytest

from diskq import Queue
from diskq.engine.queue.snapshot import QueueSnapshot
from diskq.storage.checksums import Row, pack_row, rows_before
from diskq.storage.repairs import RepairKind
from diskq.testing import CrashFS
from diskq.tools.stores import Store
from diskq.tools.verify.verification import verify
from tests.crash.mutations import Mutation
from tests.engine.queue.test_snapshot import read
from tests.engine.queue.test_zeros import BODIES, DIRECTORY, META, NAME, path, synced
from tests.reference import nsq_oracle

RECOVERY = "diskq.engine.queue.recovery"
THEIRS = [b"theirs %d" % number for number in range(3)]
ANY = b"a message that was not synced, with a hole " + bytes(8) + b" in it"


def frames(bodies: Sequence[bytes]) -> bytes:
    return b"".join(map(nsq_oracle.frame, bodies))


def after_power_cut(unsynced: bytes) -> tuple[CrashFS, int]:
    """A queue of BODIES, with these bytes after them; and where they begin."""
    fs = synced()[0].crash()
    content = fs.files()[path(0)]
    fs.write_durably(path(0), content + unsynced)
    return fs, len(content)


def with_file_of_zeros() -> CrashFS:
    """A queue of which no message was ever synced: its first file has zeros, and there are no checksums."""
    fs = CrashFS()
    fs.make_directory_durably(DIRECTORY)
    Queue(DIRECTORY, NAME, fs=fs)
    fs = fs.crash()
    fs.write_durably(path(0), bytes(196))
    return fs


def let_peer_write(fs: CrashFS, *, counted: int, file: int = 1, bodies: Sequence[bytes] = THEIRS) -> None:
    """A peer that counts so many messages before its own, and writes its own to this file."""
    fs.write_durably(path(file), frames(bodies))
    depth = counted + len(bodies)
    fs.write_durably(META, b"%d\n0,0\n%d,%d\n" % (depth, file, len(frames(bodies))))


def delivered(fs: CrashFS) -> list[bytes]:
    """What verify, a reader without the lock and the open agree on."""
    found = verify(Store("queue", DIRECTORY, NAME), fs=fs)
    seen = [body for part in QueueSnapshot(DIRECTORY, NAME, fs=fs).plan() for _, body in read(fs, part)[0]]
    with Queue(DIRECTORY, NAME, fs=fs) as queue:
        bodies = queue.get_many(1000)
    assert found.messages == len(bodies)
    assert seen == bodies
    return bodies


@pytest.mark.parametrize(
    "unsynced", [frames([ANY]), frames([ANY])[:-3], frames([b"x", b"", b"", ANY])], ids=len
)
def test_what_was_not_synced_before_a_peers_first_file_is_kept_aside(unsynced: bytes) -> None:
    fs, end = after_power_cut(unsynced)
    let_peer_write(fs, counted=len(BODIES))
    with Queue(DIRECTORY, NAME, fs=fs.copy()) as queue:
        (repair,) = queue.repairs
    assert (repair.path, repair.kind, repair.kept) == (path(0), RepairKind.UNSYNCED, end)
    assert (repair.dropped, repair.records) == (len(unsynced), None)
    assert delivered(fs) == [*BODIES, *THEIRS]


def test_a_peers_messages_after_those_of_diskq_are_delivered() -> None:
    """It found the file as long as the metadata says, and went on in the next when it was full."""
    fs, _ = after_power_cut(frames([ANY, b"x"]))
    let_peer_write(fs, counted=len(BODIES) + 2)
    assert delivered(fs) == [*BODIES, ANY, b"x", *THEIRS]


def test_a_file_of_zeros_before_a_peers_first_one_is_no_messages() -> None:
    fs = with_file_of_zeros()
    let_peer_write(fs, counted=0)
    assert delivered(fs) == THEIRS


def test_a_peers_empty_messages_in_a_file_of_its_own_are_delivered() -> None:
    fs = with_file_of_zeros()
    let_peer_write(fs, counted=49)
    assert delivered(fs) == [*[b""] * 49, *THEIRS]


def test_a_file_of_a_peer_stays_though_it_does_not_count_what_was_synced_in_the_file_before() -> None:
    """It left that file since it was longer than the metadata said, and filled the next one."""
    fs, _ = after_power_cut(b"")
    fs.write_durably(path(1), frames([b"first", b"second"]))
    let_peer_write(fs, counted=2, file=2)
    assert delivered(fs) == [*BODIES, b"first", b"second", *THEIRS]


def test_what_the_redo_log_has_of_a_file_stays_though_no_checksum_is_left() -> None:
    """A checksum of what was not synced is where theirs belong."""
    fs, queue = synced()
    queue.put(b"in its file", durability="synced")  # which makes the log
    end = len(fs.files()[path(0)])
    queue.put_many([b"logged", b"too"], durability="synced")
    whole = fs.files()[path(0)]
    fs = fs.crash()
    fs.write_durably(path(0), whole + frames([ANY]))
    sums = next(name for name in fs.files() if name.endswith(".sums"))
    rows, _ = rows_before(fs, sums, end)
    fs.write_durably(sums, fs.files()[sums][:rows] + pack_row(Row(end, end + 40, 1, 1)) + bytes(24))
    let_peer_write(fs, counted=len(BODIES) + 1)
    assert delivered(fs) == [*BODIES, b"in its file", b"logged", b"too", *THEIRS]


@pytest.mark.parametrize(
    "mutation, test",
    [
        (
            Mutation(RECOVERY, "self._counts(read, number, end, known) < depth", "False"),
            test_a_peers_messages_after_those_of_diskq_are_delivered,
        ),
        (
            Mutation(RECOVERY, "self._counts(read, number, end, known) < depth", "False"),
            test_a_peers_empty_messages_in_a_file_of_its_own_are_delivered,
        ),
        (
            Mutation(
                RECOVERY,
                "if number not in ours and _zeros_for_messages(rest, False) is None:",
                "if False:",
            ),
            test_a_file_of_a_peer_stays_though_it_does_not_count_what_was_synced_in_the_file_before,
        ),
        (
            Mutation(RECOVERY, "end = max(end, logged_end(self.fs, self.files, number))", "pass"),
            test_what_the_redo_log_has_of_a_file_stays_though_no_checksum_is_left,
        ),
        (
            Mutation(RECOVERY, "self._cut_uncounted(read, known, depth)", "pass"),
            test_a_file_of_zeros_before_a_peers_first_one_is_no_messages,
        ),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_without_its_guard_it_is_wrong(mutation, test):
    with mutation.installed(), pytest.raises(AssertionError):
        test()
