"""Index modes, cumulative ops, order, Fourier transforms, decompositions and promotion against JAX."""

import numpy as np
import pytest
from libraries import JAX, RLX, jax, jnp, lax
from program_table import agree

import rlx
import rlx.numpy as rnp

pytestmark = pytest.mark.peers
rng = np.random.default_rng(32)


def normal(*dims):
    return rng.standard_normal(dims)


def complex_normal(*dims):
    return normal(*dims) + 1j * normal(*dims)


def same(got, expected, tolerance=1e-10):
    """Equal up to rounding, infinities and NaN included."""
    np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=tolerance, atol=tolerance)


OUTSIDE = np.array([0, 4, -1, 7, -5, -9, 2], np.int32)


@pytest.mark.parametrize("mode", ["clip", "fill", "wrap"])
@pytest.mark.parametrize("axis", [0, 1])
def test_take_with_ids_outside(mode, axis):
    """With a value to fill in: JAX's own choice is NaN, ours 0."""
    fill = {"fill_value": 0.5} if mode == "fill" else {}
    agree(lambda m, x, ids: m.np.take(x, ids, axis=axis, mode=mode, **fill), normal(5, 5), OUTSIDE)


@pytest.mark.parametrize("mode", ["clip", "fill"])
def test_reading_at_places_outside(mode):
    fill = {"fill_value": -2.0} if mode == "fill" else {}
    other = np.array([0, 3, 1, 2, -1, 0, 5], np.int32)
    agree(lambda m, x, ids: x.at[ids].get(mode=mode, **fill), normal(5, 3), OUTSIDE)
    agree(lambda m, x, ids, other: x.at[ids, other].get(mode=mode, **fill), normal(5, 4), OUTSIDE, other)


@pytest.mark.parametrize("mode", ["clip", "drop", "fill"])
@pytest.mark.parametrize("kind", ["set", "add", "multiply", "max", "min"])
def test_writing_at_places_outside(kind, mode):
    """Ids that mean the same place are left out where the order would matter."""
    ids = OUTSIDE if kind == "add" else np.array([0, 3, -1, 9 if mode != "clip" else 2, 1], np.int32)

    def write(m, x, ids, y):
        # JAX has the gradient of a product only for ids that it is told are distinct.
        promise = {"unique_indices": True} if m is JAX and kind == "multiply" else {}
        return getattr(x.at[ids], kind)(y, mode=mode, **promise)

    agree(write, normal(5, 3), ids, normal(len(ids), 3))


def test_unnamed_modes_differ():
    """JAX reads NaN outside by `take`, and clips in x[ids]; ours refuses known ids, and clips computed ones."""
    x, ids = np.arange(3.0), np.array([0, 5], np.int32)
    assert np.isnan(jnp.take(x, ids)[1])
    assert jnp.asarray(x)[ids][1] == 2
    with pytest.raises(rlx.RlxError, match="5"):
        rnp.take(x, ids)
    assert rlx.jit(lambda x, ids: rnp.take(x, ids * 1))(x, ids)[1] == 2


def test_dynamic_slices_are_moved_inside():
    x, update = normal(4, 6), normal(2, 3)
    for start in ((1, 2), (3, 5), (-1, -2), (-9, 9)):
        places = [np.int32(s) for s in start]
        agree(lambda m, x, a, b: m.dynamic_slice(x, (a, b), (2, 3)), x, *places)
        agree(lambda m, x, u, a, b: m.dynamic_update_slice(x, u, (a, b)), x, update, *places)


CUMULATIVE = ["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"]


@pytest.mark.parametrize("name", CUMULATIVE)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 2])
def test_cumulative(name, reverse, axis):
    agree(lambda m, x: getattr(m, name)(x, axis=axis, reverse=reverse), normal(3, 2, 5))


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin"])
def test_cumulative_of_integers(name):
    x = rng.integers(-5, 6, (3, 4)).astype(np.int32)
    agree(lambda m, x: getattr(m, name)(x, axis=1), x, modes=("value",))


