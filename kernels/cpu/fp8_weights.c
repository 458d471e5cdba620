/* BF16 weights to E4M3 codes with a float32 scale a block, and back.
 *
 * A code is the nearest to float32(x / scale), ties to even, saturating at 448, NaN kept. The plain code says
 * so and serves every value. With AVX-512 VBMI, whole chunks of normal codes need no division: in one block,
 * x / scale of all x with the same 7 bits of mantissa differ by powers of two, which float32 and E4M3 keep
 * exactly, so a table of 128 entries, filled by the plain code, holds all roundings of the block. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX512BW__) && defined(__AVX512VBMI__)
#include <immintrin.h>
#define TABLES 1
#else
#define TABLES 0
#endif

enum { CHUNK = 64, INFINITE = 0x7F80, NAN_CODE = 0x7F, MAX_BLOCKS = 128, PANEL = 16384, WORTH_A_TABLE = 512 };

/* A view may begin at any byte. */
typedef uint16_t bf16 __attribute__((aligned(1), may_alias));
typedef float real __attribute__((aligned(1), may_alias));

typedef struct { uint64_t saturated, flushed, nan; } Counts;

typedef struct {
    float scale;
    uint16_t least; /* the table holds for magnitudes from here; 0xFFFF: for none */
    uint8_t delta[128];
} Encoder;

typedef struct {
    float scale;
    int usable;
    uint8_t low[128], high[128]; /* of the BF16 value of each positive code */
} Decoder;

static inline float as_float(uint32_t bits) { float f; memcpy(&f, &bits, sizeof f); return f; }
static inline uint32_t as_bits(float f) { uint32_t bits; memcpy(&bits, &f, sizeof f); return bits; }
static inline size_t least_of(size_t a, size_t b) { return a < b ? a : b; }

/* Inlined with a constant n for whole chunks, n at most CHUNK; loops without a branch become vector code. */
static inline __attribute__((always_inline)) void encode_plainly(
    const bf16 *restrict x, size_t n, float scale, uint8_t *restrict codes, Counts *counts) {
    uint32_t magnitude[CHUNK], q[CHUNK], small[CHUNK];
    uint32_t saturated = 0, flushed = 0, nan = 0;
    for (size_t i = 0; i < n; i++) magnitude[i] = x[i] & 0x7FFF;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = as_bits(as_float(magnitude[i] << 16) / scale);
        q[i] = bits > 0x43E00000 ? 0x43E00000 : bits; /* 448 */
    }
    /* Below 2**-6 steps are of 2**-9, as those of float32 from 2**14. */
    for (size_t i = 0; i < n; i++) small[i] = as_bits(as_float(q[i]) + 0x1p14f) - 0x46800000;
    for (size_t i = 0; i < n; i++) {
        uint32_t normal = ((q[i] + 0x7FFFF + (q[i] >> 20 & 1)) >> 20) - (120 << 3);
        uint32_t code = q[i] < 0x3C800000 ? small[i] : normal;
        code = magnitude[i] > INFINITE ? NAN_CODE : code;
        codes[i] = (uint8_t)(code | (x[i] >> 8 & 0x80));
        nan += magnitude[i] > INFINITE;
        saturated += magnitude[i] == INFINITE;
        flushed += code == 0 && magnitude[i] != 0;
    }
    counts->saturated += saturated, counts->flushed += flushed, counts->nan += nan;
}

