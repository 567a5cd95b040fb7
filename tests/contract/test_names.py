# Names of queues, groups, readers and shards. Law: a name that cannot be that of a file, a directory or an
# entry is refused in the same way everywhere: by the error of its kind, which contains the name, before
# anything is made.

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

import diskq
from diskq.engine.queue.snapshot import QueueSnapshot
from diskq.engine.stream.files import StreamFiles
from diskq.engine.stream.groups import ConsumerGroup
from diskq.errors import GroupNameError, QueueNameError, ReaderNameError, ShardNameError
from diskq.storage.fs import OsFileSystem
from tests.loops import INSTALLED, run_on


@dataclass(frozen=True)
class Named:
    """One way to give a name, below a root in which there is one of each kind."""

    what: str
    give: Callable[[Path, Any], object]
    error: type[Exception]
    is_path: bool = True
    """True if it becomes the name of a file or a directory."""
    may_be_empty: bool = False

    def __str__(self) -> str:
        return self.what


def entered(loop: str, block: AbstractAsyncContextManager[Any]) -> None:
    async def enter() -> None:
        async with block:
            await anyio.lowlevel.checkpoint()

    run_on(loop, enter)


def in_a_store(root: Path, act: Callable[[diskq.PriorityStore], object]) -> None:
    with diskq.PriorityStore(root / "store") as store:
        act(store)


def in_a_channel(loop: str, root: Path, act: Callable[[diskq.PriorityStoreChannel], Any]) -> None:
    async def enter() -> None:
        async with diskq.open_priority_store(root / "store") as store:
            await act(store)

    run_on(loop, enter)


def group(root: Path, name: Any) -> None:
    files = StreamFiles(OsFileSystem(), str(root / "stream"))
    ConsumerGroup(OsFileSystem(), files, name)


_PRIORITY: dict[str, Any] = {"error": QueueNameError, "is_path": False, "may_be_empty": True}
ENGINE_WAYS = [
    Named("queue", lambda root, name: diskq.Queue(root, name), QueueNameError),
    Named("snapshot", lambda root, name: QueueSnapshot(root, name), QueueNameError),
    Named("group", group, GroupNameError),
    Named("offset", lambda root, name: diskq.JournalReaderOffset(root / "journal", name), ReaderNameError),
    Named(
        "priority queue", lambda r, name: in_a_store(r, lambda store: store.create_queue(name)), **_PRIORITY
    ),
]


def channel_ways(loop: str) -> list[Named]:
    def opened(what: str, opener: Callable[[Path, Any], Any], error: type[Exception], **facts: Any) -> Named:
        return Named(f"{what}, {loop}", lambda root, name: entered(loop, opener(root, name)), error, **facts)

    shards: dict[str, Any] = {"error": ShardNameError, "may_be_empty": True}
    return [
        opened("queue channel", lambda root, name: diskq.open_queue(root, name), QueueNameError),
        opened("consumer", lambda r, name: diskq.open_consumer(r / "stream", group=name), GroupNameError),
        opened("scanner", lambda r, name: diskq.open_scanner(r / "journal", reader=name), ReaderNameError),
        opened(
            "reader of shards",
            lambda root, name: diskq.open_shard_scanner(root, "p", 1, reader=name),
            ReaderNameError,
        ),
        opened("shards", lambda root, name: diskq.open_shards(root, name, 1), **shards),
        opened("scanner of shards", lambda root, name: diskq.open_shard_scanner(root, name, 1), **shards),
        Named(
            f"priority queue of a channel, {loop}",
            lambda root, name: in_a_channel(loop, root, lambda store: store.create_queue(name)),
            **_PRIORITY,
        ),
    ]


WAYS = [*ENGINE_WAYS, *(way for loop in INSTALLED for way in channel_ways(loop))]

NO_NAMES = ["a\0b", "a\nb", "a\tb", "a\x7fb", "\ud800", "n" * 300]
NO_PATHS = ["a/b", "/a", "..", "../a", "."]
NOT_STR = [3, b"name", True, ["name"], Path("name")]


def filled(root: Path) -> Path:
    for name in ("stream", "journal", "store"):
        (root / name).mkdir()
    diskq.Queue(root, "queue").close()
    diskq.Stream(root / "stream").close()
    diskq.Journal(root / "journal").close()
    diskq.PriorityStore(root / "store").close()
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled(tmp_path_factory.mktemp("names"))


def refused(way: Named, root: Path, name: Any) -> Exception:
    before = sorted(root.rglob("*"))
    with pytest.raises((diskq.DiskqError, TypeError)) as raised:
        way.give(root, name)
    assert sorted(root.rglob("*")) == before
    return raised.value


def cases() -> list[Any]:
    return [
        pytest.param(way, name, id=f"{way}: {name[:8]!r}")
        for way in WAYS
        for name in [*NO_NAMES, *NO_PATHS * way.is_path, *[""] * (not way.may_be_empty)]
    ]


@pytest.mark.parametrize("way, name", cases())
def test_what_cannot_be_a_name_is_refused_before_anything_is_made(way: Named, name: str, root: Path) -> None:
    failure = refused(way, root, name)
    assert type(failure) is way.error
    assert isinstance(failure, ValueError)
    assert repr(name) in str(failure)


@pytest.mark.parametrize("name", NOT_STR, ids=repr)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_so_is_what_is_no_text(way: Named, name: Any, root: Path) -> None:
    assert isinstance(refused(way, root, name), way.error | TypeError)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_letters_digits_hyphens_and_underscores_are_good_everywhere(way: Named, tmp_path: Path) -> None:
    opened = way.give(filled(tmp_path), "Mail-2_x")
    getattr(opened, "close", lambda: None)()
