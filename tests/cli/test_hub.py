# The hub noun: what a person types, and what comes of it.

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from diskq.engine.journal.journal import Journal
from tests.cli.conftest import PROGRAM, program, until
from tests.hub.rig import bytes_of, messages, records, write_journal

TOKEN = "0123456789abcdef"


@contextmanager
def served(root: Path, *options: object) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Where it listens, and the process: interrupted at the end, it closes its journals."""
    command = [PROGRAM, "hub", "serve", str(root), "--listen", "localhost:0", *map(str, options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            process.wait(20)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    write_journal(tmp_path / "web", messages(0, 100), segment_size=1_000)
    return tmp_path / "web"


@pytest.mark.slow
def test_a_journal_is_pushed_and_shown(tmp_path, journal, run):
    root = tmp_path / "root"
    with served(root) as (address, process):
        done = run("hub", "push", journal, "--address", address, "--client-id", "web1", "--batch", 30)
        assert done.code == 0
        assert done.notes[-1].startswith("diskq: 100 messages copied")
        assert "the hub expects 100, 0 to go" in done.notes[-1]
        shown = run("hub", "status", "--address", address)
        assert shown.out.split()[5:] == [b"web1", b"web", b"0", b"100", b"4.8", b"KiB"]
        told = json.loads(run("hub", "status", "--address", address, "--json").out)
        assert (told["journals"][0]["next_offset"], told["statistics"]["accepted"]) == (100, 100)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 130
        assert process.stderr is not None
        assert "received 100 messages" in process.stderr.read()
    assert bytes_of(root / "web1.web") == bytes_of(journal)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_push_follows_until_it_is_interrupted(tmp_path, journal):
    root = tmp_path / "root"
    with served(root) as (address, _):
        command = [
            PROGRAM,
            "hub",
            "push",
            str(journal),
            "--address",
            address,
            "--client-id",
            "web1",
            "--follow",
        ]
        with subprocess.Popen([*command, "--journal", "log"], stderr=subprocess.PIPE, text=True) as push:
            copy = root / "web1.log"
            until(lambda: copy.exists() and bytes_of(copy) == bytes_of(journal))
            with Journal(journal) as writing:
                writing.append_encoded(records(messages(100, 110)))
            until(lambda: bytes_of(copy) == bytes_of(journal))
            push.send_signal(signal.SIGINT)
            _, err = push.communicate(timeout=20)
            assert push.returncode == 130
            # The last ten lie in the hub; whether its answer had come, the interrupt decided.
            assert any(f"{copied} messages copied" in err for copied in (100, 110))


@pytest.mark.slow
def test_a_token_is_asked_for(tmp_path, journal, run):
    (tmp_path / "tokens").write_text(f"{TOKEN} web1\n")
    with served(tmp_path / "root", "--token-file", tmp_path / "tokens") as (address, _):
        push = ["hub", "push", journal, "--address", address, "--client-id"]
        refused = run(*push, "web1")
        assert refused.code == 1
        assert "no token that this hub knows" in refused.notes[-1]
        refused = run(*push, "web2", "--token-file", tmp_path / "tokens")
        assert "not for client 'web2'" in refused.notes[-1]
        assert run(*push, "web1", "--token-file", tmp_path / "tokens").code == 0


@pytest.mark.parametrize(
    "words, code, why",
    [
        (["serve", "root", "--listen", "0.0.0.0:0"], 1, "--insecure"),
        (["serve", "root", "--tls-key", "k"], 2, "go together"),
        (["serve", "root", "--tls-client-ca", "c"], 2, "needs --tls-certificate"),
        (["serve", "root", "--token-file", "none"], 1, "No such file"),
        (["push", "web", "--address", "example.org:1", "--client-id", "a"], 1, "give --tls, or --insecure"),
        (["push", "web", "--address", "localhost:1", "--client-id", "a.b"], 1, "a client id is"),
        (["push", "none", "--address", "localhost:1"], 2, "--client-id"),
        (["status", "--address", "localhost:1", "--tls-key", "k"], 1, "go together"),
        (["status", "--address", "localhost:1"], 1, "hub localhost:1"),
    ],
)
def test_what_makes_no_sense_is_reported(run, words, code, why):
    done = run("hub", *words)
    assert done.code == code
    assert why in " ".join(done.notes)


@pytest.mark.parametrize("verb", ["serve", "push", "status"])
def test_help_teaches(run, verb):
    done = run("hub", verb, "--help")
    assert done.code == 0
    assert b"examples:" in done.out


def test_without_grpcio_it_says_what_is_missing(tmp_path):
    # Found before any other, it cannot be imported.
    (tmp_path / "grpc.py").write_text("raise ModuleNotFoundError(\"No module named 'grpc'\", name='grpc')\n")
    words = ["hub", "status", "--address", "localhost:1"]
    code = f"import sys; from diskq.cli import main; sys.exit(main({words}))"
    path = f"{tmp_path}:{Path(__file__).parents[2]}"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "pip install 'diskqueue[hub]'" in done.stderr


@pytest.mark.exhaustive
def test_the_command_line_needs_no_grpcio():
    done = program("--version")
    assert done.code == 0
    code = "import sys, diskq.cli; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
