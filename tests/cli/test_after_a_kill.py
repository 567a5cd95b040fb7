# What a killed writer has sent last is in its write-ahead log alone. Law: commands that read a stream or
# journal say so, and how to get it; a conversion has it.

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WRITER = """
import os, sys
import trio
import diskq

async def main(kind, path):
    opened = {"stream": diskq.open_producer, "journal": diskq.open_journal}[kind]
    async with opened(path, checkpoint_slice=60.0) as channel:
        for number in range(5):
            await channel.send(b"%d" % number)
        os._exit(0)

trio.run(main, *sys.argv[1:])
"""

COMMANDS = {
    "stream": [["stream", "read", "PATH"], ["stream", "tail", "PATH"]],
    "journal": [
        ["journal", "read", "PATH"],
        ["journal", "tail", "PATH"],
        ["journal", "count", "PATH"],
        ["journal", "dump", "PATH/jnl/0000000000000000.jnl"],
    ],
}


def killed(tmp_path: Path, kind: str) -> Path:
    path = tmp_path / "store"
    subprocess.run([sys.executable, "-c", WRITER, kind, str(path)], check=True, timeout=60)
    return path


@pytest.mark.parametrize("kind, words", [(kind, words) for kind, all_ in COMMANDS.items() for words in all_])
def test_a_command_that_reads_says_what_it_leaves_out(run, tmp_path, kind, words):
    path = killed(tmp_path, kind)
    line = [word.replace("PATH", str(path)) for word in words]
    early = run(*line)
    assert early.code == 0
    (note,) = (each for each in early.notes if "killed" in each)
    assert f"`diskq checkpoint {path}` adds them here" in note
    assert run("checkpoint", path).code == 0
    late = run(*line)
    assert not [each for each in late.notes if "killed" in each]
    assert len(late.out) > len(early.out) or late.out == b"5\n"


@pytest.mark.parametrize("kind", ["stream", "journal"])
def test_a_conversion_has_it(run, tmp_path, kind):
    done = run("convert", killed(tmp_path, kind), "-", "--text")
    assert done.code == 0
    assert len(done.out.splitlines()) == 5
    assert not [each for each in done.notes if "killed" in each]
