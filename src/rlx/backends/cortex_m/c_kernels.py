"""C99 of the kernels that a program uses: one function per kind of step and types of its codes.

No function of a library is called. Cores with instructions for pairs of 16-bit products (M4, M7, M33, M55) use them for
8-bit codes, four output channels at a time; `RLX_PLAIN` leaves them out, and all other cores run the plain loops.
"""

from __future__ import annotations

from string import Template

COMMON = """\
static int32_t limited(int64_t x, int32_t low, int32_t high)
{
    return x < low ? low : x > high ? high : (int32_t)x;
}

/* x / 2^shift, rounded down; C leaves open what a shift of a negative number gives. */
static int32_t shifted(int32_t x, int32_t shift)
{
#if (-1 >> 1) == -1
    return x >> shift;
#else
    return x >= 0 ? x >> shift : ~(~x >> shift);
#endif
}

/* An i32 sum times m0 / 2^31 / 2^shift: the high half, ties upwards, then a shift, ties away from zero. m0 >= 0. */
static int32_t scaled(int32_t acc, int32_t m0, int32_t shift)
{
    uint64_t product;
    int32_t x;

    if (shift < 0) {
        acc = limited((int64_t)acc * ((int64_t)1 << -shift), INT32_MIN, INT32_MAX);
    }
    /* Rounded down: 2^63 more is never negative, and 2^32 too much after the shift, which 32 bits do not see. */
    product = (uint64_t)((int64_t)acc * m0 + ((int64_t)1 << 30)) + ((uint64_t)1 << 63);
    x = (int32_t)(uint32_t)(product >> 31);
    if (shift > 0) {
        int32_t mask = (int32_t)(((uint32_t)1 << shift) - 1u);
        int32_t rest = x & mask;
        x = shifted(x, shift) + (rest > (mask >> 1) + (x < 0));
    }
    return x;
}

static int32_t code(int32_t acc, int32_t m0, int32_t shift, int32_t zero, int32_t low, int32_t high)
{
    int32_t x = scaled(acc, m0, shift);

    /* Limits and zero points are codes, so that their differences fit; x + zero may not. */
    return x < low - zero ? low : x > high - zero ? high : x + zero;
}
"""

