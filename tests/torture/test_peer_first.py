# The rig in which a real peer opens first after a power cut: its cases are the same in every run, and it
# finds what is missing, altered or miscounted.

from __future__ import annotations

from pathlib import Path

import pytest

from diskq.storage.fs import OsFileSystem
from tests.contract.kinds import ENGINES, bodies
from tests.torture.cut_judging import Sent, judge
from tests.torture.peer_first import run_case
from tests.torture.real_peers import PEERS, Peer, real_peers

KINDS = ("queue", "stream", "journal", "spool", "priority")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "sent, faults",
    [
        (Sent(bodies(5), set(bodies(5))), {}),
        (Sent(bodies(7), set(bodies(7))), {"lost": 2}),
        (Sent(bodies(5), set(), bodies(6)), {"peer's lost": 1}),
        (Sent(bodies(4)), {"altered": 1}),
    ],
    ids=["whole", "lost", "the peer's lost", "altered"],
)
def test_what_is_missing_or_was_never_sent_is_found(
    kind: str, sent: Sent, faults: dict[str, int], tmp_path: Path
) -> None:
    with ENGINES[kind].open(tmp_path) as store:
        store.put_many(bodies(5))
    assert judge(ENGINES[kind], tmp_path, OsFileSystem(), sent).faults == faults


@pytest.mark.parametrize("name", PEERS)
def test_a_case_is_the_same_each_time(name: str, tmp_path: Path) -> None:
    peer = Peer(name, PEERS[name], tmp_path / "no program")
    found = []
    for room in ("one", "other"):
        (tmp_path / room).mkdir()
        found.append(run_case(peer, "drawn", "unchanged", "none", 1, tmp_path / room))
    assert found[0] == found[1]
    assert not found[0][0].faults


def test_a_peer_without_a_program_is_left_out_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISKQ_PEER_SEJ", raising=False)
    monkeypatch.setenv("DISKQ_PEER_GO_DISKQ", "/no such program")
    assert list(real_peers(["sej", "go-diskq"])) == [
        "sej: left out: DISKQ_PEER_SEJ names no program",
        "go-diskq: left out: DISKQ_PEER_GO_DISKQ names /no such program, which is no program that can be run",
    ]
