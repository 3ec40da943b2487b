"""The steps of integer programs once more, in plain Python integers and loops, from the rules alone."""

import math

I32_LOW, I32_HIGH = -(2**31), 2**31 - 1


def srdhm(a, b, bits):
    product = a * b
    nudged = product + (2 ** (bits - 1) if product >= 0 else 1 - 2 ** (bits - 1))
    quotient = abs(nudged) // 2**bits
    return min(max(quotient if nudged >= 0 else -quotient, I32_LOW), I32_HIGH)


def rdpot(x, shift):
    if shift == 0:
        return x
    mask = 2**shift - 1
    return (x >> shift) + ((x & mask) > (mask >> 1) + (x < 0))


def times(acc, m0, shift, bits):
    """An i32 sum times a multiplier."""
    assert I32_LOW <= acc <= I32_HIGH, "the program promised that sums fit"
    if shift < 0:
        acc = min(max(acc * 2**-shift, I32_LOW), I32_HIGH)
    return rdpot(srdhm(acc, m0, bits), max(shift, 0))


def limited(x, low, high):
    return min(max(x, low), high)


def requantized(step, acc, channel):
    tables = step.multipliers
    code = times(acc, int(tables.m0[channel]), int(tables.shift[channel]), tables.fraction_bits) + step.out.zero_point
    return limited(code, step.low, step.high)


def dense(step, x, image):
    row = [int(v) - x.zero_point for v in image.reshape(-1)]
    weights, bias = step.weights.codes.tolist(), step.bias.tolist()
    return [
        requantized(step, b + sum(w * v for w, v in zip(ws, row)), o) for o, (ws, b) in enumerate(zip(weights, bias))
    ]


def conv2d(step, x, image):
    height, width, _ = x.dims
    out_h, out_w, channels = step.out.dims
    kh, kw = step.kernel
    (top, _), (left, _) = step.padding
    image, weights, bias = image.tolist(), step.weights.codes.tolist(), step.bias.tolist()
    inside, per_group = len(weights[0][0][0]), channels // step.groups
    result = []
    for i in range(out_h):
        for j in range(out_w):
            for o in range(channels):
                acc = bias[o]
                for a in range(kh):
                    row = i * step.stride[0] + a * step.dilation[0] - top
                    for b in range(kw):
                        column = j * step.stride[1] + b * step.dilation[1] - left
                        if 0 <= row < height and 0 <= column < width:
                            first = o // per_group * inside
                            for c in range(inside):
                                acc += (image[row][column][first + c] - x.zero_point) * weights[o][a][b][c]
                result.append(requantized(step, acc, o))
    return result


def pool(step, x, image, join):
    height, width, channels = x.dims
    out_h, out_w, _ = step.out.dims
    (top, _), (left, _) = step.padding
    image, result = image.tolist(), []
    for i in range(out_h):
        for j in range(out_w):
            rows = [r for a in range(step.kernel[0]) if 0 <= (r := i * step.stride[0] + a - top) < height]
            columns = [c for b in range(step.kernel[1]) if 0 <= (c := j * step.stride[1] + b - left) < width]
            result += [join([image[r][c][k] for r in rows for c in columns]) for k in range(channels)]
    return result


def max_pool(step, x, image):
    return pool(step, x, image, max)


def mean_pool(step, x, image):
    def mean(codes):
        total, count = sum(codes), len(codes)
        rounded = (2 * abs(total) + count) // (2 * count)
        return rounded if total >= 0 else -rounded

    return pool(step, x, image, mean)


def add(step, a, b, left, right):
    headroom = 20 if a.dtype.size_bytes == b.dtype.size_bytes == 1 else 14
    (m0, shift), bits = (
        (t.tolist() for t in (step.multipliers.m0, step.multipliers.shift)),
        step.multipliers.fraction_bits,
    )
    result = []
    for p, q in zip(left.reshape(-1).tolist(), right.reshape(-1).tolist()):
        parts = [
            times((v - z) * 2**headroom, m0[i], shift[i], bits)
            for i, (v, z) in enumerate([(p, a.zero_point), (q, b.zero_point)])
        ]
        code = times(sum(parts), m0[2], shift[2], bits) + step.out.zero_point
        result.append(limited(code, step.low, step.high))
    return result


def mul(step, a, b, left, right):
    pairs = zip(left.reshape(-1).tolist(), right.reshape(-1).tolist())
    return [requantized(step, (p - a.zero_point) * (q - b.zero_point), 0) for p, q in pairs]


def rescale(step, x, codes):
    return [requantized(step, v - x.zero_point, 0) for v in codes.reshape(-1).tolist()]


def clamp(step, x, codes):
    return [limited(v, step.low, step.high) for v in codes.reshape(-1).tolist()]


def lookup(step, x, codes):
    table = step.table.tolist()
    return [table[v + 128] for v in codes.reshape(-1).tolist()]


