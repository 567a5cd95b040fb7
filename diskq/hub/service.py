# A hub's methods, which gRPC calls in its threads. Law: every failure is answered with a gRPC status code and
# a sentence that contains no byte of any message; a request without a valid token is refused before it is
# read.
#
#     /hub.Hub/Put      PutRequest -> PutResponse       sej's protocol
#     /hub.Hub/Get      GetRequest -> GetResponse
#     /diskq.Hub/Status () -> JSON                      diskq only
#
# Each answer, and each error where they are known, has these as trailing metadata, which sej's clients
# ignore:
#
#     diskq-first-offset    the offset of the journal's first message
#     diskq-next-offset     the offset that is expected next: everything before it is synced

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import grpc

from diskq._native.hub import wire as hubwire
from diskq.errors import DiskqError, HubError
from diskq.hub.access import Tokens
from diskq.hub.store import Allows, HubStore, Range
from diskq.storage.log_events import Log
from diskq.storage.numbers import NO_NUMBER

__all__ = ["BEGIN", "FIRST", "NEXT", "Patience", "handlers"]

log = Log("hub")

FIRST = "diskq-first-offset"
NEXT = "diskq-next-offset"
BEGIN = "diskq-begin"
"""With a Put: the first offset of a journal that does not exist yet."""

Method = Callable[[bytes, Allows, float, "dict[str, str]"], "tuple[bytes, Range | None]"]


class Patience:
    """Cancels requests that do not arrive in time: each of them would occupy a thread."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[Any, float] = {}

    def begin(self, context: grpc.ServicerContext) -> None:
        with self._lock:
            self._waiting[context] = self._clock() + self._seconds

    def end(self, context: grpc.ServicerContext) -> None:
        with self._lock:
            self._waiting.pop(context, None)

    def look(self) -> None:
        """Cancel the requests that took too long. Call this regularly."""
        now = self._clock()
        with self._lock:
            late = [context for context, until in self._waiting.items() if until <= now]
        for context in late:
            log.report(
                "request_late", "hub: %s: a request did not come in", context.peer(), peer=context.peer()
            )
            context.cancel()


class Shares:
    """Limits the requests that each client has under way, so that one client does not block others."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._counts: dict[Hashable, int] = {}

    @contextlib.contextmanager
    def one_of(self, client: Hashable) -> Iterator[None]:
        """Count one request for the block. Raises HubError if the client has reached its limit."""
        with self._lock:
            count = self._counts.get(client, 0)
            if count >= self._most:
                raise HubError(
                    f"{count} requests of this client are under way, more may not be: come later",
                    code="RESOURCE_EXHAUSTED",
                    is_temporary=True,
                )
            self._counts[client] = count + 1
        try:
            yield
        finally:
            with self._lock:
                count = self._counts.pop(client) - 1
                if count:
                    self._counts[client] = count


def handlers(
    store: HubStore, tokens: Tokens | None, patience: Patience
) -> tuple[grpc.GenericRpcHandler, grpc.GenericRpcHandler]:
    """Return the handlers for a gRPC server."""

    def put(request: bytes, allows: Allows, timeout: float, metadata: dict[str, str]) -> tuple[bytes, Range]:
        return b"", store.put(request, allows=allows, timeout=timeout, first=_beginning(metadata))

    def get(request: bytes, allows: Allows, timeout: float, _: object) -> tuple[bytes, Range]:
        columns, there = store.get(request, allows=allows, timeout=timeout)
        return hubwire.get_response(columns), there

    def status(_: bytes, allows: Allows, timeout: float, metadata: object) -> tuple[bytes, None]:
        return json.dumps(
            {
                "journals": [dataclasses.asdict(each) for each in store.journals(allows)],
                "statistics": dataclasses.asdict(store.statistics()),
            }
        ).encode(), None

    def handler(method: Method) -> grpc.RpcMethodHandler:
        # A stream of requests, of which one is read: a unary method is called only after its request arrived,
        # and that wait could not be ended. On the wire they are the same.
        call = _HubCall(method, store, tokens, patience, shares, at_work)
        return grpc.stream_unary_rpc_method_handler(call)

    shares = Shares(store.options.max_client_requests)
    at_work = threading.Semaphore(store.options.threads)
    return (
        grpc.method_handlers_generic_handler("hub.Hub", {"Put": handler(put), "Get": handler(get)}),
        grpc.method_handlers_generic_handler("diskq.Hub", {"Status": handler(status)}),
    )


