"""diskq and go-diskqueue on one directory, in turn: byte for byte, message for message, both ways.

Where one of these fails, look first whether test_nsq_peer_rig.py passes.
"""

import random
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from diskq import Queue, QueueOptions
from tests.compat import nsqd
from tests.compat.conftest import StartNsqd
from tests.compat.go_peer import GoPeer
from tests.reference import nsq_oracle as oracle

pytestmark = pytest.mark.interop

NAME = "events"
ROLLING = 500  # bytes in a file of the tests that roll
BODIES = [b"%d " % n * (n % 15) for n in range(300)]  # every 15th is empty
FULL = [b"x" * (ROLLING - 4)]  # one message, and the file must be left for the next

SHAPES = {
    "one": [b"hello"],
    "many": BODIES,
    "only empty ones": [b""] * 400,
    "exactly full files": [bytes([n]) * 121 for n in range(12)],  # 4 x (4 + 121) = ROLLING
    "one byte over": [bytes([n]) * 122 for n in range(12)],
    "larger than a file": [b"small", b"L" * 2000, b"small", b"L" * ROLLING, b"L" * (ROLLING - 4), b""],
    "larger than a read": [bytes([n]) * 300_000 for n in range(5)],
}
shapes = pytest.mark.parametrize("bodies", SHAPES.values(), ids=SHAPES)


def opened(directory: Path, name: str = NAME, **options: Any) -> Queue:
    return Queue(directory, name, options=QueueOptions(**{"segment_size": ROLLING} | options))


def put(directory: Path, bodies: list[bytes], name: str = NAME, **options: Any) -> None:
    with opened(directory, name, **options) as queue:
        queue.put_many(bodies)


def drained(directory: Path, name: str = NAME) -> list[bytes]:
    with opened(directory, name) as queue:
        return rest(queue)


def rest(queue: Queue) -> list[bytes]:
    bodies: list[bytes] = []
    while some := queue.get_many(100):
        bodies += some
    assert queue.depth == 0
    return bodies


def data_files(directory: Path) -> dict[str, bytes]:
    paths = (oracle.data_path(directory, NAME, number) for number in oracle.data_numbers(directory, NAME))
    return {path.name: path.read_bytes() for path in paths}


def set_aside(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if ".bad" in path.name]


# --- we write, Go reads ---------------------------------------------------------------------------


@shapes
def test_our_files_are_go_s_files(go: GoPeer, tmp_path: Path, bodies: list[bytes]) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    with opened(ours) as queue:
        for body in bodies:
            queue.put(body)
    go.put(theirs, NAME, bodies, max_bytes_per_file=ROLLING)
    assert data_files(ours) == data_files(theirs)
    meta = oracle.read_meta(theirs, NAME)
    if meta.write_position > ROLLING:  # it leaves such a file with the next message, we do it now
        meta = meta._replace(write_file=meta.write_file + 1, write_position=0)
    assert oracle.read_meta(ours, NAME) == meta


@shapes
def test_go_drains_what_we_put(go: GoPeer, tmp_path: Path, bodies: list[bytes]) -> None:
    put(tmp_path, bodies)
    report = go.get(tmp_path, NAME)
    assert report.bodies == bodies
    assert (report.depth_at_open, report.depth_at_close, report.warnings) == (len(bodies), 0, [])


@pytest.mark.parametrize("taken", [1, 7, 8, 100, 299])
def test_go_resumes_where_we_stopped(go: GoPeer, tmp_path: Path, taken: int) -> None:
    put(tmp_path, BODIES)
    with opened(tmp_path) as queue:
        assert queue.get_many(taken) == BODIES[:taken]
    report = go.get(tmp_path, NAME)
    assert report.bodies == BODIES[taken:]
    assert (report.depth_at_open, report.warnings) == (300 - taken, [])


def test_go_gets_again_what_we_only_peeked_at(go: GoPeer, tmp_path: Path) -> None:
    put(tmp_path, BODIES)
    with opened(tmp_path) as queue:
        assert queue.peek_many(120) == BODIES[:120]
        queue.advance(50)
    report = go.get(tmp_path, NAME)
    assert (report.bodies, report.depth_at_open) == (BODIES[50:], 250)


def test_go_finds_nothing_where_we_drained(go: GoPeer, tmp_path: Path) -> None:
    put(tmp_path, BODIES)
    assert drained(tmp_path) == BODIES
    report = go.get(tmp_path, NAME)
    assert (report.bodies, report.depth_at_open, report.warnings) == ([], 0, [])


