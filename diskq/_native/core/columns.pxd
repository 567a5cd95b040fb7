# Whole records at the start of some bytes, for any codec: where they end, and their parts by column.
#
# Law: two passes, so that each column is allocated once, in its final size. Other threads run during both, so
# the second pass checks the results of the first again before it touches memory.
#
# A codec passes its own function that reads a record. Everything is inline, and each codec calls it from one
# place, so that the compiler makes the loop that the codec would have written.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, INT64_MIN, int32_t, int64_t
from libc.string cimport memcpy, memset

from diskq._native.core.framing cimport END, Extent, Parts, Stop, stop_name

ctypedef Stop (*Reading)(void* how, const char* data, Py_ssize_t left, Parts* parts) noexcept nogil


cdef struct Places:              # the destinations of the parts of records, by column; NULL: none
    int64_t* timestamps
    char* validity               # a bitmap, the lowest bit first
    char* types
    char* keys
    char* key_offsets            # one more than records
    char* values
    char* value_offsets


cdef inline void measure_by(
    Reading read, void* how, const char* data, Py_ssize_t left, Py_ssize_t max_records, Extent* extent
) noexcept nogil:
    """Do as `Framing.measure`, with that function for reading a record."""
    cdef Parts parts
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t records = 0
    cdef Py_ssize_t key_bytes = 0
    cdef Py_ssize_t value_bytes = 0
    cdef Stop stop = END
    while at < left and records < max_records:
        stop = read(how, data + at, left - at, &parts)
        if stop != END:
            break
        key_bytes += parts.key_size
        value_bytes += parts.value_size
        records += 1
        at += parts.size
    extent.records = records
    extent.end = at
    extent.key_bytes = key_bytes
    extent.value_bytes = value_bytes
    extent.stop = stop


cdef inline bytes column_of(Py_ssize_t size, char** start):
    """Return uninitialised bytes, and set the pointer to their beginning."""
    cdef bytes made = PyBytes_FromStringAndSize(NULL, size)
    start[0] = PyBytes_AS_STRING(made)
    return made


cdef inline tuple lay_out_by(
    Reading read, void* how, const char* data, const Extent* extent, bint wide, bint has_keys, Places* to
):
    """Fill the columns of `to`, and those of keys and values, which are made here.

    Returns the end of the tuple that `Framing.columns` makes: keys and their offsets if there are any, values and
    their offsets, the bytes of an offset, the byte after the last record, and why it stopped.
    """
    cdef int width = 8 if wide or max(extent.key_bytes, extent.value_bytes) > INT32_MAX else 4
    cdef tuple keys = ()
    cdef bint is_done
    to.keys = to.key_offsets = NULL
    if has_keys:
        keys = (
            column_of(extent.key_bytes, &to.keys),
            column_of((extent.records + 1) * width, &to.key_offsets),
        )
    values = column_of(extent.value_bytes, &to.values)
    value_offsets = column_of((extent.records + 1) * width, &to.value_offsets)
    with nogil:
        is_done = _fill(read, how, data, extent, width, to)
    if not is_done:
        raise BufferError("the bytes were changed while they were read")
    return *keys, values, value_offsets, width, extent.end, stop_name(extent.stop)


cdef inline bint _fill(
    Reading read, void* how, const char* data, const Extent* extent, int width, const Places* to
) noexcept nogil:
    """Copy the parts of the records of `extent` into columns made for it. False: the records have changed."""
    # Copies, which stay in registers: any byte that is stored through a pointer might be one of the originals.
    cdef Places places = to[0]
    cdef Extent whole = extent[0]
    cdef Parts parts
    cdef Py_ssize_t i
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t key_at = 0
    cdef Py_ssize_t value_at = 0
    if places.validity != NULL:
        memset(places.validity, 0, (whole.records + 7) // 8)
    for i in range(whole.records):
        if (
            at == whole.end
            or read(how, data + at, whole.end - at, &parts) != END
            or parts.key_size > whole.key_bytes - key_at
            or parts.value_size > whole.value_bytes - value_at
        ):
            return False
        if places.timestamps != NULL:
            places.timestamps[i] = parts.timestamp
        if places.validity != NULL and parts.timestamp != INT64_MIN:
            places.validity[i >> 3] |= 1 << (i & 7)
        if places.types != NULL:
            places.types[i] = <char> parts.type
        if places.keys != NULL:
            _put_offset(places.key_offsets, i, width, key_at)
            memcpy(places.keys + key_at, data + at + parts.key, parts.key_size)
        _put_offset(places.value_offsets, i, width, value_at)
        memcpy(places.values + value_at, data + at + parts.value, parts.value_size)
        key_at += parts.key_size
        value_at += parts.value_size
        at += parts.size
    if places.keys != NULL:
        _put_offset(places.key_offsets, whole.records, width, key_at)
    _put_offset(places.value_offsets, whole.records, width, value_at)
    return key_at == whole.key_bytes and value_at == whole.value_bytes


cdef inline void _put_offset(char* offsets, Py_ssize_t i, int width, Py_ssize_t offset) noexcept nogil:
    if width == 4:
        (<int32_t*> offsets)[i] = <int32_t> offset
    else:
        (<int64_t*> offsets)[i] = offset
