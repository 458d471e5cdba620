/* BF16 weights to packed INT4 with one BF16 scale a group, and back.
 *
 * A code is float32(x / scale) rounded to the nearest integer, ties to even, from -8 to 7, stored + 8: an
 * even column in the low half of a byte. The plain code says so and serves every group.
 *
 * With AVX-512, groups of 32 multiply by the reciprocal instead. Both x and scale have 8 bits and, near a
 * tie, x is no less than about scale / 2: so 2 x - h scale (h odd, at most 15) is a multiple of half of
 * scale's last bit, and x / scale either is the tie h / 2 or lies 2**-10 or more beside it. The product errs
 * by less than 2**-19: put on a grid of 2**-12, ties are ties again and nothing else becomes one. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX512BW__) && defined(__AVX512F__)
#include <immintrin.h>
#define VECTORS 1
#else
#define VECTORS 0
#endif

enum { GROUP = 32, CHUNK = 64, INFINITE = 0x7F80, BATCH = 64, NAN_SCALE = 0x7FC0 };

/* A view may begin at any byte. */
typedef uint16_t bf16 __attribute__((aligned(1), may_alias));
typedef float real __attribute__((aligned(1), may_alias));

typedef struct { uint64_t saturated, flushed, nan; } Counts;

static inline float as_float(uint32_t bits) { float f; memcpy(&f, &bits, sizeof f); return f; }
static inline uint32_t as_bits(float f) { uint32_t bits; memcpy(&bits, &f, sizeof f); return bits; }

static inline uint16_t narrowed(float value, uint16_t nan) {
    uint32_t bits = as_bits(value);
    uint16_t rounded = (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
    return (bits & 0x7FFFFFFF) > 0x7F800000 ? nan : rounded;
}

static inline __attribute__((always_inline)) uint16_t peak_of(const bf16 *x, size_t n) {
    uint16_t peak = 0;
    for (size_t i = 0; i < n; i++) {
        uint16_t magnitude = x[i] & 0x7FFF;
        peak = peak > magnitude ? peak : magnitude;
    }
    return peak;
}

static uint16_t finite_peak_of(const bf16 *x, size_t n) {
    uint16_t peak = 0;
    for (size_t i = 0; i < n; i++) {
        uint16_t magnitude = x[i] & 0x7FFF;
        if (magnitude < INFINITE && magnitude > peak) peak = magnitude;
    }
    return peak;
}

static inline uint16_t scale_of(uint16_t peak) {
    float scale = as_float((uint32_t)peak << 16) / 7.5f;
    scale = scale < 0x1p-126f ? 0x1p-126f : scale;
    return narrowed(peak ? scale : 1.0f, NAN_SCALE);
}

/* Inlined with a constant n for whole groups, n even and at most CHUNK; loops without a branch become vector
 * code. Returns how many are NaN. */
static inline __attribute__((always_inline)) uint32_t encode_plainly(
    const bf16 *restrict x, size_t n, uint16_t scale, uint8_t *restrict packed, Counts *counts) {
    float s = as_float((uint32_t)scale << 16);
    uint32_t magnitude[CHUNK], q[CHUNK], nibble[CHUNK];
    uint32_t saturated = 0, flushed = 0, nan = 0;
    for (size_t i = 0; i < n; i++) magnitude[i] = x[i] & 0x7FFF;
    for (size_t i = 0; i < n; i++) q[i] = as_bits(as_float(magnitude[i] << 16) / s);
    for (size_t i = 0; i < n; i++) q[i] = q[i] > 0x41000000 ? 0x41000000 : q[i]; /* 8 */
    for (size_t i = 0; i < n; i++) q[i] = magnitude[i] > INFINITE ? 0 : q[i];
    for (size_t i = 0; i < n; i++) q[i] = as_bits(as_float(q[i]) + 0x1p23f) - 0x4B000000; /* to nearest */
    for (size_t i = 0; i < n; i++) {
        uint32_t above = 8 + (q[i] > 7 ? 7 : q[i]);
        nibble[i] = x[i] & 0x8000 ? 8 - q[i] : above;
        nan += magnitude[i] > INFINITE;
        saturated += magnitude[i] == INFINITE;
        flushed += q[i] == 0 && magnitude[i] != 0 && magnitude[i] <= INFINITE;
    }
    for (size_t i = 0; i < n / 2; i++) packed[i] = (uint8_t)(nibble[2 * i] | nibble[2 * i + 1] << 4);
    counts->saturated += saturated, counts->flushed += flushed, counts->nan += nan;
    return nan;
}

static uint32_t encode_group(const bf16 *x, size_t n, uint16_t scale, uint8_t *packed, Counts *counts) {
    if (n == GROUP) return encode_plainly(x, GROUP, scale, packed, counts);
    uint32_t nan = 0;
    for (size_t at = 0; at < n; at += CHUNK)
        nan += encode_plainly(x + at, n - at < CHUNK ? n - at : CHUNK, scale, packed + at / 2, counts);
    return nan;
}

#if VECTORS
static inline uint16_t peak_of_32(const bf16 *x) {
    __m512i v = _mm512_and_si512(_mm512_loadu_si512(x), _mm512_set1_epi16(0x7FFF));
    __m256i w = _mm256_max_epu16(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
    __m128i u = _mm_max_epu16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
    u = _mm_minpos_epu16(_mm_xor_si128(u, _mm_set1_epi16(-1)));
    return (uint16_t)~_mm_cvtsi128_si32(u);
}

/* Finite values; the scale and its reciprocal far from float32's limits. */
static inline void encode_32(const bf16 *x, uint16_t scale, float reciprocal, uint8_t *packed,
                             Counts *counts) {
    const __m512i top = _mm512_set1_epi32(7), magnitude = _mm512_set1_epi16(0x7FFF);
    __m512i v = _mm512_loadu_si512(x);
    __m512 factor = _mm512_set1_ps(reciprocal);
    __m512 low = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(v, 16)), factor);
    __m512 high = _mm512_mul_ps(
        _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32((int)0xFFFF0000))), factor);
    __m512i a = _mm512_cvtps_epi32(_mm512_roundscale_ps(low, 12 << 4));
    __m512i b = _mm512_cvtps_epi32(_mm512_roundscale_ps(high, 12 << 4));
    a = _mm512_min_epi32(a, top);
    b = _mm512_slli_epi32(_mm512_min_epi32(b, top), 4);
    a = _mm512_add_epi32(_mm512_add_epi32(a, b), _mm512_set1_epi32(0x88));
    _mm_storeu_si128((__m128i *)packed, _mm512_cvtepi32_epi8(a));
    /* Code 0: at most half a scale; zeros wrap round and are not counted. */
    __m512i less = _mm512_sub_epi16(_mm512_and_si512(v, magnitude), _mm512_set1_epi16(1));
    __mmask32 flushed = _mm512_cmplt_epu16_mask(less, _mm512_set1_epi16((short)(scale - 0x80)));
    counts->flushed += (uint64_t)__builtin_popcount(flushed);
}
#endif

