# Acknowledging out of order, on the synchronous engine. Law: the read position goes over what is
# acknowledged and no further; everything else comes again, with its attempts.

from __future__ import annotations

import errno
import math
import random
from pathlib import Path
from typing import Any

import pytest

import diskq
from diskq.engine.queue.work import Lease, MessageId, QueueWork
from diskq.options import QueueWorkOptions
from diskq.testing import CrashFS
from tests.engine.queues import (
    abandoned,
    bodies,
    body,
    contents,
    data,
    disk,
    failing_disk,
    flip,
    leased,
    meta,
    opened,
    truncate,
)
from tests.reference import nsq_oracle
from tests.reference.nsq_oracle import frame

RECORD = len(frame(body(0)))


def filled(count: int, **options: Any) -> CrashFS:
    fs = disk()
    with opened(fs, **options) as queue:
        queue.put_many(bodies(count))
    return fs


def worked(queue: diskq.Queue, exhausted: Any = None, **options: Any) -> QueueWork:
    return QueueWork(queue, options=QueueWorkOptions(**options), exhausted=exhausted)


def numbers(leases: list[Lease]) -> list[int]:
    assert [lease.body for lease in leases] == [body(int(lease.body[:8])) for lease in leases]
    return [int(lease.body[:8]) for lease in leases]


def attempts(leases: list[Lease]) -> dict[int, int]:
    return {int(lease.body[:8]): lease.attempts for lease in leases}


# --- handing out and acknowledging ----------------------------------------------------------------


def test_messages_are_handed_out_in_order_and_once():
    with opened(filled(10)) as queue, QueueWork(queue) as work:
        first = work.get()
        assert first is not None
        assert (first.body, first.attempts, first.id) == (body(0), 1, MessageId(0, 0))
        assert numbers(work.get_many(4)) == [1, 2, 3, 4]
        assert numbers(work.get_many(100)) == [5, 6, 7, 8, 9]
        assert leased(work) is None


def test_the_read_position_goes_over_what_is_acknowledged_and_no_further():
    fs = filled(6)
    with opened(fs) as queue, QueueWork(queue) as work:
        leases = work.get_many(6)
        work.ack([leases[0], leases[2], leases[3]])
        queue.sync()
        assert b"\n0,%d\n" % RECORD in fs.read(meta())
        assert queue.depth == 5
        work.ack(leases[1])
        queue.sync()
        assert b"\n0,%d\n" % (4 * RECORD) in fs.read(meta())
        work.ack(leases[4:])
        assert queue.depth == 0
    assert contents(fs) == []


def test_a_lease_is_ended_once():
    with opened(filled(4)) as queue, QueueWork(queue) as work:
        one, two, three, four = work.get_many(4)
        work.ack(one)
        work.nack(two)
        for ended in (one, two):
            with pytest.raises(diskq.LeaseError) as told:
                work.ack(ended)
            assert told.value.id == ended.id
        with pytest.raises(diskq.LeaseError):
            work.ack([three, one])
        with pytest.raises(diskq.LeaseError):
            work.nack([three, three])
        with pytest.raises(TypeError):
            work.ack([three, b"no lease"])  # type: ignore[list-item]
        work.ack([three, four])
        assert work.statistics().acknowledged == 3
        again = work.get()
        assert again is not None
        assert again.body == two.body
        with pytest.raises(diskq.LeaseError):
            work.release(two)
        work.ack(again)


def test_ids_are_the_same_after_a_restart_and_ordered():
    fs = filled(10, segment_size=3 * RECORD)
    with opened(fs) as queue, QueueWork(queue) as work:
        ids = [lease.id for lease in work.get_many(10)]
    assert ids == sorted(ids)
    assert str(ids[4]) == f"1:{RECORD}"
    with opened(fs) as queue, QueueWork(queue) as work:
        assert [lease.id for lease in work.get_many(10)] == ids


