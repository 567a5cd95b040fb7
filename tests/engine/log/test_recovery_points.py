# Recovery points, as text and as a promise.

from __future__ import annotations

from diskq.engine.log.recovery_points import RecoveryPoint, RecoveryPoints
from diskq.storage.checksums import checked

POINTS = RecoveryPoints(False, {0: RecoveryPoint(100, 64, 102, 7), 2: RecoveryPoint(5, 0, 5)})


def test_points_are_read_as_they_were_written():
    assert RecoveryPoints.parse(POINTS.render()) == POINTS


def test_points_of_an_earlier_version_name_no_first_segment():
    content = checked(b"diskq points 1 closed\n0 100 64 102\n")
    assert RecoveryPoints.parse(content) == RecoveryPoints(True, {0: RecoveryPoint(100, 64, 102)})


def test_points_of_an_earlier_version_name_write_ahead_logs_too():
    content = checked(b"diskq points 1 open staged 3\n0 100 64 102 7\n")
    assert RecoveryPoints.parse(content) == RecoveryPoints(False, {0: RecoveryPoint(100, 64, 102, 7)})


def test_where_a_repair_renames_segments_the_first_one_is_unknown():
    assert POINTS.with_other_starts([0]).partitions == {
        0: RecoveryPoint(100, 64, 102),
        2: RecoveryPoint(5, 0, 5),
    }
