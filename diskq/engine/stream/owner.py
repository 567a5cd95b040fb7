# The owner file: while a stream has a producer, 16 bytes that tell go-diskq so. Law: a diskq producer
# recognises its own file after any crash, and takes another's only with `take_over`.
#
# go-diskq makes `owner` if there is none, writes a random UUID into it, and removes it at the end; if
# there is one it refuses. It has no lock, and its crash leaves the file. Between two diskq producers the
# lock decides, and the file is information. Between diskq and a peer there is only the file: so diskq
# makes it, and has to distinguish its own file that a crash left from one of a live peer.
#
# The id is drawn once for a stream and kept in `.diskq/owner`, durable before any owner file has it. So
# an owner file with that id is diskq's, and under the lock it is stale: it is simply kept. (If the lock's
# content had the id, a power cut that tore it would turn diskq's own file into a stranger's.)
#
# The owner file is that file under a second name: link(2) makes the name, if it is free, in one step. So
# it has its id from the start, and a kill or a power cut leaves all of it or nothing. An empty owner file
# that is new is a peer's, which makes it and then writes it. On file systems without links, diskq makes
# the file as the peer does.
#
# An owner file of diskq's after a crash also shows recovery that no peer has written since, as it had to
# be removed by hand for that.

from __future__ import annotations

import uuid
from typing import Literal

from diskq.engine.stream.files import StreamFiles
from diskq.errors import DiskFullError, LockedError
from diskq.storage.barrier import NO_ROOM, Barrier, Replacement, read_small, write_all
from diskq.storage.fs import FULL_DISK_ERRNOS, FileSystem
from diskq.storage.numbered_files import free_aside
from diskq.storage.repairs import Repair, RepairKind

__all__ = ["ID_SIZE", "OwnerFile", "OwnerState", "owner_state", "stream_id"]

ID_SIZE = 16

OwnerState = Literal["none", "ours", "peer", "opening", "garbage"]
"""`ours`: of a diskq producer, which lives if the lock is held. `peer`: of a go-diskq producer, which may
live. `opening`: of one that has just made it, and will write it. `garbage`: left by a crash."""

_SECOND = 1_000_000_000
# Seconds that a new, empty owner file counts as being written: go-diskq does nothing else in between.
_OPENING = 1.0


def owner_state(fs: FileSystem, files: StreamFiles) -> OwnerState:
    """Return which program the owner file belongs to. Raises OSError."""
    return _judge(fs, files, stream_id(fs, files))[0]


def _judge(fs: FileSystem, files: StreamFiles, ours: bytes | None) -> tuple[OwnerState, bytes]:
    """Return which program the owner file belongs to, and its content."""
    content = read_small(fs, files.owner, ID_SIZE + 1)
    if content is None:
        return "none", b""
    written = content.rstrip(b"\0")
    if ours is not None and written and ours.startswith(written):
        return "ours", content
    if _is_id(content):
        return "peer", content
    if not content and (stamp := fs.stamp_of(files.owner)) is not None:
        age = fs.wall_clock() - stamp.modified_ns / _SECOND
        if 0 <= age < _OPENING:
            return "opening", content
    return "garbage", content


def _is_id(content: bytes) -> bool:
    """True if it is a random UUID (version 4), as both programs make them."""
    return len(content) == ID_SIZE and content[6] >> 4 == 4 and content[8] >> 6 == 2


def stream_id(fs: FileSystem, files: StreamFiles) -> bytes | None:
    """Return the id that was drawn for the stream; None if no diskq producer has opened it. Raises OSError.

    It distinguishes a stream from one that was made anew in its place.
    """
    content = read_small(fs, files.owner_id, ID_SIZE + 1)
    return content if content is not None and _is_id(content) else None


