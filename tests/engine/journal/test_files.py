# Where a journal has its private files. Law: no private directory looks like a journal to sej, whose
# WatchRootDir takes the root and each entry of it, dot files too, for one if there is a `jnl/` in it. Files
# that older versions kept in such a place are found there by readers, and moved by writers.

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from diskq.engine.journal.reader import JournalReader
from diskq.testing import CrashFS
from diskq.tools.info import info
from diskq.tools.repair.repair import repair
from diskq.tools.salvage.salvage import salvage
from diskq.tools.stores import Store
from diskq.tools.verify.verification import verify
from tests.engine.journals import ROOT, data, flip, given, item, items, opened, read_all, stored, sums, told
from tests.tools.damaged import KINDS, made

PLACE, OLD_PLACE = f"{ROOT}/.diskq/journal-data", f"{ROOT}/.diskq/jnl"
SUMS = f"{0:016x}.jnl.sums"


def as_an_older_version(fs: CrashFS) -> None:
    """Its own files are where that one had them."""
    fs.make_directory(OLD_PLACE)
    for name in fs.list_directory(PLACE):
        fs.rename(f"{PLACE}/{name}", f"{OLD_PLACE}/{name}")
    fs.remove_directory(PLACE)


def old_journal(count: int = 40) -> CrashFS:
    """A journal of several segments, closed by an older version."""
    fs = CrashFS()
    with opened(fs, segment_size=500) as journal:
        journal.append_many(given(items(count)))
    as_an_older_version(fs)
    return fs


def rows_in(fs: CrashFS, place: str) -> dict[str, bytes]:
    """The files there, without the zeros that a writer writes ahead."""
    return {Path(path).name: fs.read(path).rstrip(b"\0") for path in fs.files() if path.startswith(place)}


def watched(root: Path) -> list[Path]:
    """What sej's WatchRootDir takes for journals."""
    return [path for path in (root, *root.iterdir()) if (path / "jnl").is_dir()]


@pytest.mark.parametrize("kind", KINDS)
def test_sej_takes_no_directory_of_ours_for_a_journal(kind, tmp_path):
    made(kind, str(tmp_path))
    own = [path for path in (tmp_path, *tmp_path.rglob("*")) if path.is_dir() and ".diskq" in path.parts]
    assert own
    assert [path for path in own if watched(path)] == []
    assert watched(tmp_path) == ([tmp_path] if kind == "journal" else [])


def test_a_writer_moves_what_an_older_version_left():
    fs = old_journal()
    before = rows_in(fs, OLD_PLACE)
    with opened(fs) as journal:
        assert not journal.repairs
        assert fs.size_of(OLD_PLACE) is None
    assert len(before) > 2
    assert rows_in(fs, PLACE) == before
    assert read_all(fs) == told(items(40))


def test_it_is_durable_before_anything_else_is():
    fs = old_journal()
    opened(fs)
    after = fs.crash()
    assert after.size_of(f"{PLACE}/{SUMS}") is not None
    with opened(after) as journal:
        assert not journal.repairs


def test_who_only_reads_finds_the_checksums_there_and_moves_nothing():
    fs = old_journal()
    flip(fs, data(), 40)
    with JournalReader(ROOT, fs=fs) as reader:
        reader.seek_oldest()
        reader.read_many(1000)
        assert [loss.offset for loss in reader.losses] == [0]
    assert fs.size_of(f"{OLD_PLACE}/{SUMS}") is not None


def test_so_do_verify_and_info_and_top():
    fs = old_journal()
    fs.write_durably(f"{OLD_PLACE}/{0:016x}.jnl.bad", b"?")
    fs.write_durably(f"{OLD_PLACE}/{99:016x}.jnl.sums", b"")
    store = Store("journal", ROOT)
    found = verify(store, fs=fs)
    assert found.checksummed == found.size
    names = {Path(finding.path).name for finding in found.findings}
    assert names == {f"{99:016x}.jnl.sums", f"{0:016x}.jnl.bad"}
    flip(fs, data(), 40)
    assert verify(store, fs=fs).verdict == "damaged"
    assert f"{0:016x}.jnl.bad" in str(info(store, fs=fs))
    assert fs.size_of(f"{OLD_PLACE}/{SUMS}") is not None


def test_repair_and_salvage_go_by_them():
    fs = old_journal()
    flip(fs, data(), 40)
    store = Store("journal", ROOT)
    before = fs.files()
    assert repair(store, fs=fs).lost > 0
    lines: list[bytes] = []
    salvage(store, lines.append, fs=fs)
    assert fs.files() == before, "both only look"
    offsets = [json.loads(line)["offset"] for line in b"".join(lines).splitlines()]
    assert 0 < offsets[0] < 20
    assert repair(store, fs=fs, apply=True).lost == offsets[0]
    assert fs.size_of(OLD_PLACE) is None
    assert verify(store, fs=fs).verdict == "clean"


def test_what_an_older_version_set_aside_is_salvaged():
    fs = old_journal(3)
    fs.write_durably(f"{OLD_PLACE}/{0:016x}.jnl.bad", fs.read(data())[:-1])
    fs.truncate(handle := fs.open(data(), write=True), 0)
    fs.close(handle)
    lines: list[bytes] = []
    salvage(Store("journal", ROOT), lines.append, fs=fs)
    values = {base64.b64decode(json.loads(line)["value"]) for line in b"".join(lines).splitlines()}
    assert values == {item(0)[3], item(1)[3]}


def test_an_older_version_that_has_written_in_between_is_believed():
    fs = old_journal()
    with opened(fs):
        pass
    kept = fs.read(sums())
    fs.make_directory(OLD_PLACE)
    fs.write_durably(f"{OLD_PLACE}/{SUMS}", kept[:24])
    fs.write_durably(f"{PLACE}/{0:016x}.jnl.bad", b"first")
    fs.write_durably(f"{OLD_PLACE}/{0:016x}.jnl.bad", b"second")
    with opened(fs):
        assert fs.size_of(OLD_PLACE) is None
    assert fs.read(f"{PLACE}/{SUMS}") == kept[:24]
    assert fs.read(f"{PLACE}/{0:016x}.jnl.bad") == b"first"
    assert fs.read(f"{PLACE}/{0:016x}.jnl.bad.bad") == b"second"


@pytest.mark.parametrize("content, name", [(b"a message", f"{0:016x}.jnl.bad"), (b"", f"{0:016x}.jnl")])
def test_what_sej_has_made_there_is_kept_aside(content, name):
    fs = old_journal()
    fs.write_durably(f"{OLD_PLACE}/{0:016x}.jnl", content)
    with opened(fs):
        assert fs.size_of(OLD_PLACE) is None
    assert fs.read(f"{PLACE}/{name}") == content
    assert stored(fs) == told(items(40))


def test_a_file_that_a_power_cut_has_left_both_names_loses_the_old_one():
    fs = old_journal()
    fs.make_directory(PLACE)
    fs.link(f"{OLD_PLACE}/{SUMS}", f"{PLACE}/{SUMS}")
    kept = fs.read(f"{OLD_PLACE}/{SUMS}")
    with opened(fs):
        assert fs.size_of(OLD_PLACE) is None
    assert fs.read(f"{PLACE}/{SUMS}") == kept
