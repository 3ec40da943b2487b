"""Schur's form of general square matrices, by shifted QR steps on a Hessenberg matrix.

The vectors of a Schur form are not determined by the matrix, so it has no derivative;
`rlx.ops.linalg.general_eigen` and `rlx.ops.linalg.analytic_functions` build on it what has one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlx.errors import OpError
from rlx.ir.op import NoRule, Op, op
from rlx.ir.shape import Shape
from rlx.ops.define.operands import convert, dtype_of, promote_inexact
from rlx.ops.define.rules import batch_by_loop_over_leading
from rlx.ops.define.samples import COMPLEX, Sample, sample, spec
from rlx.ops.linalg.solve import REAL, require_matrix, unit_of, widened

__all__ = ["Schur", "schur"]

Array = np.ndarray[Any, np.dtype[Any]]

# Steps for one eigenvalue; three are usual. Every tenth has an exceptional shift, which breaks cycles.
MAX_STEPS, EXCEPTIONAL = 60, 10
EPS = 2.0**-52


@op("schur")
class Schur(Op):
    """T, Z with A = Z T Zᴴ for A [.., N, N]: Z unitary, T upper triangular with the eigenvalues on its diagonal.

    For real matrices both are real, and T has blocks of two rows on its diagonal where eigenvalues are a complex pair:
    with equal diagonal elements, the others of opposite sign. Where A has NaN or infinity, T and Z are NaN.
    """

    primitive = True

    def infer(self, a: Shape) -> tuple[Shape, Shape]:
        require_matrix(self, a, square=True)
        return a, a

    def eval(self, a: Array) -> tuple[Array, Array]:
        t, z = schur_of(widened(a))
        return t.astype(a.dtype), z.astype(a.dtype)

    jvp = vjp = NoRule("Schur vectors are not determined by the matrix; use eig, eigh, or functions such as sqrtm")
    batch = batch_by_loop_over_leading

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(3, 3), dtypes=REAL)
        yield sample(cls(), spec(4, 4), dtypes=COMPLEX)
        yield sample(cls(), spec(2, 1, 1), dtypes=REAL)
        yield sample(cls(), spec(0, 2, 2), dtypes=REAL)
        yield sample(cls(), spec("B", 3, 3), dtypes=REAL, B=2)


def schur_of(a: Array) -> tuple[Array, Array]:
    """T and Z of every matrix, in double precision."""
    lead = a.shape[:-2]
    t, z = np.empty_like(a), np.empty_like(a)
    reduce = _complex_schur if a.dtype.kind == "c" else _real_schur
    for at in np.ndindex(*lead):
        if not np.isfinite(a[at]).all():
            t[at] = z[at] = np.nan
            continue
        unit = unit_of(a[at])
        t[at], z[at] = reduce(a[at] / unit)
        t[at] *= unit
    return t, z


def triangles_of(a: Array) -> tuple[Array, Array]:
    """T and Z of complex matrices; real eigenvalues of matrices without imaginary parts come out real."""
    if a.imag.any():
        return schur_of(a)
    t, z = (x.astype(a.dtype) for x in schur_of(a.real))
    for at in np.ndindex(*a.shape[:-2]):
        complex_triangle(t[at], z[at])
    return t, z


def complex_triangle(t: Array, z: Array) -> None:
    """Make the blocks of two rows of a T that was real triangular, in place."""
    for k in range(len(t) - 1):
        if abs(t[k + 1, k]) > 0:
            # The first row of a block of two turns towards an eigenvector.
            (p, b), (c, _) = t[k : k + 2, k : k + 2]
            root = 1j * math.sqrt(abs(b)) * math.sqrt(abs(c))
            length = math.hypot(abs(root), abs(c))
            rotation = np.array([[root.conjugate(), c.conjugate()], [-c, root]]) / length
            _turn(t, z, k, rotation)
            t[k + 1, k], t[k, k], t[k + 1, k + 1] = 0, p + root, p - root


def hessenberg_of(a: Array) -> tuple[Array, Array]:
    """H, Q with A = Q H Qᴴ: Q unitary, H zero below the first diagonal under the main one, which is real."""
    h, q = a.copy(), np.eye(len(a), dtype=a.dtype)
    for k in range(len(a) - 1):
        v, scale, beta = reflection_of(h[k + 1 :, k])
        _from_left(h[k + 1 :, k + 1 :], v, np.conj(scale))
        _from_right(h[:, k + 1 :], v, scale)
        _from_right(q[:, k + 1 :], v, scale)
        h[k + 1, k] = beta
        h[k + 2 :, k] = 0
    return h, q


def reflection_of(x: Array) -> tuple[Array, Any, float]:
    """v, scale and beta with (1 - conj(scale)·v·vᴴ) x = beta·e and v[0] = 1; the scale is 0 if there is nothing to do.
    Signs are those of LAPACK's larfg, and beta is real."""
    v = np.zeros_like(x)
    v[0] = 1
    head, unit = x[0], max(np.abs(x.real).max(), np.abs(x.imag).max())
    if not np.abs(x[1:]).any() and head.imag == 0:
        return v, x.dtype.type(0), head.real
    x = x / unit
    beta = -math.copysign(math.sqrt(np.vdot(x, x).real), head.real)
    v[1:] = x[1:] / (x[0] - beta)
    return v, (beta - x[0]) / beta, beta * unit


