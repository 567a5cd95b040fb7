# Directories that TaskFlux left, that it may have left before a crash, and that somebody damaged, with an
# account of what is in them. Law: diskq finds the state that they hold, says what it met, and refuses
# where a state would have to be invented; and so once more, when it has been there.

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import diskq
from diskq.engine.priority.store import PriorityStore

HERE = Path(__file__).parent / "taskflux"
MANIFEST = json.loads((HERE / "manifest.json").read_text())
CASES = {case["id"]: case for case in MANIFEST["cases"]}

of_all = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
OPENED = {name: case for name, case in CASES.items() if case["diskq"]["outcome"] != "refused"}
of_the_opened = pytest.mark.parametrize("case", OPENED.values(), ids=list(OPENED))
REFUSED = {name: case for name, case in CASES.items() if name not in OPENED}
of_the_refused = pytest.mark.parametrize("case", REFUSED.values(), ids=list(REFUSED))

# What was cut, or begun anew: the second open meets none of it.
MENDED = {"tail_truncated", "valid_records_dropped", "segment_reinitialised", "log_behind_snapshot"}
# These raise UnsupportedFormatError: another version of TaskFlux may know better.
UNSUPPORTED = {"unsupported_version": "version", "unknown_implementation": "queue implementation 3"}


def copied(case: dict[str, Any], directory: Path) -> Path:
    """The files lie in the repository: nobody opens them there."""
    root = directory / "store"
    (root / "data").mkdir(parents=True)  # of a case without files nothing lies there
    if case["files"]:
        shutil.copytree(HERE / "cases" / case["id"], root, dirs_exist_ok=True)
    return root


def described(store: PriorityStore) -> dict[str, Any]:
    """The store's state in the manifest's words; what is in it is received, not looked up."""
    state = {}
    for info in store.queues():
        queue = store.queue(info.name)
        records = store.peek(queue, info.ready)
        state[info.name] = {
            "code": queue.implementation,
            "last_id": info.last_id,
            "max_queue_size": info.max_messages,
            "max_message_size": info.max_message_size,
            "key_range": list(info.priority_range) if info.priority_range else None,
            "records": [
                {"id": record.id, "key": record.priority, "payload": record.body.hex()} for record in records
            ],
        }
    return state


