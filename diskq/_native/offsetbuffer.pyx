# What the buffers of streams and journals have in common: a record has a key, a time and an offset, which is the
# one before it and one more.
#
# Law: a file is left for the next one after the record that fills it. Until then it takes in whatever is plain.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize

from diskq._native.gate cimport Gate, wall_clock_ns


cdef class OffsetBuffer(AppendBuffer):
    """The active file of records that have offsets. Abstract: formats subclass it in compiled code."""

    @property
    def next_offset(self):
        """The offset that the next record gets."""
        return self.first + self.records

    @property
    def written_offset(self):
        """The offset behind the last record in the page cache."""
        return self.first + self.records_written

    @property
    def is_full(self):
        """Has the file reached its size? Then nothing more is taken in."""
        return self._is_full()

    cdef bint _is_full(self) noexcept:
        return self.origin + self.used >= self.limit


cdef bint is_plain(
    object value, object key, object timestamp, Framing framing, Py_ssize_t max_key_size, Plain* plain
) except -1:
    """Does the message need no judgement? Then `plain` has it. A key is bytes, a str or None."""
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
    if plain.key_size > max_key_size:
        return False
    plain.has_time = timestamp is not None
    if plain.has_time:
        if type(timestamp) is not int or not -(2**63) <= timestamp < 2**63:
            return False
        plain.timestamp = timestamp
    return True


cdef const char* key_bytes(object key, Py_ssize_t* size) except NULL:
    """The bytes of a key that is bytes or a str."""
    if type(key) is bytes:
        size[0] = PyBytes_GET_SIZE(key)
        return PyBytes_AS_STRING(key)
    return PyUnicode_AsUTF8AndSize(key, size)


cdef Py_ssize_t size_of_values(list items) except -1:
    """Bytes of the values of items that are plain, together: values, or tuples of a key, a value and more."""
    cdef Py_ssize_t total = 0
    for item in items:
        total += len(<bytes> (<tuple> item)[1]) if type(item) is tuple else len(<bytes> item)
    return total


cdef int64_t now_by(object clock) except? -1:
    """Nanoseconds since the Unix epoch, by `clock()`; None: by the system's."""
    return wall_clock_ns() if clock is None else clock()
