# A stream's settings: settings.json, as go-diskq writes it. Law: diskq reads the same numbers as go-diskq,
# writes the bytes that it would have written, and guesses nothing.
#
#   {
#     "partition_count": 3,               a missing key, or 0, is the default at the time of use
#     "segment_size_bytes": 33554432,
#     "retention_max_bytes": 1073741824,
#     "retention_max_age": 86400000000000,  nanoseconds
#     "encoding": "varuint"               diskq's key: records in the form of go-diskq's README; else missing
#   }
#
# Like go-diskq, diskq reads one JSON value and ignores the rest, accepts keys in any case, and ignores
# unknown keys: they are gone when the file is next written. Unlike it, diskq refuses negative numbers, which
# it takes for defaults, and treats an empty file as a missing one: go-diskq empties the file at each open
# before it writes it, so that is what its crash leaves.
# Format: docs/format/triplet.md.

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NoReturn

from diskq.engine.stream.files import StreamFiles
from diskq.errors import UnsupportedFormatError
from diskq.options import ENCODINGS, MIB, MOST_PARTITIONS, Encoding, StreamOptions
from diskq.storage.barrier import Replacement, read_small
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path

__all__ = ["StreamSettings", "parse", "read_settings", "settings_as", "settings_at", "settings_of"]

_LARGEST_FILE = 64 * 1024
_LARGEST_NUMBER = 2**63 - 1
_SECOND = 1_000_000_000

# In the order in which they are written; each with its field and its greatest value.
_NUMBERS = {
    "partition_count": ("partition_count", MOST_PARTITIONS),
    "segment_size_bytes": ("segment_size", _LARGEST_NUMBER),
    "retention_max_bytes": ("retention_max_bytes", _LARGEST_NUMBER),
    "retention_max_age": ("retention_max_age_ns", _LARGEST_NUMBER),
}
_ENCODING = "encoding"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """The content of settings.json. None: no value, so that the default applies at each use."""

    partition_count: int | None = None
    segment_size: int | None = None
    """Bytes."""
    retention_max_bytes: int | None = None
    """Bytes of each partition; None: no bound."""
    retention_max_age_ns: int | None = None
    """None: no bound."""
    encoding: Encoding = "fixed"

    @property
    def partitions(self) -> int:
        """The number of partitions that are written to."""
        return self.partition_count or 3

    @property
    def roll_size(self) -> int:
        """The bytes of data at which a segment is complete."""
        return self.segment_size or 32 * MIB

    def render(self) -> bytes:
        """Return the file's content: byte for byte what go-diskq writes if `encoding` is fixed."""
        content: dict[str, int | str] = {}
        for key, (name, _) in _NUMBERS.items():
            if value := getattr(self, name):
                content[key] = value
        if self.encoding != "fixed":
            content[_ENCODING] = self.encoding
        return json.dumps(content, indent=2).encode() + b"\n"


# --- reading --------------------------------------------------------------------------------------


def read_settings(fs: FileSystem, files: StreamFiles) -> StreamSettings | None:
    """Return the settings; None if the file is missing, or has what a crash leaves: nothing, or zeros.

    Raises UnsupportedFormatError for anything else that is not settings, and OSError.
    """
    content = read_small(fs, files.settings, _LARGEST_FILE + 1)
    if content is None or not content.strip(b"\0"):
        return None
    return parse(content, files.settings)


def settings_at(path: AnyPath, *, fs: FileSystem | None = None) -> StreamSettings | None:
    """Return the settings of the stream at `path`; None if there is no stream, or only what one begins with.

    A consumer that is first, and a producer that was interrupted while it created the stream, leave
    directories without settings and messages: the next producer decides. Raises as `read_settings`.
    """
    fs = fs or OsFileSystem()
    files = StreamFiles(fs, as_path(path))
    if fs.size_of(files.parts) is None:
        return None
    settings = read_settings(fs, files)
    if settings is None and _has_messages(fs, files):
        return StreamSettings()
    return settings


def _has_messages(fs: FileSystem, files: StreamFiles) -> bool:
    partitions = map(files.partition, files.partitions())
    return any(fs.size_of(its.data(base)) for its in partitions for base in its.bases())


def parse(content: bytes, path: str = "settings.json") -> StreamSettings:
    """Parse settings. Raises UnsupportedFormatError, naming `path`, for what go-diskq refuses, too."""
    fields: dict[str, Any] = {}
    for key, value in _object(content, path):
        key = key.lower()
        if value is None:
            continue  # as if the key were missing
        if key in _NUMBERS:
            name, most = _NUMBERS[key]
            fields[name] = _number(path, key, value, most) or None
        elif key == _ENCODING:
            if value not in ENCODINGS:
                _refuse(path, f"encoding {value!r}", f"{' or '.join(ENCODINGS)}; a newer diskq may know it")
            fields[key] = value
    return StreamSettings(**fields)


def _object(content: bytes, path: str) -> list[tuple[str, Any]]:
    """Return the keys and values of the JSON object with which the file begins; a key may repeat."""
    if len(content) > _LARGEST_FILE:
        _refuse(path, f"more than {_LARGEST_FILE} bytes")
    text = content.decode("utf-8", "replace").lstrip(" \t\r\n")
    try:
        found, _ = _DECODER.raw_decode(text)
    except (ValueError, RecursionError) as reason:
        _refuse(path, f"no settings ({reason})")
    if found is None:
        return []  # JSON's null
    if not isinstance(found, _Object):
        _refuse(path, f"{type(found).__name__} in JSON")
    return found


class _Object(list[tuple[str, Any]]):
    """A JSON object, whose keys may repeat, as distinct from a JSON array."""


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number in JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_Object, parse_constant=_no_number)


def _number(path: str, key: str, value: Any, most: int) -> int:
    if type(value) is not int:
        _refuse(path, f"{key} {value!r}", "a whole number")
    if not 0 <= value <= most:
        _refuse(path, f"{key} {value}", f"0 to {most}")
    return value


def _refuse(path: str, found: str, supported: str = "a JSON object as go-diskq writes it") -> NoReturn:
    raise UnsupportedFormatError(path, found, supported)


# --- writing --------------------------------------------------------------------------------------


def settings_of(
    options: StreamOptions, existing: StreamSettings | None, path: str = "settings.json"
) -> StreamSettings:
    """Return the settings for a stream opened with `options`; values that they leave open stay as they were.

    Raises UnsupportedFormatError, naming `path`, if the stream has the other encoding: a stream has one.
    """
    if existing is None:
        existing = StreamSettings(encoding=options.encoding or "fixed")
    if options.encoding not in (None, existing.encoding):
        _refuse(path, f"a stream with encoding {existing.encoding}", "the one that it was made with")
    return StreamSettings(
        partition_count=options.partition_count or existing.partition_count,
        segment_size=options.segment_size or existing.segment_size,
        retention_max_bytes=options.retention_max_bytes or existing.retention_max_bytes,
        retention_max_age_ns=_nanoseconds(options.retention_max_age) or existing.retention_max_age_ns,
        encoding=existing.encoding,
    )


def _nanoseconds(seconds: float | None) -> int | None:
    return None if seconds is None else max(1, round(seconds * _SECOND))


def settings_as(files: StreamFiles, settings: StreamSettings) -> Replacement:
    """Return the replacement of settings.json, for a barrier."""
    return Replacement(files.settings, settings.render(), files.temporary(files.settings))
