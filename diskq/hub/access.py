# Access to a hub. Law: only a token proves which clients a request may act for; nothing else in the request
# does. Tokens are kept as digests and compared in constant time, all of them for each request.

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from diskq.hub.names import checked_client
from diskq.storage.log_events import Log

__all__ = ["Tls", "Tokens", "is_loopback", "read_token"]

log = Log("hub")

_LEAST_TOKEN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Paths of PEM files that encrypt a connection, and prove the identity of its ends.

    A hub needs `certificate` and `key`; with `ca` it accepts only clients whose certificate that authority
    signed. A client needs `ca` if the hub's certificate is not from a public authority, and its own
    `certificate` and `key` if the hub requires them.
    """

    certificate: str | None = None
    key: str | None = None
    ca: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("a certificate and its key go together")

    def read(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Return the contents of authority, key and certificate. Raises OSError."""
        return tuple(  # type: ignore[return-value]
            None if path is None else _read(path) for path in (self.ca, self.key, self.certificate)
        )


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


class Tokens:
    """The tokens that a hub accepts, and the clients of each."""

    def __init__(self, tokens: Mapping[str, Iterable[str] | None]) -> None:
        """`tokens` has the client ids of each token; None: all. Raises ValueError for a short token."""
        self._clients: list[tuple[bytes, frozenset[str] | None]] = []
        for token, clients in tokens.items():
            if len(token) < _LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
                raise ValueError(
                    f"a token is {_LEAST_TOKEN} or more printable characters without spaces, "
                    f"this one has {len(token)}"
                )
            ids = None if clients is None else frozenset(map(checked_client, clients))
            self._clients.append((_digest(token), ids))
        if not self._clients:
            raise ValueError("there is no token")

    @classmethod
    def read(cls, path: str) -> Tokens:
        """Read a file with one token per line, followed by the ids of its clients, or by nothing for all.

        Empty lines, and lines that begin with #, are skipped. Raises OSError, ValueError.
        """
        tokens: dict[str, list[str] | None] = {}
        with open(path, encoding="ascii", errors="surrogateescape") as file:
            _warn_if_open(path, os.fstat(file.fileno()).st_mode)
            for number, line in enumerate(file, 1):
                words = line.split()
                if not words or words[0].startswith("#"):
                    continue
                if words[0] in tokens:
                    raise ValueError(f"{path}: the token in line {number} is a duplicate")
                tokens[words[0]] = words[1:] or None
        return cls(tokens)

    def clients_of(self, header: str | bytes | None) -> frozenset[str] | None:
        """Return the clients that `Authorization: Bearer TOKEN` is for, None: all. Raises PermissionError."""
        text = header.decode("ascii", "replace") if isinstance(header, bytes) else header or ""
        scheme, _, token = text.partition(" ")
        shown = _digest(token.strip())
        found: frozenset[str] | None = None
        is_known = False
        for digest, clients in self._clients:
            if hmac.compare_digest(digest, shown):
                found, is_known = clients, True
        if not is_known or scheme.lower() != "bearer":
            raise PermissionError("no token that this hub knows")
        return found


def read_token(path: str) -> str:
    """Return the first token of a file in the format of `Tokens.read`. Raises OSError, ValueError."""
    with open(path, encoding="ascii", errors="surrogateescape") as file:
        _warn_if_open(path, os.fstat(file.fileno()).st_mode)
        for line in file:
            words = line.split()
            if words and not words[0].startswith("#"):
                return words[0]
    raise ValueError(f"{path}: there is no token in it")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _warn_if_open(path: str, mode: int) -> None:
    if stat.S_IMODE(mode) & 0o007:
        log.report(
            "tokens_readable",
            "%s: everybody on this machine may read the tokens in it (chmod o= would help)",
            path,
            path=path,
        )


def is_loopback(address: str) -> bool:
    """True if an address, `host:port` or `unix:PATH`, stays on this machine."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
