# Copying into a hub. Law: the copy's bytes are the journal's, also after kills and outages; and a message of
# a queue or a stream is removed only after the hub has it.

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import trio

import diskq
from diskq.engine.journal.journal import Journal
from diskq.errors import HubError, NotFoundError, OffsetOutOfRangeError
from diskq.hub import HubClient, Range, ReplicationOptions, ReplicationStatistics, open_hub, replicate
from diskq.options import JournalOptions
from tests.hub.rig import bytes_of, message, messages, put_request, records, write_journal

QUICK = ReplicationOptions(backoff_initial=0.01, backoff_max=0.02, backoff_jitter=0.0)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A journal of 100 messages in several segments."""
    write_journal(tmp_path / "source", messages(0, 100), segment_size=1_000)
    assert len(list((tmp_path / "source" / "jnl").iterdir())) > 4
    return tmp_path / "source"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Where the hub has it."""
    return tmp_path / "root" / "web1.log"


async def until(is_so: Callable[[], bool]) -> None:
    with trio.fail_after(60):
        while not is_so():  # noqa: ASYNC110 (threads notify no task)
            await trio.sleep(0.002)


async def test_what_is_there_is_copied_byte_by_byte(source, copy):
    async with open_hub(copy.parent) as hub, HubClient(hub.address, "web1") as client:
        told = await replicate(source, client, "log", follow=False, max_messages=7)
        assert (told.delivered, told.next_offset, told.source_next_offset) == (100, 100, 100)
        assert told.batches >= 100 // 7
        again = await replicate(source, client, "log", follow=False)
        assert (again.delivered, again.batches, again.next_offset) == (0, 0, 100)
    assert bytes_of(copy) == bytes_of(source)


async def test_a_batch_has_so_many_bytes_at_most(source, copy):
    seen: list[ReplicationStatistics] = []
    async with open_hub(copy.parent) as hub, HubClient(hub.address, "web1") as client:
        await replicate(source, client, "log", follow=False, max_bytes=200, on_progress=seen.append)
    steps = [later.delivered_bytes - sooner.delivered_bytes for sooner, later in pairwise(seen)]
    assert max(steps) <= 200
    assert bytes_of(copy) == bytes_of(source)


async def test_what_comes_is_copied_as_it_comes(tmp_path, copy):
    source = tmp_path / "source"
    async with open_hub(copy.parent) as hub, HubClient(hub.address, "web1") as client:
        with Journal(source, options=JournalOptions(segment_size=500)) as journal:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(replicate, source, client, "log")
                for number in range(60):
                    journal.append_encoded(records([message(number)]))
                    if number % 10 == 9:
                        await until(lambda: hub.statistics().accepted == journal.next_offset)
                nursery.cancel_scope.cancel()
    assert bytes_of(copy) == bytes_of(source)


async def test_it_goes_on_where_the_hub_is(source, copy):
    async with open_hub(copy.parent) as hub, HubClient(hub.address, "web1") as client:
        await client.put("log", messages(0, 30))
        told = await replicate(source, client, "log", follow=False)
        assert told.delivered == 70
    assert bytes_of(copy) == bytes_of(source)


async def test_a_hub_that_is_away_is_tried_until_it_is_back(source, copy):
    address = f"unix:{copy.parent.parent / 'socket'}"
    failures = []

    def note(told: ReplicationStatistics) -> None:
        failures.append(told.failures)

    async with HubClient(address, "web1") as client, trio.open_nursery() as nursery:

        async def push() -> None:
            await replicate(source, client, "log", follow=False, on_progress=note, options=QUICK)
            nursery.cancel_scope.cancel()

        nursery.start_soon(push)
        await until(lambda: bool(failures) and failures[-1] >= 2)
        async with open_hub(copy.parent, address):
            await trio.sleep_forever()
    assert failures[-1] == 0
    assert bytes_of(copy) == bytes_of(source)


async def test_another_client_that_puts_the_same_is_harmless(source, copy):
    async with (
        open_hub(copy.parent) as hub,
        HubClient(hub.address, "web1") as client,
        trio.open_nursery() as nursery,
    ):
        for _ in range(3):
            nursery.start_soon(lambda: replicate(source, client, "log", follow=False, max_messages=3))
    assert bytes_of(copy) == bytes_of(source)


async def test_a_gap_sends_it_back_to_what_the_hub_expects(source, copy, monkeypatch):
    real = HubClient.put_columns
    asked = []

    async def too_far(self, journal, columns, *, first_offset=None):
        there = await real(self, journal, columns, first_offset=first_offset)
        asked.append(columns)
        return Range(0, 60) if len(asked) == 1 else there  # as if the hub had forgotten some

    monkeypatch.setattr(HubClient, "put_columns", too_far)
    monkeypatch.setattr("diskq.hub.replication._JournalCopy._compare", nothing)
    async with open_hub(copy.parent) as hub, HubClient(hub.address, "web1") as client:
        await replicate(source, client, "log", follow=False)
        assert hub.statistics().gaps == 1
    assert bytes_of(copy) == bytes_of(source)


async def nothing(*_: object) -> None:
    pass


async def test_a_refusal_for_good_is_raised(source, copy):
    journal = JournalOptions(max_message_size=5)
    async with open_hub(copy.parent, journal=journal) as hub, HubClient(hub.address, "web1") as client:
        with pytest.raises(HubError, match="20 bytes: 5 are allowed"):
            await replicate(source, client, "log")


# --- a journal that is no copy, or not whole --------------------------------------------------


def drop_first_segment(source: Path) -> int:
    first, second, *_ = sorted((source / "jnl").iterdir())
    first.unlink()
    return int(second.stem, 16)