def test_files_go_when_the_head_has_left_them():
    fs = filled(10, segment_size=2 * RECORD)
    with opened(fs) as queue, QueueWork(queue) as work:
        leases = work.get_many(10)
        work.ack(leases[1:])
        queue.sync()
        assert fs.size_of(data(0)) is not None
        work.ack(leases[0])
        queue.sync()
        assert [fs.size_of(data(number)) for number in range(4)] == [None] * 4


def test_messages_come_while_others_are_worked_on():
    with opened(disk()) as queue, QueueWork(queue) as work:
        assert leased(work) is None
        queue.put(body(0))
        queue.put(body(1), durability="memory")
        first, second = work.get_many(10)
        work.ack(second)
        queue.put(body(2))
        assert numbers(work.get_many(10)) == [2]
        work.ack(first)
        assert queue.depth == 1


# --- bounds ---------------------------------------------------------------------------------------


def test_no_more_than_max_in_flight_are_in_flight():
    with opened(filled(10)) as queue, worked(queue, max_in_flight=3) as work:
        leases = work.get_many(10)
        assert numbers(leases) == [0, 1, 2]
        assert not work._has_message()
        assert leased(work) is None
        work.ack(leases[1])
        assert numbers(work.get_many(10)) == [3]


def test_reading_goes_no_further_ahead_than_max_ahead_messages():
    with opened(filled(10)) as queue, worked(queue, max_ahead=4) as work:
        leases = work.get_many(10)
        work.ack(leases[1:])
        assert leased(work) is None
        assert not work._has_message()
        work.ack(leases[0])
        assert numbers(work.get_many(10)) == [4, 5, 6, 7]


def test_reading_goes_no_further_ahead_than_max_ahead_bytes_and_one_message():
    with opened(filled(10)) as queue, worked(queue, max_ahead_bytes=299) as work:
        leases = []
        while lease := leased(work):
            leases.append(lease)
        assert numbers(leases) == [0, 1, 2]
        work.ack(leases[1:])
        assert leased(work) is None
        assert work.statistics().ahead_bytes == 300
        work.ack(leases[0])
        assert numbers(work.get_many(10)) == [3, 4, 5]


def test_a_batch_has_no_more_than_max_bytes_or_one_message():
    fs = disk()
    large = [body(number, length) for number, length in enumerate([50, 50, 200, 50])]
    with opened(fs) as queue:
        queue.put_many(large)
        with QueueWork(queue) as work:
            portions = []
            while leases := work.get_many(10, max_bytes=120):
                portions.append(len(leases))
            assert portions == [2, 1, 1]
            assert work.statistics().delivered == 4
            assert work.statistics().redelivered == 0


def test_what_is_acknowledged_is_released():
    with opened(filled(10)) as queue, QueueWork(queue) as work:
        leases = work.get_many(10)
        work.ack(leases[1:])
        statistics = work.statistics()
        assert (statistics.in_flight, statistics.done, statistics.ahead) == (1, 9, 10)
        assert all(body(number) not in repr(vars(work)).encode() for number in range(1, 10))


# --- giving back ----------------------------------------------------------------------------------


def test_what_is_given_back_comes_before_what_was_not_handed_out_and_its_attempts_are_counted():
    with opened(filled(6)) as queue, QueueWork(queue) as work:
        leases = work.get_many(4)
        work.nack([leases[2], leases[0]])
        again = work.get_many(3)
        assert attempts(again) == {0: 2, 2: 2, 4: 1}
        assert numbers(again) == [0, 2, 4]
        work.release(again[:1])
        (third,) = work.get_many(1)
        assert third.attempts == 2, "as if it had not been handed out"


def test_a_delayed_one_comes_when_its_time_has_come():
    fs = filled(3)
    with opened(fs) as queue, QueueWork(queue) as work:
        leases = work.get_many(3)
        work.nack(leases[0], delay=5.0)
        work.nack(leases[1], delay=2.0)
        assert work._next_due() == 2.0
        assert leased(work) is None
        fs.clock = 2.0
        assert attempts(work.get_many(3)) == {1: 2}
        fs.clock = 5.0
        assert attempts(work.get_many(3)) == {0: 2}
        assert work._next_due() == math.inf


