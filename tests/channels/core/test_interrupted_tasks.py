# An interrupt (Ctrl-C) that comes while a task of a store runs. Law: it ends the block of the program's main
# task; the task of the store goes on, and what it has in hand is whole.

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

import diskq
from diskq.channels.journal.shard_writer import open_shards
from diskq.channels.spool import spool as spools
from diskq.channels.stream.consumer import open_consumer
from diskq.engine.journal.shards import ShardSet
from tests.channels.rig import interrupt


class Interrupting:
    """A function in whose second call an interrupt comes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.calls = 0
        act = getattr(owner, name)

        def interrupted(*args: Any) -> Any:
            self.calls += 1
            if self.calls == 2:
                interrupt()
            return act(*args)

        monkeypatch.setattr(owner, name, interrupted)


class InterruptingNames(list[str]):
    """No names. An interrupt comes when a task looks at them."""

    def __iter__(self) -> Iterator[str]:
        interrupt()
        return iter(())


def test_while_a_member_of_a_group_claims_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = Interrupting(monkeypatch, open_consumer, "_try_to_add_more")
    diskq.Stream(tmp_path).close()

    async def main() -> None:
        with trio.fail_after(60):
            async with diskq.open_consumer(tmp_path, group="g", claim_interval=0.01) as consumer:
                await consumer.receive()

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert claims.calls == 2


def test_while_the_journal_of_a_shard_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = Interrupting(monkeypatch, ShardSet, "path")

    async def main() -> None:
        with trio.fail_after(60):
            async with open_shards(tmp_path, "web", 1) as shards:
                paths.calls = 1
                await shards.send(b"a message", key=b"key")
                await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert paths.calls >= 2


@pytest.mark.parametrize("task", ["the one that keeps the status", "the one that adopts slots"])
def test_while_a_spool_delivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, task: str
) -> None:
    has_slots = task == "the one that adopts slots"
    if has_slots:
        monkeypatch.setattr(spools, "slots_in", lambda fs, root: InterruptingNames())
    else:
        Interrupting(monkeypatch, spools.SpoolChannel, "_status")

    async def deliver(batch: diskq.Batch) -> None:
        await trio.lowlevel.checkpoint()

    async def main() -> None:
        with trio.fail_after(60):
            async with diskq.open_spool(tmp_path, deliver, slots=has_slots) as spool:
                await spool.send(b"a message")
                await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert "delivers no more" not in caplog.text
