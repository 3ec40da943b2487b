"""Indexing, sorting, cumulative and other array functions inside losses, as programs for `program_table`."""

from program_table import integers, near_one, normal, program, uniform


@program(x=normal(3, 6), y=near_one(3, 6))
def cumulative_functions(m, x, y):
    return (
        m.np.cumsum(x, axis=1),
        m.np.cumprod(y, axis=0),
        m.logcumsumexp(x, axis=1),
        m.cummax(x, axis=1),
        m.cummin(x, axis=0),
        m.cumsum(x, axis=1, reverse=True),
        m.cumprod(y, axis=1, reverse=True),
    )


@program(x=normal(2, 3, 4), y=near_one(2, 3, 4))
def reductions(m, x, y):
    return (
        m.np.prod(y, axis=1),
        m.np.max(x, axis=(0, 2)),
        m.np.min(x),
        m.np.std(x, axis=1, ddof=1),
        m.np.var(x, axis=(0, 1), keepdims=True),
        m.np.mean(x * y, axis=-1),
        m.nn.logsumexp(x, axis=(1, 2)),
        m.np.linalg.norm(x, axis=-1),
        m.np.linalg.norm(x[0], ord=1, axis=0),
        m.np.average(x, axis=0, weights=y),
        m.np.argmax(x, axis=1),
    )


def _with_zeros(rng):
    x = 1 + 0.3 * rng.standard_normal((3, 5))
    x[1, 2] = x[2, 0] = x[2, 4] = 0
    return x


@program(x=_with_zeros)
def products_with_zeros(m, x):
    """One zero in a row, and two of them: derivatives without a division."""
    return m.np.prod(x, axis=1), m.np.cumprod(x, axis=1)


@program(x=normal(9), y=normal(9))
def rank_correlation_by_sorting(m, x, y):
    """Losses of sorted values: a Wasserstein distance, a trimmed mean, and weights by rank."""
    distance = m.np.mean((m.np.sort(x) - m.np.sort(y)) ** 2)
    order = m.np.argsort(x)
    weights = m.np.linspace(0, 1, 9, dtype=x.dtype)
    return distance, m.np.mean(m.np.sort(x)[2:-2]), y[order] @ weights, order


@program(x=normal(4, 7), q=uniform(0.2, 0.8, 3))
def quantiles_and_medians(m, x, q):
    fixed = m.np.quantile(x, m.np.asarray([0.1, 0.5, 0.75], dtype=x.dtype), axis=1)
    moving = m.vmap(lambda q: m.np.quantile(x[0], q))(q)
    return m.np.median(x, axis=1), fixed, moving, m.np.percentile(x, 30, axis=0)


@program(predicted=normal(6, 3), target=normal(6, 1))
def pinball_and_huber_losses(m, predicted, target):
    levels = m.np.asarray([0.1, 0.5, 0.9], dtype=predicted.dtype)
    error = target - predicted
    pinball = m.np.mean(m.np.maximum(levels * error, (levels - 1) * error))
    size = m.np.abs(error)
    huber = m.np.where(size < 1, size**2 / 2, size - 0.5)
    return pinball, m.np.mean(huber), m.np.mean(m.np.clip(error, -0.7, 0.9) ** 2)


@program(scores=normal(3, 8), values=normal(3, 8))
def top_k_losses(m, scores, values):
    best, places = m.top_k(scores, 3)
    picked = m.np.take_along_axis(values, places, axis=-1)
    return m.np.sum(m.nn.softmax(best, axis=-1) * picked, axis=-1), m.np.sum(m.np.log(1 + m.np.exp(-best)))


@program(data=normal(8, 2), segments=integers(4, 8))
def segment_sums_by_scatter(m, data, segments):
    """Sums, means, maxima and a softmax within segments."""
    zeros = m.np.zeros((4, 2), dtype=data.dtype)
    total = zeros.at[segments].add(data)
    count = m.np.zeros(4, dtype=data.dtype).at[segments].add(1)
    highest = m.np.full((4, 2), -10.0, dtype=data.dtype).at[segments].max(data)
    powers = m.np.exp(data - m.stop_gradient(highest)[segments])
    share = powers / zeros.at[segments].add(powers)[segments]
    return total, total / m.np.maximum(count, 1)[:, None], highest, share


@program(x=normal(5, 4), y=normal(3), rows=integers(5, 3), columns=integers(4, 3))
def updates_at_places(m, x, y, rows, columns):
    """`at` with all that it can do; ids may repeat where the result does not depend on the order."""
    return (
        x.at[rows, columns].add(y),
        x.at[1].set(m.np.sin(x[2])),
        x.at[:, 1:3].multiply(2.5),
        x.at[::2, ::-1].set(0.5),
        x.at[rows].max(y[:, None]),
        x.at[rows, columns].min(y),
        x.at[..., 0].add(x[..., -1] ** 2),
    )


