# A hub and its clients, over loopback. Law: an answer is synced; whatever a client does, others are served;
# and at the end nothing is left open.

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
import trio

from diskq.errors import HubError, NotFoundError
from diskq.hub import HubClient, HubJournal, Range, Tokens, open_hub
from diskq.storage.fs import OsFileSystem
from diskq.testing import FaultFS
from tests.clock import Clock
from tests.held_disks import HeldSyncs
from tests.hub.rig import SOON, bytes_of, messages, put_request, records


async def test_messages_come_back_as_they_were_put(tmp_path):
    async with open_hub(tmp_path / "root") as hub, HubClient(hub.address, "web1") as client:
        assert await client.range("log") == Range(0, 0)
        assert await client.put("log", messages(0, 10)) == 10
        assert await client.put("log", messages(5, 15)) == 15
        assert await client.get("log", 3) == messages(3, 15)
        assert await client.get("log", 15) == []
        async with HubClient(hub.address, "web2") as other:
            assert await other.get("log", 14, client_id="web1") == messages(14, 15)
    assert bytes_of(tmp_path / "root" / "web1.log") == records(messages(0, 15))


async def test_a_hub_that_is_not_there_is_made_only_where_it_may_be(tmp_path):
    with pytest.raises(NotFoundError, match="there is no hub here"):
        async with open_hub(tmp_path / "root", create=False):
            pass
    assert not (tmp_path / "root").exists()
    async with open_hub(tmp_path / "root"):
        pass
    async with open_hub(tmp_path / "root", create=False):
        pass


async def test_a_gap_tells_what_is_expected(tmp_path):
    async with open_hub(tmp_path) as hub, HubClient(hub.address, "web1") as client:
        await client.put("log", messages(0, 3))
        with pytest.raises(HubError, match="message 5 does not follow: 3 is expected") as gap:
            await client.put("log", messages(5, 6))
        assert (gap.value.code, gap.value.expected, gap.value.first_offset) == ("FAILED_PRECONDITION", 3, 0)
        with pytest.raises(HubError) as gone:
            await client.get("log", 9)
        assert (gone.value.code, gone.value.expected) == ("OUT_OF_RANGE", 3)


async def test_messages_that_do_not_follow_each_other_are_not_sent(tmp_path):
    async with HubClient("localhost:1", "web1") as client:
        with pytest.raises(ValueError, match="message 3 does not follow message 0"):
            await client.put("log", [*messages(0, 1), *messages(3, 4)])
        with pytest.raises(ValueError, match="a journal's name"):
            await client.put("../log", messages(0, 1))
    with pytest.raises(ValueError, match="a client id"):
        HubClient("localhost:1", "a.b")


async def test_a_request_that_is_too_large_is_refused(tmp_path):
    async with open_hub(tmp_path, max_batch_size=10_000) as hub, HubClient(hub.address, "web1") as client:
        with pytest.raises(HubError) as refusal:
            await client.put("log", messages(0, 20, 10_000))
        assert refusal.value.code == "RESOURCE_EXHAUSTED"
        assert await client.range("log") == Range(0, 0)


async def test_no_hub_is_something_that_may_change(tmp_path):
    async with HubClient("localhost:1", "web1", timeout=60) as client:
        with pytest.raises(HubError) as failure:
            await client.put("log", messages(0, 1))
        assert (failure.value.code, failure.value.is_temporary) == ("UNAVAILABLE", True)


async def test_many_clients_at_once(tmp_path):
    async with open_hub(tmp_path, threads=4) as hub:

        async def push(name: str) -> None:
            async with HubClient(hub.address, name) as client:
                for first in range(0, 60, 10):
                    assert await client.put("log", messages(first, first + 10)) == first + 10

        async with trio.open_nursery() as nursery:
            for number in range(12):
                nursery.start_soon(push, f"web{number}")
        assert hub.statistics().accepted == 12 * 60
        assert {each.next_offset for each in await hub.journals()} == {60}


