# Ctrl-C while a synchronous engine syncs. Law: what was acknowledged as durable stays; the engine promises
# nothing more, and can be closed.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from diskq import StorageFailedError
from diskq.testing import CrashFS
from tests.contract.kinds import Kind, Opened, body, engines

PATH = "/k"
ACTS: dict[str, Callable[[Opened], object]] = {
    "sync": lambda store: store.sync(),
    "a synced message": lambda store: store.put(body(2), "synced"),
}


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
@pytest.mark.parametrize("kind", engines(), ids=str)
@pytest.mark.parametrize("is_done", [False, True], ids=["before it is done", "after"])
def test_a_sync_that_is_interrupted_is_a_failed_one(
    kind: Kind, act: Callable[[Opened], object], is_done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = CrashFS()
    fs.make_directory_durably(PATH)
    store = kind.open(PATH, fs=fs)
    store.put(body(0), "synced")
    store.put(body(1))
    sync_files = fs.sync_files

    def interrupted(*args: Any) -> None:
        monkeypatch.setattr(fs, "sync_files", sync_files)
        if is_done:
            sync_files(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(fs, "sync_files", interrupted)
    with pytest.raises(KeyboardInterrupt):
        act(store)
    with pytest.raises(StorageFailedError) as refused:
        store.put(body(3))
    assert isinstance(refused.value.__cause__, KeyboardInterrupt)
    store.close()
    found = kind.read(PATH, fs=fs.crash())
    assert found[0] == body(0)
    assert found == [body(number) for number in range(len(found))]
    assert len(found) <= 3
