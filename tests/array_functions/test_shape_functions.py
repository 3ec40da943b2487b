"""Creation, reshaping, joining, indexing, grids of rlx.numpy against NumPy."""

import numpy as np
import pytest
from oracle_cases import case, check, precisions

_rng = np.random.default_rng(1)
X = _rng.normal(size=(3, 4))
CUBE = _rng.normal(size=(2, 3, 4))
V = _rng.normal(size=(6,))
ROW = np.arange(4, dtype=np.int32)
BOOLS = np.array([[True, False], [False, True]])


def in_single(function):
    """Creation functions make f32 and i32 where NumPy makes 64 bits."""
    narrow = {np.dtype("f8"): "f4", np.dtype("i8"): "i4"}

    def call(*args, **kwargs):
        result = function(*args, **kwargs)
        several = isinstance(result, tuple | list)
        parts = [r.astype(narrow.get(r.dtype, r.dtype)) for r in (result if several else [result])]
        return parts if several else parts[0]

    return call


def made(name, *args, **kwargs):
    return case(name, *args, oracle=in_single(getattr(np, name)), rtol={"f8": 2e-6}, **kwargs)


CASES = [
    made("zeros", (2, 3)),
    made("zeros", 4),
    made("ones", (2, 0, 3)),
    made("empty", (0, 3)),
    made("full", (2, 2), 7),
    made("full", (2, 2), 1.5),
    made("full", 3, True),
    case("full", (3, 4), ROW),
    case("full_like", X, 2),
    case("zeros_like", CUBE),
    case("ones_like", X, dtype="int32"),
    case("ones_like", BOOLS),
    case("full_like", X, 1.0, shape=(2, 2)),
    case("empty_like", np.zeros((0, 2))),
    made("eye", 3),
    made("eye", 3, 4, k=1),
    made("eye", 4, 2, k=-2, dtype="int32"),
    made("identity", 3),
    made("tri", 3, 5, 1),
    made("arange", 5),
    made("arange", 2, 11, 3),
    made("arange", 5, 0, -2),
    made("arange", 0.0, 1.0, 0.25),
    made("arange", 3, 3),
    case("arange", 4, dtype="float64"),
    made("linspace", 0, 1, 5),
    made("linspace", -1.0, 2.0, 4, endpoint=False),
    made("linspace", 0, 10, 1),
    made("linspace", 0, 10, 0),
    made("linspace", 0, 9.5, 5, dtype="int32"),
    made("linspace", 0.05, 0.5, 10, dtype="float64"),
    made("logspace", 0.05, 0.5, 10, dtype="float64"),
    made("geomspace", 0.05, 0.5, 10, dtype="float64"),
    case("linspace", X, X + 2, 5),
    case("linspace", X, X + 2, 3, axis=-1),
    case("linspace", V, 1.0, 4, retstep=True),
    made("logspace", 0, 2, 5),
    case("logspace", V, V + 1, 4, base=2.0),
    made("geomspace", 1, 256, 9),
    made("geomspace", -1.0, -100.0, 3),
    case("geomspace", np.array([1.0, 2.0]), np.array([8.0, 0.5]), 4, endpoint=False),
    *(case(n, a, k) for n in ("tril", "triu") for a in (X, CUBE, V) for k in (0, 1, -1)),
    *(case("diag", a, k) for a in (X, V) for k in (0, 2, -1)),
    case("diagflat", X, 1),
    case("vander", np.array([1.0, 2.0, 3.5]), 4),
    case("vander", np.array([1, 2, 3], np.int32), increasing=True),
    case("meshgrid", ROW, V),
    case("meshgrid", ROW, V, ROW[:2], indexing="ij"),
    case("meshgrid", ROW, V, sparse=True),
    case("meshgrid", V),
    made("indices", (2, 3)),
    made("indices", (2, 3), sparse=True),
    *(made(n, m) for n in ("hanning", "hamming", "blackman", "bartlett") for m in (0, 1, 7)),
    made("kaiser", 8, 5.0),
    made("kaiser", 1, 5.0),
    case("fromfunction", lambda i, j: i * 3 + j, (2, 3), dtype="int32"),
    case("copy", X),
    case("array", X, ndmin=4),
    case("asanyarray", X),
    case("ascontiguousarray", X),
    case("asarray", X, dtype="int32", oracle=lambda x, dtype: np.trunc(x).astype(dtype)),
]

