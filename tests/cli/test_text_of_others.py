# Names of directories and words of others on the terminal. Law: one line each, and no command to it.

from __future__ import annotations

import logging

import pytest

from diskq.cli.core.parsing import CommandError
from diskq.cli.core.stdio import stdout
from diskq.cli.core.terminal import note, sentence, show_table
from tests.tools.damaged import KINDS, flip, made

EVIL = "a\ndiskq: error: all is lost\x1b[2J\r"

COMMANDS = {
    "queue": [["queue", "info"], ["queue", "peek", "events"]],
    "spool": [["spool", "status"], ["spool", "dead", "list"], ["spool", "info"]],
    "stream": [["stream", "stats"], ["stream", "read"], ["stream", "groups"], ["stream", "info"]],
    "journal": [["journal", "offset"], ["journal", "count"], ["journal", "tail"], ["journal", "info"]],
    "jobs": [["priority", "queues"], ["priority", "inspect"], ["priority", "info"]],
}


def controls(text: str) -> set[str]:
    return {each for each in text if not each.isprintable()} - {"\n"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_directory_may_be_called_as_it_likes(run, tmp_path, kind):
    path = tmp_path / EVIL
    path.mkdir()
    made(kind, str(path))
    names = ("*.0*.dat", "*025.data", "*018.jnl", "*.log")
    flip(sorted(file for name in names for file in path.rglob(name))[0], 1000)
    for verb, *more in [*COMMANDS[kind], ["verify"], ["info"], ["repair"], ["repair", "--apply"], ["verify"]]:
        words = (
            [verb, *more[:1], path, *more[1:]]
            if kind == "queue" and more != ["--apply"]
            else [verb, *more, path]
        )
        done = run(*words)
        assert done.code in (0, 1), done.notes
        lines = [*done.out.decode(errors="replace").splitlines(), *done.notes]
        assert not any(line.startswith("diskq: error: all is lost") for line in lines), words
        assert not controls("\n".join(lines)), words


def test_what_is_not_there_is_reported_in_one_line(run, tmp_path):
    for words in (["queue", "info"], ["stream", "stats"], ["verify"], ["no-such-verb"]):
        done = run(*words, tmp_path / EVIL)
        assert done.code
        assert not any(line.startswith("diskq: error: all is lost") for line in done.notes)
        assert not controls("\n".join(done.notes))


def test_notes_and_sentences_and_tables_are_lines(capsys, caplog):
    note(EVIL)
    show_table(["what", "more"], [[EVIL, "1"]], numeric=["more"])
    stdout.flush()
    out, err = capsys.readouterr()
    assert (err.count("\n"), out.count("\n")) == (1, 2)
    assert not controls(out + err)
    for failure in (CommandError(EVIL), OSError(2, "gone", EVIL), ValueError(EVIL)):
        assert not controls(sentence(failure))
        assert "\n" not in sentence(failure)
    assert logging.getLogger("diskq").handlers == []
