"""C99 that all kernels stand on: limits, shifts, and i32 sums times a multiplier. No function of a library is called.

Divisions of 64 bits, and all divisions on cores that have none, are the compiler's own (libgcc, compiler-rt).
"""

from __future__ import annotations

C_TYPES = {"i8": "int8_t", "i16": "int16_t", "i32": "int32_t"}
C_LIMITS = {"i8": ("INT8_MIN", "INT8_MAX"), "i16": ("INT16_MIN", "INT16_MAX")}

# What every output goes through is not worth a call.
INLINE = """\
#if defined(__GNUC__)
#define RLX_INLINE static inline __attribute__((always_inline))
#else
#define RLX_INLINE static
#endif
"""

# In the order in which they call each other; a program has those that it uses.
HELPERS = {
    "limited": """\
static int32_t limited(int64_t x, int32_t low, int32_t high)
{
    return x < low ? low : x > high ? high : (int32_t)x;
}
""",
    "shifted": """\
/* x / 2^shift, rounded down; C leaves open what a shift of a negative number gives. */
RLX_INLINE int32_t shifted(int32_t x, int32_t shift)
{
#if (-1 >> 1) == -1
    return x >> shift;
#else
    return x >= 0 ? x >> shift : ~(~x >> shift);
#endif
}
""",
    "grown": """\
static int32_t grown(int32_t acc, int32_t places)
{
    return limited((int64_t)acc * ((int64_t)1 << places), INT32_MIN, INT32_MAX);
}
""",
    "scaled": """\
/* An i32 sum times m0 / 2^31 / 2^shift: the high half, ties upwards, then a shift, ties away from zero. m0 >= 0. */
RLX_INLINE int32_t scaled(int32_t acc, int32_t m0, int32_t shift)
{
    int32_t x;

    if (shift < 0) {
        acc = grown(acc, -shift);
    }
    /* Bits 31 to 62, whatever the sign. They are never the largest number, nor the lowest, as m0 is below 2^31. */
    x = (int32_t)(uint32_t)((uint64_t)((int64_t)acc * m0 + ((int64_t)1 << 30)) >> 31);
    if (shift > 0) {
        x = shifted(shifted(x - (x < 0), shift - 1) + 1, 1);
    }
    return x;
}
""",
    "code": """\
RLX_INLINE int32_t code(int32_t acc, int32_t m0, int32_t shift, int32_t zero, int32_t low, int32_t high)
{
    int32_t x = scaled(acc, m0, shift);

    /* Limits and zero points are codes, so that their differences fit; x + zero may not. */
    return x < low - zero ? low : x > high - zero ? high : x + zero;
}
""",
    "small_code": """\
#if defined(RLX_FAST) && defined(RLX_SMALL_SUMS)
/* The same for sums below 2^30 and shifts of at least 1: one instruction has the high half of twice the product. */
RLX_INLINE int32_t small_code(int32_t acc, int32_t m0, int32_t shift, int32_t zero, int32_t low, int32_t high)
{
    int32_t x;

    __asm__("smmulr %0, %1, %2" : "=r"(x) : "r"(acc * 2), "r"(m0));
    x = shifted(shifted(x - (x < 0), shift - 1) + 1, 1) + zero;
    return x < low ? low : x > high ? high : x;
}
#else
#define small_code code
#endif
""",
    "interpolated": """\
/* What lies between two entries of a table of every 256th code. */
static int32_t interpolated(const int16_t *table, int32_t at)
{
    uint32_t place = (uint32_t)(at + 32768);
    int32_t left = table[place >> 8], right = table[(place >> 8) + 1u];

    return left + shifted((right - left) * (int32_t)(place & 255u) + 128, 8);
}
""",
}


def helpers_for(text: str) -> str:
    """The functions that a text of kernels calls, and those that they call."""
    needed: list[str] = []
    for name in reversed(HELPERS):
        if f"{name}(" in text:
            needed.insert(0, HELPERS[name])
            text += HELPERS[name]
    if any("RLX_INLINE" in text for text in needed):
        needed.insert(0, INLINE)
    return "\n".join(needed)
