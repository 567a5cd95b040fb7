# A view of dead letters. Law: it shows what the process with the spool would list, and that process does not
# notice it.

from __future__ import annotations

from diskq.engine.queue.fifo_queue import Queue
from diskq.engine.spool.dead_letters import DeadLetter, DeadLetters, view_dead_letters
from diskq.engine.spool.files import DEAD
from diskq.testing import CrashFS

PATH = "/spool"


def disk() -> CrashFS:
    fs = CrashFS()
    fs.make_directory_durably(PATH)
    return fs


def letter(number: int, body: bytes = b"body") -> DeadLetter:
    return DeadLetter(f"00ff:0:{number}", "why", 1000 + number, 1, body)


def test_what_is_seen_is_what_is_listed():
    fs = disk()
    with DeadLetters(PATH, fs=fs) as letters:
        letters._add([letter(3), letter(1), letter(2, b"x" * 100_000)])
    with Queue(PATH, DEAD, fs=fs) as queue:
        queue.put_many([b"another program's", letter(1, b"again, after a crash")._pack(), b""])
        queue.put_many([letter(number)._pack() for number in range(10, 2000)])
    with DeadLetters(PATH, fs=fs) as letters:
        listed = letters.list()
    assert len(listed) == 3 + 2 + 1990
    assert view_dead_letters(PATH, fs=fs) == listed


def test_they_are_seen_while_another_process_has_them():
    fs = disk()
    with DeadLetters(PATH, fs=fs) as letters:
        letters._add([letter(1), letter(2), letter(3)])
        letters.purge(["00ff:0:2"])
        assert view_dead_letters(PATH, fs=fs) == [letter(1), letter(3)]
        letters.purge()
        assert view_dead_letters(PATH, fs=fs) == []


def test_a_spool_may_have_none():
    fs = disk()
    before = fs.files()
    assert view_dead_letters(PATH, fs=fs) == []
    assert fs.files() == before
