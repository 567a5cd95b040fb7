# The bytes on the disk of a store's logs: docs/durability.md has them as a table.

from __future__ import annotations

import pytest

from diskq.testing import CrashFS
from tests.contract.kinds import ChannelKind, Kind, channels, engines
from tests.loops import LOOPS, run_on

PATH = "/store"
KIB = 1024

log_channels = pytest.mark.parametrize("kind", channels("priority", "spool"), ids=str)
log_engines = pytest.mark.parametrize("kind", engines("priority", "spool"), ids=str)


def disk() -> CrashFS:
    fs = CrashFS()
    fs.make_directory_durably(PATH)
    return fs


def sizes(fs: CrashFS, log: str) -> list[int]:
    return sorted(len(content) for path, content in fs.files().items() if path.endswith(log))


@log_channels
@pytest.mark.parametrize("loop", LOOPS)
def test_a_channel_has_one_log_with_a_reserve_and_none_for_synced_messages_before_the_first(
    kind: ChannelKind, loop: str
) -> None:
    fs = disk()

    async def run() -> None:
        async with kind.open(PATH, fs=fs) as channel:
            await channel.send(b"written")
            assert sizes(fs, "redo") == []
            await channel.send(b"synced", durability="synced")
            await channel.send(b"and again", durability="synced")
            assert sizes(fs, "redo") == [64 * KIB]
            assert sizes(fs, "wal")[-1] == 128 * KIB
            assert set(sizes(fs, "wal")[:-1]) <= {64 * KIB}

    run_on(loop, run)
    assert sizes(fs, "redo") == [0]


@log_engines
def test_an_engine_has_a_log_for_checksums_and_none_after_its_close(kind: Kind) -> None:
    fs = disk()
    store = kind.open(PATH, fs=fs)
    store.put(b"written", "written")
    assert set(sizes(fs, "wal")) == {4 * KIB}
    store.close()
    assert set(sizes(fs, "wal")) == {0}
