/* The CRC-32 of zlib and of Parquet's pages.
 *
 * Where the processor multiplies without carries, blocks of 64 bytes are folded into 16, and those to
 * the remainder: "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction" (Intel,
 * 2009), with its constants for this polynomial. All else is done eight bytes at a time, by tables.
 */
#ifndef TAILER_CRC32_H
#define TAILER_CRC32_H

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define CRC32_FOLDS 1
#include <immintrin.h>
#endif

typedef struct {
    uint32_t tables[8][256];
    int folds;
} Crc32;

static inline void crc32_prepare(Crc32 *known)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
        known->tables[0][i] = crc;
    }
    for (int place = 1; place < 8; place++) {
        for (int i = 0; i < 256; i++) {
            uint32_t crc = known->tables[place - 1][i];
            known->tables[place][i] = crc >> 8 ^ known->tables[0][crc & 0xFF];
        }
    }
#ifdef CRC32_FOLDS
    __builtin_cpu_init();
    known->folds = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#endif
}

#ifdef CRC32_FOLDS
#define CRC32_TARGET __attribute__((target("sse4.1,pclmul")))

/* Fold 16 bytes over the next ones. */
CRC32_TARGET static inline __m128i crc32_fold(__m128i folded, __m128i next, __m128i by)
{
    __m128i low = _mm_clmulepi64_si128(folded, by, 0x00);
    __m128i high = _mm_clmulepi64_si128(folded, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

CRC32_TARGET static inline __m128i crc32_load(const uint8_t *bytes)
{
    return _mm_loadu_si128((const __m128i *)bytes);
}

/* Bring the remainder `crc` over these bytes, of which there are 64 at least, in whole sixteens. */
CRC32_TARGET static uint32_t crc32_folded(uint32_t crc, const uint8_t *bytes, int64_t size)
{
    __m128i by64 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
    __m128i by16 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    __m128i mask = _mm_setr_epi32(~0, 0, ~0, 0);
    __m128i part[4];
    for (int i = 0; i < 4; i++) part[i] = crc32_load(bytes + 16 * i);
    part[0] = _mm_xor_si128(part[0], _mm_cvtsi32_si128((int)crc));
    for (bytes += 64, size -= 64; size >= 64; bytes += 64, size -= 64) {
        part[0] = crc32_fold(part[0], crc32_load(bytes), by64);
        part[1] = crc32_fold(part[1], crc32_load(bytes + 16), by64);
        part[2] = crc32_fold(part[2], crc32_load(bytes + 32), by64);
        part[3] = crc32_fold(part[3], crc32_load(bytes + 48), by64);
    }
    __m128i all = part[0];
    for (int i = 1; i < 4; i++) all = crc32_fold(all, part[i], by16);
    for (; size >= 16; bytes += 16, size -= 16) all = crc32_fold(all, crc32_load(bytes), by16);
    /* To 64 bits, and then to 32, by Barrett's reduction. */
    all = _mm_xor_si128(_mm_srli_si128(all, 8), _mm_clmulepi64_si128(all, by16, 0x10));
    __m128i high = _mm_srli_si128(all, 4);
    all = _mm_clmulepi64_si128(_mm_and_si128(all, mask), _mm_set_epi64x(0, 0x0163cd6124), 0x00);
    all = _mm_xor_si128(all, high);
    __m128i poly = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    __m128i reduced = _mm_clmulepi64_si128(_mm_and_si128(all, mask), poly, 0x10);
    reduced = _mm_clmulepi64_si128(_mm_and_si128(reduced, mask), poly, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(all, reduced), 1);
}
#endif

/* For little-endian processors. */
static inline uint32_t crc32_of(const Crc32 *known, const uint8_t *bytes, int64_t size)
{
    const uint32_t(*tables)[256] = known->tables;
    uint32_t crc = 0xFFFFFFFFu;
#ifdef CRC32_FOLDS
    if (known->folds && size >= 64) {
        crc = crc32_folded(crc, bytes, size & ~(int64_t)15);
        bytes += size & ~(int64_t)15;
        size &= 15;
    }
#endif
    for (; size >= 8; size -= 8, bytes += 8) {
        uint32_t low, high;
        memcpy(&low, bytes, 4);
        memcpy(&high, bytes + 4, 4);
        low ^= crc;
        crc = tables[7][low & 0xFF] ^ tables[6][low >> 8 & 0xFF] ^ tables[5][low >> 16 & 0xFF] ^
              tables[4][low >> 24] ^ tables[3][high & 0xFF] ^ tables[2][high >> 8 & 0xFF] ^
              tables[1][high >> 16 & 0xFF] ^ tables[0][high >> 24];
    }
    for (; size; size--) crc = crc >> 8 ^ tables[0][(crc ^ *bytes++) & 0xFF];
    return ~crc;
}

#endif