@pytest.mark.parametrize("delay", [-1.0, math.nan, math.inf, 5_000_000.0])
def test_a_wrong_delay_is_refused(delay: float):
    with opened(filled(1)) as queue, QueueWork(queue) as work:
        lease = work.get()
        assert lease is not None
        with pytest.raises(ValueError, match="a delay is"):
            work.nack(lease, delay)
        work.ack(lease)


def test_closing_gives_back_what_is_in_flight_and_no_attempt_is_lost():
    fs = filled(5)
    with opened(fs) as queue:
        with QueueWork(queue) as work:
            leases = work.get_many(4)
            work.ack(leases[1])
            work.nack(leases[2])
        with pytest.raises(diskq.LeaseError):
            work.ack(leases[0])
        with pytest.raises(ValueError, match="is over"):
            work.get()
        with QueueWork(queue) as work:
            assert attempts(work.get_many(9)) == {0: 1, 2: 2, 3: 1, 4: 1}
    with opened(fs) as queue, QueueWork(queue) as work:
        assert attempts(work.get_many(9)) == {0: 1, 2: 2, 3: 1, 4: 1}


def test_after_the_work_a_plain_reader_sees_all_from_the_head_on():
    with opened(filled(5)) as queue:
        with QueueWork(queue) as work:
            leases = work.get_many(5)
            work.ack([leases[0], leases[2], leases[4]])
        assert queue.depth == 4
        assert queue.get_many(9) == bodies(4, start=1)
        statistics = queue.statistics()
        assert (statistics.depth, statistics.delivered) == (0, 5)


def test_what_was_peeked_at_before_the_work_is_seen_again():
    with opened(filled(5)) as queue:
        assert queue.peek_many(3) == bodies(3)
        queue.advance(1)
        with QueueWork(queue) as work:
            leases = work.get_many(2)
            assert numbers(leases) == [1, 2]
            work.ack(leases[0])
            assert queue.depth == 3
        assert queue.depth == 3
        assert queue.get_many(9) == bodies(3, start=2)
        assert queue.statistics().delivered == 5


def test_a_queue_that_is_worked_on_has_no_other_reader():
    with opened(filled(5)) as queue, QueueWork(queue):
        for read in (queue.get, queue.peek, lambda: queue.get_many(2), lambda: QueueWork(queue)):
            with pytest.raises(ValueError, match="is being worked on"):
                read()
        assert not queue.steps.tail.pass_on([b"x"])
        queue.put(body(5))


# --- attempts -------------------------------------------------------------------------------------


def test_an_attempt_in_which_the_process_was_killed_counts():
    fs = filled(3)
    for attempt in range(1, 5):
        queue = opened(fs)
        work = QueueWork(queue)
        (first,) = work.get_many(1)
        assert (first.body, first.attempts) == (body(0), attempt)
        fs = abandoned(queue, fs)
    with opened(fs) as queue, QueueWork(queue) as work:
        assert attempts(work.get_many(9)) == {0: 5, 1: 1, 2: 1}


def test_attempts_and_acknowledgements_survive_a_power_cut_once_they_are_synced():
    fs = filled(6)
    with opened(fs) as queue:
        work = QueueWork(queue)
        leases = work.get_many(5)
        work.ack([leases[1], leases[3]])
        work.nack(leases[2])
        (again,) = work.get_many(1)
        assert again.body == body(2)
        queue.sync()
        work.ack(leases[0])
        after = fs.crash()
    with opened(after) as queue, QueueWork(queue) as work:
        assert attempts(work.get_many(9)) == {0: 2, 2: 3, 4: 2, 5: 1}


