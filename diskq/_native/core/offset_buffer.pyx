# The common part of the buffers of streams and journals: a record has a key, a time and an offset, which is one
# more than the previous record's.
#
# Law: the record that fills a file is its last one. Until then the file takes in every plain message.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.string cimport memcpy

from diskq._native.core.append_buffer cimport FLUSH_AT
from diskq._native.core.framing cimport END, Parts
from diskq._native.core.gate cimport Gate, wall_clock_ns


cdef class OffsetBuffer(AppendBuffer):
    """The active file of records that have offsets. Abstract: formats subclass it in compiled code."""

    def __cinit__(self, fs, KeyedFraming framing not None, Gate gate not None, on_block):
        self.keyed = framing

    @property
    def next_offset(self):
        """The offset that the next record gets."""
        return self.first + self.records

    @property
    def written_offset(self):
        """The offset after that of the last record in the page cache."""
        return self.first + self.records_written

    @property
    def is_full(self):
        """True if the file has reached its size, so that no more is taken in."""
        return self._is_full()

    cdef bint _is_full(self) noexcept:
        return self.origin + self.used >= self.limit

    cdef Py_ssize_t _take_encoded(self, const char* data, Py_ssize_t size, Py_ssize_t start) except -1:
        """Take in the records data[start:size], which are encoded already.

        Takes as many as go into one write (about 256 KiB) and into the file, and returns the byte after them, where
        the next call is to begin. They wait for `flush`, unless they fill the file or the write. Raises ValueError
        at bytes that are not a whole record with the next offset, and OSError if the write fails; nothing of this
        call is then accepted.
        """
        cdef Py_ssize_t at = start
        cdef Py_ssize_t used = self.used
        cdef int64_t records = self.records
        cdef Parts parts
        if not 0 <= start <= size:
            raise IndexError(f"byte {start} of {size}")
        try:
            while at < size and not self._is_full() and self.used - self.written < FLUSH_AT:
                parts.offset = self.first + self.records
                if self.keyed.parts(data + at, size - at, &parts) != END:
                    raise ValueError(f"no whole record at byte {at} of {size}")
                if parts.offset != self.first + self.records:
                    raise ValueError(
                        f"message {parts.offset} at byte {at} of {size}, the next one is {self.first + self.records}"
                    )
                memcpy(self._room_for(parts.size), data + at, parts.size)
                self._take_in(parts.size, parts.timestamp)
                at += parts.size
            if self._is_full() or self.used - self.written >= FLUSH_AT:
                self._flush()
        except BaseException:
            self._rewind(used, records)
            raise
        return at

    cdef int _take_in(self, Py_ssize_t size, int64_t timestamp) except -1:
        """Count the record of `size` bytes that is next in the buffer. Formats with additional files override it."""
        self._laid_down(size)
        return 0


cdef bint is_plain(object value, object key, object timestamp, KeyedFraming framing, Plain* plain) except -1:
    """True if the message needs no checking; then it is in `plain`. A key is bytes, a str or None."""
    if type(value) is not bytes:
        return False
    plain.value = PyBytes_AS_STRING(value)
    plain.value_size = PyBytes_GET_SIZE(value)
    if plain.value_size < framing.min_size or plain.value_size > framing.max_size:
        return False
    plain.key = NULL
    plain.key_size = 0
    if type(key) is bytes:
        plain.key = PyBytes_AS_STRING(key)
        plain.key_size = PyBytes_GET_SIZE(key)
    elif type(key) is str:
        try:
            plain.key = PyUnicode_AsUTF8AndSize(key, &plain.key_size)
        except UnicodeEncodeError:
            return False
    elif key is not None:
        return False
    if plain.key_size > framing.max_key_size:
        return False
    plain.has_time = timestamp is not None
    if plain.has_time:
        if type(timestamp) is not int or not -(2**63) <= timestamp < 2**63:
            return False
        plain.timestamp = timestamp
    return True


cdef const char* key_bytes(object key, Py_ssize_t* size) except NULL:
    """Return the bytes of a key that is bytes or a str."""
    if type(key) is bytes:
        size[0] = PyBytes_GET_SIZE(key)
        return PyBytes_AS_STRING(key)
    return PyUnicode_AsUTF8AndSize(key, size)


cdef Py_ssize_t size_of_values(list items) except -1:
    """Return the total size of the values of plain items: values, or tuples of a key, a value and more."""
    cdef Py_ssize_t total = 0
    for item in items:
        total += len(<bytes> (<tuple> item)[1]) if type(item) is tuple else len(<bytes> item)
    return total


cdef int64_t now_by(object clock) except? -1:
    """Return nanoseconds since the Unix epoch, by `clock()`; None: by the system's clock."""
    return wall_clock_ns() if clock is None else clock()