static uint16_t peak_of(const bf16 *x, size_t n) {
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

static void prepare_encoder(Encoder *e, uint16_t peak, int finite, size_t values) {
    float scale = as_float((uint32_t)peak << 16) / 448.0f;
    scale = scale < 0x1p-126f ? 0x1p-126f : scale;
    e->scale = peak ? scale : 1.0f;
    e->least = 0xFFFF;
    if (!TABLES || !finite || values < WORTH_A_TABLE || e->scale < 0x1p-110f) return;
    uint32_t exponent = as_bits(e->scale) >> 23;
    uint16_t pattern[128];
    Counts unused = {0, 0, 0};
    for (int m = 0; m < 128; m++) pattern[m] = (uint16_t)(exponent << 7 | (uint32_t)m);
    for (int m = 0; m < 128; m += CHUNK)
        encode_plainly(pattern + m, CHUNK, e->scale, e->delta + m, &unused);
    for (int m = 0; m < 128; m++) e->delta[m] = (uint8_t)(e->delta[m] - (pattern[m] >> 4));
    e->least = (uint16_t)((as_bits(e->scale * 0x1p-6f) >> 16) + 1); /* codes are normal from 2**-6 */
}

#if TABLES
static inline __m512i bytes_from(int first) {
    const __m512i step = _mm512_set_epi8(
        126, 124, 122, 120, 118, 116, 114, 112, 110, 108, 106, 104, 102, 100, 98, 96, 94, 92, 90, 88, 86, 84,
        82, 80, 78, 76, 74, 72, 70, 68, 66, 64, 62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34,
        32, 30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    return _mm512_add_epi8(step, _mm512_set1_epi8((char)first));
}
#endif

static void encode_run(const bf16 *x, size_t n, const Encoder *e, uint8_t *codes, Counts *counts) {
    size_t at = 0;
#if TABLES
    if (e->least != 0xFFFF) {
        const __m512i even = bytes_from(0), odd = bytes_from(1), sign = _mm512_set1_epi8((char)0x80);
        const __m512i magnitude = _mm512_set1_epi16(0x7FFF), least = _mm512_set1_epi16((short)e->least);
        const __m512i table0 = _mm512_loadu_si512(e->delta), table1 = _mm512_loadu_si512(e->delta + 64);
        for (; at + CHUNK <= n; at += CHUNK) {
            __m512i a = _mm512_loadu_si512(x + at), b = _mm512_loadu_si512(x + at + 32);
            __m512i lesser = _mm512_min_epu16(_mm512_and_si512(a, magnitude), _mm512_and_si512(b, magnitude));
            if (__builtin_expect(_mm512_cmplt_epu16_mask(lesser, least) != 0, 0)) {
                encode_plainly(x + at, CHUNK, e->scale, codes + at, counts);
                continue;
            }
            /* The next exponent is 8 codes up: bits 4 to 11 of a pattern are 8 * exponent + mantissa / 16. */
            __m512i base = _mm512_permutex2var_epi8(_mm512_srli_epi16(a, 4), even, _mm512_srli_epi16(b, 4));
            __m512i mantissa = _mm512_permutex2var_epi8(a, even, b); /* a table's index is its low 7 bits */
            __m512i high = _mm512_permutex2var_epi8(a, odd, b);
            __m512i code = _mm512_add_epi8(base, _mm512_permutex2var_epi8(table0, mantissa, table1));
            code = _mm512_ternarylogic_epi32(code, high, sign, 0xD8); /* sign ? high : code */
            _mm512_storeu_si512(codes + at, code);
        }
    }
#endif
    for (; at + CHUNK <= n; at += CHUNK) encode_plainly(x + at, CHUNK, e->scale, codes + at, counts);
    encode_plainly(x + at, n - at, e->scale, codes + at, counts);
}

/* Strides in values; `scales` has ceil(rows / block_rows) rows of ceil(columns / block_columns). */
void fp8_encode(const bf16 *x, size_t rows, size_t columns, size_t stride, size_t block_rows,
                size_t block_columns, uint8_t *codes, size_t code_stride, real *scales,
                uint64_t *saturated_flushed_nan) {
    Counts counts = {0, 0, 0};
    Encoder encoders[MAX_BLOCKS];
    size_t grid = (columns + block_columns - 1) / block_columns;
    size_t step = PANEL / block_columns;
    step = step < 1 ? 1 : least_of(step, MAX_BLOCKS);
    for (size_t top = 0; top < rows; top += block_rows, scales += grid) {
        size_t height = least_of(block_rows, rows - top);
        for (size_t first = 0; first < grid; first += step) { /* wide, so that memory is read in order */
            size_t blocks = least_of(step, grid - first), left = first * block_columns;
            uint16_t peaks[MAX_BLOCKS] = {0};
            const bf16 *panel = x + top * stride + left;
            uint8_t *target = codes + top * code_stride + left;
            for (size_t r = 0; r < height; r++)
                for (size_t b = 0; b < blocks; b++) {
                    size_t at = b * block_columns, width = least_of(block_columns, columns - left - at);
                    uint16_t peak = peak_of(panel + r * stride + at, width);
                    peaks[b] = peaks[b] > peak ? peaks[b] : peak;
                }
            for (size_t b = 0; b < blocks; b++) {
                size_t at = b * block_columns, width = least_of(block_columns, columns - left - at);
                int finite = peaks[b] < INFINITE;
                if (!finite) {
                    peaks[b] = 0;
                    for (size_t r = 0; r < height; r++) {
                        uint16_t peak = finite_peak_of(panel + r * stride + at, width);
                        peaks[b] = peaks[b] > peak ? peaks[b] : peak;
                    }
                }
                prepare_encoder(&encoders[b], peaks[b], finite, height * width);
                scales[first + b] = encoders[b].scale;
            }
            for (size_t r = 0; r < height; r++)
                for (size_t b = 0; b < blocks; b++) {
                    size_t at = b * block_columns, width = least_of(block_columns, columns - left - at);
                    encode_run(panel + r * stride + at, width, &encoders[b], target + r * code_stride + at,
                               &counts);
                }
        }
    }
    saturated_flushed_nan[0] = counts.saturated;
    saturated_flushed_nan[1] = counts.flushed;
    saturated_flushed_nan[2] = counts.nan;
}

/* Shifted into place, a code is a float32 whose exponent bias is off by 120. */
static inline float value_of(uint8_t code, float scale) {
    uint32_t shifted = (uint32_t)(code & 0x7F) << 20 | (uint32_t)(code & 0x80) << 24;
    uint32_t bits = as_bits(as_float(shifted) * 0x1p120f);
    uint32_t lost = -(uint32_t)((code & 0x7F) == NAN_CODE); /* a mask, as a branch would not become vectors */
    return as_float((bits & ~lost) | (0x7FC00000 & lost)) * scale;
}

static inline uint16_t narrowed(uint32_t bits, uint16_t nan) {
    uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7FFFFFFF) > 0x7F800000 ? nan : rounded);
}

