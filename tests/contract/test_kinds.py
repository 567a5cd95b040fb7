# The adapters do what the contract's tests rely on: each kind returns the messages that were put.

from __future__ import annotations

import anyio.lowlevel
import pytest

import diskq
from diskq.testing import CrashFS
from tests.contract.kinds import DURABILITIES, ChannelKind, Kind, bodies, channels, engines
from tests.loops import each_loop

PATH = "/k"


def disk() -> CrashFS:
    fs = CrashFS()
    fs.make_directory_durably(PATH)
    return fs


@pytest.mark.parametrize("kind", engines(), ids=str)
@pytest.mark.parametrize("wal", [False, True], ids=["as engine", "as its channel"])
def test_what_an_engine_was_given_is_read_by_another_open(kind: Kind, wal: bool) -> None:
    fs, sent = disk(), bodies(40, size=50)
    with kind.open(PATH, fs=fs, wal=wal, **kind.small) as store:
        store.put_many(sent[:20])
        for number, word in enumerate(DURABILITIES * 6, 20):
            store.put(sent[number], word)
        store.put_many(sent[38:])
        assert store.accepted() == 40
        assert fs.size_of(kind.names(PATH).lock) is not None
    assert kind.read_with_repairs(PATH, fs=fs) == (sent, ())
    assert kind.read(PATH, fs=fs) == sent, "reading took some"


@pytest.mark.parametrize("kind", engines(), ids=str)
def test_what_was_taken_is_not_read_again(kind: Kind) -> None:
    fs = disk()
    with kind.open(PATH, fs=fs) as store:
        store.put_many(bodies(5))
        if store.takes:
            assert [store.take(), store.take()] == bodies(2)
    assert kind.read(PATH, fs=fs) == bodies(5)[2 * store.takes :]


@pytest.mark.parametrize("kind", channels(), ids=str)
@each_loop
async def test_what_a_channel_was_sent_is_read_by_its_engine(kind: ChannelKind) -> None:
    fs = disk()
    async with kind.open(PATH, fs=fs) as channel:
        await channel.send_many(bodies(3))
        for number, word in enumerate(DURABILITIES, 3):
            await channel.send(bodies(7)[number], word)
        channel.send_nowait(bodies(7)[6])
        if kind.takes:
            assert [await channel.receive(), await channel.receive()] == bodies(2)
        await channel.sync()
        assert channel.repairs == ()
    assert kind.read(PATH, fs=fs) == bodies(7)[2 * kind.takes :]


@each_loop
async def test_a_spool_reports_what_it_delivered() -> None:
    (kind,) = channels("queue", "stream", "journal", "priority")

    async def deliver(batch: diskq.Batch) -> None:
        await anyio.lowlevel.checkpoint()

    async with kind.open(PATH, fs=disk(), deliver=deliver, sync_every=3) as channel:
        await channel.send_many(bodies(5))
        await channel.handle.drained()
        assert channel.got == bodies(5)
