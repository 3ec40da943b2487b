"""C99 of products with weights: dense layers, convolutions, depthwise ones.

Cores with instructions for pairs of 16-bit products (M4, M7, M33, M55) use them for 8-bit codes, four output channels
at a time; `RLX_PLAIN` leaves them out, and all other cores run the plain loops.
"""

from __future__ import annotations

from string import Template

from rlx.backends.cortex_m.c_arithmetic import C_TYPES

# The sum of (x - x_zero) * w over `n` neighbours; weights start at element `at`.
_DOT = Template("""\
static int32_t $name(const $type *x, int32_t x_zero, const uint8_t *weights, uint32_t at, uint32_t n, int32_t acc)
{
$body    return acc;
}
""")

_BYTES = Template("""\
    const int8_t *w = (const int8_t *)weights + at;
$fast    while (n > 0u) {
        acc += (*x++ - x_zero) * *w++;
        n--;
    }
""")

# Several codes per byte, the first in the lowest bits.
_PARTS_OF_BYTES = Template("""\
    while (n > 0u) {
        int32_t w = (weights[at >> $lanes] >> ((at & ${last}u) << $bits)) & $mask;
        acc += (*x++ - x_zero) * (w > $largest ? w - $codes : w);
        at++;
        n--;
    }
""")
_PARTS = {
    4: {"lanes": 1, "last": 1, "bits": 2, "mask": 15, "largest": 7, "codes": 16},
    2: {"lanes": 2, "last": 3, "bits": 1, "mask": 3, "largest": 1, "codes": 4},
}

_FAST = """\
#if defined(RLX_FAST)
    /* Four products at a time: bytes become pairs of 16 bits, the zero point taken off on the way. */
    uint32_t zero = (uint32_t)-x_zero & 0xffffu;
    int16x2_t minus = (int16x2_t)(zero | zero << 16);

    while (n >= 4u) {
        uint32_t a, b;
        /* One load each, aligned or not. */
        __builtin_memcpy(&a, x, 4);
        __builtin_memcpy(&b, w, 4);
        acc = __smlad(__sxtab16(minus, (int8x4_t)a), __sxtb16((int8x4_t)b), acc);
        a = a >> 8 | a << 24;
        b = b >> 8 | b << 24;
        acc = __smlad(__sxtab16(minus, (int8x4_t)a), __sxtb16((int8x4_t)b), acc);
        x += 4;
        w += 4;
        n -= 4u;
    }
#endif
"""

