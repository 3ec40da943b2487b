"""Products, factorisations, transforms and polynomials of rlx.numpy against NumPy."""

import numpy as np
import pytest
from oracle_cases import case, check, precisions

import rlx
import rlx.numpy as rnp
from rlx.ir.dtype import DType

_rng = np.random.default_rng(3)
A = _rng.normal(size=(3, 4))
B = _rng.normal(size=(4, 5))
BATCH = _rng.normal(size=(2, 3, 4))
V, W = _rng.normal(size=(4,)), _rng.normal(size=(3,))
Z = _rng.normal(size=(3, 4)) + 1j * _rng.normal(size=(3, 4))
INTS = _rng.integers(-4, 5, (3, 4)).astype(np.int32)
SQUARE = _rng.normal(size=(2, 3, 3)) + 3 * np.eye(3)
POSITIVE = SQUARE @ SQUARE.swapaxes(-1, -2) + np.eye(3)
HERMITIAN = Z @ Z.conj().T
LOOSE = {"f8": 1e-9, "f4": 2e-4}

CASES = [
    case("matmul", A, B),
    case("matmul", BATCH, B),
    case("matmul", V, B),
    case("matmul", A, V),
    case("matmul", V, V),
    case("matmul", Z, B),
    case("matmul", INTS, INTS.T.copy()),
    case("matmul", A > 0, B > 0),
    case("einsum", "ij,jk->ik", A > 0, B > 0),
    case("inner", A > 0, A > 0),
    case("dot", A, B),
    case("dot", BATCH, _rng.normal(size=(2, 4, 2))),
    case("dot", A, 3.0),
    case("vdot", Z, Z * 2),
    case("vdot", A, A),
    case("inner", A, BATCH),
    case("inner", V, V),
    case("outer", A, V),
    case("vecdot", Z, Z[0]),
    case("vecdot", BATCH, A, axis=-1),
    case("matvec", BATCH, V),
    case("vecmat", Z[:, :3], Z),
    case("tensordot", BATCH, A, axes=([1, 2], [0, 1])),
    case("tensordot", A, B, axes=1),
    case("tensordot", V, W, axes=0),
    case("einsum", "ij,jk->ik", A, B),
    case("einsum", "bij,ij->b", BATCH, A),
    case("einsum", "...ii->...i", SQUARE),
    case("einsum", "ij,jk,k", A, B, B[0]),
    case("einsum", A, [0, 1], B, [1, 2], [2, 0]),
    case("kron", A, B[:2, :2]),
    case("kron", V, A),
    case("cross", A[:, :3], A[:, 1:]),
    case("cross", BATCH[..., :3], A[0, :3]),
    case("cross", A, A[::-1].copy(), axis=0),
    case("convolve", V, W),
    *(case(n, V, W, m) for n in ("convolve", "correlate") for m in ("full", "same", "valid")),
    *(case(n, W, V, m) for n in ("convolve", "correlate") for m in ("full", "same", "valid")),
    case("convolve", INTS[0], INTS[1, :2]),
    case("correlate", Z[0], Z[1, :2], "full"),
]


