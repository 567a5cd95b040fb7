# An entry of a log, for the two that write one: docs/format/log.md. Law: all numbers are little endian; an
# entry counts once its first eight bytes, `state`, have its size and its crc32c, and they are stored last.

from libc.stdint cimport int64_t, uint32_t, uint64_t

from diskq._native.core.crc32c cimport crc32c_of

cdef extern from "platform.h":
    uint64_t diskq_le64(uint64_t value) nogil
    uint32_t diskq_le32(uint32_t value) nogil
    void diskq_store(int64_t* where, int64_t value) nogil

cdef enum:
    ENTRY = 40                             # bytes of an entry before its parts
    PART = 32                              # bytes of a part before its content
    ALIGNMENT = 8                          # an entry begins at a multiple of it
    TO_THE_END = 0xFFFFFFFF                # as the size of a part: its content goes on to the end of the entry


cdef struct Entry:
    uint64_t state                         # the bytes of the entry, and above them the crc32c of its numbers and
                                           # its parts. 0: there is none
    uint64_t number                        # of the log
    uint64_t sequence                      # ascending
    uint64_t floor                         # the first entry that is still needed
    uint64_t check                         # crc32c of these three numbers


cdef struct PartHead:
    uint32_t group                         # the number of the partition; 0 in a store without partitions
    uint32_t kind                          # what the bytes are of: 0 a data file, 1 its checksum file
    int64_t file                           # the number of the data file
    int64_t position                       # the byte of the file where these bytes belong
    uint32_t size                          # bytes of content, or TO_THE_END
    uint32_t unused


cdef inline uint32_t begin_entry(Entry* entry, uint64_t number, uint64_t sequence, uint64_t floor) noexcept nogil:
    """Begin an entry that does not count yet. Returns the crc32c of all that it has so far."""
    cdef uint32_t crc
    diskq_store(<int64_t*> &entry.state, 0)
    entry.number = diskq_le64(number)
    entry.sequence = diskq_le64(sequence)
    entry.floor = diskq_le64(floor)
    crc = crc32c_of(0, &entry.number, 24)
    entry.check = diskq_le64(crc)
    return crc


cdef inline uint32_t begin_part(
    PartHead* part, uint32_t crc, uint32_t group, uint32_t kind, int64_t file, int64_t position, uint32_t size
) noexcept nogil:
    """Begin a part of an entry whose crc32c is `crc` so far. Returns it with these bytes."""
    part.group = diskq_le32(group)
    part.kind = diskq_le32(kind)
    part.file = <int64_t> diskq_le64(<uint64_t> file)
    part.position = <int64_t> diskq_le64(<uint64_t> position)
    part.size = diskq_le32(size)
    part.unused = 0
    return crc32c_of(crc, part, PART)


cdef inline void show_entry(Entry* entry, uint32_t size, uint32_t crc) noexcept nogil:
    """Make the first `size` bytes of the entry count, in one store."""
    diskq_store(<int64_t*> &entry.state, <int64_t> diskq_le64(<uint64_t> crc << 32 | size))