# The same for four rows of weights at once, `apart` elements from each other, and zero point 0: x is loaded and widened
# once for all. One statement of assembly, because compilers run out of registers: there are 14, and this takes 13.
_DOTS = """\
#if defined(RLX_HELIUM)
static void dots_i8(const int8_t *x, const uint8_t *weights, uint32_t at, uint32_t apart, uint32_t n, int32_t *sums)
{
    const int8_t *w = (const int8_t *)weights + at;
    int32_t s0 = sums[0], s1 = sums[1], s2 = sums[2], s3 = sums[3], rest = (int32_t)n;

    while (rest > 0) {
        mve_pred16_t some = vctp8q((uint32_t)rest);
        int8x16_t a = vldrbq_z_s8(x, some);

        s0 = vmladavaq_p_s8(s0, a, vldrbq_z_s8(w, some), some);
        s1 = vmladavaq_p_s8(s1, a, vldrbq_z_s8(w + apart, some), some);
        s2 = vmladavaq_p_s8(s2, a, vldrbq_z_s8(w + 2u * apart, some), some);
        s3 = vmladavaq_p_s8(s3, a, vldrbq_z_s8(w + 3u * apart, some), some);
        x += 16;
        w += 16;
        rest -= 16;
    }
    sums[0] = s0;
    sums[1] = s1;
    sums[2] = s2;
    sums[3] = s3;
}
#elif defined(RLX_FAST)
#define ROW(sum) "sxtb16 %[half], %[w]; smlad " sum ", %[even], %[half], " sum "; sxtb16 %[w], %[w], ror #8; " \
    "smlad " sum ", %[odd], %[w], " sum "\\n\\t"

/* Inside of another function there would be no registers for it. */
__attribute__((noinline)) static void dots_i8(
    const int8_t *x, const uint8_t *weights, uint32_t at, uint32_t apart, uint32_t n, int32_t *sums)
{
    const int8_t *w0 = (const int8_t *)weights + at, *w2 = w0 + 2u * apart;
    const int8_t *end = x + (n & ~3u);
    int32_t s0 = sums[0], s1 = sums[1], s2 = sums[2], s3 = sums[3];

    if (x != end) {
        uint32_t even, odd, half, w;
        __asm__ volatile(
            "1: ldr %[odd], [%[x]], #4; sxtb16 %[even], %[odd]; sxtb16 %[odd], %[odd], ror #8\\n\\t"
            "ldr %[w], [%[w0], %[apart]]\\n\\t" ROW("%[s1]")
            "ldr %[w], [%[w0]], #4\\n\\t" ROW("%[s0]")
            "ldr %[w], [%[w2], %[apart]]\\n\\t" ROW("%[s3]")
            "ldr %[w], [%[w2]], #4\\n\\t" ROW("%[s2]")
            "cmp %[x], %[end]; bne 1b"
            : [x] "+r"(x), [w0] "+r"(w0), [w2] "+r"(w2), [s0] "+r"(s0), [s1] "+r"(s1), [s2] "+r"(s2), [s3] "+r"(s3),
              [even] "=&r"(even), [odd] "=&r"(odd), [half] "=&r"(half), [w] "=&r"(w)
            : [apart] "r"(apart), [end] "r"(end)
            : "cc", "memory");
    }
    for (n &= 3u; n > 0u; n--) {
        int32_t a = *x++;
        s1 += a * w0[apart];
        s0 += a * *w0++;
        s3 += a * w2[apart];
        s2 += a * *w2++;
    }
    sums[0] = s0;
    sums[1] = s1;
    sums[2] = s2;
    sums[3] = s3;
}
#endif
"""

# All outputs of one window, four at a time.
_ROW = Template("""\
#if defined(RLX_FAST)
static void row_$y(const int8_t *x, const uint8_t *weights, uint32_t taps, uint32_t outputs, const int32_t *bias,
    const int32_t *m0, const int32_t *shift, int32_t zero, int32_t low, int32_t high, $y_type *y)
{
    for (; outputs > 0u; outputs -= 4u) {
        int32_t sums[4];
        sums[0] = bias[0];
        sums[1] = bias[1];
        sums[2] = bias[2];
        sums[3] = bias[3];
        dots_i8(x, weights, 0u, taps, taps, sums);
        y[0] = ($y_type)small_code(sums[0], m0[0], shift[0], zero, low, high);
        y[1] = ($y_type)small_code(sums[1], m0[1], shift[1], zero, low, high);
        y[2] = ($y_type)small_code(sums[2], m0[2], shift[2], zero, low, high);
        y[3] = ($y_type)small_code(sums[3], m0[3], shift[3], zero, low, high);
        weights += 4u * taps;
        bias += 4;
        m0 += 4;
        shift += 4;
        y += 4;
    }
}
#endif
""")

DENSE_PARAMETERS = """\
struct dense {
    const uint8_t *weights;
    const int32_t *bias, *m0, *shift;
    uint32_t inputs, outputs;
    int32_t x_zero, zero, low, high;
};
"""

_DENSE = Template("""\
static void dense_${name}(const struct dense *p, const $x_type *x, $y_type *y)
{
    uint32_t o = 0;

$four    for (; o < p->outputs; o++) {
        int32_t acc = $dot(x, p->x_zero, p->weights, o * p->inputs, p->inputs, p->bias[o]);
        y[o] = ($y_type)code(acc, p->m0[o], p->shift[o], p->zero, p->low, p->high);
    }
}
""")