class _HubCall:
    """One method: checks the token, reads the request, and returns the answer or the error."""

    def __init__(
        self,
        method: Method,
        store: HubStore,
        tokens: Tokens | None,
        patience: Patience,
        shares: Shares,
        at_work: threading.Semaphore,
    ) -> None:
        self._method = method
        self._store = store
        self._tokens = tokens
        self._patience = patience
        self._shares = shares
        self._at_work = at_work

    def __call__(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        try:
            metadata = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
            allows = self._allows(metadata)
            with self._shares.one_of(self._client_of(metadata, context)):
                answer, there = self._answer(requests, allows, context, metadata)
        except HubError as failure:
            if failure.code != "FAILED_PRECONDITION":
                self._store.count_refused()
            log.report(
                "request_refused",
                "hub: %s: %s: %s",
                context.peer(),
                failure.code,
                failure.reason,
                peer=context.peer(),
                code=failure.code,
                reason=failure.reason,
            )
            there = None
            if failure.expected is not None:
                there = Range(failure.first_offset or 0, failure.expected)
            code, reason = getattr(grpc.StatusCode, failure.code), failure.reason
        except DiskqError as failure:
            self._store.count_refused()
            log.report(
                "hub_failed", "hub: %s", context.peer(), peer=context.peer(), error=failure, exc_info=failure
            )
            there, code, reason = None, grpc.StatusCode.INTERNAL, type(failure).__name__
        else:
            _set_range(context, there)
            return answer
        _set_range(context, there)
        context.set_code(code)
        context.set_details(reason)
        return b""

    def _answer(
        self,
        requests: Iterator[bytes],
        allows: Allows,
        context: grpc.ServicerContext,
        metadata: dict[str, str],
    ) -> tuple[bytes, Range | None]:
        """Wait for the request, then for its turn; return the method's answer."""
        self._patience.begin(context)
        try:
            request = next(requests, None)
        finally:
            self._patience.end(context)
        if request is None:
            raise HubError("there was no request", code="INVALID_ARGUMENT")
        if not self._at_work.acquire(timeout=max(0.0, self._timeout(context))):
            raise HubError("too many requests are worked on", code="UNAVAILABLE", is_temporary=True)
        try:
            return self._method(request, allows, self._timeout(context), metadata)
        finally:
            self._at_work.release()

    def _client_of(self, metadata: dict[str, str], context: grpc.ServicerContext) -> Hashable:
        """Return the client whose share a request is counted in."""
        if self._tokens is not None:
            return metadata.get("authorization")
        identities = context.peer_identities()
        return tuple(identities) if identities else context.peer()

    def _allows(self, metadata: dict[str, str]) -> Allows:
        if self._tokens is None:
            return _anybody
        try:
            clients = self._tokens.clients_of(metadata.get("authorization"))
        except PermissionError as refusal:
            raise HubError(str(refusal), code="UNAUTHENTICATED") from None
        return _anybody if clients is None else clients.__contains__

    def _timeout(self, context: grpc.ServicerContext) -> float:
        """Return the seconds that a request may wait: the client's deadline, up to `request_timeout`."""
        left = context.time_remaining()
        limit = self._store.options.request_timeout
        return limit if left is None else min(limit, left)


def _set_range(context: grpc.ServicerContext, there: Range | None) -> None:
    if there is not None:
        context.set_trailing_metadata(((FIRST, str(there.first_offset)), (NEXT, str(there.next_offset))))


def _beginning(metadata: dict[str, str]) -> int | None:
    text = metadata.get(BEGIN)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) < NO_NUMBER):
        raise HubError(
            f"{BEGIN} is an offset below 2^62, where a journal that is not there yet begins",
            code="INVALID_ARGUMENT",
        )
    return int(text)


def _anybody(_: str) -> bool:
    return True