def test_what_was_acknowledged_before_a_kill_is_durable_once_the_queue_is_open_again():
    fs = filled(4)
    queue = opened(fs)
    work = QueueWork(queue)
    work.ack(work.get_many(3)[1])
    fs = abandoned(queue, fs)
    with opened(fs):
        after = fs.crash()
    with opened(after) as queue, QueueWork(queue) as work:
        assert attempts(work.get_many(9)) == {0: 2, 2: 2, 3: 1}


def test_after_max_attempts_a_message_goes_to_exhausted():
    taken: list[tuple[bytes, int]] = []
    fs = filled(3)
    with opened(fs) as queue:
        with worked(queue, lambda lease: taken.append((lease.body, lease.attempts)), max_attempts=2) as work:
            for _ in range(2):
                (first,) = work.get_many(1)
                assert taken == []
                work.nack(first)
            assert taken == [(body(0), 2)]
            assert numbers(work.get_many(9)) == [1, 2]
            assert work.statistics().exhausted == 1
        assert queue.depth == 2
    with opened(fs) as queue:
        assert queue.get_many(9) == [body(1), body(2)]


def test_it_goes_to_exhausted_also_if_the_process_was_killed_each_time():
    taken: list[tuple[bytes, int]] = []
    fs = filled(2)
    for _ in range(2):
        queue = opened(fs)
        worked(queue).get_many(1)
        fs = abandoned(queue, fs)
    with opened(fs) as queue:
        with worked(queue, lambda lease: taken.append((lease.body, lease.attempts)), max_attempts=2) as work:
            assert numbers(work.get_many(9)) == [1]
        assert taken == [(body(0), 2)]


def test_a_message_that_exhausted_refuses_stays():
    def refuse(lease: Lease) -> None:
        raise ZeroDivisionError

    with opened(filled(2)) as queue, worked(queue, refuse, max_attempts=1) as work:
        first = work.get()
        assert first is not None
        with pytest.raises(ZeroDivisionError):
            work.nack(first)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                work.get_many(9)
        assert work.statistics().returned == 1
        assert work.statistics().in_flight == 0
        work._exhausted = None
        assert attempts(work.get_many(9)) == {0: 2, 1: 1}


def test_without_exhausted_it_is_handed_out_again_and_again():
    with opened(filled(1)) as queue, worked(queue, max_attempts=1) as work:
        for attempt in range(1, 5):
            lease = work.get()
            assert lease is not None
            assert lease.attempts == attempt
            work.nack(lease)


# --- across restarts ------------------------------------------------------------------------------


def rest_after_restart(step: float, **passed: float) -> float:
    """How long a message rests that was delayed by 60 s; the wall clock steps in between."""
    fs = filled(2)
    queue = opened(fs)
    work = QueueWork(queue)
    first, _ = work.get_many(2)
    work.nack(first, delay=60.0)
    fs = abandoned(queue, fs)
    fs.clock += passed.get("clock", 0.0)
    fs.epoch += step
    with opened(fs) as queue, QueueWork(queue) as work:
        found = attempts(work.get_many(9))
        assert found == {1: 2} or (found == {0: 2, 1: 2} and work._next_due() == math.inf)
        return 0.0 if 0 in found else work._next_due() - fs.clock


def test_a_delay_goes_on_after_a_restart():
    assert rest_after_restart(0.0, clock=20.0) == pytest.approx(40.0)
    assert rest_after_restart(0.0, clock=61.0) == 0.0


def test_a_clock_that_stepped_makes_no_message_wait_for_longer():
    assert rest_after_restart(-1e9) == pytest.approx(60.0)
    assert rest_after_restart(+1e9) == 0.0


def test_what_is_known_is_kept_while_it_is_not_reached():
    fs = filled(30)
    with opened(fs) as queue, QueueWork(queue) as work:
        leases = work.get_many(30)
        work.ack(leases[20])
        work.nack(leases[25])
    for _ in range(3):
        with opened(fs) as queue, worked(queue, max_ahead=4) as work:
            assert numbers(work.get_many(2)) == [0, 1]
    with opened(fs) as queue, QueueWork(queue) as work:
        found = attempts(work.get_many(30))
        assert sorted(found) == [*range(20), *range(21, 30)]
        assert found[25] == 2
        assert {found[number] for number in found if number != 25} == {1}