CASES += [
    *(
        case(f"linalg.{n}", SQUARE, rtol=LOOSE)
        for n in ("inv", "det", "slogdet", "pinv", "svdvals", "cond", "matrix_rank", "matrix_norm", "trace", "diagonal")
    ),
    case("linalg.cholesky", POSITIVE, rtol=LOOSE),
    case("linalg.cholesky", HERMITIAN[:2, :2] + np.eye(2), upper=True, rtol=LOOSE),
    case("linalg.eigvalsh", POSITIVE, rtol=LOOSE),
    case("linalg.eigvalsh", HERMITIAN, UPLO="U", rtol=LOOSE),
    case("linalg.solve", SQUARE, _rng.normal(size=(2, 3, 2)), rtol=LOOSE),
    case("linalg.solve", SQUARE, W, rtol=LOOSE),
    *(case("linalg.norm", A, o) for o in (None, "fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf)),
    *(case("linalg.norm", V, o) for o in (None, 0, 1, 2, 3, np.inf, -np.inf)),
    case("linalg.norm", BATCH, axis=(0, 2), keepdims=True),
    case("linalg.norm", Z),
    *(case("linalg.vector_norm", BATCH, axis=a, ord=o) for a in (None, 1, (0, 2)) for o in (1, 2, np.inf)),
    case("linalg.vector_norm", BATCH, axis=(0, 1), keepdims=True),
    *(case("linalg.matrix_power", SQUARE, n, rtol=LOOSE) for n in (0, 1, 3, -2)),
    *(case("linalg.cond", A[:, :3], p, rtol=LOOSE) for p in (2, -2, 1, "fro")),
    case("linalg.matrix_rank", np.ones((3, 3))),
    case("linalg.matrix_rank", A, tol=1e3),
    case("linalg.multi_dot", [A, B, B.T.copy(), V]),
    case("linalg.multi_dot", [W, A, B]),
    case("linalg.lstsq", B.T.copy(), _rng.normal(size=(5,)), rtol=LOOSE),
    case("linalg.lstsq", B.T.copy(), _rng.normal(size=(5, 2)), rtol=LOOSE),
    case("linalg.tensorinv", _rng.normal(size=(2, 3, 6)), rtol=LOOSE),
    case("linalg.tensorsolve", _rng.normal(size=(2, 3, 6)), _rng.normal(size=(2, 3)), rtol=LOOSE),
    case("linalg.cross", A[:, :3], A[:, 1:]),
    case("linalg.tensordot", A, B, axes=1),
    case("linalg.outer", V, W),
    case("linalg.vecdot", A, V),
    case("linalg.matrix_transpose", A),
    case("linalg.matmul", A, B),
]

SIGNAL = _rng.normal(size=(3, 8))
ODD = _rng.normal(size=(2, 5))
SPECTRUM = np.fft.rfft(SIGNAL)
_NORMS = (None, "ortho", "forward")
CASES += [
    *(
        case(f"fft.{n}", x, norm=norm)
        for n in ("fft", "ifft", "rfft", "hfft", "ihfft")
        for x in (SIGNAL, ODD)
        for norm in _NORMS
    ),
    *(case(f"fft.{n}", Z, norm=norm) for n in ("fft", "ifft", "irfft", "hfft") for norm in _NORMS),
    *(case("fft.irfft", SPECTRUM, n) for n in (None, 7, 6, 12)),
    *(case("fft.fft", SIGNAL, n, 0) for n in (None, 2, 5)),
    *(case("fft.rfft", SIGNAL, n) for n in (5, 10)),
    *(
        case(f"fft.{n}", BATCH, norm="ortho")
        for n in ("fftn", "ifftn", "fft2", "ifft2", "rfftn", "rfft2", "irfftn", "irfft2")
    ),
    case("fft.fftn", BATCH, s=(2, 5), axes=(0, 2)),
    case("fft.irfftn", BATCH, s=(3, 5), axes=(1, 2)),
    *(case(f"fft.{n}", x) for n in ("fftshift", "ifftshift") for x in (SIGNAL, ODD)),
    case("fft.fftshift", BATCH, axes=1),
    *(case(f"fft.{n}", m, 0.5, rtol={"f8": 1e-6}) for n in ("fftfreq", "rfftfreq") for m in (1, 6, 7)),
]

CASES += [
    case("polyval", V, A),
    case("polyval", INTS[0], np.array([1, 2], np.int32)),
    case("polyadd", V, W),
    case("polysub", W, V),
    case("polymul", V, W),
    case("polyder", V),
    case("polyder", V, 2),
    case("polyint", V),
    case("polyint", V, 2, k=[1.0, 2.0]),
    case("poly", V),
    case("polyfit", np.arange(6.0), _rng.normal(size=(6,)), 2, rtol=LOOSE),
    case("polyfit", np.arange(6.0), _rng.normal(size=(6, 2)), 1, w=np.arange(1.0, 7), rtol=LOOSE),
    *(
        case("apply_along_axis", f, 1, BATCH, oracle=lambda f, a, x, g=g: np.apply_along_axis(g, a, x))
        for f, g in ((rnp.sum, np.sum), (rnp.cumsum, np.cumsum), (lambda v: v[:, None] * v, lambda v: v[:, None] * v))
    ),
    case("polydiv", np.array([2.0, -3.0, 1.0, 5.0]), np.array([2.0, 1.0])),
    case("apply_over_axes", rnp.sum, BATCH, [0, 2], oracle=lambda f, x, axes: np.apply_over_axes(np.sum, x, axes)),
]


@pytest.mark.parametrize(("one", "precision"), [(c, p) for c in CASES for p in precisions(c)], ids=str)
def test_matches_numpy(one, precision):
    check(one, precision)


PREFERRED = {
    "matmul": lambda a, b: rnp.matmul(a, b, preferred_element_type="f32"),
    "dot": lambda a, b: rnp.dot(a, b, preferred_element_type="f32"),
    "inner": lambda a, b: rnp.inner(a, b.T, preferred_element_type="f32"),
    "tensordot": lambda a, b: rnp.tensordot(a, b, 1, precision=None, preferred_element_type="f32"),
    "einsum": lambda a, b: rnp.einsum("ij,jk->ik", a, b, preferred_element_type="f32"),
    "vecdot": lambda a, b: rnp.vecdot(a[:, None], b.T, preferred_element_type="f32"),
    "vdot": lambda a, b: rnp.stack(
        [rnp.stack([rnp.vdot(a[i], b[:, j], preferred_element_type="f32") for j in range(5)]) for i in range(3)]
    ),
    "lax.dot": lambda a, b: rlx.lax.dot(a, b, preferred_element_type="f32"),
}


@pytest.mark.parametrize("name", PREFERRED)
def test_sums_of_halves_in_a_wider_type(name):
    """Rounded once, to the type that is asked for: bf16 in between would be off by 2^-9."""
    rng = np.random.default_rng(4)
    a, b = (rng.normal(size=dims).astype(DType.BF16.numpy) for dims in ((3, 300), (300, 5)))
    wanted = a.astype("f8") @ b.astype("f8")
    for f in (PREFERRED[name], rlx.jit(PREFERRED[name])):
        found = np.asarray(f(a, b))
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)


def test_scalars_are_multiplied_in_the_type_asked_for():
    assert int(rnp.dot(np.int8(100), np.int8(100), preferred_element_type="i32")) == 10000
    assert int(rnp.inner(np.int8(100), np.int8(100), preferred_element_type="i32")) == 10000
