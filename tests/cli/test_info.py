# `info`, of a path and as the verb of each noun: they show the same.

from __future__ import annotations

import json

import pytest

from diskq.tools.stores import Kind
from tests.tools.damaged import made

NOUNS: dict[str, Kind] = {"stream": "stream", "journal": "journal", "priority": "jobs", "spool": "spool"}


@pytest.mark.parametrize("noun", NOUNS)
def test_the_verb_of_a_noun_shows_what_info_shows_of_the_path(run, tmp_path, noun):
    made(NOUNS[noun], str(tmp_path))
    assert run(noun, "info", tmp_path).out == run("info", tmp_path).out
    (expected,) = json.loads(run("info", tmp_path, "--json").out)["things"]
    assert json.loads(run(noun, "info", tmp_path, "--json").out) == expected


@pytest.mark.parametrize("noun", NOUNS)
def test_the_verb_of_a_noun_refuses_another_kind(run, tmp_path, noun):
    made("journal" if noun == "stream" else "stream", str(tmp_path))
    done = run(noun, "info", tmp_path)
    assert (done.code, done.out) == (1, b"")
    assert "there is no" in done.notes[-1]
