# The read-ahead of a queue's snapshot: messages by column, and no object for any of them.
#
# Law: as ReadAhead's, nothing is handed out that was not admitted.

from diskq._native.framing cimport Framing, Record
from diskq._native.gate cimport Gate
from diskq._native.nsq cimport Extent, NsqFraming, columns_of, measure
from diskq._native.readahead cimport ReadAhead

from diskq._native.nsq import MAX_BODY as _MAX_BODY

cdef Py_ssize_t LARGEST = _MAX_BODY


cdef class NsqAhead(ReadAhead):
    """A stretch of a queue's file in memory, columns out."""

    def __cinit__(self, fs, NsqFraming framing not None, Gate gate not None, Framing of_verified=None):
        pass

    def take_columns(self, Py_ssize_t max_records, Py_ssize_t max_bytes):
        """The next messages as `Columns`: records of together at most `max_bytes`, but one however large.

        None: nothing is admitted, see `why`.
        """
        cdef const char* data = self.buffer + self.at
        cdef Py_ssize_t left = self.admitted - self.at
        cdef Py_ssize_t least = self.current.min_size
        cdef Record record
        cdef Extent extent
        if left <= 0 or max_records <= 0:
            return None
        measure(data, min(left, max_bytes), least, LARGEST, max_records, &extent)
        if extent.records == 0:
            measure(data, left, least, LARGEST, 1, &extent)
        if extent.records == 0:
            self._decode(&record)
            return None
        columns = columns_of(data, least, LARGEST, &extent)
        self.at += extent.end
        self.records += extent.records
        self.gate.left -= extent.records
        return columns