async def test_status_tells_what_there_is(tmp_path):
    async with open_hub(tmp_path) as hub, HubClient(hub.address, "web1") as client:
        await client.put("log", messages(0, 3))
        await client.put("blue.3.000", messages(0, 1))
        (tmp_path / "lost+found").mkdir()
        told = await client.status()
        size = len(records(messages(0, 3)))
        assert told.journals[1] == HubJournal(
            client="web1", journal="log", first_offset=0, next_offset=3, bytes_on_disk=size
        )
        assert [each.journal for each in told.journals] == ["blue.3.000", "log"]
        assert (told.statistics["puts"], told.statistics["accepted"]) == (2, 4)
        assert hub.statistics().accepted == 4


async def test_a_hub_on_a_socket_file(tmp_path):
    address = f"unix:{tmp_path / 'socket'}"
    async with open_hub(tmp_path / "root", address), HubClient(address, "web1") as client:
        assert await client.put("log", messages(0, 3)) == 3


async def test_an_address_in_use_raises(tmp_path):
    async with open_hub(tmp_path / "one") as hub:
        with pytest.raises(OSError, match="cannot listen at"):
            async with open_hub(tmp_path / "two", hub.address):
                pass


# --- clients that do what they should not ---------------------------------------------------------


async def test_a_request_without_a_message_is_cancelled(tmp_path):
    disk = Clock()
    async with open_hub(tmp_path, threads=2, request_timeout=30, fs=disk) as hub:
        stay = threading.Event()

        def nothing() -> Iterator[bytes]:
            stay.wait()
            yield from ()

        with grpc.insecure_channel(hub.address) as channel:
            put = channel.stream_unary("/hub.Hub/Put")
            stalled = [put.future(nothing()) for _ in range(2)]  # they have all threads
            async with HubClient(hub.address, "web1", timeout=20) as client:
                assert await client.put("log", messages(0, 3)) == 3
            with trio.fail_after(60):
                while not all(call.done() for call in stalled):
                    disk.now += 30  # of those that have begun
                    await trio.sleep(0.01)
            assert [call.code() for call in stalled] == [grpc.StatusCode.CANCELLED] * 2
            stay.set()


@contextmanager
def stalled(address: str, count: int, token: str | None = None) -> Iterator[list[grpc.Future]]:
    """Requests that were begun, and whose messages never come."""
    stay = threading.Event()
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)

    def nothing() -> Iterator[bytes]:
        stay.wait()
        yield from ()

    with grpc.insecure_channel(address) as channel:
        call = channel.stream_unary("/hub.Hub/Put")
        try:
            yield [call.future(nothing(), metadata=metadata) for _ in range(count)]
        finally:
            stay.set()


ONE, ANOTHER = "1" * 16, "2" * 16


@pytest.mark.parametrize("count", [20, 90])
async def test_one_client_does_not_hold_what_others_need(tmp_path, count):
    """Requests that were begun and do not come in had all threads, for `request_timeout`."""
    async with open_hub(tmp_path, tokens=Tokens({ONE: None, ANOTHER: None})) as hub:
        with stalled(hub.address, count, ONE) as calls:
            surplus = max(0, count - 32)  # which of them come too late is up to the network
            with trio.fail_after(20):
                while sum(call.done() for call in calls) < surplus:  # noqa: ASYNC110 (gRPC's threads do it)
                    await trio.sleep(0.01)
            async with HubClient(hub.address, "web2", token=ANOTHER, timeout=10) as client:
                assert await client.put("log", messages(0, 3)) == 3
            codes = [call.code() for call in calls if call.done()]
            assert codes == [grpc.StatusCode.RESOURCE_EXHAUSTED] * surplus


async def test_a_client_with_too_many_requests_is_refused_for_now(tmp_path):
    async with open_hub(tmp_path, max_client_requests=2, threads=2) as hub:
        with stalled(hub.address, 3) as calls:
            code = await trio.to_thread.run_sync(first_code, calls)
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert sum(call.done() for call in calls) == 1
            async with HubClient(hub.address, "web1", timeout=10) as client:
                assert await client.put("log", messages(0, 3)) == 3
            assert hub.statistics().refused == 1