static inline __attribute__((always_inline)) void narrow_plainly(
    const uint8_t *restrict codes, size_t n, float scale, uint16_t nan, bf16 *restrict out) {
    uint32_t value[CHUNK]; /* n is at most CHUNK */
    for (size_t i = 0; i < n; i++) value[i] = as_bits(value_of(codes[i], scale));
    for (size_t i = 0; i < n; i++) out[i] = narrowed(value[i], nan);
}

static void prepare_decoder(Decoder *d, float scale, size_t values) {
    d->scale = scale;
    d->usable = TABLES && values >= WORTH_A_TABLE && (as_bits(scale) & 0x7F800000) != 0x7F800000;
    if (!d->usable) return;
    uint8_t code[128];
    uint16_t value[128];
    for (int c = 0; c < 128; c++) code[c] = (uint8_t)c;
    for (int c = 0; c < 128; c += CHUNK) narrow_plainly(code + c, CHUNK, scale, 0, value + c);
    for (int c = 0; c < 128; c++) d->low[c] = (uint8_t)value[c], d->high[c] = (uint8_t)(value[c] >> 8);
}

static void narrow_run(const uint8_t *codes, size_t n, const Decoder *d, uint16_t nan, bf16 *out) {
    size_t at = 0;
#if TABLES
    if (d->usable) {
        const __m512i sign = _mm512_set1_epi8((char)0x80), all = _mm512_set1_epi8(NAN_CODE);
        const __m512i low0 = _mm512_loadu_si512(d->low), low1 = _mm512_loadu_si512(d->low + 64);
        const __m512i high0 = _mm512_loadu_si512(d->high), high1 = _mm512_loadu_si512(d->high + 64);
        const __m512i spread = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
        for (; at + CHUNK <= n; at += CHUNK) {
            __m512i c = _mm512_loadu_si512(codes + at);
            if (__builtin_expect(_mm512_cmpeq_epi8_mask(_mm512_and_si512(c, all), all) != 0, 0)) {
                narrow_plainly(codes + at, CHUNK, d->scale, nan, out + at);
                continue;
            }
            c = _mm512_permutexvar_epi64(spread, c); /* so that the unpacking below leaves them in order */
            __m512i low = _mm512_permutex2var_epi8(low0, c, low1);
            __m512i high = _mm512_permutex2var_epi8(high0, c, high1);
            high = _mm512_ternarylogic_epi32(high, c, sign, 0x78); /* high ^ (c & sign), for scales < 0 */
            _mm512_storeu_si512(out + at, _mm512_unpacklo_epi8(low, high));
            _mm512_storeu_si512(out + at + 32, _mm512_unpackhi_epi8(low, high));
        }
    }
#endif
    for (; at + CHUNK <= n; at += CHUNK) narrow_plainly(codes + at, CHUNK, d->scale, nan, out + at);
    narrow_plainly(codes + at, n - at, d->scale, nan, out + at);
}