static void encode_batch(const bf16 *x, size_t groups, size_t group, uint8_t *packed, bf16 *scales,
                         Counts *counts) {
    uint16_t peaks[BATCH], stored[BATCH];
    int vectors = VECTORS && group == GROUP;
#if VECTORS
    if (vectors)
        for (size_t g = 0; g < groups; g++) peaks[g] = peak_of_32(x + g * GROUP);
#endif
    if (!vectors)
        for (size_t g = 0; g < groups; g++) peaks[g] = peak_of(x + g * group, group);
    for (size_t g = 0; g < groups; g++) stored[g] = scale_of(peaks[g]);
#if VECTORS
    float reciprocals[BATCH];
    for (size_t g = 0; g < groups; g++) reciprocals[g] = 1.0f / as_float((uint32_t)stored[g] << 16);
#endif
    for (size_t g = 0; g < groups; g++) {
        const bf16 *from = x + g * group;
        uint8_t *to = packed + g * group / 2;
#if VECTORS
        uint16_t exponent = stored[g] >> 7;
        if (__builtin_expect(vectors && peaks[g] < INFINITE && exponent > 27 && exponent < 227, 1)) {
            encode_32(from, stored[g], reciprocals[g], to, counts);
            continue;
        }
#endif
        if (peaks[g] >= INFINITE) stored[g] = scale_of(finite_peak_of(from, group));
        if (encode_group(from, group, stored[g], to, counts)) stored[g] = NAN_SCALE;
    }
    for (size_t g = 0; g < groups; g++) scales[g] = stored[g];
}

/* Rows are `stride` values and `packed_stride` bytes apart, scales without gaps; `group`, even, divides
 * `columns`. */
