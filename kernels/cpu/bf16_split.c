/* BF16 values to exponent pairs, escapes, and signs with mantissas; and back. Plain C: the compiler vectorizes.
 *
 * Of n values the first half (n + 1) / 2 has its distances below the base in the low bits of `pairs`, the
 * second half in the high bits. A distance of 15 is an escape: its exponent is in `escapes`, in order. Values
 * [row * columns, (row + 1) * columns) have the base bases[row].
 */
#include <stddef.h>
#include <stdint.h>

enum { ESCAPE = 15, CHUNK = 64 };

static inline uint8_t distance_of(uint16_t value, uint8_t base) {
    uint8_t d = (uint8_t)(base - (uint8_t)(value >> 7)); /* modulo 256 */
    return d < ESCAPE ? d : ESCAPE;
}

static inline uint16_t joined(uint8_t exponent, uint8_t rest) {
    return (uint16_t)((uint16_t)exponent << 7 | (rest & 0x7F) | (uint16_t)(rest & 0x80) << 8);
}

/* Inlined with a constant count for whole chunks, which the compiler turns into straight vector code. */
static inline __attribute__((always_inline)) size_t split_chunk(
    const uint16_t *restrict v, size_t count, uint8_t base, int high, uint8_t *restrict pairs,
    uint8_t *restrict rest, uint8_t *restrict escapes, size_t found) {
    uint8_t d[CHUNK], any = 0;
    for (size_t i = 0; i < count; i++) d[i] = distance_of(v[i], base);
    for (size_t i = 0; i < count; i++) rest[i] = (uint8_t)((v[i] & 0x7F) | (v[i] >> 8 & 0x80));
    for (size_t i = 0; i < count; i++) any |= d[i] == ESCAPE;
    if (high)
        for (size_t i = 0; i < count; i++) pairs[i] |= (uint8_t)(d[i] << 4);
    else
        for (size_t i = 0; i < count; i++) pairs[i] = d[i];
    if (any)
        for (size_t i = 0; i < count; i++)
            if (d[i] == ESCAPE) escapes[found++] = (uint8_t)(v[i] >> 7);
    return found;
}

static inline __attribute__((always_inline)) size_t join_chunk(
    const uint8_t *restrict pairs, const uint8_t *restrict rest, size_t count, uint8_t base, int high,
    const uint8_t *restrict escapes, size_t known, size_t found, uint16_t *restrict out) {
    uint8_t d[CHUNK], any = 0;
    for (size_t i = 0; i < count; i++) d[i] = high ? pairs[i] >> 4 : pairs[i] & 15;
    for (size_t i = 0; i < count; i++) any |= d[i] == ESCAPE;
    for (size_t i = 0; i < count; i++) out[i] = joined((uint8_t)(base - d[i]), rest[i]);
    if (any)
        for (size_t i = 0; i < count; i++)
            if (d[i] == ESCAPE) {
                if (found < known) out[i] = joined(escapes[found], rest[i]);
                found++;
            }
    return found;
}

/* A run of values that share a base and a half. Returns the number of escapes up to its end. */
static size_t split_run(const uint16_t *v, size_t n, uint8_t base, int high, uint8_t *pairs, uint8_t *rest,
                        uint8_t *escapes, size_t found) {
    size_t at = 0;
    for (; at + CHUNK <= n; at += CHUNK)
        found = split_chunk(v + at, CHUNK, base, high, pairs + at, rest + at, escapes, found);
    return split_chunk(v + at, n - at, base, high, pairs + at, rest + at, escapes, found);
}

static size_t join_run(const uint8_t *pairs, const uint8_t *rest, size_t n, uint8_t base, int high,
                       const uint8_t *escapes, size_t known, size_t found, uint16_t *out) {
    size_t at = 0;
    for (; at + CHUNK <= n; at += CHUNK)
        found = join_chunk(pairs + at, rest + at, CHUNK, base, high, escapes, known, found, out + at);
    return join_chunk(pairs + at, rest + at, n - at, base, high, escapes, known, found, out + at);
}

/* How many nibbles of `pairs` are escapes. */
size_t bf16_count_escapes(const uint8_t *pairs, size_t n) {
    size_t found = 0;
    for (size_t at = 0; at < n; at += CHUNK) {
        size_t count = n - at < CHUNK ? n - at : CHUNK;
        uint8_t here = 0; /* at most 2 CHUNK */
        for (size_t i = 0; i < count; i++)
            here = (uint8_t)(here + ((pairs[at + i] & 15) == ESCAPE) + (pairs[at + i] >> 4 == ESCAPE));
        found += here;
    }
    return found;
}

/* `escapes` has room for n. Returns how many there are. */
size_t bf16_split(const uint16_t *v, size_t n, const uint8_t *bases, size_t columns, uint8_t *pairs,
                  uint8_t *rest, uint8_t *escapes) {
    size_t half = (n + 1) / 2, found = 0;
    for (size_t at = 0, end; at < n; at = end) {
        size_t row_end = (at / columns + 1) * columns;
        int high = at >= half;
        end = high || row_end < half ? row_end : half;
        if (end > n) end = n;
        found = split_run(v + at, end - at, bases[at / columns], high, pairs + (high ? at - half : at),
                          rest + at, escapes, found);
    }
    return found;
}

/* Reads at most `known` escapes. Returns how many the pairs ask for: other than `known` they are damaged. */
size_t bf16_join(const uint8_t *pairs, const uint8_t *rest, const uint8_t *escapes, size_t known, size_t n,
                 const uint8_t *bases, size_t columns, uint16_t *out) {
    size_t half = (n + 1) / 2, found = 0;
    for (size_t at = 0, end; at < n; at = end) {
        size_t row_end = (at / columns + 1) * columns;
        int high = at >= half;
        end = high || row_end < half ? row_end : half;
        if (end > n) end = n;
        found = join_run(pairs + (high ? at - half : at), rest + at, end - at, bases[at / columns], high,
                         escapes, known, found, out + at);
    }
    return found;
}
