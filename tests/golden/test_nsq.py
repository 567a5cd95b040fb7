# Directories that go-diskqueue left, with its own account of what is in them. Law: diskq finds every whole
# message, also where its peer loses some, and leaves the files as the peer would.

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import diskq
from tests.reference import nsq_oracle

HERE = Path(__file__).parent / "nsq"


@dataclass(frozen=True)
class Case:
    """One queue of a golden directory."""

    folder: str
    name: str
    options: diskq.QueueOptions
    messages: list[dict[str, Any]]
    """What a correct reader finds: length and hash of each."""
    peer: dict[str, Any]
    """What go-diskqueue found, and the files that it left."""

    def __str__(self) -> str:
        return f"{self.folder}: {self.name}"

    def copied_to(self, directory: Path) -> Path:
        """The files lie in the repository: nobody opens them there."""
        return Path(shutil.copytree(HERE / self.folder / "data", directory / "data"))

    def opened(self, directory: Path) -> diskq.Queue:
        return diskq.Queue(directory, self.name, options=self.options)


def manifest(folder: str) -> dict[str, Any]:
    return dict(json.loads((HERE / folder / "manifest.json").read_text()))


def cases(folder: str) -> list[Case]:
    told = manifest(folder)
    found = told["put"][told.get("consumed", 0) :]
    if folder == "corrupt_len":
        # Nine to a file. What lies behind the broken length of the 13th cannot be told apart.
        found = found[:12] + found[18:]
    if folder == "two_queues":
        # The one's every third message is the other's.
        of_the_other = found[::3]
        del found[::3]
        other = case(folder, told["second_params"], of_the_other, told["go_reopen_and_drain_second"])
        return [case(folder, told["params"], found, told["go_reopen_and_drain"]), other]
    return [case(folder, told["params"], found, told["go_reopen_and_drain"])]


def case(folder: str, told: dict[str, Any], messages: list[dict[str, Any]], peer: dict[str, Any]) -> Case:
    options = diskq.QueueOptions(
        segment_size=told["maxBytesPerFile"],
        min_message_size=told["minMsgSize"],
        max_message_size=told["maxMsgSize"],
        sync_every=told["syncEvery"],
        sync_timeout=told["syncTimeout_s"],
    )
    return Case(folder, told["name"], options, messages, peer)


FOLDERS = sorted(path.name for path in HERE.iterdir() if path.is_dir())
ALL = [found for folder in FOLDERS for found in cases(folder)]
UNDAMAGED = [one for one in ALL if one.peer["warnings"] is None and one.folder != "no_meta"]

of_all = pytest.mark.parametrize("case", ALL, ids=str)
of_the_undamaged = pytest.mark.parametrize("case", UNDAMAGED, ids=str)


def described(bodies: list[bytes]) -> list[tuple[int, str]]:
    return [(len(body), hashlib.sha256(body).hexdigest()) for body in bodies]


def expected(case: Case) -> list[tuple[int, str]]:
    return [(message["len"], message["sha256"]) for message in case.messages]


def test_there_are_as_many_cases_as_there_were():
    assert len(FOLDERS) == 8
    assert len(ALL) == 9
    assert len(UNDAMAGED) == 6


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_files_are_as_they_were_written(folder):
    files = {path.name: path.read_bytes() for path in (HERE / folder / "data").iterdir()}
    told = {file["path"]: (file["size"], file["sha256"]) for file in manifest(folder)["files"]}
    assert {n: (len(content), hashlib.sha256(content).hexdigest()) for n, content in files.items()} == told


@of_all
def test_every_whole_message_is_delivered(case, tmp_path):
    with case.opened(case.copied_to(tmp_path)) as queue:
        assert queue.depth == len(case.messages)
        assert described(queue.get_many(1000)) == expected(case)
        assert queue.depth == 0


@of_all
def test_no_fewer_messages_are_delivered_than_by_the_peer(case):
    of_the_peer = [(message["len"], message["sha256"]) for message in case.peer["messages"] or []]
    assert [message for message in expected(case) if message in of_the_peer] == of_the_peer


