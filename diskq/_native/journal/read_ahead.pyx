# The read-ahead of a journal: the path of every message out of the page cache.
#
# Law: only admitted records are delivered, and each has the next offset. Another offset is CORRUPT. A caller
# that knows of a gap sets `next_offset`.

from libc.stdint cimport INT64_MIN, int64_t

from diskq._native.core.framing cimport END, Framing, Parts, Record
from diskq._native.core.gate cimport Gate
from diskq._native.core.message cimport journal_message_of
from diskq._native.core.read_ahead cimport OffsetAhead
from diskq._native.journal.codec cimport SejFraming


cdef class SejAhead(OffsetAhead):
    """A stretch of a journal's file in memory, from which messages are read."""

    def __cinit__(self, fs, SejFraming framing not None, Gate gate not None, Framing of_verified=None):
        pass

    def count(self):
        """Skip all admitted records, whatever their offsets are, and return how many they were; see `why`."""
        cdef Parts parts
        cdef Py_ssize_t counted = 0
        while self.at < self.admitted:
            self.stop = self.keyed.parts(self.buffer + self.at, self.admitted - self.at, &parts)
            if self.stop != END:
                break
            self.at += parts.size
            counted += 1
        return counted

    def skip_earlier(self, int64_t bound):
        """Skip admitted messages, up to one that is not earlier than `bound` (ns since the Unix epoch).

        Returns the latest timestamp of the skipped ones; a message without a time is earlier than any.
        """
        cdef Record record
        cdef int64_t latest = INT64_MIN
        while self.at < self.admitted and self._decode(&record) == END:
            if self.parts.timestamp >= bound and self.parts.timestamp != INT64_MIN:
                break
            latest = max(latest, self.parts.timestamp)
            self.at += record.size
            self.next_offset += 1
        return latest

    cdef object _made(self, const char* data, const Record* record):
        self.next_offset += 1
        return journal_message_of(self.partition, data, &self.parts)
