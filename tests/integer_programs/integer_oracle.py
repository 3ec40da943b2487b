"""The steps of integer programs once more, in plain Python integers and loops, from the rules alone."""

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