class OwnerFile:
    """The owner file of a stream whose lock is held, until the barrier with its `removals` is executed."""

    def __init__(self, fs: FileSystem, files: StreamFiles, *, take_over: bool = False) -> None:
        """Keep or make the file. The bytes are durable; the name becomes durable with the first barrier.

        The caller holds the stream's lock and has made the private directory. Raises LockedError if a peer
        owns the stream, unless `take_over`; DiskFullError if there is no space for the file; OSError.
        """
        self._fs = fs
        self._files = files
        self.repairs: list[Repair] = []
        """Unreadable content that was found in its place."""
        try:
            self.id = self._have(take_over)
        except OSError as failure:
            if failure.errno in FULL_DISK_ERRNOS:
                raise DiskFullError(files.owner, f"the disk is full ({failure})") from failure
            raise

    def _have(self, take_over: bool) -> bytes:
        known = stream_id(self._fs, self._files)
        while True:
            state, content = _judge(self._fs, self._files, known)
            if state == "none":
                known = self._drawn(known)
                try:
                    self._make(known)
                except FileExistsError:
                    continue  # a peer was faster
                return known
            if state == "ours":
                assert known is not None
                if content != known:
                    self._write(known, is_new=False)
                return known
            if state != "garbage" and not take_over:
                raise self._locked(content)
            self._clear(content, is_readable=state == "peer")

    def removals(self) -> tuple[str, ...]:
        """Return the owner file, for the last barrier to remove, if it is still diskq's."""
        return (self._files.owner,) if owner_state(self._fs, self._files) == "ours" else ()

    # --- making it --------------------------------------------------------------------------------

    def _drawn(self, known: bytes | None) -> bytes:
        """Return the stream's id, or draw one: durable, in a private directory that is durable too."""
        fs, files = self._fs, self._files
        if known is not None:
            # The process that drew it may have been killed before its name was durable.
            Barrier(directories=(files.private,)).execute(fs)
            return known
        drawn = b"".join(fs.unique_number().to_bytes(8, "big") for _ in range(2))
        content = uuid.UUID(bytes=drawn, version=4).bytes
        replacement = Replacement(files.owner_id, content, files.temporary(files.owner_id))
        if not Barrier(directories=(files.path,), replacements=(replacement,)).execute(fs):
            raise DiskFullError(files.owner_id, NO_ROOM)
        return content

    def _make(self, content: bytes) -> None:
        """Make the owner file, with its content from the start. Raises FileExistsError."""
        if not self._fs.link(self._files.owner_id, self._files.owner):
            self._write(content, is_new=True)

    def _write(self, content: bytes, *, is_new: bool) -> None:
        fs, path = self._fs, self._files.owner
        handle = fs.open(path, write=True, create=is_new, exclusive=is_new)
        try:
            write_all(fs, handle, content, 0)
            Barrier(files=(handle,)).execute(fs)
        except OSError:
            Barrier(removals=(path,)).execute(fs)
            raise
        finally:
            fs.close(handle)

    # --- another's --------------------------------------------------------------------------------

    def _clear(self, content: bytes, *, is_readable: bool) -> None:
        """Remove the existing owner file durably; unreadable content is kept aside."""
        fs, path = self._fs, self._files.owner
        if is_readable or not content.strip(b"\0"):
            Barrier(removals=(path,)).execute(fs)
        else:
            aside = free_aside(fs, self._files.owner_id)
            size = fs.size_of(path) or 0
            Barrier(asides=((path, aside),)).execute(fs)
            reason = "no owner's id"
            self.repairs.append(
                Repair(path=path, kind=RepairKind.STALE, kept=0, dropped=size, reason=reason, saved_as=aside)
            )
        # Otherwise a power cut could bring the removed file back.
        Barrier(directories=(self._files.path,)).execute(fs)

    def _locked(self, content: bytes) -> LockedError:
        holder = "a go-diskq producer"
        holder += f" (owner {content.hex()})" if content else " that is just opening it"
        advice = (
            "close it there first; if it has crashed, so that no process has the partitions' files open "
            f"(fuser -v {self._files.parts}/*/*.data), open with take_over=True"
        )
        return LockedError(self._files.path, holder, advice)
