# The ack log by itself: its rows, what they say together, and what an open takes back. Law: whatever
# happens to its bytes, no message is lost for it, and none altered; at most some come twice.

from __future__ import annotations

import random

import pytest

from diskq.engine.queue import ack_log as ackjournal
from diskq.engine.queue.ack_log import (
    ROW,
    Known,
    Tried,
    acked_row,
    acked_rows,
    handed_row,
    read_ack_logs,
    tried_row,
)
from diskq.engine.queue.files import QueueFiles, QueuePosition
from diskq.engine.queue.work import QueueWork
from diskq.options import QueueWorkOptions
from diskq.storage.barrier import Barrier
from diskq.testing import CrashFS
from tests.engine.queues import ROOT, Disk, bodies, body, disk, meta, opened
from tests.engine.ram import RamFS
from tests.reference.nsq_oracle import frame
from tests.sampling import spread

PATH = f"{ROOT}/.diskq/q.000001.acks"
RECORD = len(frame(body(0)))


def known_from(*rows: bytes) -> Known:
    return read_ack_logs(fs := RamFS({PATH: b"".join(rows)}), QueueFiles(fs, ROOT, "q"))


def put_journal(fs: Disk, *rows: bytes) -> None:
    fs.write_durably(PATH, b"".join(rows))


def handed_out(fs: Disk) -> list[bytes]:
    """Return all messages that work on the queue hands out."""
    with opened(fs) as queue, QueueWork(queue, options=QueueWorkOptions(max_in_flight=10_000)) as work:
        return [lease.body for lease in work.get_many(10_000)]


def place(number: int) -> tuple[int, int, int]:
    """Of a message in the first file."""
    return 0, number * RECORD, (number + 1) * RECORD


def filled(count: int) -> CrashFS:
    """A disk with a closed queue of `count` messages of one size."""
    fs = disk()
    with opened(fs) as queue:
        queue.put_many(bodies(count))
    return fs


# --- rows -----------------------------------------------------------------------------------------


def test_rows_say_what_they_were_given():
    known = known_from(
        acked_row(3, 100, 200), handed_row(QueuePosition(4, 40)), tried_row(4, 12, 7, due=1000.5, delay=2.5)
    )
    assert known.acked == {3: [(100, 200)]}
    assert known.handed == QueuePosition(4, 40)
    assert known.tried == {(4, 12): Tried(7, 1000.5, 2.5)}
    assert known.end == QueuePosition(4, 40)


def test_messages_next_to_each_other_share_a_row():
    places = [place(number) for number in (5, 1, 2, 4, 8)] + [(1, 0, 30)]
    rows = acked_rows(places)
    assert rows == [
        acked_row(0, 1 * RECORD, 3 * RECORD),
        acked_row(0, 4 * RECORD, 6 * RECORD),
        acked_row(0, 8 * RECORD, 9 * RECORD),
        acked_row(1, 0, 30),
    ]


def test_acknowledgements_add_up_in_any_order():
    rows = [acked_row(*place(number)) for number in (7, 3, 2, 8, 2)]
    known = known_from(*rows)
    assert known.acked == {0: [(2 * RECORD, 4 * RECORD), (7 * RECORD, 9 * RECORD)]}
    assert [n for n in range(10) if known.is_acked(0, n * RECORD)] == [2, 3, 7, 8]
    assert not known.is_acked(1, 2 * RECORD)


def test_the_furthest_hand_out_counts_and_the_last_try():
    known = known_from(
        handed_row(QueuePosition(1, 50)),
        tried_row(0, 0, 4),
        handed_row(QueuePosition(0, 90)),
        tried_row(0, 0, 1),
    )
    assert known.of(0, 0) == Tried(1)
    assert known.of(0, 60) == Tried(1), "handed out, and not told how often"
    assert known.of(1, 50) == Tried(0)


