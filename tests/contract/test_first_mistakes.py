# The mistakes of first minutes. Law: the error says what to write instead.

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import diskq
from tests.loops import each_loop


async def _deliver(batch: diskq.Batch) -> None: ...


OPENERS: dict[str, Callable[[Path], Any]] = {
    "open_queue": lambda path: diskq.open_queue(path, "q"),
    "open_producer": lambda path: diskq.open_producer(path / "s"),
    "open_consumer": lambda path: diskq.open_consumer(path / "s"),
    "open_journal": lambda path: diskq.open_journal(path / "j"),
    "open_priority_store": lambda path: diskq.open_priority_store(path / "p"),
    "open_spool": lambda path: diskq.open_spool(path / "sp", _deliver),
}
ENGINES: dict[str, Callable[[Path], Any]] = {
    "Queue": lambda path: diskq.Queue(path, "q"),
    "Stream": lambda path: diskq.Stream(path / "s"),
    "Journal": lambda path: diskq.Journal(path / "j"),
    "PriorityStore": lambda path: diskq.PriorityStore(path / "p"),
    "Spool": lambda path: diskq.Spool(path / "sp", lambda batch: None),
}


@pytest.mark.parametrize("name", OPENERS)
def test_with_instead_of_async_with(name: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=f"{name} is for an event loop: write `async with`"):
        OPENERS[name](tmp_path).__enter__()


@pytest.mark.parametrize("name", ENGINES)
def test_a_store_that_is_passed_to_another_process(name: str, tmp_path: Path) -> None:
    with ENGINES[name](tmp_path) as store, pytest.raises(TypeError, match=f"{name} .*open it there"):
        pickle.dumps(store)


def test_one_message_where_several_are_taken(tmp_path: Path) -> None:
    with (
        diskq.Queue(tmp_path, "q") as queue,
        diskq.Stream(tmp_path / "s") as stream,
        diskq.Journal(tmp_path / "j") as journal,
    ):
        for call in (queue.put_many, stream.append_many, journal.append_many):
            with pytest.raises(TypeError, match="several messages are a list"):
                call(b"abc")  # type: ignore[arg-type]


@each_loop
async def test_a_channel_says_what_it_is_and_whether_it_is_open(tmp_path: Path) -> None:
    async with diskq.open_consumer(tmp_path / "s", create=True) as consumer:
        assert repr(consumer) == f"<StreamConsumer '{tmp_path}/s': partitions none, open>"
    assert repr(consumer).endswith("closed>")
    async with diskq.open_spool(tmp_path / "sp", _deliver) as spool:
        assert repr(spool) == f"<SpoolChannel '{tmp_path}/sp': 0 messages, open>"
    assert repr(spool).endswith("closed>")
