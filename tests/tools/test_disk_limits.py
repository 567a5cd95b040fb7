# What a disk can do, and what kind of disk it is: figures that are figures, and warnings where they are lies.

from __future__ import annotations

import pytest

from diskq.tools.disk_limits import (
    Mount,
    measure_limits,
    mount_in,
    mount_of,
    quantile,
    spread_of,
    warnings_of,
)

MOUNTS = """\
/dev/vda / ext4 rw,relatime 0 0
tmpfs /dev/shm tmpfs rw 0 0
overlay /var/lib/docker overlay rw 0 0
server:/export /mnt/with\\040space nfs4 rw 0 0
tmpfs /mnt tmpfs rw 0 0
/dev/vdb /mnt xfs rw 0 0
"""


@pytest.mark.parametrize(
    "path, kind",
    [
        ("/home/me", "ext4"),
        ("/", "ext4"),
        ("/dev/shm/x", "tmpfs"),
        ("/dev/shmore", "ext4"),
        ("/mnt/with space/q", "nfs4"),
        ("/mnt/data", "xfs"),
    ],
)
def test_a_path_is_on_what_is_mounted_nearest_above_it_and_last(path, kind):
    assert mount_in(MOUNTS, path).kind == kind


def test_a_path_that_is_there_is_on_something(tmp_path):
    mount = mount_of(tmp_path)
    assert mount.kind
    assert str(tmp_path).startswith(mount.path)


@pytest.mark.parametrize(
    "kind, median, said",
    [
        ("ext4", 500e-6, []),
        ("ext4", 30e-6, ["keep their cache in a power cut"]),
        ("xfs", 2e-6, ["no disk can"]),
        ("tmpfs", 1e-6, ["which is memory"]),
        ("overlay", 500e-6, ["belong on a volume"]),
        ("nfs4", 2e-3, ["not this machine's disk"]),
        ("fuse.sshfs", 2e-3, ["not this machine's disk"]),
        ("overlay", 1e-6, ["belong on a volume", "no disk can"]),
        ("unknown", 500e-6, []),
    ],
)
def test_what_is_no_disk_or_does_not_sync_is_warned_of(kind, median, said):
    warnings = warnings_of(Mount(kind, "/data"), median)
    assert len(warnings) == len(said)
    assert all(part in warning for part, warning in zip(said, warnings, strict=True))


def test_limits_are_measured_and_the_file_is_empty_then(tmp_path):
    limits = measure_limits(tmp_path, size=2**20, seconds=0.0)
    assert min(limits.memcpy, limits.write, limits.write_synced, limits.read, *limits.syncs) > 0
    assert len(limits.syncs) == 1
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [0]


def test_a_spread_has_the_median_and_both_ends():
    assert spread_of([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)
    assert spread_of([4.0, 1.0]) == (2.5, 1.0, 4.0)


def test_a_quantile_is_one_of_the_values():
    values = [float(number) for number in range(1, 101)]
    assert [quantile(values, part) for part in (0.0, 0.5, 0.99, 1.0)] == [1.0, 50.0, 99.0, 100.0]
