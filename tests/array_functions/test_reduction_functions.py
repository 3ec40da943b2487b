"""Reductions, statistics, order, sets and histograms of rlx.numpy against NumPy."""

import numpy as np
import pytest
from oracle_cases import case, check, precisions

_rng = np.random.default_rng(2)
X = _rng.normal(size=(3, 4))
CUBE = _rng.normal(size=(2, 3, 4))
V = _rng.permutation(12).astype(float) / 4
INTS = _rng.integers(-5, 6, (3, 4)).astype(np.int32)
BYTES = _rng.integers(0, 255, (3, 4)).astype(np.uint8)
BOOLS = INTS > 0
Z = _rng.normal(size=(3, 2)) + 1j * _rng.normal(size=(3, 2))
HOLES = np.where(_rng.random((4, 5)) < 0.3, np.nan, _rng.normal(size=(4, 5)))
HOLES[2] = np.nan
FEW_HOLES = np.where(np.eye(4, 5) > 0, np.nan, _rng.normal(size=(4, 5)))

_AXES = (None, 0, -1, (0, 2), ())
_ONE_AXIS = (None, 0, 1)

CASES = [
    *(
        case(n, CUBE, axis=a)
        for n in ("sum", "prod", "mean", "max", "min", "amax", "amin", "any", "all", "std", "var", "count_nonzero")
        for a in _AXES
        if not (a == () and n in ("std", "var"))
    ),
    *(
        case(n, CUBE, axis=(1, 0), keepdims=True)
        for n in ("sum", "prod", "mean", "max", "min", "any", "std", "ptp", "count_nonzero")
    ),
    *(case(n, x) for n in ("sum", "prod", "max", "min", "argmax") for x in (INTS, BOOLS)),
    case("sum", BYTES, axis=1),
    case("sum", INTS, dtype="float64"),
    case("mean", INTS, oracle=lambda x: x.mean(dtype="f8").astype("f4"), rtol={"f8": 1e-6}),
    *(case(n, Z, axis=0) for n in ("sum", "prod", "mean", "var", "std", "any")),
    case("sum", np.zeros((0, 3)), axis=0),
    case("prod", np.zeros((0, 3)), axis=0),
    case("sum", X, axis=0, initial=5.0, where=BOOLS),
    case("prod", X, initial=2.0, where=BOOLS[:, :1]),
    case("max", X, axis=1, initial=-1.0, where=BOOLS),
    case("min", X, initial=0.1),
    case("mean", X, axis=0, where=BOOLS | (np.arange(3)[:, None] == 0)),
    case("any", BOOLS, axis=1, where=BOOLS[:1]),
    case("all", BOOLS, axis=0, where=INTS > 2),
    case("var", X, axis=1, ddof=1),
    case("std", X, correction=1),
    case("var", X, axis=1, ddof=1, where=(INTS > -4)),
    *(case(n, X, axis=a) for n in ("argmax", "argmin") for a in _ONE_AXIS),
    case("argmax", X, axis=1, keepdims=True),
    case("argmin", X, keepdims=True),
    case("ptp", INTS, axis=0),
    *(case(n, CUBE, axis=a) for n in ("cumsum", "cumprod") for a in (None, 0, 2)),
    case("cumsum", BYTES, axis=0),
    case("cumsum", BOOLS, axis=1),
    case("cumulative_sum", V),
    case("cumulative_sum", X, axis=1, include_initial=True),
    case("cumulative_prod", X, axis=0, include_initial=True),
    *(case("diff", X, n) for n in (0, 1, 2)),
    case("diff", X, axis=0, prepend=0.0, append=X[:1]),
    case("diff", BOOLS, axis=1),
    case("ediff1d", X),
    case("ediff1d", X, to_begin=0.5, to_end=np.array([1.0, 2.0])),
    case("trapezoid", X),
    case("trapezoid", X, np.array([0.0, 1.0, 3.0, 4.0])),
    case("trapezoid", X, dx=0.5, axis=0),
    case("trapezoid", X, np.cumsum(np.abs(X), 0), axis=0),
    case("gradient", V),
    case("gradient", X),
    case("gradient", CUBE, 0.5, axis=(1, 2)),
    case("gradient", V, np.cumsum(V + 1), edge_order=2),
    case("gradient", X, 2.0, np.array([0.0, 1.0, 2.5, 3.0])),
    case("gradient", V, 0.5, edge_order=2),
]