def first_code(calls: list[grpc.Future]) -> grpc.StatusCode:
    """Of the one that is answered first."""
    answered = threading.Event()
    for call in calls:
        call.add_done_callback(lambda _: answered.set())
    assert answered.wait(60)
    return next(call.code() for call in calls if call.done())


async def test_silent_connections_are_closed(tmp_path):
    """About a thousand of them had all descriptors, for two minutes; and with a few words more for ever."""
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
    options: Any = {"max_connections": 4, "handshake_timeout": 0.2, "idle_connection_timeout": 0.3}
    async with open_hub(tmp_path, **options) as hub:
        idle = [await trio.open_tcp_stream("localhost", hub.port) for _ in range(6)]
        await idle[0].send_all(preface)
        with trio.fail_after(10):
            for stream in idle:
                with contextlib.suppress(trio.BrokenResourceError):
                    while await stream.receive_some():
                        pass
                await trio.aclose_forcefully(stream)
        async with HubClient(hub.address, "web1", timeout=20) as client:
            assert await client.put("log", messages(0, 3)) == 3
            await trio.sleep(0.6)  # gRPC's clock is not Trio's
            assert await client.put("log", messages(3, 4)) == 4, "it connects again by itself"


@pytest.mark.parametrize("size", [20, 1_000_000])
async def test_a_request_that_meets_the_close_of_its_connection_is_sent_again(tmp_path, size):
    """A hub that closes an idle connection and a client that uses it again may do so at the same time."""
    async with open_hub(tmp_path) as hub, trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        relay = Relay(hub.port)
        nursery.start_soon(trio.serve_listeners, relay.serve, listeners)
        address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        async with HubClient(address, "web1", timeout=20) as client:
            assert await client.put("log", messages(0, 3)) == 3
            relay.closes_next = True
            assert await client.put("log", messages(3, 4, size)) == 4
            relay.closes_next = True
            assert await client.get("log", 3) == messages(3, 4, size)
        assert relay.closed == 2
        nursery.cancel_scope.cancel()


async def test_a_request_that_the_hub_refuses_is_not_sent_again(tmp_path):
    fs = FaultFS(OsFileSystem())
    async with open_hub(tmp_path, fs=fs) as hub, HubClient(hub.address, "web1", timeout=20) as client:
        await client.put("log", messages(0, 3))
        fs.fail("sync_files")
        with pytest.raises(HubError, match="the disk failed") as refusal:
            await client.put("log", messages(3, 4))
        assert (refusal.value.code, hub.statistics().refused) == ("UNAVAILABLE", 1)
        assert await client.put("log", messages(3, 4)) == 4


async def test_a_hub_that_is_slow_to_answer_is_connected_to(tmp_path):
    """An attempt to connect had a second, each time: over a slow network no hub was ever reached."""

    async def hand_on_late(client: trio.SocketStream) -> None:
        await trio.sleep(1.5)
        await relay.serve(client)

    async with open_hub(tmp_path) as hub, trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        relay = Relay(hub.port)
        nursery.start_soon(trio.serve_listeners, hand_on_late, listeners)
        address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        async with HubClient(address, "web1", timeout=60) as client:
            assert await client.put("log", messages(0, 3)) == 3
        nursery.cancel_scope.cancel()


