# The options of a write. Law: as in options.py; and each writer has a name, so that a repeated batch is
# recognized.
#
#   a streaming query    the query id of its checkpoint, and the batch's number
#   sinkId               the same under a name of your own: a query of another id is refused
#   txnAppId, txnVersion a batch job, and its run; the names are Delta Lake's
#   none of them         a job of its own: run again, it writes again

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from diskq.options import MOST_PARTITIONS
from diskq.spark.errors import DiskqSparkError
from diskq.spark.options import Given, check_names
from diskq.spark.patience import LOCK_TIMEOUT

__all__ = ["WriteOptions", "sink_name"]

_NAMES = """
    path topic partitionCount sinkId txnAppId txnVersion wait checkpointLocation queryName
"""
_KNOWN = {name.lower(): name for name in _NAMES.split()}
_LONGEST_NAME = 60
_MOST_VERSION = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The checked options of a write."""

    path: str
    """The stream's directory."""
    has_topic: bool = False
    """True if its name was given: rows of all topics go there, as with Kafka's sink."""
    partition_count: int | None = None
    """Of a stream that is created; None: three."""
    sink_id: str | None = None
    app_id: str | None = None
    version: int | None = None
    wait: float = LOCK_TIMEOUT
    """Seconds to wait while another process has the stream."""

    @classmethod
    def parse(cls, options: Mapping[str, str], *, is_streaming: bool) -> WriteOptions:
        """Parse the options. Raises DISKQ_OPTION with the option and its allowed values."""
        check_names(options, _KNOWN)
        given = Given(options)
        path = given.text("path") if given.has("path") else ""
        if not path:
            raise DiskqSparkError("DISKQ_OPTION", "path is not given: .save(path), the stream's directory")
        if given.has("topic"):
            topic = given.text("topic")
            if not topic or "/" in topic or topic in (".", ".."):
                raise given.refused("topic", "the name of a directory in `path`")
            path = f"{path.rstrip('/')}/{topic}"
        app_id, version = _name(given, "txnAppId"), given.number("txnVersion", 0, _MOST_VERSION)
        sink_id = _name(given, "sinkId")
        if is_streaming and app_id is not None:
            raise given.refused("txnAppId", "for batches; a streaming query counts its own: leave it out")
        if not is_streaming and sink_id is not None:
            raise given.refused("sinkId", "for streaming queries; a batch has txnAppId and txnVersion")
        if (app_id is None) != (version is None):
            raise DiskqSparkError("DISKQ_OPTION", "txnAppId and txnVersion go together: the job, and its run")
        return cls(
            path=path,
            has_topic=given.has("topic"),
            partition_count=given.number("partitionCount", 1, MOST_PARTITIONS),
            sink_id=sink_id,
            app_id=app_id,
            version=version,
            wait=given.duration("wait", LOCK_TIMEOUT),
        )


def _name(given: Given, option: str) -> str | None:
    if not given.has(option):
        return None
    name = given.text(option)
    if not 0 < len(name.encode()) <= _LONGEST_NAME:
        raise given.refused(option, f"a name of 1 to {_LONGEST_NAME} bytes")
    return name


def sink_name(kind: str, name: str) -> str:
    """Return the writer's name as part of a file's name: different for every kind and name."""
    quoted = re.sub(rb"[^A-Za-z0-9_]", lambda found: b".%02X" % found[0][0], name.encode())
    return f"{kind}.{quoted.decode()}"
