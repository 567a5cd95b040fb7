# Framing: the one question that AppendBuffer and ReadAhead ask of a format.
#
# A codec subclasses `Framing` and answers in C: how a body is laid down, and where the record
# that starts here ends. `decode` never looks past `left` bytes.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

# Why a scan stopped, as Python sees it.
STOPS = ("END", "TORN", "CORRUPT")


cdef class Framing:
    """A record format with one body per record. Abstract: formats subclass it in compiled code."""

    cdef void encode(self, char* out, const char* body, Py_ssize_t size) noexcept nogil:
        """Lay the record of `size + overhead` bytes down at `out`."""

    cdef Stop decode(self, const char* data, Py_ssize_t left, Record* record) noexcept nogil:
        """The record at `data`: END and `record` filled; TORN and its size, if it tells; or CORRUPT."""
        return CORRUPT


cdef object borrow(object body, const char** data, Py_ssize_t* size):
    """Point into the bytes of `body`. Returns what must stay alive meanwhile; TypeError for a str."""
    if type(body) is not bytes:
        # bytearray and memoryview may change under us: one copy, and only for them.
        if not isinstance(body, (bytes, bytearray, memoryview)):
            raise TypeError(f"a message is bytes, not {type(body).__name__}")
        body = bytes(body)
    data[0] = PyBytes_AS_STRING(body)
    size[0] = PyBytes_GET_SIZE(body)
    return body
