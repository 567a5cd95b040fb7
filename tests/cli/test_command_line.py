# The whole command line: every command teaches, every option shows its unit and its default, and invalid
# input is one line.

from __future__ import annotations

import argparse
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from diskq.cli import command_parser
from diskq.cli.core import times as moments
from diskq.cli.core import units
from diskq.cli.core.parsing import count, number
from diskq.cli.queue import verbs as queue_verbs
from tests.cli.conftest import PROGRAM, fill


class Command(NamedTuple):
    name: str
    parser: argparse.ArgumentParser
    is_verb: bool

    @property
    def options(self) -> list[argparse.Action]:
        """What is this command's own."""
        shared = (argparse._HelpAction, argparse._VersionAction, argparse._SubParsersAction)
        actions = self.parser._actions
        return [each for each in actions if not isinstance(each, shared) and each.dest != "debug"]


def commands(parser: argparse.ArgumentParser, name: str = "diskq") -> Iterator[Command]:
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    yield Command(name, parser, not below)
    for action in below:
        for word, each in action.choices.items():
            yield from commands(each, f"{name} {word}")


ALL = list(commands(command_parser()))
VERBS = [command for command in ALL if command.is_verb]
each_command = pytest.mark.parametrize("command", ALL, ids=lambda command: command.name)

# How a value is written decides how it is read.
UNITS = {"SIZE": units.size, "DURATION": units.duration, "TIME": moments.moment}
WHOLE = (count, number, int)


# --- help -----------------------------------------------------------------------------------------


@each_command
def test_every_command_has_a_description_and_examples_of_itself(command):
    assert (command.parser.description or "").strip()
    about, _, examples = (command.parser.epilog or "").partition("\n")
    assert about == "examples:"
    assert command.name in examples


@each_command
def test_no_line_of_help_is_too_long_and_none_ends_in_blanks(command):
    for line in f"{command.parser.description}\n{command.parser.epilog}".splitlines():
        assert len(line) <= 120
        assert line == line.rstrip()


@each_command
def test_every_argument_says_what_it_is_and_every_option_its_default(command):
    choices = [group._group_actions for group in command.parser._mutually_exclusive_groups]
    for action in command.options:
        assert action.help, action.dest
        group = next((group for group in choices if action in group), [action])
        if action.option_strings and not action.required and not any(each.required for each in group):
            told = [each.help or "" for each in group] if action.dest == "framing" else [action.help]
            assert any("default" in text for text in told), action.option_strings


@each_command
def test_every_value_with_a_unit_is_read_in_that_unit(command):
    for action in command.options:
        if action.metavar in UNITS:
            assert action.type is UNITS[action.metavar], action.option_strings
        elif action.type in UNITS.values():
            assert action.metavar in UNITS, action.option_strings
        if action.type in WHOLE:
            assert action.metavar is not None, action.option_strings


TABLES = """
    queue.info queue.peek stream.info stream.lookup stream.stats stream.groups journal.info journal.offset
    priority.info priority.queues priority.peek priority.inspect spool.info spool.status spool.dead.list
    hub.status pipeline.aggregate verify bench
"""


@pytest.mark.parametrize("name", TABLES.split())
def test_what_people_see_as_a_table_programs_have_as_json(name):
    command = next(each for each in VERBS if each.name == f"diskq {name.replace('.', ' ')}")
    assert any("--json" in action.option_strings for action in command.options)


def test_the_exit_codes_are_reported(run):
    text = run("--help").out.decode()
    assert all(f"\n  {code} " in text for code in (0, 1, 2, 70, 130))


# --- what makes no sense --------------------------------------------------------------------------

# Verbs that would begin to work: a hub that listens or waits for another one, Spark, a shell's command.
_AT_WORK = ("diskq hub", "diskq pipeline", "diskq completion")
LOOKING = [command for command in VERBS if not command.name.startswith(_AT_WORK)]
each_looking = pytest.mark.parametrize("command", LOOKING, ids=lambda command: command.name)

VALUES = {"NAME": "q", "SIZE": "1KiB", "DURATION": "1s", "TIME": "now", "PLACE": "oldest", "COMMAND": "true"}


def line_of(command: Command, path: str) -> list[str]:
    """The command with all that it needs, about `path`."""
    words = command.name.split()[1:]
    for action in command.options:
        if action.option_strings and action.required:
            words += [action.option_strings[0], VALUES.get(str(action.metavar), "1")]
        elif not action.option_strings and action.nargs not in ("*", "?"):
            is_path = action.metavar in ("PATH", "DIR", "FILE")
            words.append(path if is_path else VALUES.get(str(action.metavar), "1"))
        elif action.dest == "path":
            words.append(path)
    return words


