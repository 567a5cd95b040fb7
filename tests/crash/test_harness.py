# The harness, on a toy. Law: a right store passes, each wrong one is caught, and what was caught can be
# repeated with one call.

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import pytest

from diskq.testing import CrashFS
from tests.crash.harness import (
    CAME_BACK,
    Crash,
    PromiseBroken,
    Witness,
    enumerate_cuts,
    outcomes,
    repeat,
    run_cuts,
)
from tests.crash.mutations import Mutation
from tests.crash.toy_store import ToyStore


def append_three_lines(fs, witness):
    fs.make_directory_durably("/toy")
    store = ToyStore(fs)
    for line in (b"one", b"two", b"three"):
        witness.attempted.append(line)
        store.append(line)
        witness.synced.append(line)
    store.close()


def lines_are_the_promised_ones(outcome, fs, witness):
    store = ToyStore(fs)
    lines = store.lines
    assert lines[: len(witness.synced)] == witness.synced, outcome
    assert lines == witness.attempted[: len(lines)], outcome
    store.close()


TOY = "tests.crash.toy_store"
BREAKAGES = [
    Mutation(TOY, "        self.fs.sync_files((self.data,))\n", ""),
    Mutation(TOY, "        self.fs.sync_files((temporary,))\n", ""),
    Mutation(TOY, '        self.fs.sync_directory("/toy")\n', ""),
    Mutation(TOY, '"/toy/pointer.tmp"', '"/toy/pointer"'),
    Mutation(TOY, "self.point_at(self.end)", "self.point_at(self.end + 1)"),
    Mutation(TOY, "DIGITS = 4", "DIGITS = 1"),
]
UNSAFE_RECOVERY = Mutation(
    TOY,
    "            fs.close(pointer)\n",
    "            fs.close(pointer)\n            fs.unlink(POINTER)\n            self.point_at(self.end)\n",
)

# --- the toy ----------------------------------------------------------------------------------


def test_a_right_store_passes_every_crash():
    report = run_cuts(append_three_lines, lines_are_the_promised_ones, seeds=5, again=2)
    assert report.operations == 26
    assert report.cuts == 27
    assert report.crashes > 27 * 6


@pytest.mark.parametrize("breakage", BREAKAGES, ids=str)
def test_a_broken_store_is_caught(breakage):
    with breakage.installed(), pytest.raises(PromiseBroken):
        run_cuts(append_three_lines, lines_are_the_promised_ones, seeds=5)


def test_a_recovery_that_must_not_be_interrupted_is_caught_by_crashing_it_again():
    with UNSAFE_RECOVERY.installed():
        run_cuts(append_three_lines, lines_are_the_promised_ones)
        with pytest.raises(PromiseBroken) as caught:
            run_cuts(append_three_lines, lines_are_the_promised_ones, again=2)
    assert caught.value.crash.again is not None


# --- what a failure says ----------------------------------------------------------------------


@pytest.mark.parametrize("breakage, again", [(BREAKAGES[0], 0), (UNSAFE_RECOVERY, 2)], ids=["once", "twice"])
def test_a_failure_names_the_call_that_repeats_it(breakage, again):
    with breakage.installed():
        with pytest.raises(PromiseBroken) as caught:
            run_cuts(append_three_lines, lines_are_the_promised_ones, again=again)
        call = str(caught.value).splitlines()[-1].split("again: ")[1]
        assert call.startswith("repeat(append_three_lines, lines_are_the_promised_ones, cut=")
        with pytest.raises(PromiseBroken) as repeated:
            eval(call, {**globals(), "repeat": repeat})
        assert str(repeated.value) == str(caught.value)
    eval(call)  # passes: the breakage is gone


def test_a_failure_shows_the_last_operations_of_the_disk():
    with BREAKAGES[0].installed(), pytest.raises(PromiseBroken) as caught:
        run_cuts(append_three_lines, lines_are_the_promised_ones)
    assert "<- power cut instead of this" in str(caught.value)
    assert "rename /toy/pointer.tmp to /toy/pointer" in str(caught.value)


def test_a_check_that_raises_anything_is_a_broken_promise():
    def refuse(outcome, fs, witness):
        raise OSError("cannot open")

    with pytest.raises(PromiseBroken, match="cannot open"):
        run_cuts(append_three_lines, refuse)