def softmax(step, x, codes):
    table, result = step.table.tolist(), []
    for row in codes.reshape(-1, x.dims[-1]).tolist():
        powers = [table[max(row) - v] for v in row]
        total = sum(powers)
        result += [min((256 * p + total // 2) // total - 128, 127) for p in powers]
    return result


def argmax(step, x, codes):
    values = codes.reshape(-1).tolist()
    return [values.index(max(values))]


def rows(step, x, codes):
    return [v for row in codes.tolist()[step.start :][: step.out.dims[0]] for line in row for v in line]


def interpolated(table, code):
    place = code + 32768
    left, right = table[place // 256], table[place // 256 + 1]
    return left + ((right - left) * (place % 256) + 128) // 256


def interpolate(step, x, codes):
    table = step.table.tolist()
    return [interpolated(table, v) for v in codes.reshape(-1).tolist()]


def addconstant(step, x, codes):
    constant = step.constant
    assert constant.zero_point == 0
    return add(step, x, constant, codes, step.codes)


def concat(step, *given):
    operands, codes = given[: len(given) // 2], given[len(given) // 2 :]
    rows = [c.reshape(-1, v.dims[-1]).tolist() for v, c in zip(operands, codes)]
    tables, info = step.multipliers, {1: (-128, 127), 2: (-32768, 32767)}[step.out.dtype.size_bytes]
    result = []
    for pieces in zip(*rows):
        for i, (v, piece) in enumerate(zip(operands, pieces)):
            m0, shift = int(tables.m0[i]), int(tables.shift[i])
            scaled = [times(c - v.zero_point, m0, shift, tables.fraction_bits) for c in piece]
            result += [limited(c + step.out.zero_point, *info) for c in scaled]
    return result


def layernorm(step, x, codes):
    n, result = x.dims[-1], []
    places = next(p for p in range(15, 0, -1) if n <= 4 ** (15 - p))
    for row in codes.reshape(-1, n).tolist():
        total = sum(row)
        centred = [n * v - total for v in row]
        w = max((sum(c * c for c in centred) + step.epsilon) // n, 1)
        k = 0
        while w * 4**k < 2**60:
            k += 1
        reciprocal = min(2**61 // math.isqrt(w * 4**k), 2**31 - 1)
        shift = 61 - k - places
        for c, gamma, beta in zip(centred, step.gamma.tolist(), step.beta.tolist()):
            number = (c * reciprocal + 2 ** (shift - 1)) // 2**shift
            result.append(requantized(step, number * gamma + beta, 0))
    return result


def attention(step, q, k, v, queries, keys, values):
    m0, shift, bits = step.multipliers.m0.tolist(), step.multipliers.shift.tolist(), step.multipliers.fraction_bits
    table = step.table.tolist()
    length, width = q.dims[0], q.dims[2] // step.heads
    queries, keys, values = (
        (c.reshape(length, -1).astype(object) - x.zero_point).tolist()
        for c, x in ((queries, q), (keys, k), (values, v))
    )
    result = []
    for i in range(length):
        for h in range(step.heads):
            first, shared = h * width, h // (step.heads // step.kv_heads) * width
            seen = range(i + 1 if step.causal else length)
            scores = [sum(queries[i][first + c] * keys[j][shared + c] for c in range(width)) for j in seen]
            powers = []
            for s in scores:
                d = min(times(max(scores) - s, m0[0], shift[0], bits), 4095)
                powers.append((table[d % 256] * table[256 + d // 256] + 2**14) // 2**15)
            total = sum(powers)
            shares = [(p * 2**14 + total // 2) // total for p in powers]
            for c in range(width):
                acc = sum(share * values[j][shared + c] for j, share in zip(seen, shares))
                result.append(requantized(step, acc, 1))
    return result


def recurrent(step, x, codes, gate_count, cell):
    size, length = step.size, x.dims[0]
    gates, weights, bias = codes.reshape(length, -1).tolist(), step.weights.codes.tolist(), step.bias.tolist()
    m0, shift, bits = step.multipliers.m0.tolist(), step.multipliers.shift.tolist(), step.multipliers.fraction_bits
    sigmoid, tanh = step.tables.tolist()
    h, kept, states = [0] * size, [0] * size, {}
    for t in reversed(range(length)) if step.reverse else range(length):
        seen = [
            limited(times(b + sum(w * v for w, v in zip(ws, h)), m0[o], shift[o], bits), -32768, 32767)
            for o, (ws, b) in enumerate(zip(weights, bias))
        ]
        pairs = [
            cell(
                [gates[t][g * size + u] for g in range(gate_count)],
                [seen[g * size + u] for g in range(gate_count)],
                h[u],
                kept[u],
                sigmoid,
                tanh,
            )
            for u in range(size)
        ]
        h, kept = [p[0] for p in pairs], [p[1] for p in pairs]
        states[t] = h
    shown = h if len(step.out.dims) == 1 else [v for t in range(length) for v in states[t]]
    tables = step.out_multiplier
    finished = [times(v, int(tables.m0[0]), int(tables.shift[0]), tables.fraction_bits) for v in shown]
    return [limited(v + step.out.zero_point, step.low, step.high) for v in finished]


def short(x):
    return limited(x, -32768, 32767)


def gru(step, x, codes):
    def cell(gates, seen, h, kept, sigmoid, tanh):
        r, z = (interpolated(sigmoid, short(gates[g] + seen[g])) for g in (0, 1))
        n = interpolated(tanh, short(gates[2] + (r * seen[2] + 2**14) // 2**15))
        return short(((2**15 - z) * n + z * h + 2**14) // 2**15), 0

    return recurrent(step, x, codes, 3, cell)


def lstm(step, x, codes):
    def cell(gates, seen, h, kept, sigmoid, tanh):
        sums = [short(a + b) for a, b in zip(gates, seen)]
        take, forget, out = (interpolated(sigmoid, sums[g]) for g in (0, 1, 3))
        kept = short((forget * kept + take * interpolated(tanh, sums[2]) // 16 + 2**14) // 2**15)
        return (out * interpolated(tanh, short(2 * kept)) + 2**14) // 2**15, kept

    return recurrent(step, x, codes, 4, cell)
