# A table after every crash there is. Law: a file under its name is whole, and what an update has returned
# stays; table and log never contradict each other, and together have each message once.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from diskq.engine.journal.journal import Journal
from diskq.engine.stream.stream import Stream
from diskq.storage import barrier
from diskq.tables import compaction, names, sources, updating
from diskq.testing import CrashFS
from tests.crash.harness import KILL, PromiseBroken, run_cuts
from tests.crash.mutations import Mutation
from tests.sampling import IS_FULL, stride
from tests.tables.logs import JOURNAL, STREAM, Row, in_log, in_table, journal, read, stream, table

pytestmark = pytest.mark.usefixtures("quiet_log")


@dataclass
class Promised:
    """What the workload knows."""

    attempted: dict[tuple[int, int], set[bytes]] = field(default_factory=dict)
    """By partition and offset: the values that were given to it. A power cut may free an offset."""
    ends: dict[int, int] = field(default_factory=dict)
    """By partition: up to where an update said that the table has everything."""


def workload(path: str) -> Callable[[CrashFS, Promised], None]:
    """A producer and an updater of its table, in turn: some messages are synced, and some are not."""

    def its_workload(fs: CrashFS, witness: Promised) -> None:
        for life in range(2):
            its = table(fs, path, keep_replaced=5.0 * life)
            with journal(fs) if path == JOURNAL else stream(fs, partition_count=1) as log:
                for number in range(24):
                    value = b"life %d, value %d " % (life, number) * 3
                    witness.attempted.setdefault((0, log_end(log)), set()).add(value)
                    log.append(value, b"key", 1000 + number, durability="synced" if number == 9 else None)
                    if number % 12 == 11:
                        its.update()
                        witness.ends = its.ends()
                        log.sync()
            its.update()
            witness.ends = its.ends()
            its.compact()

    return its_workload


def log_end(log: Journal | Stream) -> int:
    return log.next_offset if isinstance(log, Journal) else log.next_offsets[0]


def check(path: str) -> Callable[[str, CrashFS, Promised], None]:
    def whole(outcome: str, fs: CrashFS, witness: Promised) -> None:
        its = table(fs, path)
        judge(in_table(its), witness)
        assert all(its.ends()[partition] >= end for partition, end in witness.ends.items())
        if outcome == KILL and its.files():
            judge(read(fs, path, table=its), witness)
        # The next producer, and what it appends: messages that were lost get their offsets again.
        with journal(fs) if path == JOURNAL else stream(fs, partition_count=1) as log:
            assert all(log_end(log) >= end for end in its.ends().values())
            for number in range(12):
                log.append(b"after the crash, %d " % number * 4, b"key", 5000 + number)
        # Of messages that were not synced a power cut may have left the index alone: the log has a gap then.
        its = table(fs, path, allow_gaps=outcome != KILL)
        its.update()
        found = in_log(fs, path)
        assert in_table(its) == [row for row in found if row[1] < its.ends()[row[0]]]
        assert read(fs, path, table=its, allow_gaps=outcome != KILL) == found
        its.compact()
        assert read(fs, path, table=its, allow_gaps=outcome != KILL) == found
        assert fs.list_directory(f"{its.directory}/.diskq") == ["table.lock"]

    return whole


def judge(found: list[Row], witness: Promised) -> None:
    """Each message once, in the order of offsets, from the first one on, and as it was given."""
    assert [row[1] for row in found] == list(range(len(found)))
    for partition, offset, _, _, value, _ in found:
        assert value in witness.attempted[partition, offset]


def crash_everywhere(path: str, every: int) -> int:
    return run_cuts(workload(path), check(path), every=every, witness=Promised).cuts


@pytest.mark.sampled
@pytest.mark.parametrize("path", [STREAM, JOURNAL])
def test_table_and_log_have_each_message_once_wherever_the_power_fails(path: str) -> None:
    assert crash_everywhere(path, 1 if IS_FULL else stride(2)) > 5


MUTATIONS = {
    "unsynced": Mutation(
        updating.__name__, "barrier = Barrier(files=(handle,), installs", "barrier = Barrier(installs"
    ),
    "unsynced-name": Mutation(
        barrier.__name__,
        "for path in dict.fromkeys(directory_of(target) for _, target in self.installs):",
        "for path in ():",
    ),
    "too-early": Mutation(
        sources.__name__,
        "if point is not None and point.base > segment.first:",
        "if point is not None and point.base >= segment.first:",
    ),
    "removed-first": Mutation(
        compaction.__name__,
        "                    file, its_size = install(table, target)",
        "                    Barrier(removals=tuple(old.path for old in run)).execute(fs)\n"
        "                    file, its_size = install(table, target)",
    ),
    "superseded-too": Mutation(
        names.__name__, "            superseded.append(file)", "            files.append(file)"
    ),
    "leftovers": Mutation(
        names.__name__,
        "return [join(self.private, name) for name in names if _TEMPORARY.fullmatch(name)]",
        "return []",
    ),
}


@pytest.mark.parametrize("mutation", [pytest.param(each, id=name) for name, each in MUTATIONS.items()])
def test_a_weaker_table_is_caught(mutation: Mutation) -> None:
    with mutation.installed(), pytest.raises((PromiseBroken, AssertionError, OSError)):
        crash_everywhere(STREAM, 3)