def test_go_finds_nothing_where_we_emptied_and_goes_on(go: GoPeer, tmp_path: Path) -> None:
    put(tmp_path, BODIES)
    with opened(tmp_path) as queue:
        queue.clear()
    assert go.info(tmp_path, NAME).depth == 0
    assert go.put(tmp_path, NAME, [b"after"]).warnings == []
    assert drained(tmp_path) == [b"after"]


def test_a_consumer_that_kept_up_leaves_no_trap_for_go(go: GoPeer, tmp_path: Path) -> None:
    # go-diskqueue itself sets the consumed file aside here: its reader stands at the end of a file
    # that the writer has left.
    with opened(tmp_path) as queue:
        for body in BODIES:
            queue.put(body)
            assert queue.get_many(1) == [body]
        queue.put(b"after")
    report = go.get(tmp_path, NAME)
    assert (report.bodies, report.depth_at_open, report.warnings) == ([b"after"], 1, [])
    assert set_aside(tmp_path) == []


def test_a_drained_queue_that_we_roll_leaves_no_trap_for_go(go: GoPeer, tmp_path: Path) -> None:
    go.put(tmp_path, NAME, FULL, max_bytes_per_file=ROLLING)
    assert go.get(tmp_path, NAME).bodies == FULL
    put(tmp_path, [b"after"])
    report = go.get(tmp_path, NAME)
    assert (report.bodies, report.depth_at_open, report.warnings) == ([b"after"], 1, [])
    assert set_aside(tmp_path) == []


@pytest.mark.parametrize("name", ["events:archive", "a.b_c-d", "events:archive#ephemeral", "100%"])
def test_go_knows_our_files_by_their_names(go: GoPeer, tmp_path: Path, name: str) -> None:
    put(tmp_path, [b"other"], "events")
    put(tmp_path, BODIES, name)
    assert go.get(tmp_path, name).bodies == BODIES
    assert go.get(tmp_path, "events").bodies == [b"other"]


# --- Go writes, we read ---------------------------------------------------------------------------


@shapes
def test_we_drain_what_go_put(go: GoPeer, tmp_path: Path, bodies: list[bytes]) -> None:
    go.put(tmp_path, NAME, bodies, max_bytes_per_file=ROLLING)
    with opened(tmp_path) as queue:
        assert queue.depth == len(bodies)
        assert rest(queue) == bodies
        assert queue.repairs == ()


@pytest.mark.parametrize("taken", [1, 7, 8, 100, 299, 300])
def test_we_resume_where_go_stopped(go: GoPeer, tmp_path: Path, taken: int) -> None:
    go.put(tmp_path, NAME, BODIES, max_bytes_per_file=ROLLING)
    assert go.get(tmp_path, NAME, count=taken).bodies == BODIES[:taken]
    with opened(tmp_path) as queue:
        assert queue.depth == 300 - taken
        assert rest(queue) == BODIES[taken:]
        assert queue.repairs == ()


@pytest.mark.parametrize("size", [ROLLING, 1 << 20], ids=["rolled", "one file"])
@pytest.mark.parametrize("every", [10, 10_000], ids=["stale metadata", "no metadata"])
def test_a_writer_that_vanished_loses_nothing(go: GoPeer, tmp_path: Path, size: int, every: int) -> None:
    options = {"max_bytes_per_file": size, "sync_every": every, "sync_timeout": 3600}
    go.put(tmp_path, NAME, BODIES, abandon=True, **options)
    with opened(tmp_path) as queue:
        assert queue.depth == 300
        assert rest(queue) == BODIES
    assert set_aside(tmp_path) == []


def test_a_reader_that_vanished_skips_nothing(go: GoPeer, tmp_path: Path) -> None:
    go.put(tmp_path, NAME, BODIES, max_bytes_per_file=ROLLING)
    go.get(tmp_path, NAME, count=150, abandon=True, sync_timeout=3600)
    bodies = drained(tmp_path)
    assert bodies == BODIES[300 - len(bodies) :]
    assert len(bodies) >= 150


def test_a_second_vanished_writer_loses_nothing(go: GoPeer, tmp_path: Path) -> None:
    # The metadata, and our checksums, are of the first 100; the rest is the peer's alone.
    put(tmp_path, BODIES[:100], segment_size=1 << 20)
    go.put(tmp_path, NAME, BODIES[100:], abandon=True, sync_every=1000, sync_timeout=3600)
    with opened(tmp_path) as queue:
        assert queue.depth == 300
        assert rest(queue) == BODIES