# The sum of (x - x_zero) * w over `n` neighbours; weights start at element `at`.
_DOT = {
    8: Template("""\
static int32_t dot_$x(const $type *x, int32_t x_zero, const uint8_t *weights, uint32_t at, uint32_t n, int32_t acc)
{
    const int8_t *w = (const int8_t *)weights + at;
$fast    while (n > 0u) {
        acc += (*x++ - x_zero) * *w++;
        n--;
    }
    return acc;
}
"""),
    4: Template("""\
static int32_t dot4_$x(const $type *x, int32_t x_zero, const uint8_t *weights, uint32_t at, uint32_t n, int32_t acc)
{
    while (n > 0u) {
        int32_t w = (weights[at >> 1] >> ((at & 1u) << 2)) & 15;
        acc += (*x++ - x_zero) * (w > 7 ? w - 16 : w);
        at++;
        n--;
    }
    return acc;
}
"""),
    2: Template("""\
static int32_t dot2_$x(const $type *x, int32_t x_zero, const uint8_t *weights, uint32_t at, uint32_t n, int32_t acc)
{
    while (n > 0u) {
        int32_t w = (weights[at >> 2] >> ((at & 3u) << 1)) & 3;
        acc += (*x++ - x_zero) * (w > 1 ? w - 4 : w);
        at++;
        n--;
    }
    return acc;
}
"""),
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
# once for all. Written in assembly, because compilers run out of registers: there are 14, and this takes 13.
_DOTS = """\
#if defined(RLX_FAST)
#define LOAD(to, from) __asm__("ldr %0, [%1], #4" : "=r"(to), "+r"(from) : : "memory")
#define LOAD_APART(to, from, apart) __asm__("ldr %0, [%1, %2]" : "=r"(to) : "r"(from), "r"(apart) : "memory")
#define EVEN(to, from) __asm__("sxtb16 %0, %1" : "=r"(to) : "r"(from))
#define ODD(to, from) __asm__("sxtb16 %0, %1, ror #8" : "=r"(to) : "r"(from))
#define ADD(sum, a, b) __asm__("smlad %0, %1, %2, %0" : "+r"(sum) : "r"(a), "r"(b))
#define ROW(sum, w) EVEN(half, w); ADD(sum, even, half); ODD(w, w); ADD(sum, odd, w)

static void dots_i8(const int8_t *x, const uint8_t *weights, uint32_t at, uint32_t apart, uint32_t n, int32_t *sums)
{
    const int8_t *w0 = (const int8_t *)weights + at, *w2 = w0 + 2u * apart;
    const int8_t *end = x + (n & ~3u);
    int32_t s0 = sums[0], s1 = sums[1], s2 = sums[2], s3 = sums[3];

    while (x != end) {
        uint32_t even, odd, half, w;
        LOAD(odd, x);
        EVEN(even, odd);
        ODD(odd, odd);
        LOAD_APART(w, w0, apart);
        ROW(s1, w);
        LOAD(w, w0);
        ROW(s0, w);
        LOAD_APART(w, w2, apart);
        ROW(s3, w);
        LOAD(w, w2);
        ROW(s2, w);
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
_DEPTHWISE = Template("""\
static void depthwise_${name}(const struct conv *p, const $x_type *x, $y_type *y)
{
    int32_t i, j, o, a, b;
#if defined(RLX_FAST)
    int32_t is_nine = p->kernel_height == 3 && p->kernel_width == 3 && p->x_zero == 0;
#endif

    for (i = 0; i < p->out_height; i++) {
        int32_t row = i * p->stride_y - p->top;
        int32_t top = row < 0 ? -row : 0;
        int32_t bottom = p->height - row < p->kernel_height ? p->height - row : p->kernel_height;

        for (j = 0; j < p->out_width; j++) {
            int32_t column = j * p->stride_x - p->left;
            int32_t first = column < 0 ? -column : 0;
            int32_t end = p->width - column < p->kernel_width ? p->width - column : p->kernel_width;

            for (o = 0; o < p->outputs; o++) {
                int32_t acc = p->bias[o];

$nine                for (a = top; a < bottom; a++) {
                    int32_t seen = ((row + a) * p->width + column + first) * p->inputs + o;
                    int32_t tap = (o * p->kernel_height + a) * p->kernel_width;

                    for (b = first; b < end; b++) {
                        acc += (x[seen] - p->x_zero) * $weight;
                        seen += p->inputs;
                    }
                }
                *y++ = ($y_type)code(acc, p->m0[o], p->shift[o], p->zero, p->low, p->high);
            }
        }
    }
}
""")

# The most usual window, where all of it lies inside of the image.
_NINE = Template("""\
#if defined(RLX_FAST)
                if (is_nine && top == 0 && bottom == 3 && first == 0 && end == 3) {
                    const $x_type *s = x + (row * p->width + column) * p->inputs + o;
                    const int8_t *w = (const int8_t *)p->weights + 9 * o;
                    int32_t c = p->inputs, line = p->width * p->inputs;

                    acc += s[0] * w[0] + s[c] * w[1] + s[2 * c] * w[2];
                    s += line;
                    acc += s[0] * w[3] + s[c] * w[4] + s[2 * c] * w[5];
                    s += line;
                    acc += s[0] * w[6] + s[c] * w[7] + s[2 * c] * w[8];
                    *y++ = ($y_type)code(acc, p->m0[o], p->shift[o], p->zero, p->low, p->high);
                    continue;
                }
#endif
""")

POOL_PARAMETERS = """\
struct pool {
    int32_t height, width, channels, out_height, out_width;
    int32_t kernel_height, kernel_width, stride_y, stride_x, top, left;
};
"""

_POOL = Template("""\
static void ${kind}_pool_${x}(const struct pool *p, const $type *x, $type *y)
{
    int32_t i, j, c, a, b;

    for (i = 0; i < p->out_height; i++) {
        for (j = 0; j < p->out_width; j++) {
            for (c = 0; c < p->channels; c++) {
                int32_t joined = $start;

                for (a = 0; a < p->kernel_height; a++) {
                    int32_t row = i * p->stride_y + a - p->top;

                    for (b = 0; b < p->kernel_width; b++) {
                        int32_t column = j * p->stride_x + b - p->left;

                        if (row >= 0 && row < p->height && column >= 0 && column < p->width) {
                            int32_t seen = x[(row * p->width + column) * p->channels + c];
                            $join
                        }
                    }
                }
                *y++ = ($type)($finish);
            }
        }
    }
}
""")

PAIR_PARAMETERS = """\
struct pair {
    uint32_t n;
    int32_t a_zero, b_zero, zero, low, high, headroom;
    int32_t m0[3], shift[3];
};
"""

_ADD = Template("""\
static void add_${name}(const struct pair *p, const $a_type *a, const $b_type *b, $y_type *y)
{
    uint32_t i;

    for (i = 0; i < p->n; i++) {
        int32_t left = scaled((a[i] - p->a_zero) * p->headroom, p->m0[0], p->shift[0]);
        int32_t right = scaled((b[i] - p->b_zero) * p->headroom, p->m0[1], p->shift[1]);
        y[i] = ($y_type)code(left + right, p->m0[2], p->shift[2], p->zero, p->low, p->high);
    }
}
""")

_MUL = Template("""\
static void mul_${name}(const struct pair *p, const $a_type *a, const $b_type *b, $y_type *y)
{
    uint32_t i;

    for (i = 0; i < p->n; i++) {
        int32_t product = (a[i] - p->a_zero) * (b[i] - p->b_zero);
        y[i] = ($y_type)code(product, p->m0[0], p->shift[0], p->zero, p->low, p->high);
    }
}
""")

_RESCALE = Template("""\
static void rescale_${name}(const struct pair *p, const $x_type *x, $y_type *y)
{
    uint32_t i;

    for (i = 0; i < p->n; i++) {
        y[i] = ($y_type)code(x[i] - p->a_zero, p->m0[0], p->shift[0], p->zero, p->low, p->high);
    }
}
""")

_CLAMP = Template("""\
static void clamp_$x(const struct pair *p, const $type *x, $type *y)
{
    uint32_t i;

    for (i = 0; i < p->n; i++) {
        y[i] = ($type)limited(x[i], p->low, p->high);
    }
}
""")

_ARGMAX = Template("""\
static void argmax_$x(uint32_t n, const $type *x, int32_t *y)
{
    uint32_t i, best = 0;

    for (i = 1; i < n; i++) {
        if (x[i] > x[best]) {
            best = i;
        }
    }
    *y = (int32_t)best;
}
""")

_FOUR_DENSE = Template("""\
#if defined(RLX_FAST)
    for (; p->x_zero == 0 && o + 4u <= p->outputs; o += 4u) {
        int32_t sums[4];
        uint32_t k;
        for (k = 0; k < 4u; k++) {
            sums[k] = p->bias[o + k];
        }
        dots_i8(x, p->weights, o * p->inputs, p->inputs, p->inputs, sums);
        for (k = 0; k < 4u; k++) {
            y[o + k] = ($y_type)code(sums[k], p->m0[o + k], p->shift[o + k], p->zero, p->low, p->high);
        }
    }
#endif
""")

# Windows of few bytes are copied together once for all channels, zeros where the image ends.
_FOUR_CONV = Template("""\
#if defined(RLX_FAST)
            int32_t taps = p->kernel_height * p->kernel_width * p->inputs;
            int32_t is_small = taps <= 64 && p->kernel_height > 1 && p->group_inputs == p->inputs && p->x_zero == 0;
            int8_t patch[64];

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
            for (o = 0; (is_small || (whole_rows && p->x_zero == 0)) && o + 4 <= p->outputs; o += 4) {
                int32_t sums[4];
                int32_t k;
                for (k = 0; k < 4; k++) {
                    sums[k] = p->bias[o + k];
                }
                if (is_small) {
                    dots_i8(patch, p->weights, (uint32_t)(o * taps), (uint32_t)taps, (uint32_t)taps, sums);
                }
                for (a = 0; !is_small && a < p->kernel_height && first < end; a++) {
                    int32_t row = i * p->stride_y + a * p->dilation_y - p->top;
                    int32_t tap = (o * p->kernel_height + a) * p->kernel_width;

                    if (row >= 0 && row < p->height) {
                        dots_i8(x + (row * p->width + column + first) * p->inputs, p->weights,
                            (uint32_t)((tap + first) * p->inputs), (uint32_t)taps,
                            (uint32_t)((end - first) * p->inputs), sums);
                    }
                }
                for (k = 0; k < 4; k++) {
                    *y++ = ($y_type)code(sums[k], p->m0[o + k], p->shift[o + k], p->zero, p->low, p->high);
                }
            }
#else
            o = 0;
#endif
""")

_LOOKUP = Template("""\
static void lookup_$y(const $type *table, uint32_t n, const int8_t *x, $type *y)
{
    uint32_t i;

    for (i = 0; i < n; i++) {
        y[i] = table[x[i] + 128];
    }
}
""")

SOFTMAX = """\
/* Shares of 256 from exponentials in a table; a row is read before it is overwritten. */
static void softmax_i8(const int32_t *table, uint32_t rows, uint32_t n, const int8_t *x, int8_t *y)
{
    uint32_t r, i;

    for (r = 0; r < rows; r++) {
        int32_t largest = x[0], total = 0;

        for (i = 1; i < n; i++) {
            largest = x[i] > largest ? x[i] : largest;
        }
        for (i = 0; i < n; i++) {
            total += table[largest - x[i]];
        }
        for (i = 0; i < n; i++) {
            int32_t share = (256 * table[largest - x[i]] + total / 2) / total - 128;
            y[i] = (int8_t)(share > 127 ? 127 : share);
        }
        x += n;
        y += n;
    }
}
"""

C_TYPES = {"i8": "int8_t", "i16": "int16_t", "i32": "int32_t"}


def dot_name(x: str, bits: int) -> str:
    return f"dot{'' if bits == 8 else bits}_{x}"


def dot(x: str, bits: int) -> str:
    fast = _FAST if (x, bits) == ("i8", 8) else ""
    return _DOT[bits].substitute(x=x, type=C_TYPES[x], fast=fast) + (f"\n{_DOTS}" if fast else "")


def _types(x: str, y: str) -> dict[str, str]:
    return {"x": x, "y": y, "x_type": C_TYPES[x], "y_type": C_TYPES[y]}


def dense(x: str, y: str, bits: int) -> str:
    four = _FOUR_DENSE.substitute(y_type=C_TYPES[y]) if (x, bits) == ("i8", 8) else ""
    return _DENSE.substitute(name=f"{x}_{y}_w{bits}", dot=dot_name(x, bits), four=four, **_types(x, y))


def conv(x: str, y: str, bits: int) -> str:
    four = _FOUR_CONV.substitute(y_type=C_TYPES[y]) if (x, bits) == ("i8", 8) else "            o = 0;\n"
    return _CONV.substitute(name=f"{x}_{y}_w{bits}", dot=dot_name(x, bits), four=four, **_types(x, y))


def depthwise(x: str, y: str) -> str:
    """For 8-bit weights."""
    weight = "((const int8_t *)p->weights)[tap + b]"
    return _DEPTHWISE.substitute(name=f"{x}_{y}_w8", weight=weight, nine=_NINE.substitute(_types(x, y)), **_types(x, y))


def max_pool(x: str) -> str:
    lowest = {"i8": "INT8_MIN", "i16": "INT16_MIN"}[x]
    parts = {"start": lowest, "join": "joined = seen > joined ? seen : joined;", "finish": "joined"}
    return _POOL.substitute(kind="max", x=x, type=C_TYPES[x], **parts)


def mean_pool(x: str) -> str:
    count = "(p->kernel_height * p->kernel_width)"
    finish = f"(joined >= 0 ? joined + {count} / 2 : joined - {count} / 2) / {count}"
    return _POOL.substitute(kind="mean", x=x, type=C_TYPES[x], start="0", join="joined += seen;", finish=finish)


def add(a: str, b: str, y: str) -> str:
    return _ADD.substitute(name=f"{a}_{b}_{y}", a_type=C_TYPES[a], b_type=C_TYPES[b], y_type=C_TYPES[y])


def mul(a: str, b: str, y: str) -> str:
    return _MUL.substitute(name=f"{a}_{b}_{y}", a_type=C_TYPES[a], b_type=C_TYPES[b], y_type=C_TYPES[y])


def rescale(x: str, y: str) -> str:
    return _RESCALE.substitute(name=f"{x}_{y}", **_types(x, y))


def clamp(x: str) -> str:
    return _CLAMP.substitute(x=x, type=C_TYPES[x])


def lookup(y: str) -> str:
    return _LOOKUP.substitute(y=y, type=C_TYPES[y])


def argmax(x: str) -> str:
    return _ARGMAX.substitute(x=x, type=C_TYPES[x])