def test_the_head_passes_what_was_acknowledged_before_without_another_take():
    with opened(filled(9, segment_size=2 * RECORD)) as queue:
        with QueueWork(queue) as work:
            work.ack(work.get_many(7)[2:])
        with QueueWork(queue) as work:
            work.ack(work.get_many(2))
            assert queue.depth == 2


def test_an_acknowledged_message_is_in_its_file_before_the_ack_log_says_so():
    fs = disk()
    queue = opened(fs)
    work = QueueWork(queue)
    queue.put(body(0), durability="memory")
    lease = work.get()
    assert lease is not None
    assert fs.size_of(data(0)) == 0
    work.ack(lease)
    assert fs.size_of(data(0)) == RECORD


# --- what happens to the queue --------------------------------------------------------------------


def test_a_queue_is_empty_when_its_last_message_is_acknowledged():
    with opened(filled(1)) as queue, QueueWork(queue) as work:
        leases = work.get_many(1)
        assert not queue.empty()
        work.ack(leases)
        assert queue.empty()


def test_an_emptied_queue_has_nothing_to_give_back():
    with opened(filled(4)) as queue, QueueWork(queue) as work:
        leases = work.get_many(3)
        work.nack(leases[2])
        work.nack(leases[1], delay=5.0)
        queue.clear()
        assert queue.depth == 0
        work.ack(leases[0])  # it was processed, and is gone
        assert leased(work) is None
        queue.put(body(9))
        (new,) = work.get_many(9)
        assert (new.body, new.attempts) == (body(9), 1)


def test_the_oldest_may_be_given_up_while_they_are_worked_on():
    fs = disk()
    with opened(fs, max_bytes=65_536, on_full="drop_oldest") as queue, QueueWork(queue) as work:
        for number in range(100):
            queue.put(body(number, 1000))
            if number == 20:
                leases = work.get_many(12)
                work.ack(leases[3])
        assert queue.statistics().dropped > 10
        work.ack(leases[0])
        work.nack(leases[1])
        rest = work.get_many(200)
        first = 100 - len(rest)
        assert [int(lease.body[:8]) for lease in rest] == list(range(first, 100))
        assert queue.depth == len(rest)
        work.ack([leases[2], *leases[4:6]])
        work.release(leases[6:])
        work.ack(rest)
        statistics = queue.statistics()
        assert statistics.dropped == first - 5, "one was acknowledged before, four since"
        assert statistics.delivered + statistics.dropped == 100


def test_what_was_lost_to_damage_is_reported_once():
    fs = filled(200)
    flip(fs, data(0), 50 * RECORD)
    with opened(fs) as queue:
        for _ in range(3):
            with QueueWork(queue) as work:
                found = numbers(work.get_many(1000))
                assert found == sorted(set(found))
        assert len(queue.repairs) == 1
        assert queue.depth == len(found) == 200 - queue.statistics().lost


def test_an_ack_log_of_files_that_were_cut_hides_no_later_message():
    fs = filled(4)
    queue = opened(fs)
    work = QueueWork(queue)
    work.ack(work.get_many(4)[1:])
    fs = abandoned(queue, fs)
    truncate(fs, data(0), 2 * RECORD)
    with opened(fs) as queue:
        queue.put_many(bodies(2, start=7))
    with opened(fs) as queue, QueueWork(queue) as work:
        assert numbers(work.get_many(9)) == [0, 7, 8]


