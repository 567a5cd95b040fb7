# The process that a page's programs and commands are run in. Law: what stands on the page is all there is;
# nothing of one program is there for the next but what it left in the directory.
#
# The steps come by stdin, as JSON; what each printed, and what it complained of, goes to stdout.

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shlex
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

_SHELL = re.compile(r"[|&;<>$`*~]")
"""What only a shell understands. A plain `diskq` command needs no process of its own."""


def main(page: str) -> None:
    wanted = json.load(sys.stdin)
    sys.path.insert(0, "")
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ["COLUMNS"] = "100"
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    answers: list[tuple[str, str]] = []
    for step in wanted:
        answers.append(ACTS[step["kind"]](page, step))
        if answers[-1][1]:
            break
    answers += [("", "")] * (len(wanted) - len(answers))
    print(json.dumps(answers))


def save(page: str, step: dict[str, Any]) -> tuple[str, str]:
    Path(step["name"]).write_text(step["text"], encoding="utf-8")
    return "", ""


def program(page: str, step: dict[str, Any]) -> tuple[str, str]:
    def run() -> None:
        text = "\n" * step["line"] + step["text"]  # so that a traceback has the page's lines
        exec(compile(text, page, "exec"), {"__name__": "__main__"})
        logging.shutdown()
        logging.getLogger().handlers.clear()

    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        _run_into(out.fileno(), err.fileno(), run)
        return _content(out), _content(err)


def command(page: str, step: dict[str, Any]) -> tuple[str, str]:
    text = step["text"]
    with tempfile.TemporaryFile("w+") as out:
        if text.startswith("diskq ") and not _SHELL.search(text):
            _run_into(out.fileno(), out.fileno(), lambda: _diskq(shlex.split(text)[1:]))
        else:
            subprocess.run(["bash", "-c", text], stdout=out, stderr=out, check=False)
        return _content(out), ""


ACTS: dict[str, Callable[[str, dict[str, Any]], tuple[str, str]]] = {
    "file": save,
    "program": program,
    "command": command,
}


def _diskq(argv: list[str]) -> None:
    from diskq.cli import main as diskq

    with contextlib.suppress(SystemExit):  # argparse has said what it thinks
        diskq(argv)


def _run_into(out: int, err: int, act: Callable[[], None]) -> None:
    """Run it with stdout and stderr of the process elsewhere."""
    kept = [os.dup(1), os.dup(2)]
    os.dup2(out, 1)
    os.dup2(err, 2)
    try:
        act()
    except Exception:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, was in enumerate(kept, 1):
            os.dup2(was, number)
            os.close(was)


def _content(file: Any) -> str:
    file.flush()
    with open(file.fileno(), encoding="utf-8", errors="backslashreplace", closefd=False) as whole:
        whole.seek(0)
        return whole.read()


if __name__ == "__main__":
    main(sys.argv[1])
