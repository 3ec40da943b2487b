"""`rlx.scipy.signal`, `fft`, `ndimage`, `interpolate`, `optimize` and `sparse.linalg` beside SciPy and NumPy."""

import numpy as np
import pytest
import scipy.fft
import scipy.interpolate
import scipy.ndimage
import scipy.signal
from scipy.optimize import rosen, rosen_der

import rlx
import rlx.numpy as rnp
import rlx.scipy
from rlx.errors import RlxError

_rng = np.random.default_rng(5)
X, Y = _rng.standard_normal((2, 2, 130))


def same(found, wanted):
    for a, b in zip(found, wanted) if isinstance(wanted, tuple) else [(found, wanted)]:
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)


def call(module, name, *args, **kwargs):
    """The call in rlx, eagerly and in a program, beside SciPy's."""
    ours, theirs = getattr(getattr(rlx.scipy, module), name), getattr(getattr(scipy, module), name)
    wanted = theirs(*args, **kwargs)
    same(ours(*args, **kwargs), wanted)
    same(rlx.jit(lambda *a: ours(*a, **kwargs))(*args), wanted)


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize(("n", "k"), [(7, 4), (3, 6)])
def test_convolutions_of_vectors(n, k, mode):
    a, b = X[0, :n], Y[0, :k]
    call("signal", "convolve", a, b, mode=mode)
    for x, y in ((a, b), (a + 1j * X[1, :n], b), (b, a - 1j * X[1, :n])):
        same(rlx.scipy.signal.correlate(x, y, mode), scipy.signal.correlate(x, y, mode))
        same(rlx.scipy.signal.convolve(x, y, mode, "fft"), scipy.signal.convolve(x, y, mode, "fft"))
        same(rlx.scipy.signal.fftconvolve(x, y, mode), scipy.signal.fftconvolve(x, y, mode))


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("boundary", ["fill", "wrap", "symm"])
def test_convolutions_of_matrices(mode, boundary):
    image = X[0, :30].reshape(5, 6)
    for window in (Y[0, :6].reshape(3, 2), Y[0, :6].reshape(2, 3)):
        same(
            rlx.scipy.signal.convolve2d(image, window, mode, boundary),
            scipy.signal.convolve2d(image, window, mode, boundary),
        )
        same(
            rlx.scipy.signal.correlate2d(image, window, mode, boundary),
            scipy.signal.correlate2d(image, window, mode, boundary),
        )
        same(rlx.scipy.signal.convolve(image, window, mode), scipy.signal.convolve(image, window, mode))
    same(
        rlx.scipy.signal.convolve2d(image, window, mode, "fill", 2.0),
        scipy.signal.convolve2d(image, window, mode, "fill", 2.0),
    )


def test_detrend():
    call("signal", "detrend", X)
    call("signal", "detrend", X, axis=0, type="constant")
    call("signal", "detrend", X, bp=[20, 70])


@pytest.mark.parametrize(
    "options",
    [
        {"nperseg": 32},
        {"nperseg": 33, "noverlap": 20, "nfft": 50, "fs": 10.0},
        {"nperseg": 32, "scaling": "spectrum", "detrend": "linear", "window": "hamming"},
        {"nperseg": 32, "average": "median", "return_onesided": False},
    ],
)
def test_densities(options):
    call("signal", "welch", X, **options)
    call("signal", "csd", X, Y, **options)


@pytest.mark.parametrize("boundary", ["zeros", "even", "odd", "constant"])
def test_short_time_transforms(boundary):
    for options in ({"nperseg": 32}, {"nperseg": 33, "noverlap": 20, "nfft": 50, "fs": 10.0}):
        call("signal", "stft", X, boundary=boundary, **options)
        spectra = rlx.scipy.signal.stft(X, boundary=boundary, **options)[2]
        same(rlx.scipy.signal.istft(spectra, **options)[1][:, : X.shape[1]], X)
    call("signal", "stft", X.T, nperseg=32, boundary=None, padded=False, return_onesided=False, axis=0)


@pytest.mark.parametrize("kind", [1, 2, 3, 4])
@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
def test_cosine_transforms(kind, norm):
    x = X[:, :9]
    call("fft", "dct", x, type=kind, norm=norm)
    for n, axis in ((5, -1), (4, 0)):
        same(rlx.scipy.fft.idct(x, kind, n, axis, norm), scipy.fft.idct(x, kind, n, axis, norm))
    same(rlx.scipy.fft.dctn(x, kind, norm=norm), scipy.fft.dctn(x, kind, norm=norm))
    same(rlx.scipy.fft.idctn(rlx.scipy.fft.dctn(x, kind, norm=norm), kind, norm=norm), x)


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("mode", ["constant", "nearest", "mirror", "reflect", "wrap"])
def test_values_between_pixels(order, mode):
    image, places = X[0, :20].reshape(4, 5), _rng.uniform(-9, 11, (2, 40))
    # What JAX calls "wrap" and "constant" is "grid-wrap" and "grid-constant" there.
    theirs = {"wrap": "grid-wrap", "constant": "grid-constant"}.get(mode, mode)
    found = rlx.jit(lambda p: rlx.scipy.ndimage.map_coordinates(image, p, order, mode, cval=2.0))(places)
    same(found, scipy.ndimage.map_coordinates(image, places, order=order, mode=theirs, cval=2.0))
    whole = (image * 10).astype(np.int32)
    assert rlx.scipy.ndimage.map_coordinates(whole, places, order, mode).dtype == np.int32


