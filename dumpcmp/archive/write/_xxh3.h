/* XXH3 of 128 bits, with seed 0, of more than 240 bytes, which are copied in the same loop: while a
   row is awaited from memory, the one before is digested. To ask xxhash for it takes as long as the
   digest itself does. Where there is no AVX2 nothing of this is used. */

#ifndef DUMPCMP_XXH3_H
#define DUMPCMP_XXH3_H

#include <stdint.h>
#include <string.h>

#define SHORTEST 241 /* bytes; less are digested in other ways */
#define STRIPE 64
#define BLOCK_STRIPES 16

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define PRIME_1 0x9E3779B185EBCA87ull
#define PRIME_2 0xC2B2AE3D27D4EB4Full
#define SHORT_PRIME_1 0x9E3779B1u

static const unsigned char xxh3_secret[192] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

/* Half of a stripe, and of what is summed up. */
#define AVX2 __attribute__((target("avx2")))
#define HALF(at) _mm256_loadu_si256((const __m256i *)(at))

AVX2 static inline __m256i add_half(__m256i sum, __m256i data, const unsigned char *secret)
{
    __m256i key = _mm256_xor_si256(data, HALF(secret));
    __m256i product = _mm256_mul_epu32(key, _mm256_srli_epi64(key, 32));
    __m256i swapped = _mm256_shuffle_epi32(data, _MM_SHUFFLE(1, 0, 3, 2));
    return _mm256_add_epi64(_mm256_add_epi64(sum, swapped), product);
}

AVX2 static inline __m256i scrambled(__m256i sum, const unsigned char *secret)
{
    __m256i mixed = _mm256_xor_si256(_mm256_xor_si256(sum, _mm256_srli_epi64(sum, 47)), HALF(secret));
    __m256i prime = _mm256_set1_epi32((int)SHORT_PRIME_1);
    __m256i low = _mm256_mul_epu32(mixed, prime);
    __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(mixed, 32), prime);
    return _mm256_add_epi64(low, _mm256_slli_epi64(high, 32));
}

static inline uint64_t word_at(const void *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

static uint64_t merged(const uint64_t *sums, const unsigned char *secret, uint64_t result)
{
    for (int i = 0; i < 8; i += 2) {
        unsigned __int128 product = (unsigned __int128)(sums[i] ^ word_at(secret + 8 * i)) *
                                    (sums[i + 1] ^ word_at(secret + 8 * i + 8));
        result += (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    result = (result ^ result >> 37) * 0x165667919E3779F9ull;
    return result ^ result >> 32;
}

static void write_hex(char *to, uint64_t number)
{
    for (int i = 15; i >= 0; i--, number >>= 4)
        to[i] = "0123456789abcdef"[number & 15];
}

/* Copy at least SHORTEST bytes, and write their digest in hex to `digest`. What is digested is what
   was copied, whoever writes to the source meanwhile. */
AVX2 static void copy_with_digest(char *to, const char *from, size_t nbytes, char *digest)
{
    const size_t num_stripes = (nbytes - 1) / STRIPE;
    const char *tail = to + nbytes - STRIPE;
    __m256i low = _mm256_set_epi64x(0x165667B19E3779F9ll, (long long)PRIME_2, (long long)PRIME_1,
                                    0xC2B2AE3Dll);
    __m256i high = _mm256_set_epi64x((long long)SHORT_PRIME_1, 0x27D4EB2F165667C5ll, 0x85EBCA77ll,
                                     (long long)0x85EBCA77C2B2AE63ull);
    for (size_t i = 0; i < num_stripes; i++) {
        const unsigned char *secret = xxh3_secret + 8 * (i % BLOCK_STRIPES);
        __m256i first = HALF(from + i * STRIPE), second = HALF(from + i * STRIPE + STRIPE / 2);
        _mm256_storeu_si256((__m256i *)(to + i * STRIPE), first);
        _mm256_storeu_si256((__m256i *)(to + i * STRIPE + STRIPE / 2), second);
        low = add_half(low, first, secret);
        high = add_half(high, second, secret + STRIPE / 2);
        if (i % BLOCK_STRIPES == BLOCK_STRIPES - 1) {
            low = scrambled(low, xxh3_secret + 128);
            high = scrambled(high, xxh3_secret + 128 + STRIPE / 2);
        }
    }
    memcpy(to + num_stripes * STRIPE, from + num_stripes * STRIPE, nbytes - num_stripes * STRIPE);
    low = add_half(low, HALF(tail), xxh3_secret + 121);
    high = add_half(high, HALF(tail + STRIPE / 2), xxh3_secret + 121 + STRIPE / 2);
    uint64_t sums[8];
    _mm256_storeu_si256((__m256i *)sums, low);
    _mm256_storeu_si256((__m256i *)(sums + 4), high);
    write_hex(digest, merged(sums, xxh3_secret + 117, ~(nbytes * PRIME_2)));
    write_hex(digest + 16, merged(sums, xxh3_secret + 11, nbytes * PRIME_1));
}

static int has_vectors(void) { return __builtin_cpu_supports("avx2"); }

#else
static void copy_with_digest(char *to, const char *from, size_t nbytes, char *digest)
{
    (void)to, (void)from, (void)nbytes, (void)digest;
}

static int has_vectors(void) { return 0; }

#endif
#endif