def test_what_matters_is_said_again_from_a_place_on():
    rows = [acked_row(0, 0, 50), acked_row(1, 10, 90), tried_row(1, 5, 2), tried_row(2, 5, 3, 9.5, 1.0)]
    again = known_from(*known_from(*rows).rows_from(QueuePosition(1, 40)))
    assert again.acked == {1: [(40, 90)]}
    assert again.tried == {(2, 5): Tried(3, 9.5, 1.0)}


def test_a_count_that_would_not_fit_stays_at_the_most():
    assert known_from(tried_row(0, 0, 10**9)).of(0, 0).attempts == ackjournal.MOST_ATTEMPTS


def test_several_files_are_read_in_order():
    fs = RamFS({PATH: tried_row(0, 0, 1), PATH.replace("1", "2"): tried_row(0, 0, 2)})
    assert read_ack_logs(fs, QueueFiles(fs, ROOT, "q")).of(0, 0) == Tried(2)


def test_an_ack_log_belongs_to_one_queue():
    fs = RamFS({PATH: acked_row(0, 0, 9)})
    for other in ("q.000001", "q.000001.acks", "q.0", "r"):
        assert QueueFiles(fs, ROOT, other).ack_logs() == []


# --- at each open ---------------------------------------------------------------------------------


def test_what_is_said_of_places_not_yet_written_is_taken_back():
    fs = filled(3)
    put_journal(fs, acked_row(*place(1)), acked_row(*place(3)), tried_row(0, 3 * RECORD, 9))
    with opened(fs) as queue:
        queue.put(body(3))
    assert handed_out(fs) == [body(0), body(2), body(3)]


def test_a_row_that_reaches_beyond_what_is_written_is_cut_there():
    fs = filled(3)
    put_journal(fs, acked_row(0, RECORD, 5 * RECORD), handed_row(QueuePosition(0, 5 * RECORD)))
    with opened(fs) as queue:
        queue.put_many(bodies(3, start=3))
    assert handed_out(fs) == [body(0), *bodies(3, start=3)]
    with opened(fs) as queue, QueueWork(queue) as work:
        assert [lease.attempts for lease in work.get_many(10)] == [2, 1, 1, 1]


def test_taking_it_back_is_durable_before_anything_is_accepted():
    fs = filled(3)
    put_journal(fs, acked_row(*place(3)), acked_row(0, RECORD, 5 * RECORD))
    with opened(fs) as queue:
        queue.put_many(bodies(2, start=3), durability="synced")
        after = fs.crash()
    assert handed_out(after) == [body(0), body(3), body(4)]


@pytest.mark.parametrize(
    "content", [None, b"garbage\n", b"3\n0,0\n0,312\n"], ids=["gone", "rotten", "peer's"]
)
def test_an_ack_log_is_ignored_if_the_metadata_is_a_peers(content: bytes | None):
    fs = filled(3)
    put_journal(fs, acked_row(*place(1)))
    if content is None:
        Barrier(removals=(meta(),), directories=()).execute(fs)
        fs.sync_directory(ROOT)
    else:
        fs.write_durably(meta(), content)
    with opened(fs) as queue:
        after = fs.crash()
        assert queue.peek_many(9) == bodies(3)
    assert handed_out(fs) == handed_out(after) == bodies(3)


def test_an_ack_log_of_consumed_messages_is_removed():
    fs = filled(3)
    put_journal(fs, acked_row(*place(0)), handed_row(QueuePosition(0, RECORD)))
    with opened(fs) as queue:
        queue.get_many(2)
    with opened(fs):
        assert fs.size_of(PATH) is None


def test_a_deleted_queue_leaves_no_ack_log():
    fs = filled(3)
    with opened(fs) as queue, QueueWork(queue) as work:
        leases = work.get_many(3)
        work.ack(leases[1])
        assert fs.size_of(PATH)
        queue.delete()
    assert fs.size_of(PATH) is None


# --- growing --------------------------------------------------------------------------------------