async def test_removed_messages_cannot_be_copied_and_raise(source, copy):
    first = drop_first_segment(source)
    async with open_hub(copy.parent) as hub, HubClient(hub.address, "web1") as client:
        with pytest.raises(OffsetOutOfRangeError, match=f"offset 0 .* is gone: the first is {first}"):
            await replicate(source, client, "log", follow=False)
        assert await client.range("log") == Range(0, 0)


async def test_a_copy_may_begin_with_the_oldest_there_is(source, copy):
    first = drop_first_segment(source)
    async with open_hub(copy.parent) as hub, HubClient(hub.address, "web1") as client:
        told = await replicate(source, client, "log", follow=False, from_oldest=True, max_messages=5)
        assert told.delivered == 100 - first
        assert await client.range("log") == Range(first, 100)
        assert await client.get("log", first) == messages(first, 100)
    assert bytes_of(copy) == bytes_of(source)


async def test_from_oldest_leaves_no_hole_in_a_copy(source, copy):
    async with open_hub(copy.parent) as hub, HubClient(hub.address, "web1") as client:
        await client.put("log", messages(0, 2))
        drop_first_segment(source)
        with pytest.raises(OffsetOutOfRangeError, match="offset 2"):
            await replicate(source, client, "log", follow=False, from_oldest=True)


async def test_a_journal_that_the_hub_is_ahead_of_raises(source, copy):
    async with open_hub(copy.parent) as hub, HubClient(hub.address, "web1") as client:
        await client.put("log", messages(0, 101))
        with pytest.raises(HubError, match="ends at offset 100, the hub's journal at 101"):
            await replicate(source, client, "log")


async def test_another_journal_of_that_name_raises(source, copy):
    async with open_hub(copy.parent) as hub, HubClient(hub.address, "web1") as client:
        await client.put("log", messages(0, 10, size=21))
        with pytest.raises(HubError, match=r"message 9 of .* differs from the hub's"):
            await replicate(source, client, "log")


async def test_damage_raises_and_nothing_after_it_is_copied(source, copy):
    with (source / "jnl" / "0000000000000000.jnl").open("r+b") as file:
        file.seek(60)
        file.write(b"\xff" * 20)
    async with open_hub(copy.parent) as hub, HubClient(hub.address, "web1") as client:
        with pytest.raises(HubError, match="lost to damage"):
            await replicate(source, client, "log", follow=False)
        there = await client.range("log")
        assert there is not None
        assert there.next_offset < 10


async def test_there_must_be_a_journal(tmp_path, copy):
    async with open_hub(copy.parent) as hub, HubClient(hub.address, "web1") as client:
        with pytest.raises(NotFoundError):
            await replicate(tmp_path / "none", client, "log")
    assert not (tmp_path / "none").exists()


# --- from queues and streams ------------------------------------------------------------------


async def test_a_queue_is_emptied_into_a_journal(tmp_path, copy):
    bodies = [b"body %d" % number for number in range(50)]
    async with open_hub(copy.parent) as hub, HubClient(hub.address, "web1") as client:
        async with diskq.open_queue(tmp_path, "events") as queue:
            await queue.send_many(bodies)
            told = await replicate(queue, client, "log", follow=False, max_messages=8)
            assert (queue.depth, told.delivered) == (0, 50)
            await queue.send(b"more")
            await replicate(queue, client, "log", follow=False)
        assert [each.value for each in await client.get("log")] == [*bodies, b"more"]
        assert all(each.timestamp is not None for each in await client.get("log"))


async def test_what_the_hub_has_not_stays_in_the_queue(tmp_path, copy):
    async with diskq.open_queue(tmp_path, "events") as queue:
        await queue.send_many([b"one", b"two"])
        async with HubClient("localhost:1", "web1") as client:
            with trio.move_on_after(0.05):
                await replicate(queue, client, "log", options=QUICK)
        assert queue.depth == 2
        async with open_hub(copy.parent) as hub, HubClient(hub.address, "web1") as client:
            with trio.move_on_after(60) as scope:
                await replicate(
                    queue, client, "log", on_progress=lambda told: told.delivered == 2 and scope.cancel()
                )
            assert [each.value for each in await client.get("log")] == [b"one", b"two"]
        assert queue.depth == 0


async def test_two_copies_into_one_journal_raise(tmp_path, copy, monkeypatch):
    real = HubClient.put_columns

    async def just_behind_another(self, journal, columns, *, first_offset=None):
        if columns is not None:
            await self._call(self._put, put_request(messages(0, 2)))
        return await real(self, journal, columns, first_offset=first_offset)

    monkeypatch.setattr(HubClient, "put_columns", just_behind_another)
    async with (
        open_hub(copy.parent) as hub,
        HubClient(hub.address, "web1") as client,
        diskq.open_queue(tmp_path, "events") as queue,
    ):
        await queue.send(b"mine")
        with pytest.raises(HubError, match="another client writes to 'log'"):
            await replicate(queue, client, "log", follow=False)
        assert queue.depth == 1


async def test_a_stream_is_copied_by_a_group_that_commits_what_the_hub_has(tmp_path, copy):
    path = tmp_path / "stream"
    async with diskq.open_producer(path, options=diskq.StreamOptions(partition_count=1)) as producer:
        for number in range(20):
            await producer.send(b"value %d" % number, key=b"k")
    async with open_hub(copy.parent) as hub, HubClient(hub.address, "web1") as client:
        for expected in (20, 0):
            async with diskq.open_consumer(path, group="copy", start="oldest", end="close") as consumer:
                told = await replicate(consumer, client, "log", max_messages=6)
                assert told.delivered == expected
        found = await client.get("log")
        assert [(each.key, each.value) for each in found] == [(b"k", b"value %d" % n) for n in range(20)]
