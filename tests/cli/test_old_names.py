# Names that commands had. Law: an old name does what the new one does, and no list shows it.

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from diskq.cli import command_parser
from diskq.cli.core.parsing import Commands
from diskq.tools.stores import Kind
from tests.cli.conftest import Run, frames
from tests.cli.test_command_line import ALL, completed
from tests.tools.damaged import made

JOBS = [command.name.split()[2:] for command in ALL if command.name.startswith("diskq priority ")]

OLD_AND_NEW = [
    (["stream", "write"], ["stream", "send"]),
    (["journal", "put"], ["journal", "send"]),
    (["journal", "scan"], ["journal", "read"]),
    *((["jobs", *verb], ["priority", *verb]) for verb in JOBS),
]


def name_of(words: list[str]) -> str:
    return " ".join(words)


def old_names() -> list[str]:
    """Every old name that some level of commands accepts."""
    levels = [action for command in ALL for action in command.parser._actions if isinstance(action, Commands)]
    return [name for level in levels for name in level.old_names]


# Per command: what follows the path, and stdin.
WORDS: dict[str, tuple[list[str], bytes]] = {
    "stream write": (["--key", "k", "--timestamp", "0", "--length-prefixed"], frames(b"one", b"two")),
    "journal put": (["--key", "k", "--timestamp", "0"], b"one\ntwo\n"),
    "journal scan": (["--json", "--start", "1"], b""),
    "jobs queues": (["--json"], b""),
    "jobs create": (["mail", "--max-size", "3"], b""),
    "jobs delete": (["", "--yes"], b""),
    "jobs send": (["--priority", "5"], b"one\ntwo\n"),
    "jobs receive": (["-n", "2", "--json"], b""),
    "jobs peek": (["--json"], b""),
    "jobs info": (["--json"], b""),
    "jobs inspect": (["--commands"], b""),
    "jobs repair": (["--apply", "--json"], b""),
}
KINDS: dict[str, Kind] = {"stream": "stream", "journal": "journal", "jobs": "jobs"}


def test_the_table_has_all_old_names():
    assert sorted(old_names()) == sorted({"jobs", *(old[1] for old, _ in OLD_AND_NEW if old[0] != "jobs")})


@pytest.mark.parametrize("old, new", OLD_AND_NEW, ids=name_of)
def test_the_old_name_and_the_new_one_give_the_same(run: Run, tmp_path: Path, old: list[str], new: list[str]):
    path = tmp_path / "store"
    path.mkdir()
    made(KINDS[old[0]], str(path))
    shutil.copytree(path, before := tmp_path / "before")
    words, stdin = WORDS.get(name_of(old), ([], b""))
    results = []
    for name in (old, new):
        shutil.rmtree(path)
        shutil.copytree(before, path)
        done = run(*name, path, *words, stdin=stdin)
        left = {
            str(file.relative_to(path)): file.stat().st_size for file in path.rglob("*") if file.is_file()
        }
        results.append((done.code, done.out, done.notes, left))
    assert results[0] == results[1]
    assert results[0][0] == (1 if name_of(old) == "jobs delete" else 0), results[0]


def test_stdin_of_stream_write_is_one_message_and_of_send_it_is_lines(run, tmp_path):
    for verb in ("write", "send"):
        run("stream", verb, tmp_path / verb, "--create", "--key", "k", stdin=b"a\nb")
    assert run("stream", "read", tmp_path / "write", "--length-prefixed").out == frames(b"a\nb")
    assert run("stream", "read", tmp_path / "send", "--length-prefixed").out == frames(b"a", b"b")


@pytest.mark.parametrize("words", [[], ["stream"], ["journal"], ["priority"], ["jobs"]], ids=name_of)
def test_help_and_errors_do_not_show_old_names(run, words):
    listed = re.findall(r"^ {4}([a-z]+)", run(*words, "--help").out.decode(), re.MULTILINE)
    listed += re.findall(r"[a-z]+", run(*words, "no-such-command").notes[-1].partition("choose from")[2])
    assert len(listed) > 8
    assert not set(listed) & set(old_names())


def test_the_reference_walks_over_current_names_only():
    (nouns,) = (action for action in command_parser()._actions if isinstance(action, Commands))
    assert "jobs" not in list(nouns.choices)
    assert "jobs" in nouns.choices
    assert nouns.choices["jobs"] is nouns.choices["priority"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "line, expected",
    [
        ("diskq j", ["journal"]),
        ("diskq jobs re", ["receive", "repair"]),
        pytest.param("diskq stream w", [], marks=pytest.mark.exhaustive),
        pytest.param("diskq journal s", ["send"], marks=pytest.mark.exhaustive),
        pytest.param("diskq stream write s --dura", ["--durability"], marks=pytest.mark.exhaustive),
    ],
)
def test_bash_does_not_complete_old_names_but_completes_after_them(tmp_path, line, expected):
    found = completed(line, tmp_path)
    assert sorted(word for word in found if "--" in line or not word.startswith("-")) == expected
