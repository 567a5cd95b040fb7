# Updaters that are killed again and again beside a producer, while readers read. Law: whoever reads,
# whenever, finds each message once in table and tail, as it was appended.

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import diskq
from tests.sampling import first
from tests.tables import killed


@contextmanager
def process(*argv: object) -> Iterator[subprocess.Popen[bytes]]:
    """One of the processes of killed.py, which ends with the block at the latest."""
    command = [sys.executable, str(Path(killed.__file__)), *map(str, argv)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as its:
        try:
            yield its
        except BaseException:
            its.kill()
            raise


def judge(path: Path, lake: Path) -> int:
    """Insist on each message once, from the first one on, in table and tail. Returns how many there are."""
    count = 0
    for batch in diskq.read_arrow(path, table=lake):
        offsets = batch.column("offset").to_pylist()
        assert offsets == list(range(count, count + len(offsets)))
        assert batch.column("value").to_pylist() == [killed.value(number) for number in offsets]
        assert batch.column("timestampNanos").to_pylist() == [1000 + number for number in offsets]
        count += len(offsets)
    return count


@pytest.mark.slow
@pytest.mark.parametrize("kills", first(1, [6, 200]))
def test_killed_updaters_lose_and_repeat_nothing(kills: int, tmp_path: Path) -> None:
    path, lake = tmp_path / "clicks", tmp_path / "lake"
    with process("produce", path) as producer:
        assert producer.stdin is not None
        assert producer.stdout is not None
        assert producer.stdout.readline() == b"begun\n"
        with process("update", path, lake, kills, kills) as updaters:
            counts = [0]
            while updaters.poll() is None:
                if lake.exists():
                    counts.append(judge(path, lake))
            assert updaters.returncode == 0
            assert updaters.stdout is not None
            assert int(updaters.stdout.read()) > kills // 2
        assert counts == sorted(counts)
        producer.stdin.close()
        total = int(producer.stdout.read())
    assert producer.returncode == 0
    assert judge(path, lake) == total
    table = diskq.open_table(path, lake)
    table.update()
    table.compact()
    assert judge(path, lake) == total
    assert table.dataset().count_rows() == table.statistics().offsets > total - 2000
    assert [each.name for each in Path(table.directory, ".diskq").iterdir()] == ["table.lock"]
