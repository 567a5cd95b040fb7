# Wrong arguments, and calls that come too late. Law: every kind raises the same kind of error before anything
# is done; and arguments that can be given in several ways mean the same.

from __future__ import annotations

import array
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diskq import LockedError, MessageSizeError
from tests.contract.kinds import ENGINES, Kind, bodies, body, engines
from tests.contract.lives import PATH, crash_disk

each_kind = pytest.mark.parametrize("kind", engines(), ids=str)

# --- where it is --------------------------------------------------------------------------------------------


class Anywhere:
    """A path of another library's class."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __fspath__(self) -> str:
        return str(self.path)


@each_kind
@pytest.mark.parametrize("way", [str, Path, Anywhere, lambda path: f"{path}/", lambda path: path.name])
def test_one_place_has_many_names(
    kind: Kind, way: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "it"
    path.mkdir()
    monkeypatch.chdir(tmp_path)
    with kind.open(way(path)) as store:
        store.put(b"one")
    assert kind.read(path) == [b"one"]
    assert os.listdir(tmp_path) == ["it"]


@each_kind
@pytest.mark.parametrize("path", [b"/tmp", None, 3, 3.5, ["/tmp"]], ids=repr)
def test_what_is_no_path_is_a_type_error(kind: Kind, path: Any) -> None:
    with pytest.raises(TypeError, match=r"path|PathLike"):
        kind.open(path)


@each_kind
def test_an_empty_path_is_not_the_directory_in_which_the_program_is(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError):
        kind.open("")
    assert os.listdir(tmp_path) == []


@each_kind
def test_a_path_with_a_null_byte_is_a_value_error(kind: Kind, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="null"):
        kind.open(f"{tmp_path}/a\0b")


@each_kind
def test_a_file_is_no_directory(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"somebody's")
    with pytest.raises(NotADirectoryError, match="file"):
        kind.open(path)
    assert path.read_bytes() == b"somebody's"


# --- options ------------------------------------------------------------------------------------------------

WRONG: list[tuple[str, Any, type[Exception]]] = [
    ("sync_every", 0, ValueError),
    ("sync_every", "3", TypeError),
    ("sync_every", True, TypeError),
    ("sync_timeout", 0, ValueError),
    ("sync_timeout", float("nan"), ValueError),
    ("sync_timeout", "1", TypeError),
    ("sync_timeout", None, TypeError),
    ("memory_flush", -1, ValueError),
    ("memory_flush", "soon", TypeError),
    ("checkpoint_slice", -1, ValueError),
    ("checkpoint_slice", "1", TypeError),
    ("durability", "sync", ValueError),
    ("durability", 3, ValueError),
    ("max_unsynced", 0, ValueError),
    ("max_message_size", 0, ValueError),
    ("max_message_size", 1.5, TypeError),
]


@each_kind
@pytest.mark.parametrize("name, value, error", WRONG, ids=lambda it: it if isinstance(it, str) else "")
def test_a_wrong_option_is_named(kind: Kind, name: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=name):
        kind.open(PATH, fs=crash_disk(), **{name: value})


@each_kind
@pytest.mark.parametrize("options", [{"sync_every": 3}, "durability=synced", 3, object], ids=repr)
def test_what_are_no_options_are_a_type_error(kind: Kind, options: Any) -> None:
    fs = crash_disk()
    with pytest.raises(TypeError, match=kind.options.__name__):
        kind.opened(PATH, options, {"fs": fs})
    assert fs.files() == {}
    with pytest.raises(TypeError):
        kind.open(PATH, fs=fs, nothing_of_that_name=1)


# --- messages -----------------------------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize("wal", [False, True], ids=["plain", "wal"])
def test_messages_are_bytes_of_any_kind_and_nothing_else(kind: Kind, wal: bool) -> None:
    fs = crash_disk()
    ways: list[Any] = [bytearray(b"1"), memoryview(b"2"), memoryview(b"3x4x")[::2], b""]
    with kind.open(PATH, fs=fs, wal=wal) as store:
        wrong: list[Any] = [3, None, "text", [b"x"], 1.5, array.array("i", [1])]
        for way in wrong:
            for put in (lambda: store.put(way), lambda: store.put_many([b"x", way])):  # noqa: B023
                with pytest.raises(TypeError, match="bytes"):
                    put()
        assert store.accepted() == 0
        for each in ways:
            store.put(each)
        store.put_many(ways)
    assert kind.read(PATH, fs=fs) == [b"1", b"2", b"34", b""] * 2


@each_kind
def test_a_message_that_is_too_large_is_not_in_nor_is_its_batch(kind: Kind) -> None:
    fs = crash_disk()
    with kind.open(PATH, fs=fs, max_message_size=100) as store:
        for put in (lambda: store.put(bytes(101)), lambda: store.put_many([b"x", bytes(101)])):
            with pytest.raises(MessageSizeError, match="101"):
                put()
        assert store.accepted() == 0
        store.put(bytes(100))
    assert kind.read(PATH, fs=fs) == [bytes(100)]


@each_kind
@pytest.mark.parametrize("word", ["sync", "SYNCED", 3, True, ("synced",)], ids=repr)
@pytest.mark.parametrize("wal", [False, True], ids=["plain", "wal"])
def test_a_durability_that_is_none_is_refused_and_not_taken_for_another(
    kind: Kind, wal: bool, word: Any
) -> None:
    fs = crash_disk()
    with kind.open(PATH, fs=fs, wal=wal) as store:
        for put in (lambda: store.put(b"x", word), lambda: store.put_many([b"x", b"y"], word)):
            with pytest.raises(ValueError, match="memory, written, synced"):
                put()
        assert store.accepted() == 0
    assert kind.read(PATH, fs=fs) == []


# --- too late -----------------------------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize("wal", [False, True], ids=["plain", "wal"])
def test_after_close_every_call_is_refused_and_close_does_nothing(kind: Kind, wal: bool) -> None:
    fs = crash_disk()
    store = kind.open(PATH, fs=fs, wal=wal)
    store.put_many(bodies(3))
    store.close()
    before = fs.files(), fs.operations
    for name, call in store.calls().items():
        if name in ("ack", "nack", "release"):
            continue  # of no lease: there is nothing to be refused
        with pytest.raises(kind.closed, match=r"closed|over"):
            call()
    with pytest.raises(kind.closed, match="closed"):  # as its channel's loop does
        store.log.prepare(full=True)
    store.close()
    assert (fs.files(), fs.operations) == before
    assert fs.open_files() == []
    assert kind.read(PATH, fs=fs) == bodies(3)


@each_kind
def test_a_second_close_leaves_a_store_opened_since_alone(kind: Kind) -> None:
    fs = crash_disk()
    store = kind.open(PATH, fs=fs)
    store.close()
    with kind.open(PATH, fs=fs) as other:
        before = fs.files()
        store.close()
        assert fs.files() == before
        with pytest.raises(LockedError):
            kind.open(PATH, fs=fs)
        other.put(body(0))
    assert kind.read(PATH, fs=fs) == bodies(1)


@each_kind
@pytest.mark.parametrize("wal", [False, True], ids=["plain", "wal"])
@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, SystemExit])
def test_what_a_block_raises_leaves_it_as_it_is_and_the_store_is_closed(
    kind: Kind, wal: bool, error: type[BaseException]
) -> None:
    fs = crash_disk()
    raised = error("mine")

    def use() -> None:
        with kind.open(PATH, fs=fs, wal=wal) as store:
            store.put(body(0))
            store.put(body(1), "memory")
            raise raised

    with pytest.raises(error) as caught:
        use()
    assert caught.value is raised
    assert fs.open_files() == []
    assert kind.read(PATH, fs=fs) == bodies(2)


def test_a_batch_whose_iterator_raises_is_not_in() -> None:
    def some() -> Any:
        yield b"x"
        raise KeyError("mine")

    for kind in ENGINES.values():
        fs = crash_disk()
        with kind.open(PATH, fs=fs) as store:
            with pytest.raises(KeyError):
                store.put_many(some())
            assert store.accepted() == 0
