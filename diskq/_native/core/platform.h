/* What differs between systems, for file calls, clocks and bit counting. Law: Linux and macOS have all of it;
 * elsewhere the calls on files fail with ENOSYS, and are never made: the file system there is Python's
 * (PortableFileSystem), and compiled code calls that. Every function is one system call, or a few.
 */
#ifndef DISKQ_PLATFORM_H
#define DISKQ_PLATFORM_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#ifdef _WIN32
/* --- Windows ------------------------------------------------------------------------------------ */

#define WIN32_LEAN_AND_MEAN
#include <windows.h>


static inline int diskq_unsupported(void) { errno = ENOSYS; return -1; }
#define diskq_pread(fd, into, size, offset) diskq_unsupported()
#define diskq_pwrite(fd, data, size, offset) diskq_unsupported()
#define diskq_stat_open(fd, size, links) diskq_unsupported()
#define diskq_stat_path(path, size) diskq_unsupported()
#define diskq_full_sync(fd) diskq_unsupported()
#define diskq_data_sync(fd) diskq_unsupported()
#define diskq_sync_file_system(fd) diskq_unsupported()
#define diskq_boot_id(into, size) diskq_unsupported()
#define diskq_start_writeback(fd) ((void) 0)
#define diskq_open_signal(ends) diskq_unsupported()
#define diskq_send_signal(fd) ((void) (fd))
#define diskq_clear_signal(fd) ((void) (fd))
#define diskq_close_signal(fd) ((void) (fd))

static inline int64_t diskq_monotonic_ns(void) {
    LARGE_INTEGER ticks, per_second;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&per_second);
    return ticks.QuadPart / per_second.QuadPart * 1000000000
        + ticks.QuadPart % per_second.QuadPart * 1000000000 / per_second.QuadPart;
}

static inline int64_t diskq_wall_clock_ns(void) {
    FILETIME now; /* hundreds of nanoseconds since 1601 */
    GetSystemTimePreciseAsFileTime(&now);
    return (int64_t) ((((uint64_t) now.dwHighDateTime << 32 | now.dwLowDateTime) - 116444736000000000ULL) * 100);
}

#else
/* --- Linux, macOS ------------------------------------------------------------------------------- */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#ifdef __APPLE__
#include <sys/sysctl.h>
#include <sys/types.h>
#endif
#ifdef __linux__
#include <sys/eventfd.h>
#endif


static inline int64_t diskq_pread(int fd, void *into, size_t size, int64_t offset) {
    return pread(fd, into, size, offset);
}

static inline int64_t diskq_pwrite(int fd, const void *data, size_t size, int64_t offset) {
    return pwrite(fd, data, size, offset);
}

static inline int diskq_stat_open(int fd, int64_t *size, int64_t *links) {
    struct stat told;
    if (fstat(fd, &told)) return -1;
    *size = told.st_size;
    *links = (int64_t) told.st_nlink;
    return 0;
}

static inline int diskq_stat_path(const char *path, int64_t *size) {
    struct stat told;
    if (lstat(path, &told)) return -1;
    *size = told.st_size;
    return 0;
}

#ifdef SYNC_FILE_RANGE_WRITE
#define diskq_start_writeback(fd) ((void) !sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE))
#else
#define diskq_start_writeback(fd) ((void) 0)
#endif

/* macOS's fsync(2) leaves the bytes in the disk's own cache, where a power cut loses them. F_FULLFSYNC does not.
 * A file system that does not support it says so, and gets fsync instead; a failure is not such an answer. */
#ifdef F_FULLFSYNC
static inline int diskq_full_sync(int fd) {
    int failed = fcntl(fd, F_FULLFSYNC) == -1;
    if (failed && (errno == ENOTSUP || errno == EINVAL || errno == ENOTTY)) failed = fsync(fd);
    return failed ? -1 : 0;
}
#else
static inline int diskq_full_sync(int fd) { return fsync(fd); }
#endif

