# What a copying job keeps of its rounds.

from __future__ import annotations

import contextlib
import random

import pytest

from diskq.engine.stream.copy_job import Job, check_job_name
from diskq.errors import CorruptionError, DiskFullError, LockedError
from diskq.testing import CrashFS, FaultFS, PowerCut
from tests.crash.mutations import Mutation
from tests.engine.streams import ROOT, disk, failing_disk, flip, listed, opened

JOBS = f"{ROOT}/.diskq/jobs"
PLAN = {"round": 3, "ranges": {"clicks": {"0": [5, 9]}}}


def made(fs: CrashFS | FaultFS[CrashFS]) -> None:
    opened(fs).close()


def test_a_plan_is_kept_and_replaced():
    fs = disk()
    made(fs)
    with Job(ROOT, "copy", fs=fs) as job:
        assert job.plan is None
        job.keep(PLAN)
        job.keep(PLAN | {"round": 4})
    with Job(ROOT, "copy", fs=fs) as job:
        assert job.plan == PLAN | {"round": 4}
    with Job(ROOT, "other", fs=fs) as job:
        assert job.plan is None


def test_one_process_at_a_time():
    fs = disk()
    made(fs)
    with Job(ROOT, "copy", fs=fs), pytest.raises(LockedError, match="job 'copy' of /s is in use by"):
        Job(ROOT, "copy", fs=fs)
    Job(ROOT, "copy", fs=fs).close()


def kept_twice(fs: CrashFS) -> list[int]:
    """Keep two plans; gives which of them were promised, also when the power failed meanwhile."""
    promised: list[int] = []
    with contextlib.suppress(PowerCut), Job(ROOT, "copy", fs=fs) as job:
        for number in (3, 4):
            job.keep(PLAN | {"round": number})
            promised.append(number)
    return promised


def test_after_a_power_cut_at_any_step_the_plan_is_the_last_that_was_kept_or_one_behind_it():
    whole = disk()
    made(whole)
    before = whole.operations
    kept_twice(whole)
    for step in range(1, whole.operations - before + 2):
        for seed in range(12):
            fs = disk()
            made(fs)
            fs.cut_at = before + step
            promised = kept_twice(fs)
            survivor = fs.crash(random.Random(seed))
            with Job(ROOT, "copy", fs=survivor) as job:
                found = job.plan["round"] if job.plan else None
            assert found in {2: (4,), 1: (3, 4), 0: (None, 3)}[len(promised)], (step, seed)
            assert listed(survivor, JOBS) in (["copy", "copy.lock"], ["copy.lock"])


def test_what_nobody_wrote_is_not_believed():
    fs = disk()
    made(fs)
    with Job(ROOT, "copy", fs=fs) as job:
        job.keep(PLAN)
    for at in range(len(fs.read(f"{JOBS}/copy"))):
        flip(fs, f"{JOBS}/copy", at)
        with pytest.raises(CorruptionError):
            Job(ROOT, "copy", fs=fs)
        flip(fs, f"{JOBS}/copy", at)
    Job(ROOT, "copy", fs=fs).close()


def test_a_full_disk_leaves_the_plan_before():
    fs = failing_disk()
    made(fs)
    with Job(ROOT, "copy", fs=fs) as job:
        job.keep(PLAN)
        fs.capacity(0)
        with pytest.raises(DiskFullError):
            job.keep(PLAN | {"round": 4})
        assert job.plan == PLAN
    with Job(ROOT, "copy", fs=fs.inner) as job:
        assert job.plan == PLAN


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a b", "x" * 61, "-x"])
def test_a_name_is_part_of_a_file_name(name):
    with pytest.raises(ValueError, match="a job is named by"):
        check_job_name(name)


@pytest.mark.parametrize(
    "mutation",
    [
        Mutation(
            "diskq.engine.stream.copy_job",
            "Barrier(directories=(self._files.private,)).execute(self._fs)",
            "pass",
        ),
        Mutation("diskq.storage.barrier", "            fs.sync_files((handle,))\n", "            pass\n"),
        Mutation("diskq.storage.barrier", "self._sync_directory(fs, directory)", "pass"),
    ],
    ids=str,
)
def test_no_sync_can_be_left_out(mutation):
    with mutation.installed(), pytest.raises((AssertionError, CorruptionError)):
        test_after_a_power_cut_at_any_step_the_plan_is_the_last_that_was_kept_or_one_behind_it()