@of_all
def test_what_is_not_consumed_is_there_when_it_is_opened_again(case, tmp_path):
    directory = case.copied_to(tmp_path)
    with case.opened(directory) as queue:
        queue.get_many(1)
    with case.opened(directory) as queue:
        assert queue.depth == max(0, len(case.messages) - 1)
        queue.put(b"one more")
    with case.opened(directory) as queue:
        assert described(queue.get_many(1000)) == [*expected(case)[1:], *described([b"one more"])]


@of_all
def test_data_files_are_left_as_they_are(case, tmp_path):
    directory = case.copied_to(tmp_path)
    case.opened(directory).close()
    for file in manifest(case.folder)["files"]:
        if not file["path"].endswith(".meta.dat"):
            assert hashlib.sha256((directory / file["path"]).read_bytes()).hexdigest() == file["sha256"]


@of_the_undamaged
def test_what_is_left_when_all_is_consumed_is_what_the_peer_leaves(case, tmp_path):
    directory = case.copied_to(tmp_path)
    with case.opened(directory) as queue:
        assert not queue.repairs
        queue.get_many(1000)
    of_the_peer = {file["path"]: file["sha256"] for file in case.peer["files_after"]}
    for name in (path.name for path in directory.iterdir() if path.is_file()):
        content = (directory / name).read_bytes()
        if name == f"{case.name}.diskqueue.meta.dat":
            content = b"".join(content.splitlines(keepends=True)[:3])
        assert hashlib.sha256(content).hexdigest() == of_the_peer.pop(name), name
    assert not of_the_peer


@of_the_undamaged
def test_writing_the_same_messages_makes_the_same_files(case, tmp_path):
    """Byte for byte: where files end, what they are called, and what the metadata says."""
    before = case.copied_to(tmp_path)
    bodies = nsq_oracle.read_files(before, case.name)
    told = nsq_oracle.read_meta(before, case.name)
    ours = tmp_path / "ours"
    ours.mkdir()
    with case.opened(ours) as queue:
        queue.put_many(bodies)
    numbers = nsq_oracle.data_numbers(before, case.name)
    for number in numbers:
        theirs = nsq_oracle.data_path(before, case.name, number).read_bytes()
        assert nsq_oracle.data_path(ours, case.name, number - numbers[0]).read_bytes() == theirs
    mine = nsq_oracle.read_meta(ours, case.name)
    assert (mine.write_file, mine.write_position) == (told.write_file - numbers[0], told.write_position)


# --- the damaged ones, in words ---------------------------------------------------------------


def the_case(folder: str) -> Case:
    return next(one for one in ALL if one.folder == folder)


def test_a_broken_length_costs_the_rest_of_its_file_and_is_reported(tmp_path):
    directory = the_case("corrupt_len").copied_to(tmp_path)
    path = str(directory / "corrupt.diskqueue.000001.dat")
    with the_case("corrupt_len").opened(directory) as queue:
        queue.get_many(1000)
        (repair,) = queue.repairs
        assert (repair.path, repair.kept, repair.dropped, repair.records) == (path, 312, 624, None)
        assert repair.saved_as == path + ".bad"
    assert Path(path + ".bad").stat().st_size == 936
    assert not Path(path).exists()


def test_without_metadata_the_files_decide_and_a_repair_says_so(tmp_path):
    with the_case("no_meta").opened(the_case("no_meta").copied_to(tmp_path)) as queue:
        (repair,) = queue.repairs
        assert "metadata is missing" in repair.reason
        assert (repair.dropped, repair.records) == (0, 0)


def test_what_was_written_after_the_last_sync_is_delivered_without_a_repair(tmp_path):
    directory = the_case("stale_meta").copied_to(tmp_path)
    with the_case("stale_meta").opened(directory) as queue:
        assert not queue.repairs
        queue.put(b"next")
    assert (directory / "stale.diskqueue.000000.dat").stat().st_size == 5350 + 8, "the file goes on"