/* float32(code * scale), rounded to BF16; a NaN is written as `nan`. */
void fp8_decode_bf16(const uint8_t *codes, size_t rows, size_t columns, size_t stride, size_t block_rows,
                     size_t block_columns, const real *scales, uint16_t nan, bf16 *out, size_t out_stride) {
    Decoder decoders[MAX_BLOCKS];
    size_t grid = (columns + block_columns - 1) / block_columns;
    for (size_t top = 0; top < rows; top += block_rows, scales += grid) {
        size_t height = least_of(block_rows, rows - top);
        for (size_t first = 0; first < grid; first += MAX_BLOCKS) {
            size_t blocks = least_of(MAX_BLOCKS, grid - first);
            for (size_t b = 0; b < blocks; b++) {
                size_t left = (first + b) * block_columns;
                size_t width = least_of(block_columns, columns - left);
                prepare_decoder(&decoders[b], scales[first + b], height * width);
            }
            for (size_t r = top; r < top + height; r++)
                for (size_t b = 0; b < blocks; b++) {
                    size_t left = (first + b) * block_columns;
                    size_t width = least_of(block_columns, columns - left);
                    narrow_run(codes + r * stride + left, width, &decoders[b], nan,
                               out + r * out_stride + left);
                }
        }
    }
}

static inline __attribute__((always_inline)) void widen(
    const uint8_t *restrict codes, size_t n, float scale, real *restrict out) {
    for (size_t i = 0; i < n; i++) out[i] = value_of(codes[i], scale);
}

/* float32(code * scale). */
void fp8_decode_float32(const uint8_t *codes, size_t rows, size_t columns, size_t stride, size_t block_rows,
                        size_t block_columns, const real *scales, real *out, size_t out_stride) {
    size_t grid = (columns + block_columns - 1) / block_columns;
    for (size_t r = 0; r < rows; r++)
        for (size_t b = 0; b < grid; b++) {
            size_t left = b * block_columns, width = least_of(block_columns, columns - left), at = 0;
            const uint8_t *from = codes + r * stride + left;
            real *to = out + r * out_stride + left;
            float scale = scales[r / block_rows * grid + b];
            for (; at + CHUNK <= width; at += CHUNK) widen(from + at, CHUNK, scale, to + at);
            widen(from + at, width - at, scale, to + at);
        }
}