@pytest.mark.parametrize("name", CUMULATIVE)
def test_cumulative_of_special_values(name):
    x = np.array([[1.0, -np.inf, 2, 3], [0.5, np.inf, 1, -1], [np.nan, 1, 2, 0], [-np.inf, -np.inf, 0, 1]])
    same(getattr(RLX, name)(x, axis=1), getattr(JAX, name)(jnp.asarray(x), axis=1))


def test_associative_scan():
    def scan(m, a, b):
        return m.associative_scan(lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]), (a, b), axis=1)

    for length in (1, 2, 5, 8):
        agree(scan, rng.uniform(0.5, 1, (2, length)), normal(2, length))
    agree(lambda m, x: m.associative_scan(m.np.maximum, x, reverse=True), normal(7, 2))


REPEATED = np.array([[3.0, 1, 2, 1, 3], [0.0, -0.0, 1, 0, -1]])


@pytest.mark.parametrize("descending", [False, True])
def test_order_of_equals(descending):
    agree(lambda m, x: m.np.argsort(x, axis=1, descending=descending, stable=True), REPEATED, modes=("value",))
    agree(lambda m, x: m.np.sort(x, axis=0, descending=descending), normal(6, 3))


def test_top_k():
    agree(lambda m, x: m.top_k(x, 2), REPEATED, modes=("value",))
    agree(lambda m, x: m.top_k(x, 3)[0], normal(2, 7))


def test_nan_is_last_for_us_and_largest_for_jax():
    x = np.array([1.0, np.nan, 3.0, 2.0])
    same(rnp.sort(x), jnp.sort(x))
    same(np.asarray(rlx.top_k(x, 2)[0]), [3, 2])
    same(lax.top_k(x, 2)[0], [np.nan, 3])


def test_sort_by_several_keys():
    keys = rng.integers(0, 3, (2, 8)).astype(np.int32)
    values = normal(8)
    expected = lax.sort((keys[0], keys[1], values), num_keys=2)
    for got, wanted in zip(rlx.sort(keys[0], keys[1], values, num_keys=2), expected, strict=True):
        same(got, wanted)


@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted(side):
    edges = np.sort(rng.integers(0, 9, 7)).astype(np.float64)
    agree(lambda m, e, v: m.np.searchsorted(e, v, side=side), edges, np.arange(-1, 10) * 1.0, modes=("value",))


TRANSFORMS = [
    ("fft", {"n": None}),
    ("fft", {"n": 5, "axis": 0}),
    ("ifft", {"n": 9, "norm": "ortho"}),
    ("ifft", {"norm": "forward"}),
    ("fft2", {}),
    ("ifft2", {"s": (3, 8)}),
    ("fftn", {"axes": (0, 2)}),
    ("ifftn", {"norm": "forward"}),
    ("irfft", {}),
    ("irfft", {"n": 7}),
    ("irfft", {"n": 12, "norm": "ortho"}),
    ("irfft2", {}),
    ("irfftn", {"axes": (1, 2)}),
    ("hfft", {}),
    ("hfft", {"n": 5}),
    ("fftshift", {"axes": (1,)}),
    ("ifftshift", {}),
]


@pytest.mark.parametrize(("name", "options"), TRANSFORMS, ids=str)
def test_fourier_transforms_of_complex_numbers(name, options):
    agree(lambda m, z: getattr(m.np.fft, name)(z, **options), complex_normal(3, 4, 6))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("rfft", {}),
        ("rfft", {"n": 5}),
        ("rfft", {"n": 9, "axis": 1, "norm": "ortho"}),
        ("rfft2", {}),
        ("rfftn", {"s": (3, 5), "axes": (0, 2)}),
        ("fft", {}),
        ("ihfft", {"n": 7}),
        ("ihfft", {"norm": "forward"}),
    ],
    ids=str,
)
def test_fourier_transforms_of_real_numbers(name, options):
    agree(lambda m, x: getattr(m.np.fft, name)(x, **options), normal(3, 4, 6))