class Relay:
    """Hands on the bytes of each connection; closes one that has a new request, where it is told so."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.closes_next = False
        self.closed = 0

    async def serve(self, client: trio.SocketStream) -> None:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async with (
                await trio.open_tcp_stream("127.0.0.1", self._port) as hub,
                trio.open_nursery() as both,
            ):
                both.start_soon(self._hand_on, hub, client)
                async for data in client:
                    if self.closes_next and len(data) > 17:  # more than the answer to a ping
                        self.closes_next = False
                        self.closed += 1
                        break
                    await hub.send_all(data)
                both.cancel_scope.cancel()

    async def _hand_on(self, hub: trio.SocketStream, client: trio.SocketStream) -> None:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for data in hub:
                await client.send_all(data)


async def test_more_connections_than_may_be_are_closed_at_once(tmp_path):
    async with open_hub(tmp_path, max_connections=3, handshake_timeout=120) as hub:
        many = [await trio.open_tcp_stream("localhost", hub.port) for _ in range(8)]
        closed = []

        async def watch(stream: trio.SocketStream) -> None:
            with contextlib.suppress(trio.BrokenResourceError):
                while await stream.receive_some():
                    pass
            closed.append(stream)

        async with trio.open_nursery() as nursery:
            for stream in many:
                nursery.start_soon(watch, stream)
            with trio.fail_after(60):
                while len(closed) < 5:  # noqa: ASYNC110 (another program's clock)
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        assert len(closed) == 5
        for stream in many:
            await trio.aclose_forcefully(stream)


async def test_a_journal_that_would_begin_too_far_on_is_refused(tmp_path):
    async with open_hub(tmp_path) as hub, HubClient(hub.address, "web1") as client:
        for begin in (2**62, 2**63 - 1):
            with pytest.raises(HubError, match=r"diskq-begin is an offset below 2\^62") as refusal:
                await client.put_columns("log", None, first_offset=begin)
            assert refusal.value.code == "INVALID_ARGUMENT"
        assert await client.put("log", messages(0, 3)) == 3


async def test_a_call_that_is_not_waited_for_leaves_no_trace(tmp_path):
    fs = HeldSyncs(OsFileSystem())
    async with open_hub(tmp_path, fs=fs) as hub, HubClient(hub.address, "web1") as client:
        await client.put("log", messages(0, 3))
        fs.hold()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.put, "log", messages(3, 6))
            assert await trio.to_thread.run_sync(fs.has_begun.wait, SOON)
            nursery.cancel_scope.cancel()
        assert nursery.cancel_scope.cancelled_caught
        fs.let_go()
        assert await client.put("log", messages(3, 8)) == 8
        assert await client.get("log") == messages(0, 8)


async def test_leaving_the_block_lets_what_is_under_way_come_to_its_end(tmp_path):
    fs = HeldSyncs(OsFileSystem())
    answers = []

    async def put(client: HubClient) -> None:
        answers.append(await client.put("log", messages(3, 6)))

    async def let_go_later() -> None:
        await trio.sleep(0.1)
        fs.let_go()

    async with trio.open_nursery() as nursery:
        async with open_hub(tmp_path, fs=fs) as hub:
            client = await nursery.start(connected, hub.address)
            await client.put("log", messages(0, 3))
            fs.hold()
            nursery.start_soon(put, client)
            assert await trio.to_thread.run_sync(fs.has_begun.wait, SOON)
            nursery.start_soon(let_go_later)
        with pytest.raises(HubError):
            await client.put("log", messages(6, 7))
        nursery.cancel_scope.cancel()
    assert answers == [6]
    assert bytes_of(tmp_path / "web1.log") == records(messages(0, 6))


async def connected(address: str, task_status: trio.TaskStatus[HubClient]) -> None:
    async with HubClient(address, "web1") as client:
        task_status.started(client)
        await trio.sleep_forever()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_nothing_is_left_open(tmp_path):
    before = open_files()
    threads = threading.active_count()
    for _ in range(3):
        with trio.CancelScope() as scope:
            async with open_hub(tmp_path) as hub, HubClient(hub.address, "web1") as client:
                await client.put("log", messages(0, 3))
                scope.cancel()
                await trio.lowlevel.checkpoint()
    assert sum(thread.name.startswith("diskq hub") for thread in threading.enumerate()) == 0
    # gRPC keeps some of its own, and closes others in threads that nobody waits for.
    with trio.fail_after(60):
        while open_files() > before + 8 or threading.active_count() > threads + 8:  # noqa: ASYNC110
            await trio.sleep(0.01)


async def test_what_another_program_sends_is_read_as_ours(tmp_path):
    async with open_hub(tmp_path) as hub:
        with grpc.insecure_channel(hub.address) as channel:
            put = channel.unary_unary("/hub.Hub/Put")
            assert await trio.to_thread.run_sync(put, put_request(messages(0, 4))) == b""
            with pytest.raises(grpc.RpcError) as refusal:
                await trio.to_thread.run_sync(put, b"\xff\xff")
            assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert bytes_of(tmp_path / "web1.log") == records(messages(0, 4))
