"""C99 of steps over rows and sequences: softmax, layer norm, attention, GRU, LSTM.

Attention and the recurrent ones need some bytes beside their values; `scratch_bytes` says how many, and the plan of the
arena has a place for them.
"""

from __future__ import annotations

from string import Template

from rlx.backends.cortex_m.c_arithmetic import C_TYPES
from rlx.backends.cortex_m.c_products import dot_name
from rlx.quantized import Attention, Gru, Lstm
from rlx.quantized.steps import Step

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

LAYER_NORM_PARAMETERS = """\
struct layer_norm {
    const int16_t *gamma;
    const int32_t *beta;
    uint64_t epsilon;
    uint32_t rows;
    int32_t n, places, m0, shift, zero, low, high;
};
"""

WHOLE_ROOT = """\
/* The root of a number below 2^62, rounded down, one bit after the other. */
static uint32_t whole_root(uint64_t x)
{
    uint64_t root = 0, bit = (uint64_t)1 << 60;

    for (; bit > 0u; bit >>= 2) {
        uint64_t tried = root + bit;
        root >>= 1;
        if (x >= tried) {
            x -= tried;
            root += bit;
        }
    }
    return (uint32_t)root;
}
"""

_LAYER_NORM = Template("""\
static void layer_norm_${name}(const struct layer_norm *p, const $x_type *x, $y_type *y)
{
    uint32_t r;

    for (r = 0; r < p->rows; r++) {
        int32_t i, sum = 0, k = 0, shift;
        uint64_t squares = p->epsilon, reciprocal;

        for (i = 0; i < p->n; i++) {
            sum += x[i];
        }
        for (i = 0; i < p->n; i++) {
            int64_t centred = p->n * x[i] - sum;
            squares += (uint64_t)(centred * centred);
        }
        squares /= (uint32_t)p->n;
        squares = squares > 0u ? squares : 1u;
        for (; squares < (uint64_t)1 << 60; k++) {
            squares <<= 2;
        }
        reciprocal = ((uint64_t)1 << 61) / whole_root(squares);
        reciprocal = reciprocal > INT32_MAX ? INT32_MAX : reciprocal;
        shift = 61 - k - p->places;
        for (i = 0; i < p->n; i++) {
            int64_t number = (int64_t)(p->n * x[i] - sum) * (int64_t)reciprocal + ((int64_t)1 << (shift - 1));
            /* Rounded down: C leaves open what a shift of a negative number gives. */
            number = number >= 0 ? number >> shift : ~(~number >> shift);
            y[i] = ($y_type)code((int32_t)number * p->gamma[i] + p->beta[i], p->m0, p->shift, p->zero, p->low,
                p->high);
        }
        x += p->n;
        y += p->n;
    }
}
""")

ATTENTION_PARAMETERS = """\
struct attention {
    const int32_t *table;
    int32_t length, heads, group, head;      /* `group` heads of queries share one of keys and values, `head` wide */
    int32_t causal, q_zero, k_zero, v_zero;
    int32_t m0[2], shift[2];                 /* of the scores, and of the result */
    int32_t zero, low, high;
};
"""

_ATTENTION = Template("""\
static void attention_${name}(const struct attention *p, int32_t *scores, const int8_t *q, const int8_t *k,
    const $v_type *v, $y_type *y)
{
    int32_t i, h, j, c, wide = p->heads / p->group * p->head;

    for (i = 0; i < p->length; i++) {
        int32_t seen = p->causal ? i + 1 : p->length;

        for (h = 0; h < p->heads; h++) {
            int32_t shared = h / p->group * p->head, largest = INT32_MIN;
            uint32_t total = 0;

            for (j = 0; j < seen; j++) {
                const int8_t *key = k + j * wide + shared;
                int32_t score = 0;

                if (p->k_zero == 0) {
                    score = $dot(q, p->q_zero, (const uint8_t *)key, 0u, (uint32_t)p->head, 0);
                } else {
                    for (c = 0; c < p->head; c++) {
                        score += (q[c] - p->q_zero) * (key[c] - p->k_zero);
                    }
                }
                largest = score > largest ? score : largest;
                scores[j] = score;
            }
            for (j = 0; j < seen; j++) {
                int32_t away = scaled(largest - scores[j], p->m0[0], p->shift[0]);
                away = away > 4095 ? 4095 : away;
                scores[j] = (p->table[away & 255] * p->table[256 + (away >> 8)] + 16384) >> 15;
                total += (uint32_t)scores[j];
            }
            for (j = 0; j < seen; j++) {
                scores[j] = (int32_t)((((uint32_t)scores[j] << 14) + total / 2u) / total);
            }
            for (c = 0; c < p->head; c++) {
                const $v_type *value = v + shared + c;
                int32_t acc = 0;

                for (j = 0; j < seen; j++) {
                    acc += scores[j] * (*value - p->v_zero);
                    value += wide;
                }
                *y++ = ($y_type)code(acc, p->m0[1], p->shift[1], p->zero, p->low, p->high);
            }
            q += p->head;
        }
    }
}
""")

