# Every command that only looks, on a file system that is mounted read-only, and with what a kill left there.

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.kinds import ENGINES, bodies

KINDS = {"q": "queue", "s": "stream", "j": "journal", "p": "priority", "sp": "spool"}
LOOKS = """
queue peek q events -n 3
queue peek q events --base64
queue info q
queue info q events
stream read s -n 3
stream read s --since -1h
stream tail s
stream lookup s --at -1h
stream stats s
stream groups s
stream info s
stream replay s --speed max
journal read j --start 2
journal tail j
journal count j
journal offset j
journal info j
journal replay j --speed max
priority queues p
priority peek p
priority info p
priority inspect p
spool status sp
spool dead list sp
spool info sp
info .
verify .
top . --once --interval 10ms
repair q
repair s
repair j
repair p
repair sp
repair q --salvage -
repair s --salvage -
repair j --salvage -
repair p --salvage -
repair sp --salvage -
convert q - --to jsonl
convert s - --to jsonl
"""
# In a namespace of its own: the directory is mounted read-only, and each command runs there.
SCRIPT = """
import json, os, subprocess, sys
from diskq.cli import main
path, told = sys.argv[1:3]
subprocess.run(["mount", "--bind", path, path], check=True)
subprocess.run(["mount", "-o", "remount,ro,bind", path], check=True)
os.chdir(path)
try:
    open("new", "w")
    raise SystemExit("it is not read-only")
except OSError:
    pass
codes = {}
for line in sys.argv[3:]:
    try:
        codes[line] = main(line.split())
    except SystemExit as exit:
        codes[line] = exit.code
    with open(told, "w") as file:
        json.dump(codes, file)
"""


def can_mount() -> bool:
    if not (shutil.which("unshare") and shutil.which("mount")):
        return False
    made = subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "x", "/mnt"], capture_output=True, check=False
    )
    return made.returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="this user may not mount anything")
def test_every_command_that_only_looks_works_after_a_kill(tmp_path: Path) -> None:
    root, told = tmp_path / "root", tmp_path / "told"
    root.mkdir()
    for name, kind in KINDS.items():
        opened = tmp_path / name
        opened.mkdir()
        with ENGINES[kind].open(opened) as store:
            store.put_many(bodies(10), "written")
            store.put(b"synced", "synced")
            shutil.copytree(opened, root / name)  # as a kill at this moment leaves it
    looks = LOOKS.strip().splitlines()
    command = ["unshare", "-m", sys.executable, "-c", SCRIPT, str(root), str(told), *looks]
    done = subprocess.run(command, capture_output=True, check=False)
    codes = json.loads(told.read_text())
    assert {line: code for line, code in codes.items() if code} == {}, done.stderr.decode()
    assert list(codes) == looks, done.stderr.decode()