@pytest.mark.parametrize("method", ["linear", "nearest"])
@pytest.mark.parametrize("fill", [np.nan, None])
def test_values_between_grid_points(method, fill):
    axes, values = (np.array([0.0, 1.0, 3.0, 4.0]), np.linspace(0, 1, 5)), X[0, :40].reshape(4, 5, 2)
    points = np.stack([_rng.uniform(-1, 5, 20), _rng.uniform(-0.2, 1.2, 20)], -1)
    wanted = scipy.interpolate.RegularGridInterpolator(axes, values, method, bounds_error=False, fill_value=fill)
    ours = rlx.scipy.interpolate.RegularGridInterpolator(axes, values, method, fill_value=fill)
    same(rlx.jit(ours)(points), wanted(points))


def test_minima():
    def valley(x):
        return rnp.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)

    starts = np.array([[-1.2, 1.0], [2.0, -1.0], [1.0, 1.0]])
    found = rlx.vmap(lambda x: rlx.scipy.optimize.minimize(valley, x, method="BFGS"))(starts)
    np.testing.assert_allclose(found.x, 1.0, atol=1e-5)
    assert found.success.all() and not found.status.any() and found.nit[2] == 0
    for x, f, g in zip(found.x, found.fun, found.jac):
        np.testing.assert_allclose((f, *g), (rosen(x), *rosen_der(x)), atol=1e-9)
    short = rlx.scipy.optimize.minimize(valley, starts[0], method="BFGS", options={"maxiter": 3})
    assert (short.status, short.success, short.nit) == (1, False, 3)
    # A slope that no step follows: the gradient is wrong on purpose.
    stuck = rlx.scipy.optimize.minimize(lambda x: rnp.sum(2 * rlx.stop_gradient(x) - x), starts[0], method="BFGS")
    assert (stuck.status, stuck.success) == (3, False)


@pytest.mark.parametrize("method", ["cg", "bicgstab", "gmres"])
def test_systems_by_products(method):
    solve = getattr(rlx.scipy.sparse.linalg, method)
    matrix, b = X[:, :36].reshape(2, 6, 6)[0], Y[0, :6]
    matrix = matrix @ matrix.T + np.eye(6)

    def size(matrix, b, start):
        x = solve(lambda v: matrix @ v, b, start, tol=1e-12, M=lambda v: v / rnp.diagonal(matrix))[0]
        return rnp.sum(x**3)

    def exact(matrix, b):
        return rnp.sum(rnp.linalg.solve(matrix, b) ** 3)

    np.testing.assert_allclose(size(matrix, b, b), exact(matrix, b), rtol=1e-7)
    np.testing.assert_allclose(solve(matrix, b, tol=1e-12)[0], np.linalg.solve(matrix, b), rtol=1e-7)
    found, wanted = (
        rlx.grad(f, (0, 1))(matrix, b, *rest)
        for f, rest in ((lambda m, b: size((m + m.T) / 2, b, b), ()), (lambda m, b: exact((m + m.T) / 2, b), ()))
    )
    for a, w in zip(found, wanted):
        np.testing.assert_allclose(a, w, rtol=1e-5, atol=1e-6)


def test_refusals_say_what_is_there():
    signal = rlx.scipy.signal
    for wrong, message in (
        (lambda: signal.convolve(X, Y[0]), "as many axes"),
        (lambda: signal.convolve(X, Y, "half"), "'full', 'same' or 'valid'"),
        (lambda: signal.convolve(X[:, :3], Y[:1], "valid"), "fit into the other"),
        (lambda: signal.stft(X, nperseg=8, noverlap=8), "noverlap < nperseg"),
        (lambda: rlx.scipy.fft.dct(X, 5), "1, 2, 3 or 4"),
        (lambda: rlx.scipy.ndimage.map_coordinates(X, [X], 1), "2 coordinates"),
        (lambda: rlx.scipy.ndimage.map_coordinates(X, [X, X], 3), "order must be"),
        (lambda: rlx.scipy.optimize.minimize(rnp.sum, X[0], method="CG"), "BFGS"),
        (lambda: rlx.scipy.optimize.minimize(rnp.sum, X, method="BFGS"), "vector"),
        (lambda: rlx.scipy.interpolate.RegularGridInterpolator((X[0],), X[0]), "must increase"),
    ):
        with pytest.raises(RlxError, match=message):
            wrong()
