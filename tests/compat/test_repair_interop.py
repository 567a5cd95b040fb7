"""go-diskqueue reads a queue that was damaged and mended, to its end, and sets nothing aside."""

import pytest

from diskq.tools.repair.repair import repair
from tests.tools.damaged import COUNT, body, flip, made

pytestmark = pytest.mark.interop


def test_go_diskqueue_reads_a_repaired_queue_to_its_end(go, tmp_path):
    store = made("queue", str(tmp_path))
    flip(tmp_path / "events.diskqueue.000000.dat", 1500)
    done = repair(store, apply=True)
    before = sorted(path.name for path in tmp_path.glob("*.bad"))
    bodies = go.get(tmp_path, "events").bodies
    assert bodies == [body(number) for number in range(done.lost, COUNT)]
    assert sorted(path.name for path in tmp_path.glob("*.bad")) == before