def test_a_workload_that_fails_by_itself_is_not_blamed_on_the_power():
    def fail(fs, witness):
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        run_cuts(fail, lines_are_the_promised_ones)


# --- which crashes are made -------------------------------------------------------------------


def test_the_dead_may_leave_in_groups():
    def in_a_nursery(fs, witness):
        try:
            append_three_lines(fs, witness)
        except BaseException as last_words:
            raise BaseExceptionGroup("tasks", [last_words]) from None

    assert run_cuts(in_a_nursery, lines_are_the_promised_ones).cuts == 27


def test_cuts_can_be_counted_beforehand():
    assert enumerate_cuts(lambda fs: append_three_lines(fs, Witness())) == 26


@pytest.mark.parametrize(
    "choice, cuts",
    [({}, 27), ({"every": 10}, 4), ({"limit": 5}, 5), ({"limit": 1}, 1), ({"every": 2, "limit": 99}, 14)],
)
def test_fewer_cuts_can_be_asked_for_and_the_end_is_always_among_them(choice, cuts):
    ends = []

    def note_the_end(outcome, fs, witness):
        ends.append(len(witness.synced))

    assert run_cuts(append_three_lines, note_the_end, **choice).cuts == cuts
    assert ends[-1] == 3


def test_the_outcomes_are_a_kill_and_a_power_cut_for_each_seed():
    fs = CrashFS()
    append_three_lines(fs, Witness())
    assert [name for name, _ in outcomes(fs, range(2))] == ["kill", "power cut", "power cut"]


def test_two_crashes_of_which_one_was_a_power_cut_are_checked_as_a_power_cut():
    seen = set()

    def note(outcome, fs, witness):
        seen.add((outcome, fs.identity().boot_id))
        ToyStore(fs)

    run_cuts(append_three_lines, note, again=3)
    assert {boot for outcome, boot in seen if outcome == "kill"} == {"", "boot-1"}
    assert {boot for outcome, boot in seen if outcome == "power cut"} == {"boot-2", "boot-3"}
    assert {boot for outcome, boot in seen if outcome == CAME_BACK} == {"", "boot-1"}


def test_after_a_power_cut_there_is_another_boot_id_or_the_same_or_none():
    seen: Counter[str] = Counter()

    def note(outcome, fs, witness):
        if outcome != "kill":
            seen[fs.identity().boot_id] += 1
        ToyStore(fs)

    run_cuts(append_three_lines, note, seeds=2)
    assert seen == {"": 18, "boot-1": 18, "boot-2": 18}
    seen.clear()
    run_cuts(append_three_lines, note, seeds=3)
    assert seen == {"": 27, "boot-1": 27, "boot-2": 27}


# --- mutations --------------------------------------------------------------------------------


def pointer_at_seven() -> bytes:
    fs = CrashFS()
    fs.make_directory_durably("/toy")
    ToyStore(fs).point_at(7)
    return fs.read("/toy/pointer")


def test_a_mutation_is_taken_back_whatever_happens():
    with suppress(ZeroDivisionError), Mutation(TOY, "DIGITS = 4", "DIGITS = 2").installed():
        assert pointer_at_seven() == b"07"
        raise ZeroDivisionError
    assert pointer_at_seven() == b"0007"


def test_a_mutation_reaches_objects_that_are_there_already():
    fs = CrashFS()
    fs.make_directory_durably("/toy")
    store = ToyStore(fs)
    store.append(b"one")
    with Mutation(TOY, ".splitlines()", ".splitlines(keepends=True)").installed():
        assert store.lines == [b"one\n"]
    assert store.lines == [b"one"]


def test_a_mutation_reaches_the_defaults_of_a_dataclass():
    with Mutation("tests.crash.harness", "seed: int | None = None\n    ", "seed: int = 7\n    ").installed():
        assert Crash(1, "kill").seed == 7
    assert Crash(1, "kill").seed is None


@pytest.mark.parametrize(
    "old, new, complaint",
    [
        ("no such line", "", "0 times, not once"),
        ("self.end", "", "times, not once"),
        ("small enough", "smaller", "no function and no constant would change"),
    ],
)
def test_a_mutation_that_would_prove_nothing_is_refused(old, new, complaint):
    with pytest.raises(ValueError, match=complaint), Mutation(TOY, old, new).installed():
        pass
