# A little of what `make torture` does; and that its rigs bite.

from __future__ import annotations

import gc
import json
import random
from pathlib import Path

import pytest

from tests.crash.mutations import Mutation
from tests.torture import toys
from tests.torture.__main__ import main as torture
from tests.torture.disk import Act, DiskModel
from tests.torture.judging import Tally, judge
from tests.torture.leaks import POOLED, SUBJECTS, Sample, grown, growth, most_owed, run
from tests.torture.messages import message, number_of
from tests.torture.reporting import broken
from tests.torture.rigs import RIGS, Bench
from tests.torture.systems import SYSTEMS, System
from tests.torture.tracing import Ran, can_trace

OURS = [name for name, system in SYSTEMS.items() if system.is_ours]

traced = pytest.mark.skipif(not can_trace(), reason="strace is not here, or may not attach")


def rigged(system: System, place: str, rig: str, room: Path, depth: int) -> Tally:
    bench = Bench(system, place, room, depth, seed=1)
    with bench.tamed:
        return RIGS[rig](bench)


# --- ours -------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@traced
@pytest.mark.slow
@pytest.mark.parametrize("name", OURS)
def test_ours_keeps_its_promises_in_a_few_cases_of_every_rig(tmp_path: Path, name: str) -> None:
    system = SYSTEMS[name]
    bench = Bench(system, name, tmp_path, 2, seed=1)
    with bench.tamed:
        for rig in ("kill", "power", "posix", "errors", "rot"):
            tally = RIGS[rig](bench)
            assert tally.cases
            assert broken(system, rig, tally) == [], tally.examples


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("name", SUBJECTS)
def test_nothing_grows_with_the_messages(name: str) -> None:
    gc.collect()  # what earlier tests have left open is not counted
    samples = run(name, 40_000)
    more = growth(samples)
    assert grown(samples) == {}
    assert more["owed"] <= most_owed(name)
    assert more["threads"] <= POOLED


# --- the rigs bite ----------------------------------------------------------------------------------


@pytest.mark.exhaustive
@traced
@pytest.mark.slow
@pytest.mark.parametrize(
    "toy, rig, is_caught",
    [
        ("SOUND", "kill", False),
        ("SOUND", "power", False),
        ("SOUND", "posix", False),
        ("LAZY", "kill", False),
        ("LAZY", "power", True),
        ("NAMELESS", "posix", True),
        ("TALKATIVE", "kill", True),
        ("TALKATIVE", "power", True),
    ],
)
def test_who_acknowledges_too_early_is_caught_and_who_does_not_is_not(
    tmp_path: Path, toy: str, rig: str, is_caught: bool
) -> None:
    tally = rigged(getattr(toys, toy), f"tests.torture.toys:{toy}", rig, tmp_path, depth=8)
    assert tally.cases
    assert bool(tally.lost or tally.altered) == is_caught, tally.examples


@pytest.mark.exhaustive
@traced
@pytest.mark.slow
@pytest.mark.parametrize("toy, is_caught", [("SOUND", False), ("SILENT", True)])
def test_a_sync_that_fails_in_silence_is_caught(tmp_path: Path, toy: str, is_caught: bool) -> None:
    tally = rigged(getattr(toys, toy), f"tests.torture.toys:{toy}", "errors", tmp_path, depth=30)
    assert bool(tally.unreported) == is_caught, tally.examples


# --- the judge --------------------------------------------------------------------------------------


def judged(said: list[tuple[str, str]], *bodies: bytes) -> Tally:
    tally = Tally()
    judge(tally, said, Ran([], 0, list(bodies)), range(10), "here")
    return tally


def test_what_was_acknowledged_and_does_not_come_is_lost() -> None:
    assert judged([("a", "0"), ("a", "1")], message(0)).lost == 1


def test_what_was_tried_and_not_acknowledged_may_come_or_not() -> None:
    assert judged([("a", "0")], message(0), message(1)).altered == 0
    assert judged([("a", "0")], message(0)).lost == 0


def test_what_was_taken_need_not_come_and_is_counted_where_it_does() -> None:
    said = [("a", "0"), ("b", ""), ("t", "0")]
    assert judged(said).lost == 0
    assert judged(said, message(0)).again == 1


def test_who_was_killed_while_taking_may_have_one() -> None:
    assert judged([("a", "0"), ("a", "1"), ("b", "")], message(1)).lost == 0
    assert judged([("a", "0"), ("a", "1"), ("b", "")]).lost == 1


def test_other_bytes_and_numbers_that_nobody_tried_are_altered() -> None:
    assert judged([], message(3)[:-1] + b"x", message(11), b"").altered == 3
    assert number_of(message(5)) == 5


def test_the_order_is_that_of_the_puts() -> None:
    assert judged([], message(2), message(1)).unordered == 1


def test_an_example_does_not_say_where_the_case_lay() -> None:
    tally = Tally()
    tally.tell(f"{'long ' * 45}: /dev/shm/tmpabcdefgh/case-12/data/log/0000.log is damaged")
    assert "/dev" not in tally.examples[0]
    assert tally.examples[0].endswith(": data/log/0000")


# --- stable storage ------------------------------------------------------------------------------------


def test_what_was_synced_is_on_every_disk_and_the_rest_on_some() -> None:
    acts = [
        Act("create", "a", 0),
        Act("data", file=0, data=b"durable"),
        Act("sync", file=0),
        Act("sync", ""),
        Act("data", file=0, offset=7, data=b"not"),
    ]
    found = {DiskModel(acts, "posix").at(5, random.Random(seed)).get("a") for seed in range(60)}
    assert {b"durable", b"durablenot", b"durable\0\0\0"} <= found
    assert all(content is not None and content.startswith(b"durable") for content in found)


def test_a_name_is_durable_with_its_directory_in_posix_and_with_any_sync_in_a_journal() -> None:
    acts = [Act("create", "a", 0), Act("sync", file=0)]
    assert {len(DiskModel(acts, "posix").at(2, random.Random(seed))) for seed in range(30)} == {0, 1}
    assert {len(DiskModel(acts, "journal").at(2, random.Random(seed))) for seed in range(30)} == {1}


# --- the command ------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@traced
@pytest.mark.slow
def test_the_command_writes_a_table_and_ends_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert torture(["--depth", "2", "--only", "queue", "--only", "clock", "--out", str(tmp_path)]) == 0
    assert "| queue | 0 |" in capsys.readouterr().out
    told = json.loads((tmp_path / "torture.json").read_text())
    assert told["systems"]["queue"]["rigs"]["clock"]["cases"] == 2
    assert "| queue | clock | 2 |" in (tmp_path / "torture.md").read_text()


def test_memory_that_grows_is_seen() -> None:
    samples = [Sample(number, {}, 0, 1, number << 20) for number in range(10)]
    assert growth(samples)["memory"] > 0


def test_one_file_that_stays_open_is_seen_and_told_of_what_kind_it_is() -> None:
    samples = [Sample(number, {"N.data": 2, "N.index": 2 + (number > 7)}, 4, 1, 0) for number in range(10)]
    assert grown(samples) == {"N.index": 1}
    assert growth(samples)["descriptors"] == 1


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_stream_that_does_not_close_what_it_left_is_caught() -> None:
    with Mutation("diskq.storage.barrier", "close_all(fs, self.closing)", "pass").installed():
        assert grown(run("stream", 40_000))
