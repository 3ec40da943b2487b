"""Names that people who come from JAX reach for: transforms, inspection, debugging, `rlx.lax`."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from scipy import signal, special

import rlx
import rlx.numpy as rnp
from rlx import lax
from rlx.errors import AutodiffError, NanFound, OpError, RlxError, ShapeError, TreeError

X = np.float32([[1, -2, 3], [4, 5, -6]])


def test_eval_shape_runs_nothing():
    def fn(x, scale):
        return {"mean": x.mean(), "scaled": (x * scale)[:, 0]}

    found = rlx.eval_shape(fn, rlx.Spec(("B", 4), "f16"), 2.0)
    assert found == {"mean": rlx.Spec((), "f16"), "scaled": rlx.Spec(("B",), "f16")}
    assert rlx.eval_shape(rlx.jit(fn), X, 2.0)["scaled"].shape == (2,)


def test_make_graph():
    graph = rlx.make_graph(lambda x, n: x * n, static_argnums=1)(X, 3)
    assert isinstance(graph, rlx.Graph) and "mul" in str(graph) and len(graph.inputs) == 1
    graph, shape = rlx.make_graph(lambda x: (x, x.sum()), return_shape=True)(X)
    assert shape == (rlx.Spec((2, 3)), rlx.Spec(()))


def test_disable_jit_lets_python_see_values():
    seen = []

    @rlx.jit
    def absolute(x):
        seen.append(type(x))
        return x if x > 0 else -x

    with pytest.raises(rlx.errors.TraceError):
        absolute(np.float32(-2))
    with rlx.disable_jit():
        assert absolute(rnp.float32(-2)) == 2
        with rlx.disable_jit(False), pytest.raises(rlx.errors.TraceError):
            absolute(np.float32(-2))
    assert seen[1] is rlx.Array


def test_debug_nans_names_op_and_line():
    @rlx.jit
    def fn(x):
        y = rnp.exp(x)
        z = rnp.log(y - 2)  # the line
        return z * 2

    line = fn.__wrapped__.__code__.co_firstlineno + 3
    assert np.isnan(fn(np.float32([0.0, 1.0]))).any()
    with rlx.debug_nans():
        assert float(fn(np.float32([1.0]))[0]) == pytest.approx(2 * np.log(np.e - 2), rel=1e-5)
        with pytest.raises(NanFound, match=rf"^log \(%\d+\) makes NaN of numbers; .*test_jax_names.py:{line}$"):
            fn(np.float32([0.0, 1.0]))
        with pytest.raises(FloatingPointError, match="log makes NaN"):
            rnp.log(np.float32(-1))
        # What comes in as NaN was not made here.
        assert np.isnan(fn(np.float32([np.nan]))).all()
        with rlx.debug_nans(False):
            assert np.isnan(rnp.log(np.float32(-1)))
        with pytest.raises(NanFound):
            rlx.grad(lambda x: rnp.where(x > 0, rnp.sqrt(x), 0.0))(0.0)


def test_pure_callback():
    def scipy_gamma(p, scale):
        return {"value": (special.gamma(p["x"]) * scale).astype("f4"), "size": np.int32(p["x"].size)}

    def fn(x):
        result = {"value": rlx.Spec((3,)), "size": rlx.Spec((), "i32")}
        return rlx.pure_callback(scipy_gamma, result, {"x": x}, scale=2.0)

    x = np.float32([1, 2, 4])
    for run in (fn, rlx.jit(fn)):
        found = run(x)
        np.testing.assert_allclose(found["value"], [2, 2, 12])
        assert found["size"] == 3
    rows = rlx.vmap(fn)(np.stack([x, x + 1]))
    np.testing.assert_allclose(rows["value"], 2 * special.gamma(np.stack([x, x + 1])))
    with pytest.raises(AutodiffError, match="custom_vjp"):
        rlx.grad(lambda x: fn(x)["value"].sum())(x)


def test_ravel_pytree():
    tree = {"w": np.ones((2, 3), "f4"), "b": np.arange(2, dtype="i4"), "s": np.float32(7)}
    flat, unravel = rlx.tree.ravel_pytree(tree)
    assert flat.tolist() == [0, 1, 7, 1, 1, 1, 1, 1, 1] and flat.dtype == np.float32
    again = unravel(flat)
    assert again["b"].dtype == np.int32 and again["w"].shape == (2, 3) and again["s"].shape == ()
    np.testing.assert_array_equal(rlx.grad(lambda v: unravel(v)["w"].sum())(flat), [0, 0, 0, 1, 1, 1, 1, 1, 1])
    with pytest.raises(ShapeError, match="9 elements"):
        unravel(flat[1:])
    with pytest.raises(TreeError, match="f32 is needed"):
        unravel(flat.astype("f64"))


def test_vectorize():
    assert (
        rnp.vectorize(lambda a, b: a + 2 * b)(X, np.float32([1, 2, 3])).tolist() == (X + np.float32([2, 4, 6])).tolist()
    )
    product = rnp.vectorize(lambda m, v: m @ v, signature="(n,m),(m)->(n)")
    m = np.random.default_rng(0).standard_normal((5, 1, 2, 3)).astype("f4")
    v = np.random.default_rng(1).standard_normal((4, 3)).astype("f4")
    np.testing.assert_allclose(product(m, v), np.matmul(m, v[:, :, None])[..., 0], rtol=1e-5)
    shifted = rnp.vectorize(lambda x, n: x + n, excluded={1})
    assert shifted(X, 2).tolist() == (X + 2).tolist()
    with pytest.raises(ShapeError, match="axis m has size 3 and 4"):
        product(m, np.ones(4, "f4"))
    with pytest.raises(OpError, match=r"written \(n,m\),\(m\)->\(n\)"):
        rnp.vectorize(lambda x: x, signature="n->n")


@pytest.mark.parametrize(
    ("fn", "derivative"),
    [
        (lambda z: z * z * z, lambda z: 3 * z * z),
        (lambda z: rnp.exp(z), np.exp),
        (lambda z: rnp.sin(z) / z, lambda z: np.cos(z) / z - np.sin(z) / z**2),
        (lambda z: rnp.log(z), lambda z: 1 / z),
    ],
)
def test_holomorphic_gradients(fn, derivative):
    z = np.complex64(0.7 + 0.4j)
    np.testing.assert_allclose(rlx.grad(fn, holomorphic=True)(z), derivative(z), rtol=1e-5)
    np.testing.assert_allclose(rlx.jit(rlx.grad(fn, holomorphic=True))(z), derivative(z), rtol=1e-5)


def test_holomorphic_needs_complex_numbers():
    with pytest.raises(AutodiffError, match="needs complex arguments"):
        rlx.grad(lambda x: x + 0j, holomorphic=True)(1.0)
    with pytest.raises(AutodiffError, match="it is real"):
        rlx.grad(lambda z: rnp.abs(z), holomorphic=True)(np.complex64(1))
    with pytest.raises(AutodiffError, match="use holomorphic=True"):
        rlx.grad(lambda z: z * z)(np.complex64(1))


def newton(f, x):
    return rlx.while_loop(lambda x: rnp.abs(f(x)) > 1e-5, lambda x: x - f(x) / rlx.grad(f)(x), x)


def cube_root(y):
    return lax.custom_root(lambda x: x**3 - y, rnp.float32(1), newton, lambda g, b: b / g(1.0))


def test_custom_root():
    """The root itself by an unbounded loop, which has no gradient of its own; derivatives by the theorem."""
    assert float(cube_root(8.0)) == pytest.approx(2.0)
    first = rlx.grad(cube_root)
    assert float(first(8.0)) == pytest.approx(1 / 12, rel=1e-5)
    assert float(rlx.grad(first)(8.0)) == pytest.approx(-2 / 9 * 8 ** (-5 / 3), rel=1e-5)
    assert float(rlx.grad(rlx.grad(first))(8.0)) == pytest.approx(10 / 27 * 8 ** (-8 / 3), rel=1e-5)
    assert float(rlx.jvp(cube_root, (8.0,), (2.0,))[1]) == pytest.approx(1 / 6, rel=1e-5)
    np.testing.assert_allclose(rlx.jit(rlx.vmap(first))(np.float32([1, 8, 27])), [1 / 3, 1 / 12, 1 / 27], rtol=1e-5)


def test_custom_root_of_vectors_with_aux():
    a = np.float32([[3, 1], [1, 2]])

    def fn(b):
        solve = lambda f, x: (rnp.linalg.solve(a, b), 5)  # noqa: E731
        inverse = lambda g, r: rnp.linalg.solve(rlx.jacfwd(g)(rnp.zeros(2)), r)  # noqa: E731
        return lax.custom_root(lambda x: a @ x - b, rnp.zeros(2), solve, inverse, has_aux=True)

    b = np.float32([1, 4])
    assert fn(b)[1] == 5
    np.testing.assert_allclose(rlx.jacrev(lambda b: fn(b)[0])(b), np.linalg.inv(a), rtol=1e-5)


LAX = {
    "clamp": (lambda x: lax.clamp(-1.0, x, 2.0), lambda x: np.clip(x, -1, 2)),
    "select": (lambda x: lax.select(x > 0, x, -x), np.abs),
    "select_n": (lambda x: lax.select_n(rnp.asarray([[0, 1, 2]] * 2), x, 2 * x, 3 * x), lambda x: x * [1, 2, 3]),
    "select_n of bools": (lambda x: lax.select_n(x > 0, x, 2 * x), lambda x: np.where(x > 0, 2 * x, x)),
    "integer_pow": (lambda x: lax.integer_pow(x, 3), lambda x: x**3),
    "reshape": (lambda x: lax.reshape(x, (3, 2), (1, 0)), lambda x: x.T),
    "collapse": (lambda x: lax.collapse(x, 0), np.ravel),
    "broadcast": (lambda x: lax.broadcast(x, (2,)), lambda x: np.stack([x, x])),
    "broadcast_in_dim": (
        lambda x: lax.broadcast_in_dim(x, (2, 4, 3), (0, 2)),
        lambda x: np.broadcast_to(x[:, None], (2, 4, 3)),
    ),
    "concatenate": (lambda x: lax.concatenate([x, x], 1), lambda x: np.concatenate([x, x], 1)),
    "rev": (lambda x: lax.rev(x, (1,)), lambda x: x[:, ::-1]),
    "slice": (lambda x: lax.slice(x, (0, 1), (2, 3), (1, 2)), lambda x: x[0:2, 1:3:2]),
    "slice_in_dim": (lambda x: lax.slice_in_dim(x, 1, None, axis=-1), lambda x: x[:, 1:]),
    "index_in_dim": (lambda x: lax.index_in_dim(x, -1, 1), lambda x: x[:, 2:]),
    "pad": (
        lambda x: lax.pad(x, 9.0, [(1, 0, 0), (0, 1, 1)]),
        lambda x: np.array([[9] * 6, *[[r[0], 9, r[1], 9, r[2], 9] for r in x]]),
    ),
    "iota": (lambda x: lax.iota("f32", 3) + x, lambda x: np.arange(3) + x),
    "broadcasted_iota": (lambda x: lax.broadcasted_iota("f32", (2, 3), 0) + x, lambda x: np.arange(2)[:, None] + x),
    "full": (lambda x: lax.full((2, 3), 4.0) + x, lambda x: 4 + x),
    "sort": (lambda x: lax.sort(x), lambda x: np.sort(x)),
    "sort_key_val": (lambda x: lax.sort_key_val(x, 2 * x)[1], lambda x: 2 * np.sort(x)),
    "top_k": (lambda x: lax.top_k(x, 2)[0], lambda x: -np.sort(-x)[:, :2]),
    "argmax": (lambda x: lax.argmax(x, 1, "i32"), lambda x: np.argmax(x, 1)),
    "cumsum": (lambda x: lax.cumsum(x), lambda x: np.cumsum(x, 0)),
    "cumprod": (lambda x: lax.cumprod(x, 1, reverse=True), lambda x: np.cumprod(x[:, ::-1], 1)[:, ::-1]),
    "cummax": (lambda x: lax.cummax(x, 1), lambda x: np.maximum.accumulate(x, 1)),
    "cumlogsumexp": (lambda x: lax.cumlogsumexp(x, 1), lambda x: np.logaddexp.accumulate(x, 1)),
    "associative_scan": (lambda x: lax.associative_scan(rnp.add, x, axis=1), lambda x: np.cumsum(x, 1)),
    "reduce_window": (
        lambda x: lax.reduce_window(x, -np.inf, lax.max, (1, 2), (1, 1), "VALID"),
        lambda x: np.maximum(x[:, :-1], x[:, 1:]),
    ),
    "reduce_window, same": (
        lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3), (1, 1), "SAME"),
        lambda x: signal.convolve2d(x, np.ones((1, 3)), "same"),
    ),
    "dot_general": (
        lambda x: lax.dot_general(x, x, (((1,), (1,)), ((), ()))),
        lambda x: x @ x.T,
    ),
    "dot_general, batched": (lambda x: lax.dot_general(x, x, (((1,), (1,)), ((0,), (0,)))), lambda x: (x * x).sum(1)),
    "dynamic_slice": (lambda x: lax.dynamic_slice(x, (0, 1), (2, 2)), lambda x: x[:, 1:]),
    "dynamic_update_slice": (
        lambda x: lax.dynamic_update_slice(x, rnp.zeros((1, 1)), (1, 2)),
        lambda x: np.where(np.arange(6).reshape(2, 3) == 5, 0, x),
    ),
    "reduce_and": (lambda x: lax.reduce_and(x > -5, (0,)), lambda x: np.all(x > -5, 0)),
    "logistic": (lambda x: lax.logistic(x), special.expit),
    "bitcast_convert_type": (lambda x: lax.bitcast_convert_type(x, "i32"), lambda x: x.view("i4")),
    "convert_element_type": (lambda x: lax.convert_element_type(x, "i32"), lambda x: x.astype("i4")),
    "population_count": (
        lambda x: lax.population_count(lax.abs(x.astype("i32"))),
        lambda x: np.bitwise_count(np.abs(x).astype("i4")),
    ),
    "fori_loop": (lambda x: lax.fori_loop(0, 3, lambda i, c: c + i, x), lambda x: x + 3),
    "cond": (lambda x: lax.cond(x[0, 0] > 0, lambda x: x, lambda x: -x, x), lambda x: x),
    "map": (lambda x: lax.map(lambda r: r.sum(), x), lambda x: x.sum(1)),
}


@pytest.mark.parametrize("name", LAX)
def test_lax(name):
    ours, theirs = LAX[name]
    np.testing.assert_allclose(ours(rnp.asarray(X)), theirs(X), rtol=1e-5)
    np.testing.assert_allclose(rlx.jit(ours)(X), theirs(X), rtol=1e-5)


def test_lax_conv_with_named_axes():
    rng = np.random.default_rng(0)
    image, kernel = rng.standard_normal((1, 6, 5, 2)).astype("f4"), rng.standard_normal((3, 3, 2, 4)).astype("f4")
    found = lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    wanted = np.stack(
        [sum(signal.correlate2d(image[0, :, :, i], kernel[:, :, i, o], "same") for i in range(2)) for o in range(4)], -1
    )
    np.testing.assert_allclose(found[0], wanted, rtol=1e-4, atol=1e-5)
    plain = lax.conv(image.transpose(0, 3, 1, 2), kernel.transpose(3, 2, 0, 1), (1, 1), "SAME")
    np.testing.assert_allclose(plain.transpose(0, 2, 3, 1), found, rtol=1e-6)


def test_groups_of_images_and_named_places():
    rng = np.random.default_rng(3)
    images, kernels = rng.normal(size=(4, 5, 6, 3)), rng.normal(size=(2, 2, 3, 6))
    letters = ("NHWC", "HWIO", "NHWC")
    found = lax.conv_general_dilated(images, kernels, (1, 1), "VALID", None, None, letters, 1, 2)
    parts = [
        lax.conv_general_dilated(images[2 * g : 2 * g + 2], kernels[..., 3 * g : 3 * g + 3], (1, 1), "VALID",
                                 dimension_numbers=letters)
        for g in (0, 1)
    ]  # fmt: skip
    np.testing.assert_allclose(found, np.concatenate(parts, -1), rtol=1e-12)
    places = lax.conv_dimension_numbers(images.shape, kernels.shape, letters)
    assert tuple(places) == ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
    named = [
        lax.conv_general_dilated(images, kernels, (2, 1), "SAME_LOWER", dimension_numbers=numbers,
                                 precision=(lax.Precision.DEFAULT, lax.Precision.HIGHEST))
        for numbers in (letters, places)
    ]  # fmt: skip
    padded = lax.conv_general_dilated(images, kernels, (2, 1), [(1, 0), (1, 0)], dimension_numbers=letters)
    np.testing.assert_array_equal(*named)
    np.testing.assert_allclose(named[0], padded, rtol=1e-12)
    with pytest.raises(OpError, match="needs 4 letters each"):
        lax.conv_general_dilated(images, kernels, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHW"))


def test_lax_rounds_halves_away_from_zero():
    x = np.float32([0.5, 1.5, -2.5, 0.49999997, 8388609.0, -0.2, np.inf, np.nan])
    wanted = np.float32([1, 2, -3, 0, 8388609, -0.0, np.inf, np.nan])
    for round in (lax.round, rlx.jit(lax.round)):
        np.testing.assert_array_equal(np.asarray(round(x)).view("i4"), wanted.view("i4"))
    np.testing.assert_array_equal(lax.round(x[:3], lax.RoundingMethod.TO_NEAREST_EVEN), [0, 2, -2])


def test_lax_says_what_a_window_can_be():
    with pytest.raises(OpError, match=r"lax\.add, lax\.mul"):
        lax.reduce_window(X, 0.0, lambda a, b: a - b, (1, 2), (1, 1), "VALID")
    with pytest.raises(RlxError):
        lax.select_n(np.int32(0))


def test_names_of_jax_itself():
    assert rlx.ShapeDtypeStruct((3, "N"), "float32") == rlx.Spec((3, "N")) and rlx.typeof(X) == rlx.Spec((2, 3))
    np.testing.assert_array_equal(rlx.jacobian(lambda x: x**2)(X[0]), np.diag(2 * X[0]))
    assert type(rlx.device_get({"a": rnp.ones(2)})["a"]) is np.ndarray
    assert rlx.block_until_ready([X])[0] is X and rlx.default_backend() == "cpu"
    assert str(rlx.make_jaxpr(rnp.sin)(X)) == str(rlx.make_graph(rnp.sin)(X))
    for like in (X, rlx.Spec((2, 3))):
        (found,) = rlx.linear_transpose(lambda x: 2 * x[:, 0], like)(np.float32([1, 5]))
        np.testing.assert_array_equal(found, [[2, 0, 0], [10, 0, 0]])
    assert rlx.scipy.linalg.expm is rlx.linalg.expm
    assert rlx.flatten_util.ravel_pytree is rlx.tree.ravel_pytree


def test_names_of_tree_util():
    util = rlx.tree_util
    assert util.tree_map(lambda x: x + 1, {"a": (1, 2)}) == {"a": (2, 3)}
    assert rlx.tree.broadcast((1, 2), ((0, 0), {"a": 3, "b": 4})) == ((1, 1), {"a": 2, "b": 2})
    assert rlx.tree.reduce_associative(lambda a, b: f"({a}{b})", [1, 2, 3, 4, 5]) == "(((12)(34))5)"
    assert rlx.tree.reduce_associative(max, [], identity=7) == 7
    with pytest.raises(TreeError, match="identity="):
        rlx.tree.reduce_associative(max, [])
    scaled = util.Partial(lambda s, x: s * x, np.float32(3))
    np.testing.assert_array_equal(rlx.jit(lambda f, x: f(x))(scaled, X), 3 * X)


def test_more_of_lax():
    np.testing.assert_allclose(lax.igamma(2.0, np.array([1.0, 3.0])), special.gammainc(2, [1, 3]), rtol=1e-12)
    np.testing.assert_array_equal(lax.reduce(X, 0.0, lax.add, (1,)), X.sum(1))
    np.testing.assert_array_equal(lax.reduce(np.int32([[1, 2, 4]]), 8, lax.bitwise_xor, (0, 1)), 15)
    np.testing.assert_array_equal(lax.split(X, (1, 2), axis=1)[1], X[:, 1:])
    with pytest.raises(OpError, match="add up to 3"):
        lax.split(X, (1, 1), axis=1)
    np.testing.assert_array_equal(lax.mulhi(np.int32([2**30]), np.int32([8])), [2])
    with pytest.raises(OpError, match="f32 has up to 8 exponent and 23 mantissa bits, got 9 and 9"):
        lax.reduce_precision(X, 9, 9)
    groups = lax.ragged_dot(X, np.stack([np.eye(3, dtype="f4"), 2 * np.eye(3, dtype="f4")]), np.int32([1, 0]))
    np.testing.assert_array_equal(groups, [X[0], [0, 0, 0]])
    np.testing.assert_allclose(lax.linalg.eigh(np.diag([3.0, 1.0]))[1], [1, 3])
    assert lax.dot_general(X, X, (((1,), (1,)), ((), ())), precision=lax.Precision.HIGHEST).shape == (2, 2)
    solved = lax.custom_linear_solve(lambda x: 4.0 * x, X[0], lambda matvec, b: b / 4.0)
    np.testing.assert_array_equal(solved, X[0] / 4)


def test_arguments_have_the_names_of_jax():
    np.testing.assert_array_equal(lax.dynamic_slice(X, start_indices=(0, 1), slice_sizes=(2, 2)), X[:, 1:])
    np.testing.assert_array_equal(lax.dynamic_slice_in_dim(X, start_index=1, slice_size=1, axis=1), X[:, 1:2])
    np.testing.assert_array_equal(lax.transpose(X, permutation=(1, 0)), X.T)
    np.testing.assert_array_equal(lax.squeeze(X[None], dimensions=(0,)), lax.expand_dims(X, dimensions=(0,))[0])
    assert lax.full_like(X, fill_value=2, shape=(3,)).dtype == "float32"
    assert float(lax.fori_loop(0, 4, lambda i, c: c + i, 0.0, unroll=True)) == 6
    rows = np.arange(14, dtype="f4").reshape(7, 2)
    for size in (1, 3, 7, 9, None):
        np.testing.assert_array_equal(lax.map(lambda r: r.sum() * 2, rows, batch_size=size), rows.sum(1) * 2)
    np.testing.assert_array_equal(rnp.sum(a=X, axis=0), rnp.transpose(a=X).sum(1))
    np.testing.assert_array_equal(rnp.take(X, indices=np.array([1]), axis=1), X[:, [1]])
    repeated = rlx.jit(lambda n: rnp.repeat(X[0], n, total_repeat_length=4))(np.int32([1, 0, 2]))
    np.testing.assert_array_equal(repeated, [1, 3, 3, 3])
    log, sign = rlx.scipy.special.logsumexp(X[0], b=np.float32([1, 1, -2]), return_sign=True)
    wanted = special.logsumexp(X[0], b=[1, 1, -2], return_sign=True)
    np.testing.assert_allclose([log, sign], wanted, rtol=1e-6)


@pytest.mark.parametrize("way", [lambda f: f(rnp.asarray(X)), lambda f: rlx.jit(f)(X)])
def test_methods_of_arrays_take_what_functions_take(way):
    mask = X > 0
    for name in ("sum", "prod", "mean", "var", "std"):
        found = way(lambda x, name=name: getattr(x, name)(axis=0, dtype="float64", where=mask, keepdims=True))
        wanted = getattr(X, name)(axis=0, dtype="f8", where=mask, keepdims=True)
        np.testing.assert_allclose(found, wanted, rtol=1e-12, err_msg=name)
        assert found.dtype == "float64"
    assert float(way(lambda x: x.max(initial=9.0))) == 9 and float(way(lambda x: x.min(where=mask, initial=8.0))) == 1
    assert not way(lambda x: (x > 0).all()) and way(lambda x: (x > 0).all(where=mask))
    np.testing.assert_array_equal(way(lambda x: x.cumsum(0, dtype="float64")), X.cumsum(0))
    np.testing.assert_array_equal(way(lambda x: x.ptp(axis=1)), np.ptp(X, axis=1))
    np.testing.assert_array_equal(way(lambda x: x.sort(descending=True)), -np.sort(-X))
    np.testing.assert_array_equal(way(lambda x: x[0].sort().searchsorted(np.float32([0, 2]))), [1, 2])
    np.testing.assert_array_equal(way(lambda x: x.take(indices=np.array([0]), axis=1)), X[:, [0]])
    np.testing.assert_array_equal(way(lambda x: x.var(ddof=1)), np.float32(X.var(ddof=1)))


def _by_conjugate_gradients(matvec, b):
    """A loop without a bound, which has no reverse derivative, and which stops at once where b is 0."""

    def step(state):
        x, r, p, size = state
        moved = matvec(p)
        along = size / rnp.dot(p, moved)
        r = r - along * moved
        return x + along * p, r, r + rnp.dot(r, r) / size * p, rnp.dot(r, r)

    start = (rnp.zeros_like(b), b, b, rnp.dot(b, b))
    return lax.while_loop(lambda state: state[3] > 1e-26, step, start)[0]


def test_iterative_solvers_have_derivatives():
    """Forward and reverse, of both orders, in the matrix and in the right side; the solver is not differentiated."""
    rng = np.random.default_rng(4)
    matrix, b, direction = rng.normal(size=(4, 4)), rng.normal(size=4), rng.normal(size=(4, 4))
    matrix = matrix @ matrix.T + 4 * np.eye(4)

    def loss(solve, t, b):
        a = matrix + t * (direction + direction.T)
        return rnp.sum(solve(a, b) ** 3)

    def iterated(a, b):
        return lax.custom_linear_solve(lambda x: a @ x, b, _by_conjugate_gradients, symmetric=True)

    for transform in (
        lambda f: rlx.jacfwd(f, (0, 1)),
        lambda f: rlx.jit(rlx.grad(f, (0, 1))),
        lambda f: rlx.hessian(f, (0, 1)),
        lambda f: rlx.grad(rlx.grad(f)),
        lambda f: lambda t, b: rlx.vmap(rlx.grad(f), (0, None))(np.array([t, 2 * t]), b),
    ):
        found, wanted = (
            rlx.tree.leaves(transform(lambda t, b, s=s: loss(s, t, b))(np.float64(0.3), b))
            for s in (iterated, rnp.linalg.solve)
        )
        for x, y in zip(found, wanted, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-8, atol=1e-9)


def test_solvers_of_other_systems():
    rng = np.random.default_rng(5)
    matrix, b = rng.normal(size=(4, 4)) + 5 * np.eye(4), rng.normal(size=4)

    def gradient(solve, **options):
        def loss(a, b):
            return rnp.sum(lax.custom_linear_solve(lambda x: a @ x, b, solve, **options) ** 3)

        return rlx.grad(loss, (0, 1))(matrix, b)

    def richardson(matvec, b):
        return lax.while_loop(
            lambda x: rnp.sum((matvec(x) - b) ** 2) > 1e-24, lambda x: x - (matvec(x) - b) / 7, rnp.zeros_like(b)
        )

    wanted = rlx.grad(lambda a, b: rnp.sum(rnp.linalg.solve(a, b) ** 3), (0, 1))(matrix, b)
    for found in (
        gradient(richardson, transpose_solve=richardson),
        gradient(lambda matvec, b: rnp.linalg.solve(matrix, b)),
        gradient(lambda matvec, b: rnp.linalg.solve(rlx.jacfwd(matvec)(b), b)),
    ):
        for x, y in zip(found, wanted, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-8, atol=1e-10)

    def root(b):
        return lax.custom_root(lambda x: matrix @ x - b, 0 * b, lambda f, x: rnp.linalg.solve(matrix, b), richardson)

    np.testing.assert_allclose(rlx.jvp(root, (b,), (b,))[1], np.linalg.solve(matrix, b), rtol=1e-9)
    with pytest.raises(RlxError, match="needs a bound on the number of rounds"):
        gradient(richardson)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounding_to_few_digits(dtype):
    """As float8_e5m2 of ml_dtypes has it, where that type has normal numbers."""
    x = np.random.default_rng(0).standard_normal(400) * 10.0 ** np.linspace(-7, 7, 400)
    x = np.concatenate([x, [0.0, -0.0, np.inf, -np.inf, np.nan, 1.125, 1.375, 57344.0, 61439.0, 61440.0]]).astype(dtype)
    with np.errstate(all="ignore"):
        wanted = x.astype(ml_dtypes.float8_e5m2).astype(dtype)
    wanted = np.where(np.abs(wanted) < 2.0**-14, np.copysign(0.0, wanted), wanted)
    rounded = rlx.jit(lambda x: lax.reduce_precision(x, 5, 2))
    is_normal_or_far = (np.abs(x) < 2.0**-15) | ~(np.abs(x) < 2.0**-14)
    np.testing.assert_array_equal(rounded(x)[is_normal_or_far], wanted[is_normal_or_far])
    assert rlx.grad(lambda x: lax.reduce_precision(x, 4, 3) * x)(dtype(1.3)) == dtype(1.3) + dtype(1.25)