@pytest.mark.parametrize("n", [1, 2, 3, 7, 16, 31, 60, 128])
def test_fourier_lengths(n):
    """Powers of two, primes and products, in f32 too."""
    agree(lambda m, z: m.np.fft.fft(z), complex_normal(n), modes=("value",))
    agree(lambda m, x: m.np.fft.irfft(m.np.fft.rfft(x) * (1 + 0.5j), n), normal(n), modes=("value", "vjp"), dtype="f32")


MATRICES = {
    "real": normal(4, 4),
    "complex": complex_normal(4, 4),
    "stack": normal(2, 3, 3),
    "tall": normal(5, 3),
    "wide": normal(3, 5),
    "complex tall": complex_normal(5, 3),
}


def adjoint(m, a):
    return m.np.conj(m.np.swapaxes(a, -1, -2))


def definite(m, a):
    return m.np.matmul(a, adjoint(m, a)) + m.np.eye(a.shape[-1], dtype=a.dtype)


def same_up_to_phases(columns, wanted, rows=None, wanted_rows=None):
    """Columns, and rows that undo their phases, where every pair may be turned by a phase of its own."""
    phase = np.sum(np.conj(columns) * wanted, axis=-2)
    same(np.abs(phase), np.ones(phase.shape))
    same(columns * phase[..., None, :], wanted)
    if rows is not None:
        same(np.conj(phase)[..., :, None] * rows, wanted_rows)


def factors(function, a):
    return [np.asarray(x) for x in function(a)]


@pytest.mark.parametrize("name", ["real", "complex", "stack"])
def test_cholesky_and_determinants(name):
    agree(lambda m, a: m.np.linalg.cholesky(definite(m, a)), MATRICES[name])
    agree(lambda m, a: (m.np.linalg.det(a), m.np.linalg.inv(a)), MATRICES[name])
    agree(lambda m, a: m.np.linalg.slogdet(a), MATRICES[name])


@pytest.mark.parametrize("name", ["real", "complex", "stack"])
def test_systems(name):
    a = MATRICES[name]
    b = a[..., :2] * 0.5 + 1
    agree(lambda m, a, b: m.np.linalg.solve(a, b), a, b)

    def triangular(m, a, b):
        a = definite(m, a)
        return [m.solve_triangular(a, b, trans=trans, lower=lower) for trans in (0, 1) for lower in (True, False)]

    agree(triangular, a, b)


@pytest.mark.parametrize("name", MATRICES)
def test_qr_up_to_phases(name):
    a = MATRICES[name]
    (q, r), (wanted_q, wanted_r) = factors(rnp.linalg.qr, a), factors(jnp.linalg.qr, a)
    same_up_to_phases(q, wanted_q, r, wanted_r)

    def invariant(m, a):
        q, r = m.np.linalg.qr(a)
        return m.np.abs(q), m.np.abs(r)

    if a.shape[-2] >= a.shape[-1]:
        agree(invariant, a)


@pytest.mark.parametrize("name", MATRICES)
def test_svd_up_to_phases(name):
    a = MATRICES[name]
    u, s, vh = factors(lambda a: rnp.linalg.svd(a, full_matrices=False), a)
    wanted_u, wanted_s, wanted_vh = factors(lambda a: jnp.linalg.svd(a, full_matrices=False), a)
    same(s, wanted_s)
    same_up_to_phases(u, wanted_u, vh, wanted_vh)

    def invariant(m, a):
        u, s, vh = m.np.linalg.svd(a, full_matrices=False)
        return s, m.np.matmul(u * m.np.sin(s)[..., None, :], vh), m.np.linalg.pinv(a)

    agree(invariant, a)