/* The same without attributes that no reader needs, where the system makes that difference. */
#if defined(__APPLE__) || !defined(_POSIX_SYNCHRONIZED_IO) || _POSIX_SYNCHRONIZED_IO <= 0
#define diskq_data_sync(fd) diskq_full_sync(fd)
#else
static inline int diskq_data_sync(int fd) { return fdatasync(fd); }
#endif

/* Sync everything written to the file system of the file, names too. Only Linux has a call for one file system. */
static inline int diskq_sync_file_system(int fd) {
#ifdef __linux__
    return syncfs(fd);
#else
    (void) fd;
    errno = ENOSYS;
    return -1;
#endif
}

/* An identifier of this boot. Linux has a file for it. */
static inline int diskq_boot_id(char *into, size_t size) {
#ifdef __APPLE__
    return sysctlbyname("kern.bootsessionuuid", into, &size, NULL, 0);
#else
    (void) into; (void) size;
    errno = ENOSYS;
    return -1;
#endif
}

/* A signal from one thread to another that waits for descriptors. ends[0] is readable once it was sent, until it
 * is cleared; it is sent to ends[1], which may be the same. */
#ifdef __linux__
static inline int diskq_open_signal(int ends[2]) {
    return ends[0] = ends[1] = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
}
static inline void diskq_send_signal(int fd) { (void) !write(fd, &(uint64_t) {1}, sizeof(uint64_t)); }
static inline void diskq_clear_signal(int fd) { uint64_t count; (void) !read(fd, &count, sizeof(count)); }
#else
static inline int diskq_open_signal(int ends[2]) {
    if (pipe(ends)) return -1;
    for (int end = 0; end < 2; end++) {
        fcntl(ends[end], F_SETFL, O_NONBLOCK);
        fcntl(ends[end], F_SETFD, FD_CLOEXEC);
    }
    return 0;
}
static inline void diskq_send_signal(int fd) { (void) !write(fd, "", 1); } /* a full pipe is readable anyway */
static inline void diskq_clear_signal(int fd) {
    char bytes[64];
    while (read(fd, bytes, sizeof(bytes)) == sizeof(bytes)) {}
}
#endif
static inline void diskq_close_signal(const int ends[2]) {
    close(ends[0]);
    if (ends[1] != ends[0]) close(ends[1]);
}

static inline int64_t diskq_clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t) now.tv_sec * 1000000000 + now.tv_nsec;
}
#define diskq_monotonic_ns() diskq_clock_ns(CLOCK_MONOTONIC)
#define diskq_wall_clock_ns() diskq_clock_ns(CLOCK_REALTIME)

#endif

/* --- what compilers name differently ------------------------------------------------------------ */

#ifdef _MSC_VER
#include <intrin.h>
static inline int diskq_lowest_bit(uint64_t word) {
    unsigned long bit;
    _BitScanForward64(&bit, word);
    return (int) bit;
}
#define diskq_store(where, value) ((void) _InterlockedExchange64((volatile long long *) (where), value))
#define diskq_load_pointer(where) (*(void *volatile *) (where))
#define diskq_pause() YieldProcessor()
#else
#define diskq_lowest_bit(word) __builtin_ctzll(word)
#define diskq_store(where, value) __atomic_store_n(where, value, __ATOMIC_RELEASE)
#define diskq_load_pointer(where) __atomic_load_n((void **) (where), __ATOMIC_ACQUIRE)
#if defined(__x86_64__) || defined(__i386__)
#define diskq_pause() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define diskq_pause() __asm__ volatile("yield")
#else
#define diskq_pause() ((void) 0)
#endif
#endif

/* Little-endian numbers, in the one order or the other. */
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define diskq_le64(value) __builtin_bswap64(value)
#define diskq_le32(value) __builtin_bswap32(value)
#else
#define diskq_le64(value) ((uint64_t) (value))
#define diskq_le32(value) ((uint32_t) (value))
#endif

#endif