def fails_in_one_line(done, *codes: int) -> bool:
    """What a person sees is a sentence, at the end."""
    text = "\n".join(done.notes)
    return done.code in (codes or (1, 2)) and ": error: " in done.notes[-1] and "Traceback" not in text


MAKES = ("diskq stream create", "diskq priority create")


@each_looking
def test_a_path_that_is_not_there_is_one_line(run, tmp_path, command):
    done = run(*line_of(command, str(tmp_path / "nowhere")))
    assert fails_in_one_line(done) or command.name in MAKES, done.notes


@each_looking
def test_a_file_where_a_directory_should_be_is_one_line(run, tmp_path, command):
    (tmp_path / "file").write_bytes(b"no queue, no stream, nothing")
    done = run(*line_of(command, str(tmp_path / "file")))
    assert fails_in_one_line(done), done.notes


STAYING = [command for command in LOOKING if command.name != "diskq bench"]  # which is glad of any directory


@pytest.mark.parametrize("command", STAYING, ids=lambda command: command.name)
def test_a_directory_of_something_else_is_one_line(run, tmp_path, command):
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "letters.txt").write_bytes(b"dear all")
    done = run(*line_of(command, str(strange)))
    assert fails_in_one_line(done) or command.name in ("diskq queue send", "diskq queue info"), done.notes
    assert (strange / "letters.txt").read_bytes() == b"dear all"


@pytest.mark.parametrize("command", VERBS, ids=lambda command: command.name)
def test_an_option_that_is_none_and_a_missing_argument_are_one_line(run, command):
    words = command.name.split()[1:]
    assert fails_in_one_line(run(*words, "--no-such-option"), 2)
    needed = [
        action
        for action in command.options
        if action.required or not (action.option_strings or action.nargs in ("*", "?"))
    ]
    if needed:
        assert fails_in_one_line(run(*words), 2)


NONSENSE = {
    "SIZE": "1KB5",
    "DURATION": "5 parsecs",
    "TIME": "yesterday",
    "N": "x",
    "P": "x",
    "OFFSET": "1.5",
}


@pytest.mark.parametrize("command", VERBS, ids=lambda command: command.name)
def test_every_value_that_makes_no_sense_is_one_line(run, tmp_path, command):
    for action in command.options:
        wrong = "no-such-word" if action.choices else NONSENSE.get(str(action.metavar))
        if action.option_strings and wrong is not None and action.nargs is None:
            words = line_of(command, str(tmp_path))
            done = run(*words, f"{action.option_strings[-1]}={wrong}")
            assert fails_in_one_line(done, 2), (action.option_strings, done.notes)


@pytest.mark.parametrize(
    "words",
    [
        ["queue", "info", "data", "\x00"],
        ["queue", "info", "da\x00ta"],
        ["queue", "peek", "data", "q/../q"],
        ["queue", "send", "data", "", "hello"],
        ["queue", "send", "data", "x" * 300, "hello"],
        ["stream", "read", "data"],
        ["stream", "read", "da\x00ta"],
        ["stream", "send", "new/stream", "x", "--key", "k" * 70_000, "--create"],
        ["stream", "read", "clicks", "--partition", "99999999999999999999"],
        ["journal", "send", "new", "x", "--type", "256", "--create"],
        ["journal", "send", "new", "x", "--key", "k" * 200, "--create"],
        ["priority", "peek", "data", "--queue", "\ud800"],
        ["priority", "send", "new", "x", "--create", "--priority", "9" * 30],
        ["priority", "create", "new", "x" * 300],
        ["priority", "create", "new", "q", "--priority-range", "5", "1"],
        ["spool", "send", "data", "x"],
        ["spool", "dead", "replay", "data", "no-id"],
        ["spool", "dead", "purge", "data"],
        ["stream", "create", "new", "--partition-count", "9999999999"],
        ["stream", "replay", "data", "--call", "os.path:"],
        ["stream", "replay", "data", "--call", ".x:y"],
        ["verify", ""],
        ["nothing-like-this"],
    ],
    ids=lambda words: " ".join(words)[:40].encode("unicode_escape").decode(),
)
def test_bad_input_is_one_line_whatever_it_is(run, data, monkeypatch, words):
    fill(data, b"hello")
    monkeypatch.chdir(data.parent)
    assert fails_in_one_line(run(*words))