_NAN = ("nansum", "nanprod", "nanmean", "nanvar", "nanstd", "nanmax", "nanmin", "nanmedian")


def _quietly(name):
    """NumPy warns about rows without a number."""
    import warnings

    def call(*args, **kwargs):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return getattr(np, name)(*args, **kwargs)

    return call


CASES += [
    *(case(n, HOLES, axis=a, oracle=_quietly(n)) for n in _NAN for a in _ONE_AXIS),
    case("nanvar", HOLES, axis=1, ddof=1, oracle=_quietly("nanvar")),
    case("nanmean", HOLES, keepdims=True),
    case("nansum", INTS, axis=0),
    case("nanmax", INTS),
    *(case(n, FEW_HOLES, axis=a) for n in ("nanargmax", "nanargmin", "nancumsum", "nancumprod") for a in _ONE_AXIS),
    case("nanquantile", HOLES, np.array([0.1, 0.8]), axis=1, oracle=_quietly("nanquantile")),
    case("nanpercentile", HOLES, 30.0, axis=0, keepdims=True),
    *(case("quantile", X, q, axis=a) for q in (0.25, np.array([0.0, 0.3, 1.0])) for a in _ONE_AXIS),
    *(
        case("quantile", V, np.array([0.1, 0.37, 0.5, 0.99]), method=m)
        for m in [
            "linear",
            "lower",
            "higher",
            "midpoint",
            "nearest",
            "hazen",
            "weibull",
            "median_unbiased",
            "normal_unbiased",
            "interpolated_inverted_cdf",
        ]
    ),
    case("quantile", CUBE, 0.4, axis=(0, 2), keepdims=True),
    case("quantile", HOLES, 0.5, axis=1),
    case("percentile", X, np.array([10.0, 90.0]), axis=1, keepdims=True),
    *(case("median", x, axis=a) for x in (X, FEW_HOLES) for a in _ONE_AXIS),
    case("median", CUBE, axis=(0, 1)),
    case("average", X),
    case("average", X, axis=1, weights=np.array([1.0, 2.0, 3.0, 4.0])),
    case("average", X, weights=np.abs(X), returned=True),
    case("average", X, axis=0, returned=True),
    case("cov", X),
    case("cov", X, rowvar=False, bias=True),
    case("cov", X, X[::-1].copy(), ddof=0),
    case("cov", V),
    case("cov", X, fweights=np.array([1, 2, 1, 3])),
    case("cov", X, aweights=np.array([1.0, 0.5, 2.0, 3.0])),
    case("cov", Z),
    case("corrcoef", X),
    case("corrcoef", V, V[::-1].copy()),
    case("corrcoef", X, rowvar=False),
]

