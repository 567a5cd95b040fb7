# Checksums made right. Law: what was right stays as it is, byte for byte.
#
# A reader with checksums refuses nearly all that a fuzzer makes, and what lies behind the check is never
# reached. So damaged bytes are tried twice: as they are, and with every checksum in them right again.

from __future__ import annotations

import re
import struct
from collections.abc import Callable

from crc32c import crc32c

from diskq._native.priority.crc32_mpeg2 import crc32_mpeg2
from diskq.storage.checksums import CHECK_SIZE, checked
from diskq.storage.state import HEAD_SIZE

__all__ = ["commands", "metadata", "rows", "snapshot", "state", "text", "voucher_of"]

Voucher = Callable[[bytes], bytes]

_MARKER = bytes.fromhex("aaf534c4")
_HEADS = (12, 8)  # bytes before the checksum: with a term of eight bytes, and of four


def text(data: bytes) -> bytes:
    """A small file of ours: its last line."""
    return checked(data[:-CHECK_SIZE])


def rows(data: bytes, size: int) -> bytes:
    """Rows of `size` bytes, the last four of each a crc32c of those before. Zeros are no row."""
    found = bytearray(data)
    for at in range(0, len(data) - size + 1, size):
        covered = data[at : at + size - 4]
        if covered.strip(b"\x00"):
            struct.pack_into("<I", found, at + size - 4, crc32c(covered))
    return bytes(found)


def commands(data: bytes) -> bytes:
    """TaskFlux's records, wherever their marker is: marker, term, crc32, length, command."""
    found = bytearray(data)
    for at in (match.start() for match in re.finditer(re.escape(_MARKER), data)):
        for head in _HEADS:
            start = at + head + 8
            (length,) = struct.unpack_from(">i", data, start - 4) if start <= len(data) else (-1,)
            is_narrow = data[at + 4 : at + 8] != bytes(4)
            if 0 <= length <= len(data) - start and is_narrow == (head == 8):
                struct.pack_into(">I", found, at + head, crc32_mpeg2(found[start : start + length]))
    return bytes(found)


def metadata(data: bytes) -> bytes:
    """TaskFlux's term and vote: behind the marker, up to the checksum."""
    size = 24 if len(data) >= 24 else 20
    if len(data) < size:
        return data
    return data[: size - 4] + struct.pack(">I", crc32_mpeg2(data[4 : size - 4])) + data[size:]


def snapshot(data: bytes) -> bytes:
    """TaskFlux's snapshot: marker, index, term, length, state, checksum."""
    if len(data) < 28:
        return data
    (length,) = struct.unpack_from(">i", data, 20)
    end = 24 + length
    if not 0 <= length <= len(data) - 28:
        return data
    return data[:end] + struct.pack(">I", crc32_mpeg2(data[24:end])) + data[end + 4 :]


def state(data: bytes) -> bytes:
    """A store's state: a sector of JSON with its check, then perhaps text with its last line."""
    sector, rest = data[:HEAD_SIZE], data[HEAD_SIZE:]
    start, end = len(b'{"check": "........", '), len(sector.rstrip(b" \n"))
    if end > start:
        check = b"%08x" % crc32c(sector[start:end])
        sector = sector[:11] + check + sector[19:]
    return sector + (text(rest) if len(rest) >= CHECK_SIZE else rest)


def voucher_of(path: str, content: bytes) -> Voucher | None:
    """Who makes the checksums of this file right; None: it has none. `content` is the whole file."""
    if path.endswith(".sums"):
        return lambda data: rows(data, 24)
    if path.endswith((".diskq/state", ".queue.state")):
        return state
    if path.endswith("/sealed"):
        return lambda data: rows(data, 64)
    if path.endswith(".log"):
        return commands
    if path.endswith("tflux.metadata"):
        return metadata
    if path.endswith("tflux.snapshot"):
        return snapshot
    return text if re.search(rb"crc32c [0-9a-f]{8}\n\Z", content) else None
