# Errors in Spark, by code. Law: the JVM passes on the text of a Python worker's exception, and not its class;
# so the text begins with a code that never changes, and then states the place and what to do.
#
#   DISKQ_DATA_LOSS: clicks[0]: offsets 12 to 4095 are gone ...

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

from diskq import errors
from diskq.errors import DiskqError

__all__ = ["CODES", "Code", "DiskqSparkError", "Fault", "SparkFault", "as_fault", "classify", "with_codes"]

Code = Literal[
    "DISKQ_CORRUPT",
    "DISKQ_DATA_LOSS",
    "DISKQ_DISK_FULL",
    "DISKQ_FORMAT",
    "DISKQ_LOCKED",
    "DISKQ_MESSAGE_SIZE",
    "DISKQ_NOT_COMPILED",
    "DISKQ_NOT_FOUND",
    "DISKQ_NULL_VALUE",
    "DISKQ_OPTION",
    "DISKQ_SINK",
    "DISKQ_STAGED",
    "DISKQ_STORAGE_FAILED",
    "DISKQ_STREAM_CHANGED",
    "DISKQ_WORKER_LATE",
]
CODES: tuple[Code, ...] = get_args(Code)

_BY_CLASS: dict[type[DiskqError], Code] = {
    errors.CorruptionError: "DISKQ_CORRUPT",
    errors.DamagedStoreError: "DISKQ_CORRUPT",
    errors.DiskFullError: "DISKQ_DISK_FULL",
    errors.ForeignFilesError: "DISKQ_FORMAT",
    errors.FullError: "DISKQ_DISK_FULL",
    errors.NotFoundError: "DISKQ_NOT_FOUND",
    errors.KeySizeError: "DISKQ_MESSAGE_SIZE",
    errors.LockedError: "DISKQ_LOCKED",
    errors.MessageSizeError: "DISKQ_MESSAGE_SIZE",
    errors.OffsetOutOfRangeError: "DISKQ_DATA_LOSS",
    errors.SinkError: "DISKQ_SINK",
    errors.SinkNameError: "DISKQ_SINK",
    errors.StagedError: "DISKQ_STAGED",
    errors.StorageFailedError: "DISKQ_STORAGE_FAILED",
    errors.TableGapError: "DISKQ_DATA_LOSS",
    errors.TableMismatchError: "DISKQ_STREAM_CHANGED",
    errors.UnsupportedFormatError: "DISKQ_FORMAT",
}


class DiskqSparkError(DiskqError):
    """An error of diskq in a Spark job: `code`, then a sentence."""

    def __init__(self, code: Code, sentence: str) -> None:
        super().__init__(code, sentence)
        self.code = code
        self.sentence = sentence

    def __str__(self) -> str:
        return f"{self.code}: {self.sentence}"


def as_fault(error: DiskqError) -> DiskqError:
    """Return the error with its code; unchanged if it has one already, or there is no code for its class."""
    code = _BY_CLASS.get(type(error))
    return error if code is None else DiskqSparkError(code, str(error))


@contextlib.contextmanager
def with_codes() -> Iterator[None]:
    """Give errors of diskq that are raised in this block their code."""
    try:
        yield
    except DiskqSparkError:
        raise
    except DiskqError as error:
        raise as_fault(error) from error


# --- on the driver, which gets the text -----------------------------------------------------------


class SparkFault(NamedTuple):
    """The code and the sentence that `classify` found in an exception of Spark's."""

    code: Code
    sentence: str


Fault = SparkFault
"""The name of `SparkFault` that programs import."""


# Only after the class's name: a traceback shows lines of diskq's source as well.
_REPORTED = re.compile(rf"DiskqSparkError: ({'|'.join(CODES)}): ([^\r\n]*)")

# A worker without compiled modules cannot import this module; diskq/_native/__init__.py raises this instead.
_NOT_COMPILED = re.compile(r"ImportError: (diskq is (?:not compiled|compiled)\b[^\r\n]*)")

# Spark's own error: it waits 10 s for a new worker, which is a constant of its.
_LATE = re.compile(r"Python worker failed to connect back[^\r\n]*")


def classify(error: BaseException) -> SparkFault | None:
    """Return the code of diskq's, and its sentence, in an exception of Spark's; None if there is none."""
    if isinstance(error, DiskqSparkError):
        return SparkFault(error.code, error.sentence)
    for code, sentence in reversed(_REPORTED.findall(str(error))):  # the last one is the one that was raised
        return SparkFault(code, sentence)
    if found := _NOT_COMPILED.search(str(error)):
        return SparkFault("DISKQ_NOT_COMPILED", found[1])
    if found := _LATE.search(str(error)):
        return SparkFault("DISKQ_WORKER_LATE", found[0])
    cause = error.__cause__ or error.__context__
    return None if cause is None else classify(cause)
