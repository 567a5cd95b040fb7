# `--sync-to`: synced messages that a command sends go to the redo log, or to the files alone.

from __future__ import annotations

import pytest

SENDS = {
    "queue": (["queue", "send", "data", "q", "--create"], "q.redo"),
    "stream": (["stream", "send", "data", "--create"], "redo"),
    "journal": (["journal", "send", "data", "--create"], "redo"),
    "spool": (["spool", "send", "data", "--create"], "spool.redo"),
}

each_send = pytest.mark.parametrize("words, log", SENDS.values(), ids=SENDS)


@pytest.fixture
def send(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(words: list[str], *options: str) -> None:
        done = run(*words, "one", "two", "--durability", "synced", *options)
        assert done.code == 0, done.notes

    return call


@each_send
def test_by_default_synced_messages_go_to_the_log_which_is_empty_at_the_end(send, tmp_path, words, log):
    send(words)
    assert (tmp_path / "data/.diskq" / log).stat().st_size == 0


@each_send
def test_files_need_no_log(send, tmp_path, words, log):
    send(words, "--sync-to", "files")
    assert not (tmp_path / "data/.diskq" / log).exists()