def _reflection(x: Array) -> tuple[Array, float]:
    """v and s such that 1 - s·v·vᴴ clears x behind its first element."""
    v = x.copy()
    unit = np.abs(v).max()
    if not np.abs(v[1:]).any():
        return v, 0.0
    v = v / unit
    length = math.sqrt(np.vdot(v, v).real)
    head = v[0]
    # Away from the head, so that nothing cancels.
    v[0] = head + (head / abs(head) if head != 0 else 1.0) * length
    return v, 2.0 / np.vdot(v, v).real


def _from_left(a: Array, v: Array, scale: Any) -> None:
    a -= np.outer(scale * v, v.conj() @ a)


def _from_right(a: Array, v: Array, scale: Any) -> None:
    a -= np.outer(a @ v, scale * v.conj())


def _turn(t: Array, z: Array, k: int, rotation: Array) -> None:
    """The similarity of a unitary 2x2 matrix in the rows and columns k, k + 1."""
    t[k : k + 2] = rotation @ t[k : k + 2]
    t[:, k : k + 2] = t[:, k : k + 2] @ rotation.conj().T
    z[:, k : k + 2] = z[:, k : k + 2] @ rotation.conj().T


def _deflate(t: Array, end: int) -> int:
    """Where the block that ends with row `end` begins; what is negligible below the diagonal becomes 0."""
    whole = np.abs(t).max()
    for k in range(end, 0, -1):
        size = abs(t[k, k]) + abs(t[k - 1, k - 1])
        if abs(t[k, k - 1]) <= EPS * (size if size > 0 else whole):
            t[k, k - 1] = 0
            return k
    return 0


def by_steps(t: Array, z: Array, finish: Callable[[Array, Array, int, int], int], step: Callable[..., None]) -> bool:
    """QR steps on blocks of a Hessenberg matrix from the last row up, in place; `finish` says how many rows of a block
    are done. Gives whether all were."""
    end, steps = len(t) - 1, 0
    while end >= 0:
        start = _deflate(t, end)
        done = finish(t, z, start, end)
        if done:
            end, steps = end - done, 0
            continue
        steps += 1
        if steps > MAX_STEPS:
            return False
        step(t, z, start, end, steps % EXCEPTIONAL == 0)
    return True


def _reduced(a: Array, finish: Callable[[Array, Array, int, int], int], step: Callable[..., None]) -> Any:
    t, z = hessenberg_of(a)
    return (t, z) if by_steps(t, z, finish, step) else (np.full_like(a, np.nan),) * 2


