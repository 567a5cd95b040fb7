# `diskq` as a process of its own with any standard streams, without its start of a second: a server that has
# everything imported forks one for each case, and gives it the streams that Python would make at its start.

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any

__all__ = ["Forks"]

_LARGEST = 64 * 1024


class Forks:
    """The server. `start` a command, serve its pipes, and ask for its exit `code`."""

    def __enter__(self) -> Forks:
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            command = [sys.executable, __file__, str(its.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[its.fileno()])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        self._process.wait()

    def start(self, argv: list[str], streams: Mapping[int, int], **how: Any) -> int:
        """Start a command with these descriptors as 0, 1 and 2; those that are left out are closed.

        Returns its process id.

        `how`: `is_unbuffered` (PYTHONUNBUFFERED), `encoding`, `environ`, `ignored` (signals).
        """
        case = {"argv": argv, "streams": list(streams), **how}
        socket.send_fds(self._socket, [json.dumps(case).encode()], list(streams.values()))
        return int(self._socket.recv(_LARGEST))

    def code(self) -> int:
        """Return the exit code of the command, as soon as it has ended."""
        return int(self._socket.recv(_LARGEST))


# --- in the server ----------------------------------------------------------------------------------------


def _serve(handle: int) -> None:
    import diskq.cli

    with socket.socket(fileno=handle) as asked:
        while True:
            text, handles, _, _ = socket.recv_fds(asked, _LARGEST, 3)
            if not text:
                return
            case = json.loads(text)
            if (child := os.fork()) == 0:
                asked.close()
                code = 125
                try:
                    code = _run(diskq.cli.main, case, handles)
                finally:
                    os._exit(code)
            asked.send(b"%d" % child)
            for each in handles:
                os.close(each)
            _, status = os.waitpid(child, 0)
            asked.send(str(os.waitstatus_to_exitcode(status)).encode())


def _run(main: Any, case: dict[str, Any], handles: list[int]) -> int:
    os.environ.update(case.get("environ", {}))
    kept = [os.dup(each) if each < 3 else each for each in handles]
    for number in range(3):
        os.close(number)
    for number, each in zip(case["streams"], kept, strict=True):
        os.dup2(each, number)
    os.closerange(3, 64)
    is_unbuffered = case.get("is_unbuffered", False)
    sys.stdin, sys.stdout, sys.stderr = (
        _stream(number, is_unbuffered, case.get("encoding", "utf-8")) if number in case["streams"] else None
        for number in range(3)
    )
    sys.argv = ["diskq"]
    for number in case.get("ignored", ()):
        signal.signal(number, signal.SIG_IGN)
    try:
        code = int(main(case["argv"]))
    except SystemExit as exit:
        code = int(exit.code or 0)
    try:  # as the interpreter does at its end
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        return 120
    return code


def _stream(number: int, is_unbuffered: bool, encoding: str) -> io.TextIOWrapper:
    """Return the stream, made as CPython's create_stdio makes it."""
    raw: Any = io.FileIO(number, "r" if number == 0 else "w", closefd=False)
    buffer: Any = io.BufferedReader(raw) if number == 0 else raw if is_unbuffered else io.BufferedWriter(raw)
    return io.TextIOWrapper(
        buffer,
        encoding,
        "backslashreplace" if number == 2 else "strict",
        line_buffering=number == 2 or raw.isatty(),
        write_through=is_unbuffered,
    )


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