CASES += [
    case("reshape", X, (2, 6)),
    case("reshape", X, -1),
    case("reshape", CUBE, (4, -1), order="F"),
    case("ravel", CUBE),
    case("ravel", X, order="F"),
    case("transpose", CUBE),
    case("transpose", CUBE, (1, 0, 2)),
    case("permute_dims", CUBE, (2, 0, 1)),
    case("matrix_transpose", CUBE),
    case("moveaxis", CUBE, 0, -1),
    case("moveaxis", CUBE, (0, 1), (-1, 0)),
    case("swapaxes", CUBE, 0, 2),
    *(case("rollaxis", CUBE, a, s) for a in (0, 2, -1) for s in (0, 1, 3)),
    case("squeeze", X[None, :, None]),
    case("squeeze", X[None, :, None], axis=0),
    case("squeeze", X[None, :, None], axis=(0, -2)),
    case("expand_dims", X, 1),
    case("expand_dims", X, (0, -1)),
    case("broadcast_to", V, (2, 6)),
    case("broadcast_arrays", X, V[:4], V[0]),
    *(case("flip", CUBE, axis=a) for a in (None, 1, (0, -1))),
    case("fliplr", X),
    case("flipud", X),
    *(case("rot90", X, k) for k in (0, 1, 2, 3, -1)),
    case("rot90", CUBE, 1, (2, 0)),
    case("roll", CUBE, 3),
    case("roll", CUBE, -1, axis=1),
    case("roll", CUBE, (1, 2), axis=(0, 2)),
    case("tile", X, 2),
    case("tile", X, (2, 1, 3)),
    case("tile", CUBE, (2, 2)),
    case("repeat", X, 2),
    case("repeat", X, [1, 0, 3], axis=0),
    case("resize", X, (2, 3)),
    case("resize", V, (4, 4)),
    case("pad", X, 2),
    case("pad", X, ((1, 0), (2, 3)), constant_values=5.0),
    case("pad", X, (1, 2), constant_values=((1.0, 2.0), (3.0, 4.0))),
    *(case("pad", V, (2, 3), mode=m) for m in ("edge", "reflect", "symmetric", "wrap")),
    case("pad", ROW, 9, mode="reflect"),
    *(case(n, x) for n in ("atleast_1d", "atleast_2d", "atleast_3d") for x in (V[0], V, X, CUBE)),
    case("atleast_2d", V, X),
    case("delete", X, 1),
    case("delete", X, [0, -1], axis=1),
    case("delete", X, slice(0, 2), axis=0),
    case("delete", V, [True, False, False, True, False, False]),
    case("insert", V, 2, 9.0),
    case("insert", X, 1, V[:4], axis=0),
    case("insert", X, [0, 2], V[:3, None], axis=1),
    case("insert", X, 1, X[:2], axis=0),
    case("concat", [X, X[:1]]),
    case("concat", [X, V[:3, None]], axis=1),
    case("concatenate", (X, ROW), axis=None),
    case("concatenate", [ROW, ROW], dtype="float32"),
    case("stack", [X, X + 1], axis=-1),
    case("stack", [X, X + 1]),
    case("vstack", [V, V]),
    case("vstack", [X, V[:4]]),
    case("row_stack", [X, V[:4]], oracle=np.vstack),
    case("hstack", [V, ROW.astype(float)]),
    case("hstack", [X, X[:, :1]]),
    case("dstack", [V, V]),
    case("dstack", [X, X]),
    case("column_stack", [V, V]),
    case("column_stack", [X, V[:3]]),
    case("append", X, V),
    case("append", X, X[:1], axis=0),
    case("block", [[X, X[:, :1]], [X[:1], X[:1, :1]]]),
    case("block", [V, V[:2]]),
    case("unstack", CUBE, axis=1),
    case("split", X, 2, axis=1),
    case("split", V, [1, 4]),
    case("split", V, [2, 9]),
    case("array_split", V, 4),
    case("array_split", X, [1], axis=1),
    case("hsplit", X, 2),
    case("hsplit", V, 3),
    case("vsplit", X, 3),
    case("dsplit", CUBE, 2),
    case("trace", X),
    case("trace", CUBE, 1, 1, 2),
    case("diagonal", CUBE, -1, 1, 2),
]

