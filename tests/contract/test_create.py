# Whether a missing store is made: one keyword and one rule in every kind. What writes makes it; with
# `create=False` it is a NotFoundError, of its kind, and nothing is made.

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import diskq
from diskq.errors import NotFoundError
from tests.loops import each_loop


async def deliver(batch: diskq.Batch) -> None:
    pass


ENGINES: dict[str, Callable[..., Any]] = {
    "queue": diskq.Queue,
    "stream": diskq.Stream,
    "journal": diskq.Journal,
    "priority store": diskq.PriorityStore,
    "spool": lambda path, **more: diskq.Spool(path, lambda batch: None, **more),
}
OPENERS: dict[str, Callable[..., Any]] = {
    "queue": diskq.open_queue,
    "stream": diskq.open_producer,
    "journal": diskq.open_journal,
    "priority store": diskq.open_priority_store,
    "spool": lambda path, **more: diskq.open_spool(path, deliver, **more),
}


@pytest.mark.parametrize("kind", ENGINES)
def test_an_engine_refuses_or_makes_a_missing_store(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "not" / "there"
    with pytest.raises(NotFoundError) as refused:
        ENGINES[kind](path, create=False)
    assert refused.value.kind == kind
    assert str(refused.value).endswith(
        "open it without create=False to make it, or start first what makes it"
    )
    assert list(tmp_path.iterdir()) == []
    ENGINES[kind](path).close()
    ENGINES[kind](path, create=False).close()


@pytest.mark.parametrize("kind", OPENERS)
@each_loop
async def test_an_opener_refuses_or_makes_a_missing_store(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "not" / "there"
    with pytest.raises(NotFoundError) as refused:
        async with OPENERS[kind](path, create=False):
            raise AssertionError("it is not there")
    assert refused.value.kind == kind
    assert os.listdir(tmp_path) == []
    async with OPENERS[kind](path):
        pass
    async with OPENERS[kind](path, create=False):
        pass


@each_loop
async def test_a_reader_of_a_missing_stream_is_told_how_to_start_first(tmp_path: Path) -> None:
    way_out = "there is no stream here; start first the program that writes it, or open it with create=True"
    with pytest.raises(NotFoundError, match=way_out):
        diskq.StreamReader(tmp_path / "s")
    with pytest.raises(NotFoundError, match=way_out):
        async with diskq.open_consumer(tmp_path / "s", group="g"):
            raise AssertionError("it is not there")
    assert os.listdir(tmp_path) == []
    diskq.StreamReader(tmp_path / "s", group="g", create=True).close()


def test_a_queue_has_one_path_or_a_directory_and_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path, of in [("data/events", ("data", "events")), ("events", (".", "events"))]:
        with diskq.Queue(path) as queue:
            queue.put(b"x")
        with diskq.Queue(*of, create=False) as queue:
            assert (queue.name, queue.get_nowait()) == ("events", b"x")
    with pytest.raises(diskq.QueueNameError):
        diskq.Queue("data/")
