# The bytes that a caller lends, for compiled code.


cdef inline const char* start_of(const unsigned char[::1] buffer) noexcept:
    """Return where they begin; NULL where there are none."""
    return <const char*> &buffer[0] if buffer.shape[0] else NULL