def _complex_schur(a: Array) -> tuple[Array, Array]:
    t, z = _reduced(a, finish_single_row, single_shift)
    return np.triu(t), z


def finish_single_row(t: Array, z: Array, start: int, end: int) -> int:
    """A block of one row is done."""
    return int(start == end)


def single_shift(t: Array, z: Array, start: int, end: int, is_exceptional: bool) -> None:
    """One step with the eigenvalue of the last 2x2 block that is nearer to the last element."""
    (a, b), (c, d) = t[end - 1 : end + 1, end - 1 : end + 1]
    half = (a - d) / 2
    root = np.sqrt(half * half + b * c + 0j)
    lower = half + (root if (half.conjugate() * root).real >= 0 else -root)
    shift = d - (b * c / lower if lower != 0 else 0)
    if is_exceptional:
        shift = d + abs(c)
    x, y = t[start, start] - shift, t[start + 1, start]
    for k in range(start, end):
        length = math.hypot(abs(x), abs(y))
        if length > 0:
            _turn(t, z, k, np.array([[x.conjugate(), y.conjugate()], [-y, x]]) / length)
        if k > start:
            t[k + 1, k - 1] = 0
        if k + 2 <= end:
            x, y = t[k + 1, k], t[k + 2, k]


def _real_schur(a: Array) -> tuple[Array, Array]:
    t, z = _reduced(a, finish_real_block, double_shift)
    return np.triu(t, -1), z


def finish_real_block(t: Array, z: Array, start: int, end: int) -> int:
    """A block of one row is done; one of two is turned into its standard form."""
    if end - start > 1:
        return 0
    if start == end:
        return 1
    for _ in range(2):
        (a, b), (c, d) = t[start : end + 1, start : end + 1]
        half = (a - d) / 2
        under_root = half * half + b * c
        if c == 0:
            break
        if under_root >= 0:
            # Two real eigenvalues: the first row turns towards an eigenvector.
            x, y = half + math.copysign(math.sqrt(under_root), half), c
        else:
            # A pair: the angle that makes the diagonal equal.
            total = b + c
            length = math.hypot(total, a - d)
            x = math.sqrt((1 + abs(total) / length) / 2)
            y = -half / (length * x) * math.copysign(1, total)
        length = math.hypot(x, y)
        _turn(t, z, start, np.array([[x, y], [-y, x]]) / length)
        if under_root >= 0:
            t[end, start] = 0
        else:
            t[start, start] = t[end, end] = (a + d) / 2
    return 2


def double_shift(t: Array, z: Array, start: int, end: int, is_exceptional: bool) -> None:
    """One step with both eigenvalues of the last 2x2 block, in real arithmetic."""
    (a, b), (c, d) = t[end - 1 : end + 1, end - 1 : end + 1]
    trace, det = a + d, a * d - b * c
    if is_exceptional:
        size = abs(c) + abs(t[end - 1, end - 2])
        trace, det = 1.5 * size, size * size
    first, below = t[start, start], t[start + 1, start]
    x = np.array(
        [
            (first * first - trace * first + det) / below + t[start, start + 1],
            first + t[start + 1, start + 1] - trace,
            t[start + 2, start + 1],
        ]
    )
    for k in range(start, end):
        rows = slice(k, min(k + 3, end + 1))
        if k > start:
            x = t[rows, k - 1]
        v, scale = _reflection(x)
        _from_left(t[rows], v, scale)
        _from_right(t[:, rows], v, scale)
        _from_right(z[:, rows], v, scale)
        if k > start:
            t[k + 1 : rows.stop, k - 1] = 0


def schur(a: Any, output: str = "real") -> Any:
    """(T, Z) with A = Z T Zᴴ; "complex" makes T of real matrices triangular; see `Schur`."""
    (a,) = promote_inexact(a)
    if output not in ("real", "complex"):
        raise OpError(f"schur: output must be real or complex, got {output!r}")
    return Schur()(convert(a, dtype_of(a).complex) if output == "complex" else a)
