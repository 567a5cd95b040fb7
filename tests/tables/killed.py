# Updaters that are killed beside a producer, and what is then in table and log; for test_killed.py, and for
# Spark. As a program, `produce` appends numbered messages until its stdin ends; `update` keeps a table up to
# date, and is killed again and again at moments that a seed decides: by its parent, which has imported
# everything, so that hundreds of lives take seconds.

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import diskq

BURST = 200
LONGEST_REST = 0.03  # seconds
KILLS_BETWEEN = 25
"""Number of updaters that are killed before other engines read."""


def key(number: int) -> bytes:
    return b"key %d" % (number % 9)


def value(number: int) -> bytes:
    return b"value %d " % number * 7


def judge(batches: Iterable[Any]) -> int:
    """Insist on each message once, from the first one on, as it was appended. Returns how many there are."""
    count = 0
    for batch in batches:
        numbers = range(count, count + batch.num_rows)
        assert batch.column("offset").to_pylist() == list(numbers)
        assert batch.column("key").to_pylist() == list(map(key, numbers))
        assert batch.column("value").to_pylist() == list(map(value, numbers))
        assert batch.column("timestampNanos").to_pylist() == [1000 + number for number in numbers]
        count += batch.num_rows
    return count


def kill_updaters(path: Path, lake: Path, kills: int, between: Callable[[int | None], object]) -> int:
    """Kill so many updaters beside a producer, while `read_arrow` reads. Returns how many messages there are.

    Calls `between` again and again while no updater lives, and the producer is stopped at whatever it does;
    with None, and at the end with the number of messages.
    """
    counts = [0]
    with _process("produce", path) as producer:
        assert producer.stdin is not None
        assert producer.stdout is not None
        assert producer.stdout.readline() == b"begun\n"
        for killed in range(0, kills, KILLS_BETWEEN):
            now = min(KILLS_BETWEEN, kills - killed)
            with _process("update", path, lake, now, kills + killed) as updaters:
                while updaters.poll() is None:
                    if lake.exists():
                        counts.append(judge(diskq.read_arrow(path, table=lake)))
                assert updaters.returncode == 0
                assert updaters.stdout is not None
                assert int(updaters.stdout.read()) > now // 2
            # However long that takes, there is not more to read the next time.
            producer.send_signal(signal.SIGSTOP)
            between(None)
            producer.send_signal(signal.SIGCONT)
        producer.stdin.close()
        total = int(producer.stdout.read())
    assert producer.returncode == 0
    assert counts == sorted(counts)
    between(total)
    return total


@contextmanager
def _process(*argv: object) -> Iterator[subprocess.Popen[bytes]]:
    """This program, which ends with the block at the latest."""
    command = [sys.executable, __file__, *map(str, argv)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as its:
        try:
            yield its
        except BaseException:
            its.kill()
            raise


# --- the program ----------------------------------------------------------------------------------


def produce(path: str) -> None:
    """Append 0, 1, 2, ... until stdin ends. Prints a line when there is a stream, and then how many."""
    is_over = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        is_over.set()

    threading.Thread(target=wait, daemon=True).start()
    number = 0
    with diskq.Stream(path, partition_count=1, segment_size=64 * 1024) as stream:
        print("begun", flush=True)
        while not is_over.is_set():
            burst = range(number, number + BURST)
            stream.append_many([(key(each), value(each), 1000 + each) for each in burst])
            number += BURST
            if number % (20 * BURST) == 0:
                stream.sync()
            time.sleep(0.004)
    print(number)


def update(path: str, into: str, kills: int, seed: int) -> None:
    """Have so many updaters killed, one after the other, and print how many had made a file by then."""
    rng = random.Random(seed)
    busy = 0
    for _ in range(kills):
        came, goes = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(came)
            _updating(path, into, goes)
        os.close(goes)
        # In the middle of the first file, or of a later one: a busy machine changes nothing.
        made = sum(bool(os.read(came, 1)) for _ in range(rng.choice((0, 1, 1, 2))))
        time.sleep(rng.uniform(0, LONGEST_REST))
        os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        assert os.WIFSIGNALED(status), "it ended by itself"
        busy += bool(made)
        os.close(came)
    print(busy)


def _updating(path: str, into: str, goes: int) -> NoReturn:
    try:
        table = diskq.open_table(path, into)
        for turn in range(sys.maxsize):
            table.update(each=lambda _: os.write(goes, b"."))
            if turn % 3 == 2:
                table.compact(512 * 1024)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


if __name__ == "__main__":
    if sys.argv[1] == "produce":
        produce(sys.argv[2])
    else:
        # What the lives need is imported once.
        import diskq.tables.compaction
        import diskq.tables.updating

        update(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
