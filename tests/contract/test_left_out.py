# A disk that is full after a call has done its work: what is in the store stays, and no error says otherwise.

from __future__ import annotations

import errno
from typing import Any

import pytest

from diskq import FullError
from diskq.testing import CrashFS, FaultFS
from tests.contract.kinds import ENGINES, Kind, body, engines

PATH = "/k"


def disk() -> FaultFS[CrashFS]:
    inner = CrashFS()
    inner.make_directory_durably(PATH)
    return FaultFS(inner)


def fill_up(kind: Kind, fs: FaultFS[CrashFS]) -> None:
    """Whatever is written to data from now on finds no room."""
    fs.fail("pwrite", path=kind.names(PATH).data, error=errno.ENOSPC, times=None)


WITH_TIER: dict[str, Any] = {"memory_size": 10_000}
CASES = [pytest.param(kind, {}, id=kind.name) for kind in engines()]
CASES += [pytest.param(ENGINES[name], WITH_TIER, id=f"{name}, memory tier") for name in ("queue", "spool")]


@pytest.mark.parametrize("kind, more", CASES)
@pytest.mark.parametrize("room", range(4))
def test_a_message_that_was_refused_is_not_in_and_each_other_is_in_once(
    kind: Kind, more: dict[str, Any], room: int
) -> None:
    fs = disk()
    with kind.open(PATH, fs=fs, durability="memory", sync_every=3, **more) as store:
        sent: list[bytes] = []
        for number in range(12):
            if number == room:
                fill_up(kind, fs)
            try:
                store.put(body(number, 50))
            except FullError:
                assert store.accepted() == len(sent)
            else:
                sent.append(body(number, 50))
        assert sent
        fs.heal()
    assert kind.read(PATH, fs=fs) == sent


@pytest.mark.parametrize("kind", engines(), ids=str)
def test_a_batch_says_how_many_of_it_are_in(kind: Kind) -> None:
    fs = disk()
    with kind.open(PATH, fs=fs, durability="memory", sync_every=3) as store:
        store.put(body(0))
        fill_up(kind, fs)
        sent = [body(number) for number in range(1, 6)]
        try:
            store.put_many(sent)
        except FullError as full:
            sent = sent[: full.accepted]
        assert store.accepted() == 1 + len(sent)
        fs.heal()
    assert kind.read(PATH, fs=fs) == [body(0), *sent]


@pytest.mark.parametrize("kind", engines("stream", "journal", "priority"), ids=str)
def test_messages_in_memory_do_not_stop_consuming_and_freeing_space(kind: Kind) -> None:
    fs = disk()
    with kind.open(PATH, fs=fs, durability="memory", sync_every=2) as store:
        fill_up(kind, fs)
        store.put(body(0))
        store.put(body(1))
        assert [store.take(), store.take()] == [body(0), body(1)]


@pytest.mark.parametrize("kind", engines(), ids=str)
def test_a_sync_reports_what_found_no_space(kind: Kind) -> None:
    fs = disk()
    with kind.open(PATH, fs=fs, durability="memory", sync_every=2) as store:
        fill_up(kind, fs)
        store.put(body(0))
        store.put(body(1))
        with pytest.raises(FullError):
            store.sync()
        fs.heal()
        store.sync()
    assert kind.read(PATH, fs=fs) == [body(0), body(1)]
