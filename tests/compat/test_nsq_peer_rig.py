"""The rig judged without diskq: the Go program and nsqd against the oracle.

Where these fail, test_nsq_interop.py says nothing about diskq.
"""

import subprocess
from pathlib import Path

import pytest

from tests.compat import golang, nsqd
from tests.compat.conftest import StartNsqd, built
from tests.compat.go_peer import GoPeer, GoPeerError
from tests.compat.golang import GoUnavailableError
from tests.reference import nsq_oracle as oracle
from tests.reference.nsq_oracle import Meta

pytestmark = pytest.mark.interop

NAME = "events"
BODIES = [bytes([n % 256]) * (n % 61) for n in range(300)]  # every 61st is empty


# --- the Go program writes, the oracle reads ------------------------------------------------------


def test_go_puts_and_the_oracle_reads_them(go: GoPeer, tmp_path: Path) -> None:
    report = go.put(tmp_path, NAME, BODIES)
    assert (report.count, report.depth, report.warnings) == (300, 300, [])
    assert oracle.read_dir(tmp_path, NAME) == BODIES


def test_go_rolls_where_the_oracle_rolls(go: GoPeer, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    oracle.write_dir(ours, NAME, BODIES, segment_size=500)
    go.put(theirs, NAME, BODIES, max_bytes_per_file=500)
    assert contents(theirs) == contents(ours)
    assert oracle.data_numbers(ours, NAME) == list(range(21))


def test_an_abandoned_queue_has_its_messages_and_no_metadata(go: GoPeer, tmp_path: Path) -> None:
    go.put(tmp_path, NAME, BODIES, abandon=True, sync_timeout=3600)
    assert not oracle.meta_path(tmp_path, NAME).exists()
    assert oracle.read_files(tmp_path, NAME) == BODIES


def test_an_abandoned_queue_has_the_metadata_of_its_last_sync(go: GoPeer, tmp_path: Path) -> None:
    go.put(tmp_path, NAME, [b"12345678"] * 25, abandon=True, sync_every=10, sync_timeout=3600)
    assert oracle.read_meta(tmp_path, NAME) == Meta(20, 0, 0, 0, 240)
    assert oracle.read_files(tmp_path, NAME) == [b"12345678"] * 25


def test_no_close_sync_leaves_the_metadata_alone(go: GoPeer, tmp_path: Path) -> None:
    go.put(tmp_path, NAME, [b"one"])
    go.put(tmp_path, NAME, [b"two"], no_close_sync=True)
    assert oracle.read_meta(tmp_path, NAME).depth == 1
    assert oracle.read_files(tmp_path, NAME) == [b"one", b"two"]


# --- the oracle writes, the Go program reads ------------------------------------------------------


def test_go_drains_what_the_oracle_wrote(go: GoPeer, tmp_path: Path) -> None:
    oracle.write_dir(tmp_path, NAME, BODIES, segment_size=500, first_file=7)
    report = go.get(tmp_path, NAME, max_bytes_per_file=500)
    assert report.bodies == BODIES
    assert (report.depth_at_open, report.depth_at_close) == (300, 0)
    assert (report.stalled, report.warnings) == (False, [])


def test_go_resumes_where_the_oracle_stopped(go: GoPeer, tmp_path: Path) -> None:
    oracle.write_dir(tmp_path, NAME, BODIES, segment_size=500)
    oracle.consume(tmp_path, NAME, 123)
    assert oracle.read_dir(tmp_path, NAME) == BODIES[123:]
    assert go.get(tmp_path, NAME).bodies == BODIES[123:]


def test_go_takes_a_count_and_leaves_the_rest(go: GoPeer, tmp_path: Path) -> None:
    oracle.write_dir(tmp_path, NAME, BODIES, segment_size=500)
    report = go.get(tmp_path, NAME, count=123)
    assert report.bodies == BODIES[:123]
    assert report.depth_at_close == 177
    assert report.files == {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert oracle.read_dir(tmp_path, NAME) == BODIES[123:]


def test_go_reads_no_further_than_the_third_line_of_the_metadata(go: GoPeer, tmp_path: Path) -> None:
    oracle.write_dir(tmp_path, NAME, BODIES)
    with oracle.meta_path(tmp_path, NAME).open("ab") as meta:
        meta.write(b"a line of somebody else's\n")
    report = go.get(tmp_path, NAME)
    assert (report.bodies, report.warnings) == (BODIES, [])


def test_a_drain_ends_though_the_depth_is_wrong(go: GoPeer, tmp_path: Path) -> None:
    oracle.write_meta(tmp_path, NAME, Meta(5, 0, 0, 0, 0))
    report = go.get(tmp_path, NAME, idle=10, stall=50)
    assert (report.bodies, report.depth_at_close, report.stalled) == ([], 5, True)


def test_go_tells_what_it_could_not_read(go: GoPeer, tmp_path: Path) -> None:
    oracle.write_dir(tmp_path, NAME, [b"whole", b"torn"])
    path = oracle.data_path(tmp_path, NAME, 0)
    path.write_bytes(path.read_bytes()[:-1])
    report = go.get(tmp_path, NAME)
    assert report.bodies == [b"whole"]
    assert any("saving bad file" in line for line in report.warnings)
    assert path.name + ".bad" in report.files


# --- looking, emptying, refusing ------------------------------------------------------------------


def test_peek_and_info_leave_the_directory_alone(go: GoPeer, tmp_path: Path) -> None:
    oracle.write_dir(tmp_path, NAME, BODIES, segment_size=500)
    before = contents(tmp_path)
    assert go.peek(tmp_path, NAME, count=200).bodies == BODIES[:200]
    assert go.info(tmp_path, NAME).depth == 300
    assert contents(tmp_path) == before


def test_the_peer_is_the_release_that_go_mod_names(go: GoPeer, tmp_path: Path) -> None:
    assert go.info(tmp_path, NAME).version == "v1.1.0"


def test_empty_leaves_nothing_to_read(go: GoPeer, tmp_path: Path) -> None:
    oracle.write_dir(tmp_path, NAME, BODIES, segment_size=500)
    report = go.empty(tmp_path, NAME)
    assert (report.depth_at_open, report.depth_at_close) == (300, 0)
    assert oracle.read_dir(tmp_path, NAME) == []


def test_a_refused_message_is_an_error_of_one_line(go: GoPeer, tmp_path: Path) -> None:
    refusal = r"^gopeer: nsq: put: message 1: invalid message write size \(4\).*$"
    with pytest.raises(GoPeerError, match=refusal):
        go.put(tmp_path, NAME, [b"ok", b"long"], max_msg=3)
    assert oracle.read_dir(tmp_path, NAME) == [b"ok"]


def test_an_unknown_flag_is_an_error_of_one_line(go: GoPeer, tmp_path: Path) -> None:
    with pytest.raises(GoPeerError, match=r"^gopeer: nsq: info: flag provided but not defined: -color$"):
        go.info(tmp_path, NAME, color="blue")


@pytest.mark.parametrize("command", ["put", "get", "peek", "empty", "info", "bench put", "bench latency"])
def test_every_flag_has_help(go: GoPeer, command: str) -> None:
    asked = [str(go.program), "nsq", *command.split(), "--help"]
    lines = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    flags = [n for n, line in enumerate(lines) if line.startswith("  -")]
    assert flags
    assert all(lines[n + 1].startswith("    \t") for n in flags)


@pytest.mark.parametrize("what", ["put", "get", "putget", "latency", "syncput"])
def test_bench_reports_its_median_round_and_clears_up(go: GoPeer, tmp_path: Path, what: str) -> None:
    report = go.bench(what, tmp_path, count=50, size=20, repeat_open=3)
    assert report["peer"] == "go-diskqueue v1.1.0"
    assert (report["bench"], report["count"], report["size"]) == (what, 50, 20)
    assert report["seconds"] == sorted(each["seconds"] for each in report["rounds"])[1]
    assert report["rate"] == pytest.approx(50 / report["seconds"])
    assert report["cpu_seconds"] >= 0
    assert ("p99_us" in report) == (what == "latency")
    assert list(tmp_path.iterdir()) == []


def test_bench_shares_the_work_among_producers_and_consumers(go: GoPeer, tmp_path: Path) -> None:
    report = go.bench("putget", tmp_path, count=50, producers=7, consumers=3)
    assert (report["options"]["producers"], report["options"]["consumers"]) == (7, 3)
    assert report["warnings"] == []


# --- without Go -----------------------------------------------------------------------------------


def unavailable() -> None:
    raise GoUnavailableError("go is not installed")


def test_without_go_a_test_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISKQ_REQUIRE_GO", raising=False)
    with pytest.raises(pytest.skip.Exception, match="go is not installed"):
        built(unavailable)


def test_where_go_is_required_a_test_fails_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISKQ_REQUIRE_GO", "1")
    with pytest.raises(pytest.fail.Exception, match="go is not installed"):
        built(unavailable)


def test_a_machine_without_go_is_known_by_its_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GoUnavailableError, match="go is not installed"):
        GoPeer.build()


def test_a_module_that_cannot_be_fetched_is_no_error_of_ours(
    go: GoPeer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(golang, "CACHE", tmp_path / "programs")
    monkeypatch.setenv("GOMODCACHE", str(tmp_path / "modules"))
    monkeypatch.setenv("GOPROXY", "off")
    with pytest.raises(GoUnavailableError, match=r"no modules for gopeer: .*go-diskqueue"):
        GoPeer.build()


# --- nsqd -----------------------------------------------------------------------------------------


def test_nsqd_keeps_a_topic_without_a_channel_in_files_the_oracle_reads(
    start_nsqd: StartNsqd, tmp_path: Path
) -> None:
    bodies = [b"message %d" % n for n in range(1000)]
    server = start_nsqd(tmp_path, max_bytes_per_file=10_000)
    server.publish(NAME, bodies[0])
    server.publish_many(NAME, bodies[1:])
    server.stop()
    stored = [nsqd.Message.decode(data) for data in oracle.read_dir(tmp_path, NAME)]
    assert [message.body for message in stored] == bodies
    assert {message.attempts for message in stored} == {0}
    assert len({message.id for message in stored}) == 1000
    assert len(oracle.data_numbers(tmp_path, NAME)) == 5


def test_a_killed_nsqd_leaves_every_message_it_acknowledged(start_nsqd: StartNsqd, tmp_path: Path) -> None:
    bodies = [b"message %d" % n for n in range(1000)]
    server = start_nsqd(tmp_path, sync_timeout="1h")
    server.publish_many(NAME, bodies)
    server.kill()
    assert not oracle.meta_path(tmp_path, NAME).exists()
    assert [nsqd.Message.decode(data).body for data in oracle.read_files(tmp_path, NAME)] == bodies


@pytest.mark.parametrize("queue", ["events", "events:archive"])
def test_nsqd_delivers_what_the_oracle_wrote(start_nsqd: StartNsqd, tmp_path: Path, queue: str) -> None:
    began = 1_700_000_000_000_000_000
    messages = [nsqd.Message(began + n, 0, b"%016x" % n, b"body %d" % n) for n in range(1000)]
    oracle.write_dir(tmp_path, queue, [message.encode() for message in messages], segment_size=10_000)
    nsqd.write_metadata(tmp_path, {"events": ["archive"]})
    server = start_nsqd(tmp_path)
    delivered = server.consume("events", "archive", 1000)
    assert delivered == [message._replace(attempts=1) for message in messages]
    server.stop()
    assert server.complaints() == []
    assert oracle.read_dir(tmp_path, "events") == []
    assert oracle.read_dir(tmp_path, "events:archive") == []


def test_nsqd_keeps_what_was_not_consumed_at_its_stop(start_nsqd: StartNsqd, tmp_path: Path) -> None:
    server = start_nsqd(tmp_path)
    server.create_channel(NAME, "archive")
    server.publish_many(NAME, [b"%d" % n for n in range(10)])
    assert [message.body for message in server.consume(NAME, "archive", 4)] == [b"0", b"1", b"2", b"3"]
    server.stop()
    left = oracle.read_dir(tmp_path, "events") + oracle.read_dir(tmp_path, "events:archive")
    assert sorted(nsqd.Message.decode(data).body for data in left) == [b"%d" % n for n in range(4, 10)]


def test_nsqd_that_cannot_start_says_why(start_nsqd: StartNsqd, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="nsqd did not start"):
        start_nsqd(tmp_path / "missing")


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}
