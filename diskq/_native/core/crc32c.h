/* CRC-32C: the reflected polynomial 82F63B78, with inverted start and end. Law: all three implementations give
 * the same number. Call `diskq_crc32c_prepare` once, before the first calculation.
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

#if defined(__x86_64__) && defined(__GNUC__)
#include <nmmintrin.h>

__attribute__((target("sse4.2")))
static uint32_t diskq_crc32c_by_sse(uint32_t crc, const unsigned char *at, size_t size) {
    uint64_t state = crc, word[4];
    while (size >= 32) {
        memcpy(word, at, 32);
        state = _mm_crc32_u64(state, word[0]);
        state = _mm_crc32_u64(state, word[1]);
        state = _mm_crc32_u64(state, word[2]);
        state = _mm_crc32_u64(state, word[3]);
        at += 32;
        size -= 32;
    }
    while (size >= 8) {
        memcpy(word, at, 8);
        state = _mm_crc32_u64(state, word[0]);
        at += 8;
        size -= 8;
    }
    crc = (uint32_t) state;
    if (size & 4) {
        uint32_t half;
        memcpy(&half, at, 4);
        crc = _mm_crc32_u32(crc, half);
        at += 4;
    }
    for (size &= 3; size; size--) crc = _mm_crc32_u8(crc, *at++);
    return crc;
}

#define DISKQ_CRC32C_FAST diskq_crc32c_by_sse
#define DISKQ_CRC32C_IS_FAST __builtin_cpu_supports("sse4.2")
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>

static uint32_t diskq_crc32c_by_arm(uint32_t crc, const unsigned char *at, size_t size) {
    uint64_t word;
    for (; size >= 8; at += 8, size -= 8) {
        memcpy(&word, at, 8);
        crc = __crc32cd(crc, word);
    }
    while (size--) crc = __crc32cb(crc, *at++);
    return crc;
}

#define DISKQ_CRC32C_FAST diskq_crc32c_by_arm
#define DISKQ_CRC32C_IS_FAST 1
#else
#define DISKQ_CRC32C_FAST diskq_crc32c_by_tables
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
    diskq_crc32c_is_fast = DISKQ_CRC32C_IS_FAST;
}

static uint32_t diskq_crc32c(uint32_t crc, const void *data, size_t size) {
    const unsigned char *at = (const unsigned char *) data;
    if (diskq_crc32c_is_fast) return ~DISKQ_CRC32C_FAST(~crc, at, size);
    return ~diskq_crc32c_by_tables(~crc, at, size);
}

#endif