void int4_encode(const bf16 *x, size_t rows, size_t columns, size_t stride, size_t group, uint8_t *packed,
                 size_t packed_stride, bf16 *scales, uint64_t *saturated_flushed_nan) {
    Counts counts = {0, 0, 0};
    if (stride == columns && packed_stride == columns / 2) columns *= rows, rows = 1;
    size_t groups = columns / group;
    for (size_t r = 0; r < rows; r++, scales += groups)
        for (size_t g = 0; g < groups; g += BATCH)
            encode_batch(x + r * stride + g * group, groups - g < BATCH ? groups - g : BATCH, group,
                         packed + r * packed_stride + g * group / 2, scales + g, &counts);
    saturated_flushed_nan[0] = counts.saturated;
    saturated_flushed_nan[1] = counts.flushed;
    saturated_flushed_nan[2] = counts.nan;
}

static inline float value_of(const uint8_t *packed, size_t column, float scale) {
    int nibble = packed[column / 2] >> (column % 2 * 4) & 15;
    return (float)(nibble - 8) * scale;
}

#if VECTORS
/* Codes [32] as indices of 16 values, of even and odd columns; a permutation reads the low 4 bits of each. */
static inline void indices_of(const uint8_t *packed, __m512i *even, __m512i *odd) {
    *even = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)packed));
    *odd = _mm512_srli_epi32(*even, 4);
}

static inline __m512 table_of(float scale) {
    const __m512 codes = _mm512_set_ps(7, 6, 5, 4, 3, 2, 1, 0, -1, -2, -3, -4, -5, -6, -7, -8);
    return _mm512_mul_ps(codes, _mm512_set1_ps(scale));
}

static inline void widen_32(const uint8_t *packed, float scale, real *out) {
    const __m512i first = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i last = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    __m512 table = table_of(scale);
    __m512i even, odd;
    indices_of(packed, &even, &odd);
    __m512 a = _mm512_permutexvar_ps(even, table), b = _mm512_permutexvar_ps(odd, table);
    _mm512_storeu_ps(out, _mm512_permutex2var_ps(a, first, b));
    _mm512_storeu_ps(out + 16, _mm512_permutex2var_ps(a, last, b));
}

static inline void narrow_32(const uint8_t *packed, float scale, uint16_t nan, bf16 *out) {
    __m512 table = table_of(scale);
    __m512i bits = _mm512_castps_si512(table), even, odd;
    __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i value = _mm512_srli_epi32(
        _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), last), 16);
    __mmask16 lost = _mm512_cmp_ps_mask(table, table, _CMP_UNORD_Q);
    value = _mm512_mask_mov_epi32(value, lost, _mm512_set1_epi32(nan));
    indices_of(packed, &even, &odd);
    even = _mm512_permutexvar_epi32(even, value);
    odd = _mm512_permutexvar_epi32(odd, _mm512_slli_epi32(value, 16));
    _mm512_storeu_si512(out, _mm512_or_si512(even, odd));
}
#endif

/* float32(code * scale); `group`, of any size, divides `columns`. */
void int4_decode_float32(const uint8_t *packed, size_t rows, size_t columns, size_t packed_stride,
                         size_t group, const real *scales, real *out, size_t out_stride) {
    for (size_t r = 0; r < rows; r++, packed += packed_stride, out += out_stride)
        for (size_t left = 0; left < columns; left += group, scales++) {
#if VECTORS
            if (group == GROUP) {
                widen_32(packed + left / 2, *scales, out + left);
                continue;
            }
#endif
            for (size_t i = left; i < left + group; i++) out[i] = value_of(packed, i, *scales);
        }
}

/* float32(code * scale), rounded to BF16; a NaN is written as `nan`. */
void int4_decode_bf16(const uint8_t *packed, size_t rows, size_t columns, size_t packed_stride, size_t group,
                      const real *scales, uint16_t nan, bf16 *out, size_t out_stride) {
    for (size_t r = 0; r < rows; r++, packed += packed_stride, out += out_stride)
        for (size_t left = 0; left < columns; left += group, scales++) {
#if VECTORS
            if (group == GROUP) {
                narrow_32(packed + left / 2, *scales, nan, out + left);
                continue;
            }
#endif
            for (size_t i = left; i < left + group; i++) out[i] = narrowed(value_of(packed, i, *scales), nan);
        }
}