def test_after_a_peer_nothing_is_known():
    fs = filled(4)
    with opened(fs) as queue, QueueWork(queue) as work:
        work.ack(work.get_many(4)[1:])
    # nsqd begins anew at file 0, and its messages are where diskq's were.
    others = bodies(4, start=70)
    fs.write_durably(data(0), b"".join(map(frame, others)))
    fs.write_durably(meta(), b"4\n0,0\n0,%d\n" % (4 * RECORD))
    with opened(fs) as queue, QueueWork(queue) as work:
        assert [lease.body for lease in work.get_many(9)] == others


def test_after_plain_reading_what_was_read_is_passed_over():
    fs = filled(6)
    with opened(fs) as queue:
        with QueueWork(queue) as work:
            leases = work.get_many(6)
            work.ack([leases[2], leases[4]])
        assert queue.get_many(2) == bodies(2)
        with QueueWork(queue) as work:
            assert numbers(work.get_many(9)) == [3, 5]


# --- full and failing disks -----------------------------------------------------------------------


def test_work_goes_on_while_the_disk_is_full():
    fs = failing_disk()
    with opened(fs) as queue:
        queue.put_many(bodies(8))
        queue.sync()
        with QueueWork(queue) as work:
            leases = work.get_many(2)
            work.ack(leases[1])
            fs.capacity(0)
            leases += work.get_many(4)
            work.ack(leases[3])
            work.ack(leases[0])
            fs.capacity(None)
            assert leased(work) is not None
        queue.sync()
        after = fs.inner.crash()
    with opened(after) as queue, QueueWork(queue) as work:
        assert numbers(work.get_many(9)) == [2, 4, 5, 6, 7]


def test_a_disk_that_fails_raises():
    fs = failing_disk()
    queue = opened(fs)
    queue.put_many(bodies(3))
    work = QueueWork(queue)
    lease = work.get()
    assert lease is not None
    fs.fail("pwrite", error=errno.EIO, path="*.acks")
    with pytest.raises(diskq.StorageFailedError):
        work.ack(lease)
    queue.close()


def test_a_closed_queue_ends_the_work():
    fs = filled(3)
    queue = opened(fs)
    work = QueueWork(queue)
    leases = work.get_many(3)
    work.ack(leases[1])
    queue.close()
    with pytest.raises(ValueError, match="is over"):
        work.get()
    with pytest.raises(diskq.LeaseError):
        work.ack(leases[0])
    work.close()
    with opened(fs) as queue, QueueWork(queue) as work:
        assert attempts(work.get_many(9)) == {0: 1, 2: 1}


def test_acknowledgements_are_counted_by_the_sync_policy():
    fs = filled(12)
    with opened(fs, sync_every=4) as queue, QueueWork(queue) as work:
        leases = work.get_many(12)
        queue.sync()
        before = queue.statistics().barriers
        work.ack(leases[5])
        work.ack(leases[6])
        work.ack(leases[7])
        assert queue.statistics().barriers == before
        work.ack(leases[8])
        assert queue.statistics().barriers == before + 1


# --- for peers ------------------------------------------------------------------------------------


def test_the_files_are_what_go_reads_at_every_step(tmp_path: Path):
    """By an independent reader: all messages from the first unacknowledged one on."""
    rng = random.Random(4)
    left = set(range(40))
    with diskq.Queue(tmp_path, "q", options=diskq.QueueOptions(segment_size=5 * RECORD)) as queue:
        queue.put_many(bodies(40))
        with QueueWork(queue) as work:
            leases = work.get_many(40)
            rng.shuffle(leases)
            for lease in leases[:36]:
                work.ack(lease)
                left.remove(int(lease.body[:8]))
                queue.sync()
                assert nsq_oracle.read_dir(tmp_path, "q") == bodies(40 - min(left), start=min(left))
                assert nsq_oracle.read_meta(tmp_path, "q").depth == queue.depth
    nsq_oracle.consume(tmp_path, "q", 1)  # a Go program takes one, and does not know the ack log
    with diskq.Queue(tmp_path, "q") as queue, QueueWork(queue) as work:
        assert numbers(work.get_many(99)) == list(range(min(left) + 1, 40))
