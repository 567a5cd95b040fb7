# The read-ahead of a journal: every message's way out of the page cache.
#
# Law: what is handed out was admitted, and its record says the offset that comes next. Another offset is
# CORRUPT. Who knows of a gap says so (`next_offset`).

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MIN, int64_t

from diskq._native.framing cimport CORRUPT, END, Framing, Record, Stop
from diskq._native.gate cimport Gate
from diskq._native.message cimport new_journal_message
from diskq._native.readahead cimport ReadAhead
from diskq._native.sej cimport HEAD, SejExtent, SejFraming, SejParts, sej_columns_of, sej_measure, sej_parts


cdef class SejAhead(ReadAhead):
    """A stretch of a journal's file in memory, messages out.

    `partition` is theirs, and `next_offset` the offset of the one that comes next: both may be set.
    """

    cdef SejParts parts                    # of the record that was decoded last
    cdef public int partition
    cdef public int64_t next_offset

    def __cinit__(self, fs, SejFraming framing not None, Gate gate not None, Framing of_verified=None):
        pass

    # --- the owner's side -------------------------------------------------------------------------

    def count(self):
        """Pass over all records that were admitted, whatever their offsets are, and tell how many; see `why`."""
        cdef SejParts parts
        cdef Py_ssize_t counted = 0
        while self.at < self.admitted:
            self.stop = sej_parts(self.buffer + self.at, self.admitted - self.at, &parts)
            if self.stop != END:
                break
            self.at += parts.size
            counted += 1
        return counted

    def skip_to(self, int64_t offset):
        """Pass over what is admitted, up to message `offset`. Returns the `next_offset` that was reached."""
        cdef Record record
        while self.next_offset < offset and self.at < self.admitted and self._decode(&record) == END:
            self.at += record.size
            self.next_offset += 1
        return self.next_offset

    def skip_earlier(self, int64_t bound):
        """Pass over what is admitted, up to a message that is not earlier than `bound` (ns since 1970).

        Returns the latest timestamp of those that were passed; a message without a time is earlier than any.
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

    def peek(self):
        """The next message, which stays. None: nothing is admitted, see `why`."""
        cdef Record record
        if self.at >= self.admitted or self._decode(&record) != END:
            return None
        message = self._made(self.buffer + self.at, &record)
        self.next_offset -= 1
        return message

    @property
    def next_size(self):
        """Bytes of key and value of the message that comes next; 0 where none is admitted."""
        cdef Record record
        return record.body_size if self.at < self.admitted and self._decode(&record) == END else 0

    # --- all at once ------------------------------------------------------------------------------

    def take_columns(self, Py_ssize_t max_records, Py_ssize_t max_bytes):
        """The next messages as `JournalColumns`: records of together at most `max_bytes`, but one however large.

        None: nothing is admitted, see `why`.
        """
        cdef const char* data = self.buffer + self.at
        cdef Py_ssize_t left = self.admitted - self.at
        cdef Record record
        cdef SejExtent extent
        if left <= 0 or max_records <= 0:
            return None
        if left > max_bytes:
            sej_measure(data, max_bytes, self.next_offset, max_records, &extent)
            if extent.records:
                left = extent.end
            else:
                max_records = 1
        columns = sej_columns_of(data, left, self.next_offset, max_records)
        if columns.records == 0:
            self._decode(&record)
            return None
        self.at += columns.valid_end
        self.next_offset += columns.records
        self.records += columns.records
        self.gate.left -= columns.records
        return columns

    # --- inside -----------------------------------------------------------------------------------

    cdef object _made(self, const char* data, const Record* record):
        self.next_offset += 1
        return new_journal_message(
            self.partition,
            self.parts.offset,
            self.parts.timestamp,
            self.parts.type,
            PyBytes_FromStringAndSize(data + HEAD, self.parts.key_size),
            PyBytes_FromStringAndSize(data + self.parts.value, self.parts.value_size),
        )

    cdef Stop _decode(self, Record* record) noexcept:
        # What a message takes is its key and its value: that is what `max_bytes` is of.
        self.stop = sej_parts(self.buffer + self.at, self.admitted - self.at, &self.parts)
        if self.stop == END and self.at < self.admitted and self.parts.offset != self.next_offset:
            self.stop = CORRUPT
        record.size = self.parts.size
        if self.stop == END:
            record.body = self.parts.value
            record.body_size = self.parts.key_size + self.parts.value_size
        self.claimed = 0 if self.stop == END else self.parts.size
        return self.stop