def test_we_go_on_where_go_set_its_own_consumed_file_aside(go: GoPeer, tmp_path: Path) -> None:
    put(tmp_path, FULL)
    assert drained(tmp_path) == FULL
    assert go.put(tmp_path, NAME, [b"after"], max_bytes_per_file=ROLLING).warnings
    (consumed,) = set_aside(tmp_path)
    with opened(tmp_path) as queue:
        assert queue.depth == 1
        assert rest(queue) == [b"after"]
        assert queue.repairs == ()
    assert oracle.frames((tmp_path / consumed).read_bytes()) == FULL


def test_we_pass_over_the_end_of_a_file_that_go_rolled(tmp_path: Path) -> None:
    # What go-diskqueue leaves if it dies between the roll and the read error that follows from it.
    oracle.write_dir(tmp_path, NAME, [*FULL, b"after"], segment_size=ROLLING)
    oracle.write_meta(tmp_path, NAME, oracle.Meta(1, 0, ROLLING, 1, 9))
    with opened(tmp_path) as queue:
        assert queue.depth == 1
        assert rest(queue) == [b"after"]
        assert queue.repairs == ()
    assert set_aside(tmp_path) == []


def test_we_find_nothing_where_go_emptied_and_go_on(go: GoPeer, tmp_path: Path) -> None:
    put(tmp_path, BODIES)
    go.empty(tmp_path, NAME)
    with opened(tmp_path) as queue:
        assert queue.depth == 0
        queue.put(b"after")
    assert go.get(tmp_path, NAME).bodies == [b"after"]


def test_we_find_what_go_put_after_emptying_though_it_vanished(go: GoPeer, tmp_path: Path) -> None:
    # Empty removes the metadata; what comes after it is in a file that nothing names.
    put(tmp_path, BODIES)
    go.empty(tmp_path, NAME, abandon=True)
    put(tmp_path, [b"after"])
    assert go.get(tmp_path, NAME).bodies == [b"after"]


@pytest.mark.parametrize("abandon", [True, False], ids=["no metadata", "metadata ahead"])
def test_go_goes_on_where_we_cut_a_torn_tail(go: GoPeer, tmp_path: Path, abandon: bool) -> None:
    # Metadata ahead of the data is what a power cut leaves of a queue that go-diskqueue closed:
    # it syncs the one and not the other.
    go.put(tmp_path, NAME, [b"whole", b"torn"], abandon=abandon)
    path = oracle.data_path(tmp_path, NAME, 0)
    path.write_bytes(path.read_bytes()[:-1])
    with opened(tmp_path) as queue:
        assert queue.depth == 1
        assert len(queue.repairs) >= 1
    assert go.put(tmp_path, NAME, [b"after"], max_bytes_per_file=ROLLING).warnings == []
    assert go.get(tmp_path, NAME).bodies == [b"whole", b"after"]


# --- in turn --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_in_turn_they_are_one_queue(go: GoPeer, tmp_path: Path, seed: int) -> None:
    """20 rounds of appending and consuming, each by either. One message always stays: where none
    does and Go then rolls, Go sets its own consumed file aside (see the trap above)."""
    chance = random.Random(seed)
    pending: deque[bytes] = deque()
    ours: dict[str, Any] = {"segment_size": 2000}
    theirs: dict[str, Any] = {"max_bytes_per_file": 2000}
    for number in range(20):
        sizes = chance.choices((0, 1, 50, 300, 2500), k=chance.randint(2, 40))
        appended = [chance.randbytes(size) for size in sizes]
        pending.extend(appended)
        if number % 2:
            put(tmp_path, appended, **ours)
        else:
            assert go.put(tmp_path, NAME, appended, **theirs).warnings == []
        taken = [pending.popleft() for _ in range(chance.randint(1, len(pending) - 1))]
        assert go.info(tmp_path, NAME).depth == len(taken) + len(pending)
        if number // 2 % 2:
            with opened(tmp_path, **ours) as queue:
                assert queue.depth == len(taken) + len(pending)
                assert queue.get_many(len(taken)) == taken
                assert queue.repairs == ()
        else:
            report = go.get(tmp_path, NAME, count=len(taken), **theirs)
            assert report.bodies == taken
            assert (report.depth_at_close, report.warnings) == (len(pending), [])
        assert oracle.read_dir(tmp_path, NAME) == list(pending)
    assert set_aside(tmp_path) == []
    assert drained(tmp_path) == list(pending)


