from __future__ import annotations

from pathlib import Path

import pytest

from diskq.tools.stores import Store, stores_at, stores_found

GOLDEN = Path(__file__).parent.parent / "golden"


def test_a_directory_is_what_its_names_say() -> None:
    stream = GOLDEN / "diskq" / "defaults" / "data"
    assert stores_at(stream) == [Store("stream", str(stream))]


def test_a_file_belongs_to_what_is_around_it() -> None:
    stream = GOLDEN / "diskq" / "defaults" / "data"
    file = next((stream / "parts" / "000000").glob("*.data"))
    assert stores_at(file) == [Store("stream", str(stream))]


def test_a_directory_has_several_queues(tmp_path: Path) -> None:
    for name in ("b.diskqueue.000000.dat", "a.diskqueue.meta.dat", "a.diskqueue.000003.dat"):
        (tmp_path / name).write_bytes(b"")
    assert [store.name for store in stores_at(tmp_path)] == ["a", "b"]
    assert [store.name for store in stores_at(tmp_path / "b.diskqueue.000000.dat")] == ["b"]


def test_below_a_root_there_are_journals(tmp_path: Path) -> None:
    for name in ("web1.events", "web2.events"):
        (tmp_path / name / "jnl").mkdir(parents=True)
        (tmp_path / name / "jnl" / "0000000000000000.jnl").write_bytes(b"")
    assert stores_at(tmp_path) == [
        Store("journal", str(tmp_path / "web1.events")),
        Store("journal", str(tmp_path / "web2.events")),
    ]


def _lay(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")


def test_a_journal_hides_nothing_beside_it_below_it_or_above_it(tmp_path: Path) -> None:
    _lay(
        tmp_path,
        "own.diskqueue.000000.dat",
        "journal/jnl/0000000000000000.jnl",
        "journal/events.diskqueue.000000.dat",
        "queue/events.diskqueue.000000.dat",
        "spool/spool.diskqueue.000000.dat",
        "spool/.diskq/spool.state",
        "store/data/tflux.metadata",
        "stream/parts/000000/00000000000000000000.data",
        "stream/below/jnl/0000000000000000.jnl",
    )
    root = str(tmp_path)
    everything = [
        Store("queue", root, "own"),
        Store("queue", f"{root}/journal", "events"),
        Store("journal", f"{root}/journal"),
        Store("queue", f"{root}/queue", "events"),
        Store("spool", f"{root}/spool"),
        Store("jobs", f"{root}/store"),
        Store("stream", f"{root}/stream"),
        Store("journal", f"{root}/stream/below"),
    ]
    assert stores_found(root) == everything
    assert stores_at(root) == everything[:-1], "what is directly below, and no further"


def test_a_store_in_its_data_directory_is_one_thing(tmp_path: Path) -> None:
    _lay(tmp_path, "data/tflux.metadata", "data/log/0000000000000000000.log")
    assert stores_found(tmp_path) == [Store("jobs", str(tmp_path))]


def test_stores_below_are_found_from_further_up(tmp_path: Path) -> None:
    for name in (
        "a/b/events.diskqueue.000000.dat",
        "c/d/e/jnl/0000000000000000.jnl",
        ".old/x.diskqueue.meta.dat",
    ):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "letter.txt").write_text("dear")
    assert stores_found(tmp_path) == [
        Store("queue", str(tmp_path / "a/b"), "events"),
        Store("journal", str(tmp_path / "c/d/e")),
    ]
    assert stores_at(tmp_path) == []


def test_finding_no_store_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="nothing here that diskq knows"):
        stores_found(tmp_path)


def test_what_we_do_not_know_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    assert stores_at(tmp_path) == []
    assert stores_at(tmp_path / "letter.txt") == []


def test_a_path_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        stores_at(tmp_path / "nowhere")
