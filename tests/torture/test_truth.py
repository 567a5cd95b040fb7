# What `diskq verify` says is what an open then finds: some seeds of tests/torture/truth.py.

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.sampling import IS_EXHAUSTIVE
from tests.torture.truth import run

SEEDS = int(os.environ.get("DISKQ_TRUTH_SEEDS", "70" if IS_EXHAUSTIVE else "40"))


@pytest.mark.sampled
@pytest.mark.parametrize("is_killed", [False, True], ids=["closed", "killed"])
def test_what_verify_says_is_what_an_open_delivers(is_killed: bool, tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for judged in run(range(SEEDS // 2), tmp_path, killed=is_killed):
        seen[judged.verdict] += 1
        faults = [fault for fault in judged.faults if not judged.case.is_known(fault)]
        assert not faults, f"{judged.case}: {faults}\n    {judged.more}"
    assert seen["clean"]
    assert seen["damaged"]
