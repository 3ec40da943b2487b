"""C99 of steps without weights: pooling, sums, products, changes of scale, limits, tables, values side by side."""

from __future__ import annotations

from string import Template

from rlx.backends.cortex_m.c_arithmetic import C_LIMITS, C_TYPES

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

_LOOKUP = Template("""\
static void lookup_$y(const $type *table, uint32_t n, const int8_t *x, $type *y)
{
    uint32_t i;

    for (i = 0; i < n; i++) {
        y[i] = table[x[i] + 128];
    }
}
""")

JOIN_PARAMETERS = """\
struct join {
    uint32_t rows, n, width;                 /* n codes of each row of a result that is `width` wide */
    int32_t x_zero, zero, low, high, m0, shift;
};
"""

_JOIN = Template("""\
static void join_${name}(const struct join *p, const $x_type *x, $y_type *y)
{
    uint32_t r, i;

    for (r = 0; r < p->rows; r++) {
        for (i = 0; i < p->n; i++) {
            y[i] = ($y_type)code(*x++ - p->x_zero, p->m0, p->shift, p->zero, p->low, p->high);
        }
        y += p->width;
    }
}
""")

_COPY = Template("""\
static void copy_$x(uint32_t n, const $type *x, $type *y)
{
    uint32_t i;

    for (i = 0; i < n; i++) {
        y[i] = x[i];
    }
}
""")

INTERPOLATE = """\
static void interpolate(const int16_t *table, uint32_t n, const int16_t *x, int16_t *y)
{
    uint32_t i;

    for (i = 0; i < n; i++) {
        y[i] = (int16_t)interpolated(table, x[i]);
    }
}
"""


def max_pool(x: str) -> str:
    parts = {"start": C_LIMITS[x][0], "join": "joined = seen > joined ? seen : joined;", "finish": "joined"}
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
    return _RESCALE.substitute(name=f"{x}_{y}", x_type=C_TYPES[x], y_type=C_TYPES[y])


def join(x: str, y: str) -> str:
    return _JOIN.substitute(name=f"{x}_{y}", x_type=C_TYPES[x], y_type=C_TYPES[y])


def copy(x: str) -> str:
    return _COPY.substitute(x=x, type=C_TYPES[x])


def clamp(x: str) -> str:
    return _CLAMP.substitute(x=x, type=C_TYPES[x])


def lookup(y: str) -> str:
    return _LOOKUP.substitute(y=y, type=C_TYPES[y])


def argmax(x: str) -> str:
    return _ARGMAX.substitute(x=x, type=C_TYPES[x])
