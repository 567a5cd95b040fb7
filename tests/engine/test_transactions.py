# Transactions: what was staged is in the stream once, all of it or nothing, whoever commits it how often.

from __future__ import annotations

from tests.engine.streams import (
    disk,
    held,
    items,
    opened,
    parted,
    triples,
)
from tests.engine.transactions import commit, staged_files

TWO = {"partition_count": 2}


# --- committing -----------------------------------------------------------------------------------


def test_what_was_staged_is_in_the_stream_behind_what_was_there():
    fs = disk()
    with opened(fs, **TWO) as stream:
        stream.append_many(items(triples(5)))
        assert commit(stream, fs, triples(10, start=5))
        stream.append_many(items(triples(5, start=15)))
    assert held(fs) == parted(triples(20), 2)


def test_it_is_durable_when_commit_returns():
    fs = disk()
    with opened(fs, **TWO) as stream:
        stream.append_many(items(triples(5)))
        commit(stream, fs, triples(10, start=5))
        with opened(fs.crash()) as after:
            assert after.next_offsets == stream.next_offsets


def test_the_same_epoch_is_committed_once():
    fs = disk()
    with opened(fs, **TWO) as stream:
        assert commit(stream, fs, triples(10))
        assert not commit(stream, fs, triples(10))
        assert staged_files(fs) == []
    with opened(fs) as stream:
        assert not commit(stream, fs, triples(10))
    assert held(fs) == parted(triples(10), 2)
