# One power cut of a real file system, where one can be had.

from __future__ import annotations

import pytest

from tests.torture.real_disks import run_cut, why_not


@pytest.mark.slow
def test_a_journal_on_ext4_has_its_synced_messages_after_a_shutdown_and_a_mount() -> None:
    if reason := why_not("ext4"):
        pytest.skip(reason)
    verdict, synced, _ = run_cut("ext4:journal:nologflush:diskq:1", None)
    assert synced
    assert not verdict.faults, verdict.notes
