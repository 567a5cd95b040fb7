# Files of the peers, and damage done to them: each directory has the verdict that its manifest's words ask
# for. Law: the verdicts are written here, one by one, and not computed from what is found.

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from diskq.tools.stores import stores_at
from diskq.tools.verify.verification import verify

GOLDEN = Path(__file__).parents[2] / "golden"

# Format, case, and of each thing in it: verdict, messages, lost.
EXPECTED = """
nsq basic                clean 31 0
nsq corrupt_len          damaged 34 6
nsq drained              clean 0 0
nsq no_meta              torn 5 0
nsq partial              clean 18 0
nsq rotated              clean 31 0
nsq stale_meta           clean 12 0
nsq two_queues           clean 8 0  clean 4 0
diskq defaults           clean 7 0
diskq empty_active       clean 10 0
diskq empty_payload      clean 4 0
diskq live_owner         clean 5 0
diskq single_msg_segments  clean 5 0
diskq three_parts        clean 60 0
diskq torn_data          torn 6 0
diskq torn_index         torn 6 0
diskq vacuumed           clean 10 0
sej empty_middle_file    damaged 15 10
sej live_lock            clean 3 0
sej segments             clean 44 0
sej single               clean 9 0
sej torn_first           torn 10 0
sej torn_tail            torn 24 0
"""

OF_SHARDS = 10

# Of a store the manifest says what diskq makes of it. What is only a warning there is nothing wrong here,
# unless the warning is that whole commands are dropped.
TORN = {"tail_truncated", "segment_reinitialised"}
CASES = {
    case["id"]: case for case in json.loads((GOLDEN / "taskflux" / "manifest.json").read_text())["cases"]
}


def rows() -> list[tuple[str, str, list[tuple[str, int, int]]]]:
    found = []
    for line in EXPECTED.strip().splitlines():
        format_, case, *words = line.split()
        stores = zip(words[::3], words[1::3], words[2::3], strict=True)
        found.append((format_, case, [(word, int(messages), int(lost)) for word, messages, lost in stores]))
    return found


@pytest.mark.parametrize("format_, case, expected", rows(), ids=[f"{row[0]}-{row[1]}" for row in rows()])
def test_what_a_peer_left_has_its_verdict(format_, case, expected):
    found = [verify(store) for store in stores_at(GOLDEN / format_ / case / "data")]
    assert [(each.verdict, each.messages, each.lost) for each in found] == expected


def test_every_case_is_in_the_table():
    there = {(path.parent.parent.name, path.parent.name) for path in GOLDEN.glob("[dns]*/*/manifest.json")}
    assert there == {(format_, case) for format_, case, _ in rows()} | {("sej", "shards")}


def test_a_root_of_journals_is_looked_at_journal_by_journal():
    found = [verify(store) for store in stores_at(GOLDEN / "sej" / "shards" / "data")]
    manifest = json.loads((GOLDEN / "sej" / "shards" / "manifest.json").read_text())
    assert len(found) == OF_SHARDS
    assert {each.verdict for each in found} == {"clean"}
    assert (
        sum(each.messages for each in found) == len(manifest["put"]) + 2
    )  # one in each of the two other shard sets


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_a_store_has_the_verdict_that_its_manifest_asks_for(case, tmp_path):
    root = tmp_path / "store"
    (root / "data").mkdir(parents=True)
    if not case["files"]:
        assert stores_at(root) == []
        return
    shutil.copytree(GOLDEN / "taskflux" / "cases" / case["id"], root, dirs_exist_ok=True)
    (store,) = stores_at(root)
    found = verify(store)
    told = case["diskq"]
    warnings = set(told.get("warnings") or ())
    if told["outcome"] == "refused" or "valid_records_dropped" in warnings:
        assert found.verdict == "damaged"
    elif TORN & warnings:
        assert found.verdict == "torn"
    else:
        assert found.verdict == "clean"
    if told["outcome"] != "refused":
        assert found.messages == sum(len(queue["records"]) for queue in told["state"].values())
