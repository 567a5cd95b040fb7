# A job that copies into a stream, round by round. Law: the plan of a round is durable before any of the round
# is committed; so a process that resumes the job, after any crash, repeats exactly that round, which the
# stream recognises by its number, and nothing is copied twice or left out.
#
# A transaction records *that* round 7 was committed, not what was in it, and a source grows: a
# repeated round 7 might reach further, and its additional messages would count as committed. A checkpoint
# that is not synced (Spark's is not) leaves that gap open in a power cut. So the plan is stored here, in the
# directory of the messages that it produces, and cannot be separated from them:
#
#     .diskq/jobs/NAME         the plan of the latest round, as JSON, with a checksum
#     .diskq/jobs/NAME.lock    held while the job runs: one process at a time
#
# Format: docs/format/triplet.md.

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from diskq.engine.stream.files import StreamFiles
from diskq.errors import CorruptionError, DiskFullError
from diskq.storage.barrier import NO_ROOM, Barrier, Replacement, read_small
from diskq.storage.checksums import CHECK_SIZE, checked, is_checked
from diskq.storage.closing import Closing
from diskq.storage.fs import AnyPath, FileSystem, OsFileSystem, as_path, join
from diskq.storage.lock import Lock

__all__ = ["Job", "check_job_name"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,59}")
_HEAD = b"diskq job 1\n"
_LARGEST = 64 * 1024 * 1024


def check_job_name(name: str) -> str:
    """Return the name; raises ValueError if it cannot be part of a file's name."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"a job is named by 1 to 60 letters, digits, _ and -, not {name!r}")
    return name


class Job(Closing):
    """The exclusive right to continue a job, and its latest plan."""

    def __init__(self, path: AnyPath, name: str, *, fs: FileSystem | None = None) -> None:
        """Open a job of the stream in the directory `path`, which a diskq producer has opened before.

        Raises ValueError for an invalid name; LockedError while another process runs the job;
        CorruptionError if its plan cannot be read; OSError.
        """
        check_job_name(name)
        self._fs: FileSystem = fs or OsFileSystem()
        self._files = StreamFiles(self._fs, as_path(path))
        self._directory = join(self._files.private, "jobs")
        self._path = join(self._directory, name)
        self._name = name
        self._fs.make_directory(self._directory)
        # Also if it existed: the process that made it may have been killed before this.
        Barrier(directories=(self._files.private,)).execute(self._fs)
        self._lock = Lock(self._fs, f"{self._path}.lock", f"job {name!r} of {self._files.path}")
        try:
            self._lock.sign()
            self._sweep()
            self.plan: dict[str, Any] | None = self._read()
            """The plan of the latest round; None if the job is new."""
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the job, so that others may continue it. Idempotent."""
        self._lock.release()

    def keep(self, plan: Mapping[str, Any]) -> None:
        """Store the plan durably. Raises DiskFullError: the previous plan is then kept."""
        content = _HEAD + json.dumps(plan, separators=(",", ":"), sort_keys=True).encode() + b"\n"
        replacement = Replacement(self._path, checked(content), lambda number: f"{self._path}.{number}.tmp")
        if not Barrier(replacements=(replacement,)).execute(self._fs):
            raise DiskFullError(self._path, NO_ROOM)
        self.plan = dict(plan)

    def _read(self) -> dict[str, Any] | None:
        content = read_small(self._fs, self._path, _LARGEST)
        if content is None:
            return None
        end = max(0, len(content) - CHECK_SIZE)
        if not is_checked(content, end) or not content.startswith(_HEAD, 0, end):
            raise CorruptionError(self._path, 0, "damaged plan: what the job has done is unknown")
        plan: dict[str, Any] = json.loads(content[len(_HEAD) : end])
        return plan

    def _sweep(self) -> None:
        """Remove temporary files that a crash left of a plan that was being written."""
        mine = re.compile(rf"{re.escape(self._name)}\.[0-9]{{1,19}}\.tmp")
        names = [name for name in self._fs.list_directory(self._directory) if mine.fullmatch(name)]
        Barrier(removals=tuple(join(self._directory, name) for name in names)).execute(self._fs)
