# Access to a caller's bytes, for compiled code.


cdef inline const char* start_of(const unsigned char[::1] buffer) noexcept:
    """Return a pointer to the first byte; NULL if there are none."""
    return <const char*> &buffer[0] if buffer.shape[0] else NULL
