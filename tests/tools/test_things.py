from __future__ import annotations

from pathlib import Path

import pytest

from diskq.tools.things import Thing, things_at, things_found

GOLDEN = Path(__file__).parent.parent / "golden"


def test_a_directory_is_what_its_names_say() -> None:
    stream = GOLDEN / "diskq" / "defaults" / "data"
    assert things_at(stream) == [Thing("stream", str(stream))]


def test_a_file_belongs_to_what_is_around_it() -> None:
    stream = GOLDEN / "diskq" / "defaults" / "data"
    file = next((stream / "parts" / "000000").glob("*.data"))
    assert things_at(file) == [Thing("stream", str(stream))]


def test_a_directory_has_several_queues(tmp_path: Path) -> None:
    for name in ("b.diskqueue.000000.dat", "a.diskqueue.meta.dat", "a.diskqueue.000003.dat"):
        (tmp_path / name).write_bytes(b"")
    assert [thing.name for thing in things_at(tmp_path)] == ["a", "b"]
    assert [thing.name for thing in things_at(tmp_path / "b.diskqueue.000000.dat")] == ["b"]


def test_below_a_root_there_are_journals(tmp_path: Path) -> None:
    for name in ("web1.events", "web2.events"):
        (tmp_path / name / "jnl").mkdir(parents=True)
        (tmp_path / name / "jnl" / "0000000000000000.jnl").write_bytes(b"")
    assert things_at(tmp_path) == [
        Thing("journal", str(tmp_path / "web1.events")),
        Thing("journal", str(tmp_path / "web2.events")),
    ]


def test_who_looks_from_further_up_finds_what_is_below(tmp_path: Path) -> None:
    for name in (
        "a/b/events.diskqueue.000000.dat",
        "c/d/e/jnl/0000000000000000.jnl",
        ".old/x.diskqueue.meta.dat",
    ):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "letter.txt").write_text("dear")
    assert things_found(tmp_path) == [
        Thing("queue", str(tmp_path / "a/b"), "events"),
        Thing("journal", str(tmp_path / "c/d/e")),
    ]
    assert things_at(tmp_path) == []


def test_nothing_at_all_is_an_error_for_who_looks_for_something(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="nothing here that diskq knows"):
        things_found(tmp_path)


def test_what_we_do_not_know_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    assert things_at(tmp_path) == []
    assert things_at(tmp_path / "letter.txt") == []


def test_a_path_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        things_at(tmp_path / "nowhere")