SORTED = np.array([0.0, 1.0, 1.0, 2.5, 4.0])
PROBES = np.array([[1.0, -1.0], [9.0, 2.0]])
FINITE = np.array([3.0, np.nan, 1.0, -np.inf, 2.0])
CASES += [
    *(case("sort", X, axis=a) for a in (None, 0, 1)),
    case("sort", FINITE),
    case("sort", INTS),
    case("sort", X, axis=0, descending=True, oracle=lambda x, axis, descending: -np.sort(-x, axis)),
    *(case("argsort", V.reshape(3, 4), axis=a) for a in (None, 0, 1)),
    case("argsort", INTS[0], oracle=lambda x: np.argsort(x, kind="stable")),
    case("lexsort", (INTS[0], INTS[1] // 3)),
    case("lexsort", X, axis=-1),
    case("partition", V, 3, oracle=lambda x, k: np.sort(x)),
    case("argpartition", V, 3, oracle=lambda x, k: np.argsort(x)),
    case("searchsorted", SORTED, PROBES),
    case("searchsorted", SORTED, PROBES, side="right"),
    case("searchsorted", SORTED[::-1].copy(), PROBES, sorter=np.arange(5)[::-1].copy()),
    case("isin", INTS, np.array([1, 3, -2])),
    case("isin", INTS, np.array([1, 3, -2]), invert=True),
    case("isin", INTS, np.zeros(0, np.int32)),
    case("digitize", V, np.array([0.5, 1.0, 2.0])),
    case("digitize", V, np.array([2.0, 1.0, 0.5]), right=True),
    case("digitize", V, np.array([2.0, 1.0, 0.5])),
    case("interp", PROBES, SORTED + np.arange(5), V[:5]),
    case("interp", PROBES, SORTED + np.arange(5), V[:5], left=-9.0, right=9.0),
    case("interp", np.array([-3.0, 0.5, 7.0, 11.0]), np.array([1.0, 5.0, 3.0]), V[:3], period=8.0),
    case("interp", np.array([np.nan, 1.5, 4.0]), np.array([1.0, 2.0]), np.array([7.0, 9.0])),
    case("interp", np.array([0.0, 2.0, 4.0]), np.array([2.0]), np.array([7.0])),
    case("bincount", np.array([0, 3, 3, 1]), minlength=6, known=(0,)),
    case("bincount", np.array([0, 3, 3, 1]), weights=np.array([1.0, 0.5, 2.0, 3.0]), known=(0,)),
    case("histogram", V, 4),
    case("histogram", X, np.array([-1.0, 0.0, 0.5, 2.0])),
    case("histogram", X, 5, (-1.0, 1.0)),
    case("histogram", X, 5, (-1.0, 1.0), density=True),
    case("histogram", V, 3, weights=V + 1),
    case("histogram", np.array([2.0, 2.0]), 2),
    case("histogram_bin_edges", X, 3),
    case("histogram2d", X[0], X[1], 3),
    case("histogram2d", X[0], X[1], [2, np.array([-2.0, 0.0, 2.0])], density=True),
    case("histogramdd", X[:, :2], [2, 3], range=[(-2.0, 2.0), (-1.0, 3.0)]),
]

_UNIQUE = np.array([3, 1, 1, 7, 3, 3])
_PARTS = np.array([[1.0, 2.0, 1.0], [0.0, 1.0, 0.0], [1.0, 2.0, 1.0], [0.0, 0.0, 0.0]])
# Complex numbers with equal real parts.
_TIES = np.array([[1 + 2j, 1 - 1j, 0 + 5j], [1 + 2j, -1 + 0j, 0 + 4j]])
CASES += [
    *(case(n, _UNIQUE, known=(0,)) for n in ("unique", "unique_counts", "unique_inverse")),
    case("unique_values", _UNIQUE, known=(0,), oracle=np.unique),
    case("unique_all", np.array([[2.5, 1.0], [2.5, 2.5]]), known=(0,)),
    case("unique", _UNIQUE, True, True, True, known=(0,)),
    case("unique", np.array([np.nan, 1.0, np.nan]), known=(0,)),
    case("unique_values", np.array([np.nan, 1.0, np.nan]), known=(0,), oracle=lambda x: np.unique(x, equal_nan=False)),
    *(case("unique", _PARTS, True, True, True, axis=a, known=(0,)) for a in (0, 1, -1)),
    case("unique", _PARTS + 0.5j * _PARTS[::-1], axis=0, known=(0,)),
    case("unique", np.zeros((3, 0)), axis=0, known=(0,)),
    *(case(n, _TIES, axis=a) for n in ("sort", "argsort") for a in (0, 1, None)),
]


@pytest.mark.parametrize(("one", "precision"), [(c, p) for c in CASES for p in precisions(c)], ids=str)
def test_matches_numpy(one, precision):
    check(one, precision)