def test_a_file_that_has_grown_is_followed_by_one_of_what_matters(monkeypatch):
    monkeypatch.setattr(ackjournal, "_GROWN", 20 * ROW.size)
    fs = filled(60)
    with opened(fs) as queue, QueueWork(queue) as work:
        leases = [lease for _ in range(60) for lease in work.get_many(1)]
        work.ack(leases[20:30])
        work.nack(leases[40])
        work.nack(leases[41], delay=30)
        assert fs.size_of(PATH) == 63 * ROW.size
        queue.sync()
        assert fs.size_of(PATH) is None
        assert fs.size_of(PATH.replace("1", "2")) == 3 * ROW.size, "handed, acked, one rests"
        after = fs.crash()
    with opened(after) as queue, QueueWork(queue) as work:
        numbers = {int(lease.body[:8]): lease.attempts for lease in work.get_many(100)}
        assert sorted(numbers) == [*range(20), *range(30, 41), *range(42, 60)]
        assert set(numbers.values()) == {2}


def test_a_new_file_has_the_attempts_of_messages_in_flight_or_not_reached(monkeypatch):
    fs = filled(30)
    with opened(fs) as queue, QueueWork(queue) as work:
        leases = work.get_many(30)
        work.nack(leases[0])
        work.nack(leases[25])
        work.ack(leases[26])
    with opened(fs) as queue:
        work = QueueWork(queue, options=QueueWorkOptions(max_ahead=4))
        assert work.get_many(1)[0].attempts == 2
        monkeypatch.setattr(ackjournal, "_GROWN", 0)
        queue.sync()
        assert fs.size_of(PATH) is None
        after = fs.crash()
    with opened(after) as queue, QueueWork(queue) as work:
        found = {int(lease.body[:8]): lease.attempts for lease in work.get_many(100)}
        assert (found[0], found[1], found[25]) == (3, 1, 2)
        assert 26 not in found


# --- whatever happens to its bytes ----------------------------------------------------------------


def worked_on() -> tuple[RamFS, set[bytes]]:
    """A queue with some acknowledged messages here and there, and which."""
    fs = filled(24)
    rng = random.Random(1)
    with opened(fs) as queue:
        work = QueueWork(queue)
        leases = work.get_many(20)
        for chosen in ([2, 3, 4], [9], [11, 12], [17]):
            work.ack([leases[number] for number in chosen])
        work.nack(rng.sample([leases[0], leases[5], leases[6]], 2))
        work.nack(leases[7], delay=5.0)
        queue.sync()
        files = fs.kill().files()
    return RamFS(files), {body(number) for number in (2, 3, 4, 9, 11, 12, 17)}


@pytest.mark.sampled
def test_each_byte_of_it_may_rot():
    fs, acked = worked_on()
    path = PATH
    content = fs.read(path)
    assert len(content) > 5 * ROW.size
    for at in spread(range(len(content))):
        for mask in (0xFF, 1 << at % 8):
            rotten = bytearray(content)
            rotten[at] ^= mask
            shadow = fs.kill()
            shadow.write_durably(path, bytes(rotten))
            found = handed_out(shadow)
            assert len(found) == len(set(found))
            assert {*found, *acked, body(7)} == set(bodies(24)), "lost, or altered"


@pytest.mark.sampled
def test_it_may_end_at_each_byte():
    fs, acked = worked_on()
    content = fs.read(PATH)
    for end in spread(range(len(content))):
        shadow = fs.kill()
        shadow.write_durably(PATH, content[:end])
        found = handed_out(shadow)
        assert len(found) == len(set(found))
        assert {*found, *acked, body(7)} == set(bodies(24)), "lost, or altered"


def test_a_torn_row_at_its_end_is_written_over():
    fs, _ = worked_on()
    content = fs.read(PATH)
    fs.write_durably(PATH, content[: -ROW.size] + b"torn")
    with opened(fs) as queue, QueueWork(queue) as work:
        (first,) = work.get_many(1)
        work.ack(first)
    assert fs.size_of(PATH) is None or len(fs.read(PATH)) % ROW.size == 0
    assert first.body not in handed_out(fs)
