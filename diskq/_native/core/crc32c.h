/* CRC-32C: the reflected polynomial 82F63B78, with inverted start and end. Law: all implementations give the
 * same number. Call `diskq_crc32c_prepare` once, before the first calculation.
 */
#ifndef DISKQ_CRC32C_H
#define DISKQ_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint32_t diskq_crc32c_tables[8][256];

static uint32_t diskq_crc32c_by_tables(uint32_t crc, const unsigned char *at, size_t size) {
    while (size >= 8) {
        uint32_t low = crc ^ ((uint32_t) at[0] | (uint32_t) at[1] << 8 | (uint32_t) at[2] << 16 | (uint32_t) at[3] << 24);
        crc = diskq_crc32c_tables[7][low & 255] ^ diskq_crc32c_tables[6][low >> 8 & 255]
            ^ diskq_crc32c_tables[5][low >> 16 & 255] ^ diskq_crc32c_tables[4][low >> 24]
            ^ diskq_crc32c_tables[3][at[4]] ^ diskq_crc32c_tables[2][at[5]]
            ^ diskq_crc32c_tables[1][at[6]] ^ diskq_crc32c_tables[0][at[7]];
        at += 8;
        size -= 8;
    }
    while (size--) crc = crc >> 8 ^ diskq_crc32c_tables[0][(crc ^ *at++) & 255];
    return crc;
}

/* The instruction has a result every cycle, but each one needs the result before it, three cycles later. So large
 * data is summed in three lanes at once. The sum of a lane that begins with 0 is added to that of the lane before it,
 * shifted by as many zero bytes as it has: that is linear, so a table for each byte of a sum holds it. */
enum { DISKQ_LONG_LANE = 1024, DISKQ_SHORT_LANE = 128 };

typedef uint32_t diskq_crc32c_shift[4][256];

static diskq_crc32c_shift diskq_crc32c_long_shift, diskq_crc32c_short_shift;

static inline uint32_t diskq_crc32c_shifted(diskq_crc32c_shift shift, uint32_t crc) {
    return shift[0][crc & 255] ^ shift[1][crc >> 8 & 255] ^ shift[2][crc >> 16 & 255] ^ shift[3][crc >> 24];
}