def files_of(store: Path) -> dict[str, tuple[int, str]]:
    root = store / "data"
    return {
        str(path.relative_to(root)): (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in root.rglob("*")
        if path.is_file()
    }


def test_there_are_as_many_cases_as_there_were():
    assert len(CASES) == 84
    assert len(OPENED) == 65


@of_all
def test_the_files_are_as_they_were_written(case, tmp_path):
    told = {name: (file["size"], file["sha256"]) for name, file in case["files"].items()}
    assert files_of(copied(case, tmp_path)) == told


@of_the_opened
def test_the_state_is_found_and_what_was_met_is_said(case, tmp_path):
    expected = case["diskq"]
    with PriorityStore(copied(case, tmp_path)) as store:
        assert described(store) == expected["state"]
        assert sorted(store.warnings) == sorted(expected["warnings"])
        assert store.next_lsn == expected["last_lsn"] + 1
        mended = MENDED.intersection(store.warnings)
        assert expected["outcome"] == ("repaired" if mended else "ok")


@of_the_opened
def test_the_next_open_finds_the_same_and_nothing_to_mend(case, tmp_path):
    expected = case["diskq"]
    root = copied(case, tmp_path)
    with PriorityStore(root):
        pass
    with PriorityStore(root) as store:
        assert described(store) == expected["state"]
        assert sorted(store.warnings) == sorted(set(expected["warnings"]) - MENDED)
        assert store.next_lsn == expected["last_lsn"] + 1
        assert store.repairs == ()


@of_the_opened
def test_the_log_ends_where_it_should(case, tmp_path):
    root = copied(case, tmp_path)
    with PriorityStore(root, options=diskq.PriorityOptions(preallocate=False)):
        pass
    last = max(path for path in (root / "data" / "log").iterdir() if len(path.name) == 23)
    end = case["diskq"]["next_offset"]
    content = last.read_bytes()
    # The zeros that a record of the document's layout has behind it belong to it.
    assert content[end:].strip(b"\0") == b""
    assert 4 <= len(content) - end <= 4 + 3


@of_the_opened
def test_what_is_sent_then_is_there_with_what_was(case, tmp_path):
    root = copied(case, tmp_path)
    with PriorityStore(root) as store:
        before = described(store)[""]["records"]
        number = store.put(store.queue(), b"new", 7, durability="synced")
        assert number == case["diskq"]["state"][""]["last_id"] + 1
    with PriorityStore(root) as store:
        found = described(store)[""]["records"]
        assert [record for record in found if record["id"] != number] == before
        assert {"id": number, "key": 7, "payload": b"new".hex()} in found


@of_the_refused
def test_what_no_crash_can_have_left_is_refused_and_not_touched(case, tmp_path):
    root = copied(case, tmp_path)
    kind = case["diskq"]["error"]
    for _ in range(2):
        if kind in UNSUPPORTED:
            with pytest.raises(diskq.UnsupportedFormatError, match=UNSUPPORTED[kind]):
                PriorityStore(root)
            continue
        with pytest.raises(diskq.DamagedStoreError, match="diskq repair") as caught:
            PriorityStore(root)
        assert caught.value.kind == kind
        assert Path(caught.value.path).is_relative_to(root)
    told = {name: (file["size"], file["sha256"]) for name, file in case["files"].items()}
    assert {name: file for name, file in files_of(root).items() if not name.startswith(".diskq/")} == told


def test_damage_is_reported_with_its_byte_and_its_record(tmp_path):
    with pytest.raises(diskq.DamagedStoreError, match=r"000\.log: damaged at byte 8, record 0") as caught:
        PriorityStore(copied(CASES["X07-unknown-delta"], tmp_path))
    assert (caught.value.position, caught.value.lsn) == (8, 0)


@pytest.mark.parametrize(
    "kept", ["C02-crc-middle", "C04-torn-30", "C19-taskflux-repaired", "V11-stale-after-end-marker"]
)
def test_what_is_cut_is_kept_aside(kept, tmp_path):
    case = CASES[kept]
    root = copied(case, tmp_path)
    segment = (root / "data" / "log" / "0000000000000000000.log").read_bytes()
    with PriorityStore(root) as store:
        (repair,) = store.repairs
    assert repair.kept == case["diskq"]["next_offset"]
    assert repair.saved_as is not None
    assert Path(repair.saved_as).read_bytes() == segment[repair.kept :].rstrip(b"\0")


@pytest.mark.parametrize(
    "case", [CASES["C01-crc-last"], CASES["C16-partial-header-5"]], ids=lambda case: case["id"]
)
def test_strict_raises_instead_of_a_repair(case, tmp_path):
    root = copied(case, tmp_path)
    before = files_of(root)
    with pytest.raises(diskq.CorruptionError):
        PriorityStore(root, options=diskq.PriorityOptions(strict=True))
    assert {name: file for name, file in files_of(root).items() if name in before} == before


of_the_damaged = pytest.mark.parametrize(
    "case",
    [case for case in REFUSED.values() if case["diskq"]["error"] not in UNSUPPORTED],
    ids=[name for name, case in REFUSED.items() if case["diskq"]["error"] not in UNSUPPORTED],
)


@of_the_damaged
def test_what_is_refused_can_be_repaired_and_loses_no_byte(case, tmp_path):
    root = copied(case, tmp_path)
    before = {path: path.read_bytes() for path in (root / "data").rglob("*") if path.is_file()}
    with PriorityStore(root, repairs_damage=True) as store:
        assert store.repairs
        for repair in store.repairs:
            if repair.saved_as is not None:
                was = before[Path(repair.path)][repair.kept :]
                assert Path(repair.saved_as).read_bytes().rstrip(b"\0") == was.rstrip(b"\0")
        found = described(store)
        store.put(store.queue(), b"new")
    with PriorityStore(root) as store:
        assert store.repairs == ()
        after = described(store)
        assert len(after[""]["records"]) == len(found[""]["records"]) + 1


@of_the_opened
def test_a_repair_of_what_is_not_damaged_finds_the_same(case, tmp_path):
    with PriorityStore(copied(case, tmp_path), repairs_damage=True) as store:
        assert described(store) == case["diskq"]["state"]
