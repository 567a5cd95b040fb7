# A hub that listens. gRPC has threads of its own, and the store works in them: Trio opens it, checks timeouts
# once a second, and closes it. Law: when the block is left, every request was answered or refused, and the
# journals are closed.

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Unpack

import grpc
import trio

from diskq.channels.core.closing import in_a_thread
from diskq.channels.core.opening import Opening
from diskq.errors import NotFoundError
from diskq.hub.access import Tls, Tokens, is_loopback
from diskq.hub.service import Patience, handlers
from diskq.hub.store import HubJournal, HubStatistics, HubStore
from diskq.keywords import HubKeywords
from diskq.options import HubOptions, chosen_options
from diskq.storage.directories import make_directories
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path
from diskq.storage.log_events import Log

__all__ = ["Hub", "open_hub"]

log = Log("hub")

_LOOK_EVERY = 1.0
# Bytes of a request beside its messages: the names, and the lengths.
_OVERHEAD = 64 * 1024


class Hub:
    """An open hub, which receives journals. Made by `open_hub`."""

    def __init__(self, store: HubStore, address: str, port: int) -> None:
        self._store = store
        self.address = address
        """The address at which it listens: `host:port`, with the port that the system chose."""
        self.port = port

    def statistics(self) -> HubStatistics:
        """Return the hub's figures. Cheap; may be called from any thread."""
        return self._store.statistics()

    async def journals(self) -> list[HubJournal]:
        """Return the hub's journals, by name. `Cancelled` changes nothing."""
        return await trio.to_thread.run_sync(self._store.journals, _all, abandon_on_cancel=True)

    def close(self) -> None:
        """Do nothing: the hub closes when its block is left."""


class _Running:
    """The running server of a block."""

    def __init__(
        self, server: grpc.Server, pool: ThreadPoolExecutor, store: HubStore, patience: Patience, title: str
    ) -> None:
        self._server = server
        self._pool = pool
        self._store = store
        self._patience = patience
        self._is_closing = trio.Event()
        self._failure: Exception | None = None
        self.title = title

    @property
    def is_broken(self) -> bool:
        return self._failure is not None

    def begin(self) -> bool:
        """Return False: it needs a task of its own."""
        return False

    async def run(self) -> None:
        with trio.CancelScope(shield=True):
            try:
                while not self._is_closing.is_set():
                    with trio.move_on_after(_LOOK_EVERY):
                        await self._is_closing.wait()
                    self._patience.look()
                    await trio.to_thread.run_sync(self._store.close_idle)
                await in_a_thread(self._stop)
            except Exception as failure:
                self._failure = failure
                log.report("broken", "%s", self.title, path=self.title, error=failure, exc_info=failure)

    def _stop(self) -> None:
        with contextlib.ExitStack() as stack:  # all steps run, also if one raises
            stack.callback(self._store.close)
            stack.callback(self._pool.shutdown)
            self._server.stop(self._store.options.stop_timeout).wait()

    def begin_to_close(self) -> None:
        self._is_closing.set()

    def check_end(self) -> None:
        if self._failure is not None:
            raise self._failure


