# A conversion after every crash there is. Law: under the target's name there is nothing, or all of it; once
# it has returned, all of it; and whatever was left beside, the next conversion takes away.

from __future__ import annotations

from collections.abc import Callable

import pytest

from diskq.testing import CrashFS
from diskq.tools import placing
from diskq.tools.convert import targets
from diskq.tools.convert.conversion import convert
from diskq.tools.convert.field_mapping import ConvertOptions, Format
from diskq.tools.convert.sources import LinesFile
from diskq.tools.entries import Entry, EntryBatch
from diskq.tools.json_lines import to_lines
from tests.crash.harness import PromiseBroken, Witness, run_cuts
from tests.crash.mutations import Mutation
from tests.sampling import first
from tests.tools.stores import at, found

MESSAGES = [Entry(b"%03d" % number * 50, b"k", 1000 + number, queue="q") for number in range(20)]
KINDS: tuple[Format, ...] = ("nsq", "triplet", "sej", "jsonl")


def options(to: Format) -> ConvertOptions:
    return ConvertOptions(lossy=True, partition_count=1 if to == "triplet" else None)


def conversion(to: Format) -> Callable[[CrashFS, Witness], None]:
    """A workload: messages, and their conversion."""

    def workload(fs: CrashFS, witness: Witness) -> None:
        fs.make_directory_durably("/d")
        fs.write_durably("/d/from", to_lines(EntryBatch.of(MESSAGES)))
        convert(LinesFile("/d/from"), "/d/to", to, options(to), fs=fs)
        witness.synced.append("/d/to")

    return workload


def nothing_or_all(to: Format) -> Callable[[str, CrashFS, Witness], None]:
    def check(outcome: str, fs: CrashFS, witness: Witness) -> None:
        if fs.size_of("/d/to") is None:
            assert not witness.synced
            convert(LinesFile("/d/from"), "/d/to", to, options(to), fs=fs)
            assert sorted(fs.list_directory("/d")) == ["from", "to"]
        assert found(fs, at(fs, to, "/d/to")) == [Entry(message.value) for message in MESSAGES]

    return check


def crash_everywhere(*kinds: Format) -> int:
    return sum(run_cuts(conversion(to), nothing_or_all(to)).cuts for to in kinds)


@pytest.mark.parametrize("to", first(1, KINDS))
def test_there_is_nothing_or_all_of_it(to: Format) -> None:
    assert crash_everywhere(to) > 5


@pytest.mark.parametrize(
    "mutation",
    [
        Mutation(targets.__name__, "Barrier(files=(handle,), directories", "Barrier(files=(), directories"),
        Mutation(
            placing.__name__,
            'self.path = join(directory_of(self._target), f".{name}.converting")',
            "self.path = self._target",
        ),
        Mutation(
            placing.__name__,
            "            remove_tree(fs, self.path)\n            if not",
            "            if not",
        ),
        Mutation(
            "diskq.storage.barrier",
            "for path in dict.fromkeys(directory_of(target) for _, target in self.installs):",
            "for path in ():",
        ),
    ],
    ids=["unsynced", "in-place", "unswept", "unsynced-name"],
)
def test_a_weaker_conversion_is_caught(mutation: Mutation) -> None:
    with mutation.installed(), pytest.raises((PromiseBroken, AssertionError, OSError)):
        crash_everywhere("jsonl", "sej")
