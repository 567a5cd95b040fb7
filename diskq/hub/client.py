# The client of a hub. gRPC sends and waits in a thread of its own; a call here is a task that sleeps until
# that thread has the answer. Law: when a call returns, its messages are synced at the hub. After `Cancelled`
# they may be there or not; sending them again does no harm, because the hub knows messages by their offsets.

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from itertools import pairwise
from types import TracebackType
from typing import Any, NamedTuple, Self

import grpc
import trio

from diskq._native.hub import wire as hubwire
from diskq._native.journal import codec as journal_codec
from diskq._native.journal.codec import JournalColumns
from diskq.errors import HubError
from diskq.hub.access import Tls, is_loopback
from diskq.hub.names import checked_client, checked_journal
from diskq.hub.service import BEGIN, FIRST, NEXT
from diskq.hub.store import HubJournal, Range
from diskq.messages import NULL_TIMESTAMP, JournalMessage

__all__ = ["HubClient", "HubStatus"]

# The same call may succeed later: the hub is unreachable, busy or full.
_TEMPORARY = {"UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "ABORTED", "CANCELLED"}

# A connection may end while a request is on its way, for a hub closes idle ones: gRPC sends such a request
# once more, on a new connection. Each call may be repeated without harm. What a hub refused is not sent
# again: with its answer come headers, which end gRPC's retries.
_RETRIES = {
    "methodConfig": [
        {
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 2,
                "initialBackoff": "0.05s",
                "maxBackoff": "0.05s",
                "backoffMultiplier": 1,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}

Metadata = tuple[tuple[str, str], ...]


class HubStatus(NamedTuple):
    """The journals and figures of a hub."""

    journals: list[HubJournal]
    """The journals of the token's clients, by client and name."""
    statistics: dict[str, int]
    """The fields of `HubStatistics`."""


class HubClient:
    """A connection to a hub of diskq or sej: an async context manager. It connects at the first call.

    Any number of tasks may use it at once.
    """

    def __init__(
        self,
        address: str,
        client_id: str,
        *,
        token: str | None = None,
        tls: Tls | None = None,
        insecure: bool = False,
        timeout: float = 60.0,
    ) -> None:
        """`address` is `host:port` or `unix:PATH`; `timeout` is for one call, in seconds.

        Raises ValueError for an invalid client id, and if messages or the token would go unencrypted over a
        network: give `tls`, or `insecure=True`.
        """
        self.address = address
        self.client_id: str = checked_client(client_id)
        self.timeout = timeout
        self._client = self.client_id.encode()
        self._tls = tls
        self._metadata: Metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        self._channel: grpc.Channel | None = None
        if tls is None and not insecure and not is_loopback(address):
            raise ValueError(f"what goes to {address} can be read on the way: give tls, or insecure=True")

    async def __aenter__(self) -> Self:
        credentials = None
        if self._tls is not None:
            credentials = grpc.ssl_channel_credentials(*await trio.to_thread.run_sync(self._tls.read))
        options = (
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.service_config", json.dumps(_RETRIES)),
            ("grpc.per_rpc_retry_buffer_size", 2**31 - 1),  # a larger request would not be sent again
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.keepalive_timeout_ms", 20_000),
            # Short, so that a hub that comes back is found soon: `replicate` has a back-off of its own.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 2_000),
            # In spite of its name the time that an attempt has: as long as a hub's `handshake_timeout`.
            ("grpc.min_reconnect_backoff_ms", 10_000),
        )
        if credentials is None:
            channel = grpc.insecure_channel(self.address, options)
        else:
            channel = grpc.secure_channel(self.address, credentials, options)
        self._channel = channel
        self._put = channel.unary_unary("/hub.Hub/Put")
        self._get = channel.unary_unary("/hub.Hub/Get")
        self._status = channel.unary_unary("/diskq.Hub/Status")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(channel.close)

    # --- calls ------------------------------------------------------------------------------------

    async def put(self, journal: str, messages: Iterable[JournalMessage]) -> int | None:
        """Append messages with consecutive offsets to the hub's journal, and sync them.

        Messages that the hub already has are skipped. Returns the offset that the hub expects next; None: it
        does not report one (sej's hub does not). `Cancelled` means: it is unknown whether they are in; put
        them again. Raises ValueError, and HubError: with `expected` if they do not follow what the hub has.
        """
        batch = list(messages)
        for one, another in pairwise(batch):
            if another.offset != one.offset + 1:
                raise ValueError(f"message {another.offset} does not follow message {one.offset}")
        columns = None
        if batch:
            data = journal_codec.encode(
                (
                    (
                        each.key,
                        NULL_TIMESTAMP if each.timestamp_ns is None else each.timestamp_ns,
                        each.type,
                        each.value,
                    )
                    for each in batch
                ),
                batch[0].offset,
            )
            columns = journal_codec.columns(data, batch[0].offset)
        there = await self.put_columns(journal, columns)
        return None if there is None else there.next_offset

    async def put_columns(
        self, journal: str, columns: JournalColumns | None, *, first_offset: int | None = None
    ) -> Range | None:
        """Do as `put`, with messages in a journal reader's columns. Returns the range that the hub has then.

        `first_offset` is that of a journal that the hub does not have yet (only diskq's hub supports
        it). If `columns` is None nothing is put, and only the range is returned. `Cancelled` as in `put`.
        """
        request = hubwire.put_request(self._client, _name(journal), columns)
        more: Metadata = () if first_offset is None else ((BEGIN, str(first_offset)),)
        _, there = await self._call(self._put, request, more)
        return there

    async def get(
        self, journal: str, offset: int = 0, *, client_id: str | None = None
    ) -> list[JournalMessage]:
        """Return messages from `offset` on, as many as the hub gives at once; none: there are no more now.

        `client_id` selects another client's journal. `Cancelled` changes nothing. Raises HubError: with
        `first` and `expected` if the offset was removed or is beyond the end.
        """
        client = self._client if client_id is None else checked_client(client_id).encode()
        data, _ = await self._call(self._get, hubwire.get_request(client, _name(journal), offset))
        try:
            return hubwire.messages(data, hubwire.OF_GET)
        except ValueError as wrong:
            raise HubError(f"{self.address}: {wrong}", code="INTERNAL") from wrong

    async def range(self, journal: str) -> Range | None:
        """Return the first offset of the hub's journal, and the offset that the hub expects next.

        None: the hub does not report it (sej's hub does not). `Cancelled` changes nothing. Raises HubError.
        """
        return await self.put_columns(journal, None)

    async def status(self) -> HubStatus:
        """Return the hub's journals and figures. `Cancelled` changes nothing. Raises HubError, also with
        sej's hub.
        """
        data, _ = await self._call(self._status, b"")
        fields: dict[str, Any] = json.loads(data)
        return HubStatus([HubJournal(**each) for each in fields["journals"]], fields["statistics"])

    # --- the bridge -------------------------------------------------------------------------------

    async def _call(
        self, method: grpc.UnaryUnaryMultiCallable, request: bytes, more: Metadata = ()
    ) -> tuple[bytes, Range | None]:
        if self._channel is None:
            raise trio.ClosedResourceError("this client of a hub is closed")
        await trio.lowlevel.checkpoint_if_cancelled()
        answered = trio.Event()
        token = trio.lowlevel.current_trio_token()

        def wake(_: object) -> None:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(answered.set)

        call = method.future(request, timeout=self.timeout, metadata=self._metadata + more)
        call.add_done_callback(wake)
        try:
            await answered.wait()
        except BaseException:
            call.cancel()
            raise
        there = _range(call.trailing_metadata())
        code = call.code()
        if code is grpc.StatusCode.OK:
            answer: bytes = call.result()
            return answer, there
        raise HubError(
            f"hub {self.address}: {call.details() or code.name}",
            code=code.name,
            expected=None if there is None else there.next_offset,
            first_offset=None if there is None else there.first_offset,
            is_temporary=code.name in _TEMPORARY,
        )


def _name(journal: str) -> bytes:
    return checked_journal(journal).encode()


def _range(metadata: Iterable[tuple[str, str | bytes]] | None) -> Range | None:
    values = dict(metadata or ())
    try:
        return Range(int(values[FIRST]), int(values[NEXT]))
    except (KeyError, ValueError):
        return None
