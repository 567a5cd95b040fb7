# Which stream a read was planned for. Law: what another stream holds at the same path is never read in its
# place: a stream that was created again, or one that only this machine has there.
#
# diskq's producer draws an id for a stream, which distinguishes it for good. A stream that only a peer has
# written to, and a journal, have none: their first message distinguishes them, as long as it is there.

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["OTHER_STREAM", "Origin", "changed"]

OTHER_STREAM = (
    "it was created again, or this machine has another one at this path: on a cluster, all machines must "
    "see one shared file system there"
)


@dataclass(frozen=True, slots=True)
class Origin:
    """What distinguishes the stream of a read from another one at its path. It is pickled."""

    identity: str | None
    """The id of the stream, if it has one."""
    mark: Any = None
    """What was in its files then, as its layout compares it; None if they were empty, or unreadable.

    Of a stream or journal: the offset of the first message, and the checksum of that message.
    """


def changed(where: str, then: Origin, identity: str | None, mark: Any) -> str | None:
    """Return what is wrong if the stream at `where` is another one than `then`; None if it is the same.

    `identity` and `mark` are those of now: `mark` at the same offset, and None if that is unknown.
    """
    # A stream that only a peer has written to gets its id when diskq's producer opens it.
    if then.identity is not None and identity != then.identity:
        here = "one without an id" if identity is None else f"stream {identity}"
        return f"{where}: the read was planned for stream {then.identity}, and here is {here}: {OTHER_STREAM}"
    if then.mark is not None and mark is not None and mark != then.mark:
        return f"{where}: other messages are here than when the read was planned: {OTHER_STREAM}"
    return None