@pytest.mark.parametrize("flag", [[], ["--debug"]], ids=["people", "--debug"])
def test_a_fault_of_our_own_is_one_line_too_and_has_a_code_of_its_own(run, data, monkeypatch, flag):
    def fault(*_: object) -> None:
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr(queue_verbs, "info", fault)
    done = run("queue", "info", data, *flag)
    assert done.code == 70
    assert "ZeroDivisionError: of all things; this is a bug in diskq" in done.notes[-1]
    assert (len(done.notes) > 1) == bool(flag)


# --- what Tab completes ---------------------------------------------------------------------------

ASKING = """
set -eu
eval "$(diskq completion bash)"
COMP_LINE="$1"; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9; COMP_WORDBREAKS=" :="
_python_argcomplete diskq
printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed(line: str, directory: Path) -> list[str]:
    """Return what bash offers after a line."""
    pytest.importorskip("argcomplete")
    path = f"{Path(PROGRAM).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", ASKING, "bash", line],
        cwd=directory,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "rror" not in done.stderr, done.stderr
    return [word.strip() for word in done.stdout.splitlines() if word.strip()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "line, expected",
    [
        ("diskq queue receive data ", ["log", "orders"]),
        ("diskq stream replay s --keep", ["--keep-timestamps"]),
        # Each starts a shell and a Python.
        pytest.param("diskq stream re", ["read", "replay"], marks=pytest.mark.exhaustive),
        pytest.param("diskq queue send data ord --durability sy", ["synced"], marks=pytest.mark.exhaustive),
        pytest.param("diskq queue send data orders --batch ", [], marks=pytest.mark.exhaustive),
    ],
)
def test_bash_completes_nouns_verbs_options_and_queues(data, line, expected):
    fill(data, b"x", name="orders")
    fill(data, b"x", name="log")
    found = completed(line, data.parent)
    assert sorted(word for word in found if line.endswith("--keep") or not word.startswith("-")) == expected


@pytest.mark.exhaustive
@pytest.mark.slow
def test_bash_completes_paths(data):
    (data / "inner").mkdir()
    assert completed("diskq queue info da", data.parent) == ["data/"]


@pytest.mark.parametrize(
    "command, told",
    [
        ("que info data", "COMMAND: invalid choice: 'que': did you mean 'queue'?"),
        ("queue sned data q x", "VERB: invalid choice: 'sned': did you mean 'send'?"),
        ("stream vacum s", "VERB: invalid choice: 'vacum': did you mean 'vacuum'?"),
        ("queue send data q x --durability snyced", "'snyced': did you mean 'synced'?"),
        ("queue send data q --durabilty synced x", "--durabilty: did you mean --durability?"),
        ("queue send data q x --durabilty=synced", "--durabilty: did you mean --durability?"),
        ("top data --jsn --onec", "--jsn: did you mean --json?; --onec: did you mean --once?"),
    ],
)
def test_a_misspelt_word_is_refused_with_the_one_that_was_meant(run, command, told):
    done = run(*command.split())
    assert fails_in_one_line(done, 2)
    assert told in done.notes[-1]


def test_an_unknown_word_is_refused_with_all_that_there_are(run):
    assert "(choose from " in run("frobnicate").notes[-1]
    assert "did you mean" not in run("queue", "send", "data", "q", "--xyzzy", "x").notes[-1]


@pytest.mark.parametrize(
    "command",
    [
        *("queue send no/dir/x q hello", "queue receive no/dir/x q", "stream send no/dir/x hello"),
        *("stream read no/dir/x", "journal send no/dir/x hello", "priority peek no/dir/x"),
        *("spool status no/dir/x", "info no/dir/x", "verify no/dir/x", "convert no/dir/x out --to sej"),
    ],
)
def test_where_a_directory_above_is_missing_it_is_named_itself(run, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(*command.split())
    assert done.code != 0
    assert "no/dir/x: " in done.notes[-1]
    assert re.search(r", as there is no directory no(;|$)", done.notes[-1])
    (tmp_path / "no" / "dir").mkdir(parents=True)
    assert "as there is no directory" not in run(*command.split()).notes[-1]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_code_for_diskq(run, shell):
    done = run("completion", shell)
    assert done.code == 0
    assert b"diskq" in done.out
    assert shell.encode() in done.out.lower()


def test_an_unknown_shell_is_refused(run):
    assert fails_in_one_line(run("completion", "cmd"), 2)