CONV_PARAMETERS = """\
struct conv {
    const uint8_t *weights;
    const int32_t *bias, *m0, *shift;
    int32_t height, width, inputs;           /* of the image */
    int32_t out_height, out_width, outputs;
    int32_t kernel_height, kernel_width, group_inputs, group_outputs;
    int32_t stride_y, stride_x, dilation_y, dilation_x, top, left;
    int32_t x_zero, zero, low, high;
};
"""

_CONV = Template("""\
static void conv_${name}(const struct conv *p, const $x_type *x, $y_type *y)
{
    int32_t i, j, o, a, b;
    /* Neighbours in a row of the kernel are neighbours in the image, unless channels or columns are skipped. */
    int32_t whole_rows = p->dilation_x == 1 && p->group_inputs == p->inputs;

    for (i = 0; i < p->out_height; i++) {
        for (j = 0; j < p->out_width; j++) {
            int32_t column = j * p->stride_x - p->left;
            int32_t first = column < 0 ? -column : 0;
            int32_t end = p->width - column < p->kernel_width ? p->width - column : p->kernel_width;

$four            for (; o < p->outputs; o++) {
                int32_t acc = p->bias[o];
                int32_t channel = o / p->group_outputs * p->group_inputs;

                for (a = 0; a < p->kernel_height; a++) {
                    int32_t row = i * p->stride_y + a * p->dilation_y - p->top;
                    int32_t tap = (o * p->kernel_height + a) * p->kernel_width;

                    if (row < 0 || row >= p->height) {
                        continue;
                    }
                    if (whole_rows) {
                        if (first < end) {
                            acc = $dot(x + (row * p->width + column + first) * p->inputs, p->x_zero, p->weights,
                                (uint32_t)((tap + first) * p->inputs), (uint32_t)((end - first) * p->inputs), acc);
                        }
                        continue;
                    }
                    for (b = 0; b < p->kernel_width; b++) {
                        int32_t here = column + b * p->dilation_x;

                        if (here >= 0 && here < p->width) {
                            acc = $dot(x + (row * p->width + here) * p->inputs + channel, p->x_zero, p->weights,
                                (uint32_t)((tap + b) * p->group_inputs), (uint32_t)p->group_inputs, acc);
                        }
                    }
                }
                *y++ = ($y_type)code(acc, p->m0[o], p->shift[o], p->zero, p->low, p->high);
            }
        }
    }
}
""")

# One channel in, one channel out, without gaps between taps: what lies outside of the image is cut off the loops.
# Weights lie tap by tap, [kh, kw, channels], as the image does, so that four channels are one load.
_DEPTHWISE = Template("""\
static void depthwise_${name}(const struct conv *p, const $x_type *x, $y_type *y)
{
    int32_t i, j, o, a, b;
    const int8_t *weights = (const int8_t *)p->weights;

    for (i = 0; i < p->out_height; i++) {
        int32_t row = i * p->stride_y - p->top;
        int32_t top = row < 0 ? -row : 0;
        int32_t bottom = p->height - row < p->kernel_height ? p->height - row : p->kernel_height;

        for (j = 0; j < p->out_width; j++) {
            int32_t column = j * p->stride_x - p->left;
            int32_t first = column < 0 ? -column : 0;
            int32_t end = p->width - column < p->kernel_width ? p->width - column : p->kernel_width;

            o = 0;
$four            for (; o < p->outputs; o++) {
                int32_t acc = p->bias[o];

                for (a = top; a < bottom; a++) {
                    const $x_type *seen = x + ((row + a) * p->width + column + first) * p->inputs + o;
                    const int8_t *w = weights + (a * p->kernel_width + first) * p->inputs + o;

                    for (b = first; b < end; b++) {
                        acc += (*seen - p->x_zero) * *w;
                        seen += p->inputs;
                        w += p->inputs;
                    }
                }
                y[o] = ($y_type)code(acc, p->m0[o], p->shift[o], p->zero, p->low, p->high);
            }
            y += p->outputs;
        }
    }
}
""")