static void diskq_crc32c_prepare_shift(diskq_crc32c_shift shift, size_t zeros) {
    for (int bit = 0; bit < 32; bit++) {
        uint32_t value = 1u << bit;
        for (size_t i = 0; i < zeros; i++) value = value >> 8 ^ diskq_crc32c_tables[0][value & 255];
        for (int byte = 0; byte < 256; byte++)
            if (byte >> (bit & 7) & 1) shift[bit >> 3][byte] ^= value;
    }
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <nmmintrin.h>
#define DISKQ_CRC32C_TARGET __attribute__((target("sse4.2")))
#define DISKQ_CRC32C_IS_FAST __builtin_cpu_supports("sse4.2")
#define DISKQ_CRC32C_WORD(crc, word) _mm_crc32_u64(crc, word)
#define DISKQ_CRC32C_HALF(crc, half) _mm_crc32_u32(crc, half)
#define DISKQ_CRC32C_BYTE(crc, byte) _mm_crc32_u8(crc, byte)
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define DISKQ_CRC32C_TARGET
#define DISKQ_CRC32C_IS_FAST 1
#define DISKQ_CRC32C_WORD(crc, word) __crc32cd(crc, word)
#define DISKQ_CRC32C_HALF(crc, half) __crc32cw(crc, half)
#define DISKQ_CRC32C_BYTE(crc, byte) __crc32cb(crc, byte)
#endif

#ifdef DISKQ_CRC32C_WORD
#ifdef __x86_64__
typedef uint64_t diskq_crc32c_sum; /* what the instruction takes and returns */
#else
typedef uint32_t diskq_crc32c_sum;
#endif

static inline uint64_t diskq_crc32c_word_at(const unsigned char *at) {
    uint64_t word;
    memcpy(&word, at, sizeof(word));
    return word;
}

/* Four words, written out: a compiler keeps a loop of four. */
#define DISKQ_CRC32C_FOUR(sum, at) \
    sum = DISKQ_CRC32C_WORD(sum, diskq_crc32c_word_at(at)); \
    sum = DISKQ_CRC32C_WORD(sum, diskq_crc32c_word_at((at) + 8)); \
    sum = DISKQ_CRC32C_WORD(sum, diskq_crc32c_word_at((at) + 16)); \
    sum = DISKQ_CRC32C_WORD(sum, diskq_crc32c_word_at((at) + 24));

/* Sum as many groups of three lanes as there are; returns the number of bytes. */
DISKQ_CRC32C_TARGET
static size_t diskq_crc32c_by_lanes(
    uint32_t *crc, const unsigned char *at, size_t size, size_t lane, diskq_crc32c_shift shift
) {
    size_t done = 0;
    for (; size - done >= 3 * lane; done += 3 * lane, at += 2 * lane) {
        diskq_crc32c_sum first = *crc, second = 0, third = 0;
        for (const unsigned char *end = at + lane; at < end; at += 32) {
            DISKQ_CRC32C_FOUR(first, at)
            DISKQ_CRC32C_FOUR(second, at + lane)
            DISKQ_CRC32C_FOUR(third, at + 2 * lane)
        }
        second ^= diskq_crc32c_shifted(shift, (uint32_t) first);
        *crc = (uint32_t) third ^ diskq_crc32c_shifted(shift, (uint32_t) second);
    }
    return done;
}

DISKQ_CRC32C_TARGET
static uint32_t diskq_crc32c_by_instruction(uint32_t crc, const unsigned char *at, size_t size) {
    size_t done = 0;
    if (size >= 3 * DISKQ_LONG_LANE)
        done = diskq_crc32c_by_lanes(&crc, at, size, DISKQ_LONG_LANE, diskq_crc32c_long_shift);
    if (size - done >= 3 * DISKQ_SHORT_LANE)
        done += diskq_crc32c_by_lanes(&crc, at + done, size - done, DISKQ_SHORT_LANE, diskq_crc32c_short_shift);
    at += done;
    size -= done;
    diskq_crc32c_sum sum = crc;
    for (; size >= 32; at += 32, size -= 32) {
        DISKQ_CRC32C_FOUR(sum, at)
    }
    for (; size >= 8; at += 8, size -= 8) sum = DISKQ_CRC32C_WORD(sum, diskq_crc32c_word_at(at));
    crc = (uint32_t) sum;
    if (size & 4) {
        uint32_t half;
        memcpy(&half, at, sizeof(half));
        crc = DISKQ_CRC32C_HALF(crc, half);
        at += 4;
    }
    for (size &= 3; size; size--) crc = DISKQ_CRC32C_BYTE(crc, *at++);
    return crc;
}
#else
#define diskq_crc32c_by_instruction diskq_crc32c_by_tables
#define DISKQ_CRC32C_IS_FAST 0
#endif

static int diskq_crc32c_is_fast = 0;

static void diskq_crc32c_prepare(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; bit++) value = value >> 1 ^ (value & 1 ? 0x82F63B78u : 0);
        diskq_crc32c_tables[0][byte] = value;
    }
    for (int k = 1; k < 8; k++) {
        for (int byte = 0; byte < 256; byte++) {
            uint32_t value = diskq_crc32c_tables[k - 1][byte];
            diskq_crc32c_tables[k][byte] = value >> 8 ^ diskq_crc32c_tables[0][value & 255];
        }
    }
    diskq_crc32c_prepare_shift(diskq_crc32c_long_shift, DISKQ_LONG_LANE);
    diskq_crc32c_prepare_shift(diskq_crc32c_short_shift, DISKQ_SHORT_LANE);
    diskq_crc32c_is_fast = DISKQ_CRC32C_IS_FAST;
}

static uint32_t diskq_crc32c(uint32_t crc, const void *data, size_t size) {
    const unsigned char *at = (const unsigned char *) data;
    if (diskq_crc32c_is_fast) return ~diskq_crc32c_by_instruction(~crc, at, size);
    return ~diskq_crc32c_by_tables(~crc, at, size);
}

#endif