def test_in_turn_within_one_file(go: GoPeer, tmp_path: Path) -> None:
    for first in range(0, 300, 30):
        put(tmp_path, BODIES[first : first + 15], segment_size=1 << 20)
        go.put(tmp_path, NAME, BODIES[first + 15 : first + 30], max_bytes_per_file=1 << 20)
    assert oracle.data_numbers(tmp_path, NAME) == [0]
    assert drained(tmp_path) == BODIES


# --- after our own death --------------------------------------------------------------------------

VICTIM = """
import itertools, sys
from diskq import Queue, QueueOptions

options = QueueOptions(segment_size=int(sys.argv[2]), sync_timeout=3600)
queue = Queue(sys.argv[1], "events", options=options)
for n in itertools.count():
    queue.put(b"%d " % n * (n % 15))
    if n % 50 == 49:
        print(n + 1, flush=True)
"""

many_sizes = pytest.mark.parametrize("size", [4000, 100 << 20], ids=["rolled", "one file"])


def killed_while_putting(directory: Path, size: int) -> list[bytes]:
    """What the files hold after SIGKILL met a process somewhere in a put.

    The last record may be torn: the kernel looks for a fatal signal at every page of a write(2).
    """
    command = [sys.executable, "-c", VICTIM, str(directory), str(size)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as victim:
        assert victim.stdout is not None
        acknowledged = 0
        for line in victim.stdout:
            acknowledged = int(line)
            if acknowledged >= 3000:
                victim.kill()
    bodies = oracle.read_files(directory, NAME, may_be_torn=True)
    assert bodies == [b"%d " % n * (n % 15) for n in range(len(bodies))]
    assert len(bodies) >= acknowledged >= 3000
    return bodies


def may_be_found(bodies: list[bytes]) -> list[list[bytes]]:
    """What an open of ours may find of these.

    If the last one is empty, and the kill came between its write and its checksum, it is zeros that a disk
    may have left as well: they are cut. Its put had not returned.
    """
    return [bodies] if bodies[-1] else [bodies, bodies[:-1]]


@many_sizes
def test_go_delivers_what_we_had_put_when_we_were_killed(go: GoPeer, tmp_path: Path, size: int) -> None:
    bodies = killed_while_putting(tmp_path, size)
    report = go.get(tmp_path, NAME)
    # A file that was begun and not yet named in the metadata is not seen: its first put had not returned.
    assert report.bodies == bodies[: len(report.bodies)]
    assert len(report.bodies) >= len(bodies) - 1


@many_sizes
def test_we_deliver_what_we_had_put_when_we_were_killed(go: GoPeer, tmp_path: Path, size: int) -> None:
    bodies = killed_while_putting(tmp_path, size)
    with opened(tmp_path) as queue:
        depth = queue.depth
        found = rest(queue)
    assert found in may_be_found(bodies)
    assert depth == len(found)


@many_sizes
def test_after_we_were_killed_go_begins_and_we_finish(go: GoPeer, tmp_path: Path, size: int) -> None:
    bodies = killed_while_putting(tmp_path, size)
    assert go.get(tmp_path, NAME, count=1000).bodies == bodies[:1000]
    with opened(tmp_path) as queue:
        depth = queue.depth
        found = rest(queue)
    assert bodies[:1000] + found in may_be_found(bodies)
    assert depth == len(found)


@many_sizes
def test_after_we_were_killed_we_begin_and_go_finishes(go: GoPeer, tmp_path: Path, size: int) -> None:
    bodies = killed_while_putting(tmp_path, size)
    with opened(tmp_path) as queue:
        assert queue.get_many(1000) == bodies[:1000]
    report = go.get(tmp_path, NAME)
    assert bodies[:1000] + report.bodies in may_be_found(bodies)
    assert (report.depth_at_open, report.warnings) == (len(report.bodies), [])


# --- nsqd -----------------------------------------------------------------------------------------

MESSAGES = [nsqd.Message(1_700_000_000_000_000_000 + n, 0, b"%016x" % n, b"body %d" % n) for n in range(1000)]
NSQD_OPTIONS: dict[str, Any] = {
    "min_message_size": nsqd.MIN_MESSAGE_SIZE,
    "max_message_size": nsqd.MAX_MESSAGE_SIZE,
}


@pytest.mark.parametrize("queue", ["events", "events:archive"], ids=["topic", "channel"])
def test_nsqd_delivers_what_we_put(start_nsqd: StartNsqd, tmp_path: Path, queue: str) -> None:
    encoded = [message.encode() for message in MESSAGES]
    put(tmp_path, encoded, queue, segment_size=10_000, **NSQD_OPTIONS)
    nsqd.write_metadata(tmp_path, {"events": ["archive"]})
    server = start_nsqd(tmp_path)
    assert server.consume("events", "archive", 1000) == [each._replace(attempts=1) for each in MESSAGES]
    server.stop()
    assert server.complaints() == []


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_we_drain_what_was_published_to_nsqd(start_nsqd: StartNsqd, tmp_path: Path, end: str) -> None:
    server = start_nsqd(tmp_path, max_bytes_per_file=10_000)
    server.publish_many(NAME, [message.body for message in MESSAGES])
    getattr(server, end)()
    with opened(tmp_path, **NSQD_OPTIONS) as queue:
        assert queue.depth == 1000
        stored = [nsqd.Message.decode(data) for data in rest(queue)]
    assert [message.body for message in stored] == [message.body for message in MESSAGES]


def test_nsqd_goes_on_with_a_topic_that_we_half_drained(start_nsqd: StartNsqd, tmp_path: Path) -> None:
    first = start_nsqd(tmp_path, max_bytes_per_file=10_000)
    first.publish_many(NAME, [message.body for message in MESSAGES])
    first.stop()
    with opened(tmp_path, **NSQD_OPTIONS) as queue:
        queue.get_many(500)
        queue.put(MESSAGES[0].encode())
    second = start_nsqd(tmp_path, max_bytes_per_file=10_000)
    second.publish(NAME, b"last")
    bodies = [message.body for message in second.consume(NAME, "archive", 502)]
    second.stop()
    assert bodies == [message.body for message in MESSAGES[500:]] + [MESSAGES[0].body, b"last"]
    assert second.complaints() == []


# --- go-diskqueue v1.0.0, which leaves a file behind the message that passes the limit --------------


@shapes
def test_an_older_go_drains_what_we_put_and_leaves_files_it_did_not_need_to_keep(
    go_1_0: GoPeer, tmp_path: Path, bodies: list[bytes]
) -> None:
    """It reads every message, and calls a file bad that it finds smaller than the limit, where it ends."""
    put(tmp_path, bodies)
    sizes = [len(content) for content in data_files(tmp_path).values()][:-1]
    report = go_1_0.get(tmp_path, NAME, max_bytes_per_file=ROLLING)
    assert report.bodies == bodies
    assert (report.depth_at_open, report.depth_at_close) == (len(bodies), 0)
    assert len(set_aside(tmp_path)) == sum(size <= ROLLING for size in sizes)


LARGE = [b"L" * 2000]


@pytest.mark.parametrize(
    "ours", [LARGE, [b"small", *LARGE], LARGE * 3], ids=["one", "behind another", "three"]
)
def test_an_older_go_goes_on_behind_a_message_larger_than_a_file(
    go_1_0: GoPeer, tmp_path: Path, ours: list[bytes]
) -> None:
    """Where metadata named a byte of that file it wrote on there, lost that message, and never ended."""
    put(tmp_path, ours)
    go_1_0.put(tmp_path, NAME, [b"theirs"], max_bytes_per_file=ROLLING)
    put(tmp_path, [b"ours"])
    report = go_1_0.get(tmp_path, NAME, max_bytes_per_file=ROLLING)
    assert report.bodies == [*ours, b"theirs", b"ours"]
    put(tmp_path, ours)
    assert go_1_0.get(tmp_path, NAME, max_bytes_per_file=ROLLING).bodies == ours
    assert drained(tmp_path) == []


def test_so_does_a_newer_one(go: GoPeer, tmp_path: Path) -> None:
    put(tmp_path, LARGE)
    go.put(tmp_path, NAME, [b"theirs"], max_bytes_per_file=ROLLING)
    report = go.get(tmp_path, NAME, max_bytes_per_file=ROLLING)
    assert (report.bodies, report.warnings) == ([*LARGE, b"theirs"], [])
    assert set_aside(tmp_path) == []


@shapes
def test_we_drain_what_an_older_go_put(go_1_0: GoPeer, tmp_path: Path, bodies: list[bytes]) -> None:
    go_1_0.put(tmp_path, NAME, bodies, max_bytes_per_file=ROLLING)
    assert drained(tmp_path) == bodies
    assert set_aside(tmp_path) == []