_FOUR_DEPTHWISE = Template("""\
#if defined(RLX_FAST)
            for (; p->x_zero == 0 && o < (p->outputs & ~3); o += 4) {
                int32_t sums[4];
                const int32_t *m0 = p->m0 + o, *shift = p->shift + o;
#if defined(RLX_HELIUM)
                int32x4_t acc = vldrwq_s32(p->bias + o);
#else
                int32_t s0 = p->bias[o], s1 = p->bias[o + 1], s2 = p->bias[o + 2], s3 = p->bias[o + 3];
#endif

                for (a = top; a < bottom; a++) {
                    const int8_t *seen = x + ((row + a) * p->width + column + first) * p->inputs + o;
                    const int8_t *w = weights + (a * p->kernel_width + first) * p->inputs + o;

                    for (b = first; b < end; b++) {
#if defined(RLX_HELIUM)
                        acc = vaddq_s32(acc, vmulq_s32(vldrbq_s32(seen), vldrbq_s32(w)));
#else
                        /* Bytes 0 and 2 of both, then 1 and 3, as halves of words. */
                        uint32_t four, taps, even, odd;
                        __builtin_memcpy(&four, seen, 4);
                        __builtin_memcpy(&taps, w, 4);
                        __asm__("sxtb16 %0, %1" : "=r"(even) : "r"(four));
                        __asm__("sxtb16 %0, %1" : "=r"(odd) : "r"(taps));
                        __asm__("smlabb %0, %1, %2, %0" : "+r"(s0) : "r"(even), "r"(odd));
                        __asm__("smlatt %0, %1, %2, %0" : "+r"(s2) : "r"(even), "r"(odd));
                        __asm__("sxtb16 %0, %1, ror #8" : "=r"(even) : "r"(four));
                        __asm__("sxtb16 %0, %1, ror #8" : "=r"(odd) : "r"(taps));
                        __asm__("smlabb %0, %1, %2, %0" : "+r"(s1) : "r"(even), "r"(odd));
                        __asm__("smlatt %0, %1, %2, %0" : "+r"(s3) : "r"(even), "r"(odd));
#endif
                        seen += p->inputs;
                        w += p->inputs;
                    }
                }
#if defined(RLX_HELIUM)
                vstrwq_s32(sums, acc);
#else
                sums[0] = s0;
                sums[1] = s1;
                sums[2] = s2;
                sums[3] = s3;
#endif
                y[o] = ($y_type)small_code(sums[0], m0[0], shift[0], p->zero, p->low, p->high);
                y[o + 1] = ($y_type)small_code(sums[1], m0[1], shift[1], p->zero, p->low, p->high);
                y[o + 2] = ($y_type)small_code(sums[2], m0[2], shift[2], p->zero, p->low, p->high);
                y[o + 3] = ($y_type)small_code(sums[3], m0[3], shift[3], p->zero, p->low, p->high);
            }
#endif
""")

_FOUR_DENSE = Template("""\
#if defined(RLX_FAST)
    if (p->x_zero == 0) {
        o = p->outputs & ~3u;
        row_$y(x, p->weights, p->inputs, o, p->bias, p->m0, p->shift, p->zero, p->low, p->high, y);
    }
#endif
""")

