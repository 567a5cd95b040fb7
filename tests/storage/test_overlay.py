# A file system over another one. Law: it behaves as that would, and that one never changes.

from __future__ import annotations

import random

import pytest

from diskq.storage.fs import OsFileSystem
from diskq.storage.overlay import OverlayFS
from diskq.testing import CrashFS, FaultFS

NAMES = [f"/d/{letter}" for letter in "abcde"]


def filled() -> CrashFS:
    fs = CrashFS()
    fs.make_directory_durably("/d")
    for number, path in enumerate(NAMES[:3]):
        handle = fs.open(path, write=True, create=True)
        fs.pwrite(handle, bytes(range(1, 40)) * number, 0)
        fs.close(handle)
    return fs


class Both:
    """The same operations on a file system, and on an overlay over its copy."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.model = filled()
        self.below = filled()
        self.overlay = OverlayFS(self.below)
        self.handles: list[tuple[int, int]] = []

    def do(self, name, *args, **options):
        found = []
        for fs in (self.model, self.overlay):
            try:
                found.append(getattr(fs, name)(*args, **options))
            except OSError as failure:
                found.append(type(failure))
        if name == "list_directory":
            found = [sorted(each) for each in found]
        if name == "open":
            assert isinstance(found[0], int) == isinstance(found[1], int)
            if isinstance(found[0], int):
                self.handles.append((found[0], found[1]))
            return
        assert found[0] == found[1], (name, args)

    def do_to_file(self, name, *args):
        model, overlay = self.chance.choice(self.handles)
        assert getattr(self.model, name)(model, *args) == getattr(self.overlay, name)(overlay, *args)

    def close_one(self):
        model, overlay = self.handles.pop(self.chance.randrange(len(self.handles)))
        self.model.close(model)
        self.overlay.close(overlay)

    def step(self):
        chance = self.chance
        path, position = chance.choice(NAMES), chance.randrange(100)
        verbs = [
            lambda: self.do("open", path, write=True, create=chance.random() < 0.5),
            lambda: self.do("open", path, write=True, create=True, exclusive=True),
            lambda: self.do("unlink", path),
            lambda: self.do("rename", path, chance.choice([name for name in NAMES if name != path])),
            lambda: self.do("list_directory", "/d"),
            lambda: self.do("size_of", path),
        ]
        if self.handles:
            verbs += [
                self.close_one,
                lambda: self.do_to_file("pread", chance.randrange(100), position),
                lambda: self.do_to_file("pread", 200, 0),
                lambda: self.do_to_file("pwrite", bytes(chance.randrange(9) for _ in range(9)), position),
                lambda: self.do_to_file("truncate", position),
                lambda: self.do_to_file("size"),
                lambda: self.do_to_file("has_name"),
            ]
        chance.choice(verbs)()


@pytest.mark.parametrize("seed", range(20))
def test_every_operation_seems_done_and_changes_nothing_below(seed):
    both = Both(random.Random(seed))
    before = both.below.files()
    for _ in range(300):
        both.step()
    assert both.below.files() == before


def test_no_operation_is_one_below_that_changes_anything():
    fs = FaultFS(filled())
    with OverlayFS(fs) as overlay:
        handle = overlay.open(NAMES[0], write=True)
        overlay.pwrite(handle, b"new", 0)
        overlay.truncate(handle, 2)
        overlay.share_memory(handle, 100)[:3] = b"new"
        overlay.sync_files([handle])
        overlay.sync_file_system(handle)
        overlay.link(NAMES[0], f"{NAMES[0]}.copy")
        overlay.rename(NAMES[1], NAMES[4])
        overlay.unlink(NAMES[2])
        overlay.sync_directory("/d")
        overlay.make_directory("/d/inner")
        overlay.remove_directory("/d/inner")
        assert overlay.try_lock(handle)
        assert overlay.list_directory("/d") == ["a", "a.copy", "e"]
    assert {call.verb for call in fs.calls} <= {"open", "close", "pread", "size", "list_directory", "size_of"}
    assert fs.inner.files() == filled().files()


def test_a_closed_overlay_keeps_no_file_open_below():
    fs = FaultFS(filled())
    overlay = OverlayFS(fs)
    held = [overlay.open(path, write=True) for path in NAMES[:3]]
    overlay.pwrite(held[0], b"new", 0)
    overlay.unlink(NAMES[1])
    for handle in held[:2]:
        overlay.close(handle)
    overlay.close_all()
    overlay.close_all()
    opens = [call for call in fs.calls if call.verb == "open"]
    closes = [call for call in fs.calls if call.verb == "close"]
    assert len(opens) == len(closes) == 3


def test_bytes_written_over_themselves_are_not_held_in_memory():
    with OverlayFS(filled()) as overlay:
        handle = overlay.open("/d/c", write=True)
        content = overlay.pread(handle, 1000, 0)
        overlay.pwrite(handle, content, 0)
        overlay.pwrite(handle, b"!!", 70)
        assert overlay.pread(handle, 1000, 0) == content[:70] + b"!!" + content[72:]
        assert [len(file.tail) for file in overlay._files.values() if file is not None] == [len(content) - 70]


def test_directories_can_be_made_in_memory(tmp_path):
    with OverlayFS(OsFileSystem()) as overlay:
        inner = f"{tmp_path}/a"
        assert overlay.make_directory(inner)
        assert not overlay.make_directory(inner)
        overlay.close(overlay.open(f"{inner}/file", write=True, create=True))
        assert overlay.list_directory(inner) == ["file"]
        assert overlay.list_directory(str(tmp_path)) == ["a"]
        with pytest.raises(FileNotFoundError):
            overlay.make_directory(f"{tmp_path}/b/c")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("locks", [False, True])
def test_a_lock_is_taken_below_only_where_that_is_asked_for(tmp_path, locks):
    fs = OsFileSystem()
    path = str(tmp_path / "lock")
    first = fs.open(path, write=True, create=True)
    assert fs.try_lock(first)
    with OverlayFS(fs, locks=locks) as overlay:
        assert overlay.try_lock(overlay.open(path, write=True)) != locks
        assert overlay.try_lock(overlay.open(f"{path}2", write=True, create=True))
    fs.close(first)