@pytest.mark.parametrize("name", ["real", "complex", "stack"])
def test_eigh_up_to_phases(name):
    a = np.asarray(definite(JAX, MATRICES[name]))
    (values, vectors), (wanted_values, wanted) = factors(rnp.linalg.eigh, a), factors(jnp.linalg.eigh, a)
    same(values, wanted_values)
    same_up_to_phases(vectors, wanted)

    def invariant(m, a):
        values, vectors = m.np.linalg.eigh((a + adjoint(m, a)) / 2)
        squared = m.np.matmul(vectors * values[..., None, :] ** 2, adjoint(m, vectors))
        return values, m.np.abs(vectors), squared

    agree(invariant, a)


def test_lu():
    """The packed factors and the permutation are unique as long as no two pivots tie."""
    for name in ("real", "complex", "stack"):
        packed, _, order = lax.linalg.lu(jnp.asarray(MATRICES[name]))
        results = [np.asarray(x) for x in rlx.lu(MATRICES[name])]
        same(results[0], packed)
        assert any(np.array_equal(x, order) for x in results[1:])


@pytest.mark.parametrize("order", [None, 1, 2, -2, np.inf, "fro", "nuc"])
def test_matrix_norms(order):
    agree(lambda m, a: m.np.linalg.norm(a, ord=order), normal(4, 3))


def test_least_squares():
    agree(lambda m, a, b: m.np.linalg.lstsq(a, b)[0], normal(6, 3), normal(6, 2))


NUMBERS = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
           "bfloat16", "float16", "float32", "float64", "complex64", "complex128"]  # fmt: skip


def expected_promotion(a, b):
    """JAX's rule, and the three places where ours is another one."""
    pair = {a, b}
    integers, floats = [t for t in pair if "int" in t], [t for t in pair if "float" in t]
    if integers and floats:
        # JAX keeps the float, though f16 cannot hold an i32, nor f32 an i64.
        return "float64" if pair & {"float64", "int64", "uint64"} else "float32"
    if "uint64" in pair and pair & {"int8", "int16", "int32", "int64"}:
        # JAX makes it a float, though both are integers.
        return "int64"
    if pair == {"float64", "complex64"}:
        # JAX widens to complex128.
        return "complex64"
    return str(jnp.promote_types(a, b))


@pytest.mark.parametrize("a", NUMBERS)
def test_promotion(a):
    for b in NUMBERS:
        assert rnp.promote_types(a, b).numpy.name == expected_promotion(a, b), (a, b)


SCALARS = [
    # dtype, number, ours, JAX's with 64 bits allowed
    ("float16", 2.0, "float16", "float16"),
    ("bfloat16", 2, "bfloat16", "bfloat16"),
    ("float32", 1j, "complex64", "complex64"),
    ("float64", 1j, "complex128", "complex128"),
    ("int8", 3, "int8", "int8"),
    ("uint8", True, "uint8", "uint8"),
    ("int32", 2.5, "float32", "float64"),
    ("bool", 2.5, "float32", "float64"),
    ("bool", 3, "int32", "int64"),
    ("int64", 1j, "complex64", "complex128"),
]


@pytest.mark.parametrize(("dtype", "number", "ours", "theirs"), SCALARS)
def test_python_numbers_beside_arrays(dtype, number, ours, theirs):
    """The same rule; only the default types differ: 32 bits here, and 64 in JAX where these are enabled."""
    x = np.ones(2, jnp.dtype(dtype))
    assert rlx.jit(lambda x: x * number)(x).dtype == jnp.dtype(ours)
    assert (jnp.asarray(x) * number).dtype == theirs


def test_functions_of_python_numbers_are_single():
    """`log(2.0)` in an f64 program is f32 here, so that constants are better computed by `math`."""
    x = np.zeros(1)
    assert float(jax.jit(lambda x: x + jnp.log(2.0))(x)[0]) == np.log(2.0)
    assert float(rlx.jit(lambda x: x + rnp.log(2.0))(x)[0]) == np.float32(np.log(2.0))