# Windows of few bytes are copied together once for all channels, zeros where the image ends.
_FOUR_CONV = Template("""\
#if defined(RLX_FAST)
            int32_t taps = p->kernel_height * p->kernel_width * p->inputs;
            int32_t is_small = taps <= 64 && p->kernel_height > 1 && p->group_inputs == p->inputs && p->x_zero == 0;
            int32_t is_point = taps == p->inputs && whole_rows && p->x_zero == 0;
            int32_t fours;
            int8_t patch[64];
            const int8_t *seen = patch;

            if (is_small) {
                int8_t *to = patch;
                for (a = 0; a < p->kernel_height; a++) {
                    int32_t row = i * p->stride_y + a * p->dilation_y - p->top;
                    for (b = 0; b < p->kernel_width; b++) {
                        int32_t here = column + b * p->dilation_x;
                        int32_t inside = row >= 0 && row < p->height && here >= 0 && here < p->width;
                        int32_t from = (row * p->width + here) * p->inputs;
                        int32_t k;
                        for (k = 0; k < p->inputs; k++) {
                            *to++ = inside ? x[from + k] : 0;
                        }
                    }
                }
            }
            if (is_point) {
                int32_t row = i * p->stride_y - p->top;
                is_point = row >= 0 && row < p->height && first < end;
                seen = is_point ? x + (row * p->width + column) * p->inputs : patch;
            }
            fours = is_small || (whole_rows && p->x_zero == 0) ? p->outputs & ~3 : 0;
            o = 0;
            if (is_small || is_point) {
                row_$y(seen, p->weights, (uint32_t)taps, (uint32_t)fours, p->bias, p->m0, p->shift, p->zero, p->low,
                    p->high, y);
                y += fours;
                o = fours;
            }
            for (; o < fours; o += 4) {
                int32_t sums[4];
                int32_t k;
                for (k = 0; k < 4; k++) {
                    sums[k] = p->bias[o + k];
                }
                for (a = 0; a < p->kernel_height && first < end; a++) {
                    int32_t row = i * p->stride_y + a * p->dilation_y - p->top;
                    int32_t tap = (o * p->kernel_height + a) * p->kernel_width;

                    if (row >= 0 && row < p->height) {
                        dots_i8(x + (row * p->width + column + first) * p->inputs, p->weights,
                            (uint32_t)((tap + first) * p->inputs), (uint32_t)taps,
                            (uint32_t)((end - first) * p->inputs), sums);
                    }
                }
                for (k = 0; k < 4; k++) {
                    *y++ = ($y_type)small_code(sums[k], p->m0[o + k], p->shift[o + k], p->zero, p->low, p->high);
                }
            }
#else
            o = 0;
#endif
""")


def dot_name(x: str, bits: int) -> str:
    return f"dot{'' if bits == 8 else bits}_{x}"


def dot(x: str, bits: int) -> str:
    fast = _FAST if (x, bits) == ("i8", 8) else ""
    body = _BYTES.substitute(fast=fast) if bits == 8 else _PARTS_OF_BYTES.substitute(_PARTS[bits])
    return _DOT.substitute(name=dot_name(x, bits), type=C_TYPES[x], body=body) + (f"\n{_DOTS}" if fast else "")


def _types(x: str, y: str) -> dict[str, str]:
    return {"x_type": C_TYPES[x], "y_type": C_TYPES[y]}


def row(y: str) -> str:
    """For codes i8, which dense layers and convolutions share."""
    return _ROW.substitute(y=y, y_type=C_TYPES[y])


def dense(x: str, y: str, bits: int) -> str:
    four = _FOUR_DENSE.substitute(y=y) if (x, bits) == ("i8", 8) else ""
    return _DENSE.substitute(name=f"{x}_{y}_w{bits}", dot=dot_name(x, bits), four=four, **_types(x, y))


def conv(x: str, y: str, bits: int) -> str:
    four = _FOUR_CONV.substitute(y=y, y_type=C_TYPES[y]) if (x, bits) == ("i8", 8) else "            o = 0;\n"
    return _CONV.substitute(name=f"{x}_{y}_w{bits}", dot=dot_name(x, bits), four=four, **_types(x, y))


def depthwise(x: str, y: str) -> str:
    """For 8-bit weights."""
    four = _FOUR_DEPTHWISE.substitute(_types(x, y)) if x == "i8" else ""
    return _DEPTHWISE.substitute(name=f"{x}_{y}_w8", four=four, **_types(x, y))
