# stdin, stdout and stderr. Law: no other module of the command reads or writes them; what `write` and `flush`
# return from has left the process, and what could not leave raises.
#
# Python's own streams do not hold that. With PYTHONUNBUFFERED a short write (a full disk, a signal, a
# non-blocking pipe) loses the rest, silently; a descriptor that an earlier program left non-blocking raises
# at every pause; a closed one is None, and the next file that is opened gets its number.

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import select
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

__all__ = [
    "CLOSED",
    "OutputStream",
    "closed_streams",
    "stderr",
    "stdin",
    "stdout",
    "stream_of",
    "write_whole",
]

CLOSED = "it is closed, so nothing was done; redirect it, to /dev/null if it is not needed"

_GATHERED = 64 * 1024
"""Characters of lines that are gathered for one write, where no person reads along."""


# --- in -------------------------------------------------------------------------------------------


class _InputStream:
    """stdin, as bytes."""

    def fileno(self) -> int:
        """Return its descriptor. Raises OSError if it is closed."""
        if sys.stdin is None:
            raise OSError(errno.EBADF, CLOSED, "stdin")
        return sys.stdin.fileno()

    def is_terminal(self) -> bool:
        return sys.stdin is not None and sys.stdin.isatty()

    def read(self, size: int) -> bytes:
        """Return the next bytes, at most `size`; none at the end. Waits, also if it is non-blocking."""
        handle = self.fileno()
        with _named("stdin"):
            while True:
                try:
                    return os.read(handle, size)
                except BlockingIOError:
                    _wait(handle, select.POLLIN)

    def read_line(self) -> str:
        """Return what is typed until Enter, or until the end."""
        typed = b""
        while not typed.endswith(b"\n") and (byte := self.read(1)):
            typed += byte
        return typed.decode(errors="replace")


# --- out ------------------------------------------------------------------------------------------


class OutputStream:
    """stdout or stderr: bytes, which leave at once, and lines of text, which may be gathered until `flush`.

    It follows the name in `sys`, so that what replaces a stream there (a test, a progress bar of rich that
    draws its lines below what is printed) gets the text.
    """

    has_failed = False
    """True if a line for the person could not be written; see `note`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._gathered: list[str] = []
        self._size = 0
        self._stream: TextIO | None = None
        self._handle: int | None = None
        self._is_terminal = False

    @property
    def encoding(self) -> str:
        return getattr(self._current(), "encoding", None) or "utf-8"

    def fileno(self) -> int:
        return self._current().fileno()

    def is_terminal(self) -> bool:
        self._current()
        return self._is_terminal

    def is_smart(self) -> bool:
        """True if it is a terminal with a cursor that can be moved."""
        return self.is_terminal() and os.environ.get("TERM") != "dumb"

    def encoded(self, text: str) -> bytes:
        """Return the text in the encoding of the terminal, or of the locale. What it lacks is escaped."""
        return text.encode(self.encoding, "backslashreplace")

    def write(self, data: bytes) -> None:
        """Return when all of it has left the process. Waits for a non-blocking one. Raises OSError."""
        self.flush()
        self._put(data)

    def print(self, text: str = "", *, end: str = "\n", flush: bool = False) -> None:
        """Print text, which leaves now at a terminal or with `flush`, else later. Raises OSError."""
        self._current()
        self._gathered += (text, end)
        self._size += len(text) + len(end)
        if flush or self._is_terminal or self._size > _GATHERED:
            self.flush()

    def flush(self) -> None:
        """Return when all that was printed has left the process. Raises OSError."""
        if self._gathered:
            text = "".join(self._gathered)
            self.drop()
            self._put(self.encoded(text))

    def as_text_file(self) -> TextIO:
        """Return it as a file for rich to draw on; the descriptor stays open."""
        return cast("TextIO", _TextFile(self.fileno(), self.encoding, self.name))

    @contextlib.contextmanager
    def duplicate(self) -> Iterator[TextIO]:
        """As `as_text_file`, on a duplicate of the descriptor, which stays if the descriptor is replaced."""
        handle = os.dup(self.fileno())
        try:
            yield cast("TextIO", _TextFile(handle, self.encoding, self.name))
        finally:
            os.close(handle)

    def drop(self) -> None:
        """Forget what was printed and has not left."""
        self._gathered.clear()
        self._size = 0

    def _current(self) -> TextIO:
        stream = getattr(sys, self.name)
        if stream is None:
            raise OSError(errno.EBADF, CLOSED, self.name)
        if stream is not self._stream:
            if self._gathered and self._stream is not None:
                self.flush()
            self._stream, self._handle = stream, _descriptor_of(stream)
            self._is_terminal = stream.isatty()
            stream.flush()  # what others have printed comes first
        return cast("TextIO", stream)

    def _put(self, data: bytes) -> None:
        stream = self._current()
        if self._handle is not None:
            write_whole(self._handle, data, self.name)
        else:  # a stand-in
            stream.write(data.decode(self.encoding))
            stream.flush()


def _descriptor_of(stream: Any) -> int | None:
    """Return the descriptor of a text stream of Python; None for what stands in for one."""
    if isinstance(stream, io.TextIOWrapper):
        with contextlib.suppress(io.UnsupportedOperation):
            return stream.fileno()
    return None


def write_whole(handle: int, data: bytes, name: str) -> None:
    """Return when all of `data` has left the process. Waits for a non-blocking one. Raises OSError."""
    rest = memoryview(data)
    with _named(name):
        while rest:
            try:
                rest = rest[os.write(handle, rest) :]
            except BlockingIOError:
                _wait(handle, select.POLLOUT)


class _TextFile(io.TextIOBase):
    """Text on a descriptor of somebody else, through `write_whole`."""

    def __init__(self, handle: int, encoding: str, name: str) -> None:
        super().__init__()
        self._handle = handle
        self._encoding = encoding
        self._name = name

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def fileno(self) -> int:
        return self._handle

    def isatty(self) -> bool:
        return os.isatty(self._handle)

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        write_whole(self._handle, text.encode(self._encoding, "backslashreplace"), self._name)
        return len(text)


# --- both -----------------------------------------------------------------------------------------

stdin = _InputStream()
stdout = OutputStream("stdout")
stderr = OutputStream("stderr")


def stream_of(file: object) -> OutputStream:
    """Return the stream for what Python has of that name in `sys`."""
    return stderr if file is sys.stderr else stdout


def closed_streams() -> list[str]:
    """Return the names of those of stdout and stderr that cannot be written to.

    The descriptors from 0 to 2 that are closed lead to /dev/null afterwards: what is opened next must not get
    such a number, which others write to.
    """
    closed = [stream.name for stream in (stdout, stderr) if not _is_writable(getattr(sys, stream.name))]
    if sys.stdin is None or closed:
        while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(handle)
    return closed


def _is_writable(stream: TextIO | None) -> bool:
    handle = None if stream is None else _descriptor_of(stream)
    if handle is None:
        return stream is not None
    try:
        return fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    except OSError:
        return False


def _wait(handle: int, event: int) -> None:
    """Return when the descriptor is ready, or has failed."""
    poll = select.poll()
    poll.register(handle, event)
    poll.poll()


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """Give errors of the operating system the name of the stream."""
    try:
        yield
    except OSError as failure:
        raise OSError(failure.errno, failure.strerror, name) from failure