MASK = X > 0
CASES += [
    case("where", MASK, X, 0.0),
    case("where", MASK, X, X[0]),
    case("take", X, np.array([3, -1, 0])),
    case("take", X, np.array([[0, 1], [-1, 2]]), axis=0),
    case("take", X, np.array([7, -9, 1]), axis=1, mode="wrap"),
    case("take", X, np.array([0, 9, 1, -1, -9]), axis=1, mode="clip"),
    case("take_along_axis", X, np.argsort(X, 1), axis=1),
    case("take_along_axis", X, np.argmax(X, 0)[None], axis=0),
    case("take_along_axis", X, np.array([3, 0]), axis=None),
    case("select", [X > 1, X > 0], [X, X * 10], default=-1.0),
    case("select", [MASK], [np.float64(1)]),
    case("piecewise", X, [X < 0, X >= 0.5], [-1.0, lambda x: x * x]),
    case("piecewise", X, [X < 0], [lambda x: -x, lambda x: x + 1]),
    case("choose", np.array([0, 1, 1, 0]), [ROW, ROW * 10]),
    case("choose", np.array([0, 5, -3, 1]), [ROW, ROW * 10], mode="wrap"),
    case("choose", np.array([0, 5, -3, 1]), [ROW, ROW * 10], mode="clip"),
    case("compress", [True, False, True], X, axis=0, known=(0,)),
    case("compress", [False, True], V, known=(0,)),
    case("extract", MASK, X, known=(0,)),
    case("tril_indices", 3, 1),
    case("triu_indices", 3, -1, 4),
    case("tril_indices_from", X),
    case("triu_indices_from", X, 1),
    case("diag_indices", 3, 3),
    case("diag_indices_from", X[:3, :3]),
    case("ix_", [0, 2], [True, False, True]),
    case("unravel_index", np.array([0, 5, 11], np.int32), (3, 4)),
    case("ravel_multi_index", (np.array([0, 2], np.int32), np.array([1, 3], np.int32)), (3, 4)),
    case("ravel_multi_index", (np.array([-1, 4]), np.array([5, -6])), (3, 4), mode="wrap"),
    case("ravel_multi_index", (np.array([-1, 4]), np.array([5, -6])), (3, 4), mode="clip"),
    case("nonzero", MASK, known=(0,)),
    case("argwhere", MASK, known=(0,)),
    case("flatnonzero", MASK, known=(0,)),
]


def _in_place(function):
    def call(x, *args, **kwargs):
        x = x.copy()
        function(x, *args, **kwargs)
        return x

    return call


CASES += [
    case("put_along_axis", X, np.argmax(X, 1)[:, None], 9.0, 1, oracle=_in_place(np.put_along_axis)),
    case("put", X, np.array([0, 5, -1]), np.array([1.0, 2.0]), oracle=_in_place(np.put)),
    case("put", X, np.array([0, 13, 6]), 4.0, mode="wrap", oracle=_in_place(np.put)),
    case("put", X, np.array([-3, 99]), np.array([1.0, 2.0]), mode="clip", oracle=_in_place(np.put)),
    case("fill_diagonal", X, 5.0, oracle=_in_place(np.fill_diagonal)),
    case("fill_diagonal", X[:3, :3], np.array([1.0, 2.0]), oracle=_in_place(np.fill_diagonal)),
    case("fill_diagonal", np.zeros((2, 2, 2)), 1.0, oracle=_in_place(np.fill_diagonal)),
]


@pytest.mark.parametrize(("one", "precision"), [(c, p) for c in CASES for p in precisions(c)], ids=str)
def test_matches_numpy(one, precision):
    check(one, precision)