RECURRENT_PARAMETERS = """\
struct recurrent {
    const uint8_t *weights;
    const int32_t *bias, *m0, *shift;
    const int16_t *sigmoid, *tanh;
    int32_t length, size, reverse, last_only;
    int32_t out_m0, out_shift, zero, low, high;
};
"""

# What the state gives to a gate of one unit, and what gates become of it.
_GATE = Template("""\
static int32_t gate_w$bits(const struct recurrent *p, const int16_t *h, int32_t gate)
{
    int32_t acc = $dot(h, 0, p->weights, (uint32_t)(gate * p->size), (uint32_t)p->size, p->bias[gate]);
    return limited(scaled(acc, p->m0[gate], p->shift[gate]), INT16_MIN, INT16_MAX);
}
""")

_GRU = Template("""\
            int32_t r = interpolated(p->sigmoid, limited(row[u] + $gate(p, h, u), INT16_MIN, INT16_MAX));
            int32_t z = interpolated(p->sigmoid, limited(row[u + n] + $gate(p, h, u + n), INT16_MIN, INT16_MAX));
            int32_t part = shifted(r * $gate(p, h, u + 2 * n) + 16384, 15);
            int32_t new = interpolated(p->tanh, limited(row[u + 2 * n] + part, INT16_MIN, INT16_MAX));
            int32_t sum = shifted((32768 - z) * new + z * h[u] + 16384, 15);
            next[u] = (int16_t)limited(sum, INT16_MIN, INT16_MAX);
""")

_LSTM = Template("""\
            int32_t take = interpolated(p->sigmoid, limited(row[u] + $gate(p, h, u), INT16_MIN, INT16_MAX));
            int32_t keep = interpolated(p->sigmoid, limited(row[u + n] + $gate(p, h, u + n), INT16_MIN, INT16_MAX));
            int32_t new = interpolated(p->tanh, limited(row[u + 2 * n] + $gate(p, h, u + 2 * n), INT16_MIN, INT16_MAX));
            int32_t out = interpolated(p->sigmoid, limited(row[u + 3 * n] + $gate(p, h, u + 3 * n), INT16_MIN,
                INT16_MAX));
            int32_t sum = shifted(keep * cell[u] + shifted(take * new, 4) + 16384, 15);
            cell[u] = (int16_t)limited(sum, INT16_MIN, INT16_MAX);
            sum = interpolated(p->tanh, limited(2 * cell[u], INT16_MIN, INT16_MAX));
            next[u] = (int16_t)shifted(out * sum + 16384, 15);
""")

_RECURRENT = Template("""\
static void ${kind}_${name}(const struct recurrent *p, int16_t *h, const int16_t *x, $y_type *y)
{
    int32_t t, u, n = p->size;
    int16_t *next = h + n$cell;

    for (u = 0; u < $parts * n; u++) {
        h[u] = 0;
    }
    for (t = 0; t < p->length; t++) {
        int32_t place = p->reverse ? p->length - 1 - t : t;
        const int16_t *row = x + place * $gates * n;

        for (u = 0; u < n; u++) {
$body        }
        for (u = 0; u < n; u++) {
            h[u] = next[u];
            if (!p->last_only || t + 1 == p->length) {
                y[(p->last_only ? 0 : place * n) + u] = ($y_type)code(h[u], p->out_m0, p->out_shift, p->zero, p->low,
                    p->high);
            }
        }
    }
}
""")


def layer_norm(x: str, y: str) -> str:
    return _LAYER_NORM.substitute(name=f"{x}_{y}", x_type=C_TYPES[x], y_type=C_TYPES[y])


def attention(v: str, y: str) -> str:
    return _ATTENTION.substitute(name=f"{v}_{y}", v_type=C_TYPES[v], y_type=C_TYPES[y], dot=dot_name("i8", 8))


def gate(bits: int) -> str:
    return _GATE.substitute(bits=bits, dot=dot_name("i16", bits))


def recurrent(kind: type[Gru] | type[Lstm], y: str, bits: int) -> str:
    is_lstm = kind is Lstm
    body = (_LSTM if is_lstm else _GRU).substitute(gate=f"gate_w{bits}")
    return _RECURRENT.substitute(
        kind="lstm" if is_lstm else "gru",
        name=f"{y}_w{bits}",
        y_type=C_TYPES[y],
        cell=", *cell = h + 2 * n" if is_lstm else "",
        parts=1 + kind.carries,
        gates=kind.gates,
        body=body,
    )


def scratch_bytes(step: Step) -> int:
    """Bytes that a step needs while it runs: scores of one query; states, the next ones, and cells."""
    if isinstance(step, Attention):
        return 4 * step.out.dims[0]
    if isinstance(step, Gru | Lstm):
        return 2 * step.size * (1 + step.carries)
    return 0