@program(x=normal(5, 4, 3), ids=integers(5, 2, 3), other=integers(4, 3))
def gathers_of_many_kinds(m, x, ids, other):
    return (
        x[ids],
        x[ids, other],
        x[:, other, 1] ** 2,
        x[1:4, ::-2, None, 0],
        x[ids][..., other % 3],
        m.np.take(x, ids, axis=0),
        m.np.take_along_axis(x[:, :, 0], other[None, :] * m.np.ones((5, 1), dtype=other.dtype), axis=1),
    )


@program(x=normal(6, 5), start=integers(4), update=normal(2, 3))
def slices_at_computed_places(m, x, start, update):
    """Windows that would leave the array are moved inside."""
    window = m.dynamic_slice(x, (start, start), (3, 2))
    written = m.dynamic_update_slice(x, m.np.tanh(update), (start + 2, start))
    return window**2, written


@program(x=normal(3, 4))
def triangular_masks(m, x):
    square = x.T @ x
    lower = m.np.tril(square, -1)
    hidden = m.np.where(m.np.tri(4, dtype=bool), square, -1e9)
    above = m.np.triu(square, 1)
    rows, columns = m.np.tril_indices(4)
    return lower, m.nn.softmax(hidden, axis=-1), m.np.sum(above * lower.T), square[rows, columns]


@program(x=normal(3, 4), y=normal(2, 4))
def shapes_and_joins(m, x, y):
    joined = m.np.concatenate([x, y * 2, x[:1]], axis=0)
    stacked = m.np.stack([x, x[::-1]], axis=1)
    first, second = m.np.split(joined, [2], axis=0)
    return (
        m.np.roll(joined, 2, axis=0) * joined,
        m.np.pad(x, ((1, 0), (2, 1)), constant_values=0.5),
        m.np.pad(x, ((1, 1), (0, 2)), mode="reflect"),
        m.np.flip(stacked, axis=(0, 2)),
        m.np.repeat(y, 2, axis=0) * m.np.tile(y, (2, 1)),
        m.np.moveaxis(stacked, 1, 2).reshape(-1, 2),
        first.sum() * second,
        m.np.kron(y, m.np.eye(2, dtype=x.dtype)),
        m.np.rot90(x),
    )


@program(x=uniform(0.2, 0.9, 5), y=uniform(1.1, 3, 5))
def elementary_functions(m, x, y):
    names = (
        "sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh arctanh exp exp2 expm1 log log2 log10 log1p sqrt cbrt"
    )
    values = [getattr(m.np, name)(x) for name in [*names.split(), "reciprocal", "square", "sinc", "abs", "negative"]]
    both = [
        getattr(m.np, name)(x, y) for name in ["power", "arctan2", "hypot", "logaddexp", "logaddexp2", "divide", "fmod"]
    ]
    return values, both, m.np.arccosh(y), m.rsqrt(y), y**x, x**3, y**-1.5, m.digamma(y)


@program(x=normal(7), y=normal(7))
def comparisons_and_choices(m, x, y):
    """Derivatives of max, min, where, select, sign, abs and clip away from ties."""
    return (
        m.np.maximum(x, y) * m.np.minimum(x, 2 * y),
        m.np.where(x > y, x**2, y),
        m.np.select([x > 0.5, y > 0], [x, y**2], x * y),
        m.np.sign(x) * y,
        m.np.clip(x, -0.5, m.np.abs(y)),
        m.np.nan_to_num(x) + m.np.heaviside(x, 0.5),
        m.np.floor(x) + m.np.ceil(y) * x,
    )


@program(a=normal(3, 4), b=normal(4, 2), c=normal(5, 3, 4), v=normal(4))
def products_of_many_kinds(m, a, b, c, v):
    return (
        a @ b,
        c @ b,
        c @ v,
        m.np.tensordot(c, b, axes=([2], [0])),
        m.np.tensordot(c, a, axes=2),
        m.np.inner(a, c),
        m.np.outer(a, v),
        m.np.vdot(a, a),
        m.np.dot(c, b),
        m.np.cross(a[:, :3], a[:, 1:]),
        m.np.trace(a @ a.T),
        m.np.convolve(v, a[0], mode="same"),
        m.np.linalg.matrix_power(a @ a.T, 3),
    )


@program(x=normal(6, 3), y=normal(6))
def statistics(m, x, y):
    covariance = m.np.cov(x, rowvar=False)
    return covariance, m.np.corrcoef(x, rowvar=False), m.np.mean((x - m.np.mean(x, axis=0)) ** 3), m.np.var(y) * y
