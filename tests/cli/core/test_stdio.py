# The standard streams of a command. What each verb makes of them is in tests/cli/test_standard_streams.py.

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from diskq.cli.core.stdio import OutputStream, stderr, stdin, stdout, write_whole
from diskq.cli.core.terminal import note
from tests.cli.conftest import Terminal


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    source, sink = os.pipe()
    yield source, sink
    for handle in (source, sink):
        os.close(handle)


def opened(handle: int, encoding: str = "utf-8", *, is_unbuffered: bool = False) -> io.TextIOWrapper:
    """A text stream as Python makes one."""
    raw = io.FileIO(handle, "w", closefd=False)
    return io.TextIOWrapper(raw if is_unbuffered else io.BufferedWriter(raw), encoding, write_through=True)


def test_a_write_that_would_block_is_waited_for(pipe):
    source, sink = pipe
    os.set_blocking(sink, False)
    data = bytes(range(256)) * 4096
    writer = threading.Thread(target=write_whole, args=(sink, data, "stdout"))
    writer.start()
    got = b""
    while len(got) < len(data):
        got += os.read(source, 65536)
    writer.join()
    assert got == data


def test_a_read_that_would_block_is_waited_for(pipe, monkeypatch):
    source, sink = pipe
    os.set_blocking(source, False)
    monkeypatch.setattr(sys, "stdin", os.fdopen(os.dup(source)))
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(stdin.read(10)))
    reader.start()
    os.write(sink, b"one")
    reader.join()
    sys.stdin.close()
    assert got == [b"one"]


def test_a_full_disk_is_an_error_that_names_the_stream(monkeypatch):
    with open("/dev/full", "wb", buffering=0) as full:
        monkeypatch.setattr(sys, "stdout", opened(full.fileno(), is_unbuffered=True))
        stdout.print("one")
        with pytest.raises(OSError, match="No space left on device: 'stdout'"):
            stdout.flush()
        stdout.flush()  # what could not leave is reported once


def test_a_closed_stream_is_an_error_that_names_it(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(OSError, match=r"it is closed, so nothing was done.*'stdin'"):
        stdin.read(1)


def test_what_the_encoding_lacks_is_escaped(tmp_path: Path, monkeypatch):
    path = tmp_path / "out"
    with path.open("wb") as file:
        monkeypatch.setattr(sys, "stdout", opened(file.fileno(), "ascii"))
        stdout.print("naïve \udcff…", flush=True)
    assert path.read_bytes() == b"na\\xefve \\udcff\\u2026\n"


def test_lines_leave_at_once_at_a_terminal_and_together_elsewhere(tmp_path: Path, monkeypatch):
    with Terminal() as terminal:
        monkeypatch.setattr(sys, "stdout", opened(terminal.outer))
        stdout.print("one")
        assert terminal.read_until("one").strip() == "one"
    with (tmp_path / "out").open("wb") as file:
        monkeypatch.setattr(sys, "stdout", opened(file.fileno()))
        stdout.print("two")
        assert os.fstat(file.fileno()).st_size == 0
        stdout.flush()
        assert os.fstat(file.fileno()).st_size == 4


def test_bytes_come_after_the_lines_before_them(tmp_path: Path, monkeypatch):
    path = tmp_path / "out"
    with path.open("wb") as file:
        monkeypatch.setattr(sys, "stdout", opened(file.fileno()))
        stdout.print("one")
        stdout.write(b"two\n")
    assert path.read_bytes() == b"one\ntwo\n"


def test_what_replaces_a_stream_gets_the_text(monkeypatch):
    taken = io.StringIO()
    monkeypatch.setattr(sys, "stdout", taken)
    stream = OutputStream("stdout")
    stream.print("one")
    stream.write(b"two\n")
    assert taken.getvalue() == "one\ntwo\n"


def test_a_note_that_cannot_be_written_is_in_the_exit_code_only(monkeypatch):
    with open("/dev/full", "wb", buffering=0) as full:
        monkeypatch.setattr(sys, "stderr", opened(full.fileno(), is_unbuffered=True))
        monkeypatch.setattr(stderr, "has_failed", False)
        note("3 sent")
        assert stderr.has_failed
