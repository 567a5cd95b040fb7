# Info about the peers' files. Law: exact figures of info are those that verify finds, and what the next open
# repairs is announced.

from __future__ import annotations

import shutil

import pytest

from diskq.tools.info import FORMATS, info
from diskq.tools.stores import stores_at
from tests.tools.verify.test_golden import CASES, GOLDEN, TORN, rows


@pytest.mark.parametrize("format_, case, expected", rows(), ids=[f"{row[0]}-{row[1]}" for row in rows()])
def test_info_of_what_a_peer_left(format_, case, expected):
    found = [info(store) for store in stores_at(GOLDEN / format_ / case / "data")]
    assert len(found) == len(expected)
    for each, (verdict, messages, lost) in zip(found, expected, strict=True):
        assert each.format == {"diskq": "triplet"}.get(format_, format_) == FORMATS[each.store.kind]
        assert each.files > 0
        assert (each.holder is not None) == case.startswith("live_")
        if verdict == "clean" and each.messages is not None:
            assert each.messages == messages if each.is_exact else each.messages <= messages
        elif each.messages is not None:
            assert each.messages <= messages + lost


@pytest.mark.parametrize(
    "case", [case for case in CASES.values() if case["files"]], ids=lambda case: case["id"]
)
def test_info_of_a_store_says_what_the_next_open_does(case, tmp_path):
    root = tmp_path / "store"
    (root / "data").mkdir(parents=True)
    shutil.copytree(GOLDEN / "taskflux" / "cases" / case["id"], root, dirs_exist_ok=True)
    (store,) = stores_at(root)
    found = info(store)
    told = case["diskq"]
    assert (found.format, found.holder) == ("taskflux", None)
    if told["outcome"] == "refused":
        assert found.next_open
    else:
        assert found.messages == sum(len(queue["records"]) for queue in told["state"].values())
        if TORN & set(told.get("warnings") or ()):
            assert found.next_open