class open_hub(Opening[Hub]):  # noqa: N801 (it is used as a function)
    """Receive journals over the network: an async context manager that gives a `Hub`, which listens
    meanwhile.

    `root` is the directory of the journals, made if it is missing (`create=False`: that is a NotFoundError).
    `listen` is `host:port` (port 0: any free port, see `Hub.port`) or `unix:PATH`. `tokens` are the accepted
    tokens: each may write for its clients.

    If other machines can reach the address, the hub needs `tls`, and `tokens` or a `ca` that signs clients'
    certificates; `insecure=True` lifts that, for a network that no one else uses. Options may be given as a
    `HubOptions`, or one by one: `quota=10 * GIB`.

    Leaving the block accepts no new requests, waits up to `stop_timeout` for those under way, and closes the
    journals, also when the block was cancelled. Entering it raises ValueError, NotFoundError, and OSError if
    the address cannot be used.

    Options (`HubOptions`). Sizes in bytes, durations in seconds.

    - `max_batch_size=64 * 1024 * 1024`: Larger requests are refused; an answer is at most this large.
    - `max_batch_messages=100_000`: Requests with more messages are refused; an answer has at most this many.
    - `max_get_size=1024 * 1024`: An answer holds up to this many bytes of a journal, or one larger message.
    - `max_open_journals=256`: Up to this many journals are open at a time; the least recently used one is
      closed for another.
    - `idle_timeout=60.0`: A journal that is not used for this long is closed.
    - `max_requests=256`: Up to this many requests are in progress at a time; others are refused, to be
      repeated later.
    - `max_streams=100`: Up to this many requests are in progress at a time on one connection.
    - `threads=16`: Up to this many requests are worked on at a time, each in a thread.
    - `request_timeout=30.0`: The longest time in which a request must arrive completely, and for which it
      waits for a thread.
    - `max_client_requests=32`: Up to this many requests of one client are in progress at a time, arriving or
      worked on; others are refused, to be repeated later. A client is a token; without tokens a certificate,
      or else a connection.
    - `max_connections=500`: Up to this many connections are open at a time; one more is closed at once. Each
      takes a descriptor.
    - `handshake_timeout=10.0`: A connection is closed if its client has not begun to speak gRPC (and TLS)
      after this time.
    - `idle_connection_timeout=60.0`: A connection without a request for this long is closed; a client opens
      another one when it needs it.
    - `stop_timeout=10.0`: When the hub stops, it waits up to this long for requests in progress.
    - `quota=None`: Up to this many bytes of journals for each client. None: only the disk's size bounds them.
    - `journal=JournalOptions()`: How journals are kept, and how large a value may be. Each batch is synced,
      whatever `durability` is.
    """

    def __init__(
        self,
        root: AnyPath,
        listen: str = "localhost:0",
        *,
        tls: Tls | None = None,
        tokens: Tokens | None = None,
        insecure: bool = False,
        create: bool = True,
        options: HubOptions | None = None,
        fs: FileSystem | None = None,
        **changes: Unpack[HubKeywords],
    ) -> None:
        self._root = as_path(root)
        self._listen = listen
        self._tls = tls
        self._tokens = tokens
        self._create = create
        self._options = chosen_options(open_hub, options, HubOptions, changes)
        self._fs = fs or OsFileSystem()
        if tls is not None and tls.certificate is None:
            raise ValueError("a hub's tls needs a certificate and its key")
        knows_clients = tokens is not None or (tls is not None and tls.ca is not None)
        if not insecure and not is_loopback(listen) and not (tls is not None and knows_clients):
            raise ValueError(
                f"{listen} can be reached by others: give tls, and tokens or a ca for clients' certificates; "
                "or insecure=True"
            )

    async def _open(self) -> tuple[_Running, Hub]:
        return await trio.to_thread.run_sync(self._start)

    def _start(self) -> tuple[_Running, Hub]:
        options = self._options
        if not self._create and self._fs.size_of(self._root) is None:
            raise NotFoundError("hub", self._root)
        make_directories(self._fs, self._root)
        store = HubStore(self._root, options, self._fs)
        patience = Patience(options.request_timeout, self._fs.monotonic)
        credentials = None
        if self._tls is not None:
            ca, key, certificate = self._tls.read()
            assert key is not None
            assert certificate is not None
            credentials = grpc.ssl_server_credentials(
                [(key, certificate)], root_certificates=ca, require_client_auth=ca is not None
            )
        # Each request that arrives occupies a thread, and no client has more than half of them.
        threads = max(options.threads, 2 * options.max_client_requests)
        pool = ThreadPoolExecutor(threads, thread_name_prefix="diskq hub")
        server = grpc.server(
            pool,
            handlers=handlers(store, self._tokens, patience),
            options=(
                ("grpc.max_receive_message_length", options.max_batch_size + _OVERHEAD),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", options.max_streams),
                ("grpc.max_metadata_size", 16 * 1024),
                ("grpc.max_allowed_incoming_connections", options.max_connections),
                ("grpc.server_handshake_timeout_ms", _milliseconds(options.handshake_timeout)),
                ("grpc.max_connection_idle_ms", _milliseconds(options.idle_connection_timeout)),
                ("grpc.so_reuseport", 0),
                ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
                ("grpc.keepalive_time_ms", 60_000),
                ("grpc.keepalive_timeout_ms", 20_000),
            ),
            maximum_concurrent_rpcs=options.max_requests,
        )
        try:
            bind: Callable[[str], int] = server.add_insecure_port
            if credentials is not None:
                bind = partial(server.add_secure_port, server_credentials=credentials)
            try:
                port = bind(self._listen)
            except RuntimeError as refusal:
                raise OSError(f"cannot listen at {self._listen}: {refusal}") from None
            server.start()
        except BaseException:
            server.stop(None)
            pool.shutdown()
            raise
        address = self._listen
        if not address.startswith("unix:"):
            address = f"{address.rpartition(':')[0]}:{port}"
        log.report("hub_listens", "hub %s listens at %s", self._root, address, path=self._root, peer=address)
        running = _Running(server, pool, store, patience, f"hub {os.fspath(self._root)}")
        return running, Hub(store, address, port)


def _milliseconds(seconds: float) -> int:
    return max(1, min(round(seconds * 1000), 2**31 - 1))


def _all(_: str) -> bool:
    return True
