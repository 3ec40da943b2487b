"""`BlasForm`: plain products by hipBLASLt, where that library is installed; the loop kernel stays what runs elsewhere.

A form is asked before the kernel of a product is launched (`rlx.backends.cuda.hopper.launching`), and reports name it.
It takes products of many rows without an epilogue; the library counts columns first, so that C = A @ B is given to it
as C' = B' @ A'. Nothing of this has run on an AMD GPU: tests run it against a library that keeps books.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from ctypes import byref, c_float, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from functools import cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, finalize

from rlx.backends.cuda.device import Gpu
from rlx.backends.cuda.hopper.launching import ALONE, NOTHING, Loadable, Ready, Surroundings, TensorForm
from rlx.backends.cuda.streams import Stream
from rlx.errors import BackendError, InternalError
from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.matmul import Matrix, Product
from rlx.kernels.gpu.matmul import ProductOrigin
from rlx.kernels.ir.loop_ir import Kernel
from rlx.kernels.machines import Machine
from rlx.knobs import knobs

LIBRARIES = ("libhipblaslt.so", "libhipblaslt.so.0", "libhipblaslt.so.1")
# Rows and columns from which a product is no longer a matter of the memory's speed alone.
FEWEST = 16
# Products whose descriptions are kept.
KEPT = 64

# The library's numbers: types, the type of sums, attributes, whether an operand is turned, and what it cannot do.
_TYPES = {DType.F32: 0, DType.F16: 2, DType.BF16: 14}
_COMPUTE_F32 = 2
_TURN_A, _TURN_B = 0, 1
_BATCHES, _BATCH_STRIDE = 0, 1
_PLAIN, _TURNED = 111, 112
_NOT_SUPPORTED = 7


@cache
def library() -> tuple[str, Any] | None:
    """The name of hipBLASLt's file and the library; None where it is not installed."""
    for name in LIBRARIES:
        try:
            return name, ctypes.CDLL(name)
        except OSError:
            continue
    return None


def blas_refusal(product: Product, acc: DType) -> str:
    """Why the library does not compute a product; empty if it does."""
    matrices = (product.a, *product.bs, *product.cs)
    if len(product.bs) > 1 or len(product.cs) > 1 or product.epilogue is not None:
        return "an epilogue, or several products"
    a, b, c = matrices
    if acc is not DType.F32 or a.dtype is not b.dtype or a.dtype not in _TYPES or c.dtype not in (a.dtype, DType.F32):
        return f"{a.dtype} @ {b.dtype} in {acc} to {c.dtype}"
    if c.col_stride != 1 or any(1 not in (m.row_stride, m.col_stride) for m in (a, b)):
        return "strides"
    return ""


def blas_forms(kernel: Kernel, machine: Machine) -> tuple[BlasForm, ...]:
    """The form of a kernel that was made of a plain product, where there is a library for it."""
    if not isinstance(kernel.origin, ProductOrigin) or not knobs.rocm_blas or library() is None:
        return ()
    if blas_refusal(kernel.origin.product, kernel.origin.acc):
        return ()
    return (BlasForm(kernel.origin.product, [p.name for p in kernel.params], machine),)


class _Described(NamedTuple):
    """A product as the library has it: its description, those of B, A and C, and where they lie."""

    product: c_void_p
    layouts: tuple[c_void_p, c_void_p, c_void_p]
    addresses: tuple[int, int, int]


class BlasForm(TensorForm):
    """One product."""

    name, entry = "hipBLASLt", ""

    def __init__(self, product: Product, params: Sequence[str], machine: Machine) -> None:
        super().__init__(params, machine, _no_code)
        self.product = product
        self._described: dict[tuple[int, ...], _Described | None] = {}
        self._blas_lock = threading.Lock()
        finalize(self, _forget, self._described).atexit = False

    def prepared(self, words: Sequence[int], gpu: Gpu) -> Ready:
        return NOTHING

    def launch(self, words: Sequence[int], stream: Stream, around: Surroundings = ALONE) -> bool:
        found = library()
        if found is None:
            return False
        with self._blas_lock:
            key = tuple(words)
            if key not in self._described:
                if len(self._described) >= KEPT:
                    _forget(self._described)
                self._described[key] = self._describe(words, found[1])
            known = self._described[key]
            if known is None:
                return False
            if self._multiply(known, stream, found[1]):
                return True
            # What it cannot do now it cannot do later.
            self._described[key] = None
            _destroy(known, found[1])
            return False

    def _describe(self, words: Sequence[int], blas: Any) -> _Described | None:
        """The descriptions for these arguments; None where our own kernel is to run."""
        product = self.product
        m, n, k, batch = (self.number(s, words) for s in (product.m, product.n, product.k, product.batch))
        if min(m, n) < FEWEST or not k or not batch:
            return None
        a, (b,), (c,) = product.a, product.bs, product.cs
        described = c_void_p()
        _call(blas.hipblasLtMatmulDescCreate, byref(described), _COMPUTE_F32, _TYPES[DType.F32])
        for attribute, matrix in ((_TURN_A, b), (_TURN_B, a)):
            turned = c_int32(_PLAIN if matrix.col_stride == 1 else _TURNED)
            _call(blas.hipblasLtMatmulDescSetAttribute, described, attribute, byref(turned), c_size_t(4))
        sizes = ((b, k, n), (a, m, k), (c, m, n))
        layouts = [self._layout(matrix, rows, columns, batch, words, blas) for matrix, rows, columns in sizes]
        addresses = [
            words[self.places[x.name]] + x.dtype.size_bytes * self.number(x.offset, words) for x, _, _ in sizes
        ]
        return _Described(described, tuple(layouts), tuple(addresses))  # type: ignore[arg-type]

    def _layout(self, matrix: Matrix, rows: int, columns: int, batch: int, words: Sequence[int], blas: Any) -> c_void_p:
        """A matrix with its columns counted first: its rows, or its columns where these lie side by side."""
        is_plain = matrix.col_stride == 1
        side, lines = (columns, rows) if is_plain else (rows, columns)
        pitch = self.number(matrix.row_stride if is_plain else matrix.col_stride, words)
        made = c_void_p()
        shape = (c_uint64(side), c_uint64(lines), c_int64(max(pitch, side)))
        _call(blas.hipblasLtMatrixLayoutCreate, byref(made), _TYPES[matrix.dtype], *shape)
        if batch > 1:
            count, stride = c_int32(batch), c_int64(self.number(matrix.batch_stride, words))
            _call(blas.hipblasLtMatrixLayoutSetAttribute, made, _BATCHES, byref(count), c_size_t(4))
            _call(blas.hipblasLtMatrixLayoutSetAttribute, made, _BATCH_STRIDE, byref(stride), c_size_t(8))
        return made

    def _multiply(self, known: _Described, stream: Stream, blas: Any) -> bool:
        """Whether the library has put the product on the stream."""
        one, zero = c_float(1.0), c_float(0.0)
        (left, right, to), (left_layout, right_layout, layout) = known.addresses, known.layouts
        status = blas.hipblasLtMatmul(
            handle_of(stream.gpu, blas),
            known.product,
            byref(one),
            c_void_p(left),
            left_layout,
            c_void_p(right),
            right_layout,
            byref(zero),
            c_void_p(to),
            layout,
            c_void_p(to),
            layout,
            None,
            None,
            c_size_t(0),
            stream.handle,
        )
        if status not in (0, _NOT_SUPPORTED):
            raise BackendError(f"rocm: hipblasLtMatmul failed with status {status}; RLX_ROCM_BLAS=0 does without it")
        return status == 0


_handles: WeakKeyDictionary[Gpu, c_void_p] = WeakKeyDictionary()


def handle_of(gpu: Gpu, blas: Any) -> c_void_p:
    """The library's state for a GPU, made once."""
    if gpu not in _handles:
        made = _handles[gpu] = c_void_p()
        _call(blas.hipblasLtCreate, byref(made))
        # At the end of the process the library may have gone before.
        finalize(gpu, blas.hipblasLtDestroy, made).atexit = False
    return _handles[gpu]


def _forget(described: dict[tuple[int, ...], _Described | None]) -> None:
    """Give back what the library keeps for a product."""
    found = library()
    for known in described.values():
        if known is not None and found is not None:
            _destroy(known, found[1])
    described.clear()


def _destroy(known: _Described, blas: Any) -> None:
    for layout in known.layouts:
        blas.hipblasLtMatrixLayoutDestroy(layout)
    blas.hipblasLtMatmulDescDestroy(known.product)


def _call(function: Callable[..., int], *arguments: object) -> None:
    status = function(*arguments)
    if status:
        name = getattr(function, "__name__", "hipBLASLt")
        raise BackendError(f"rocm: {name} failed with status {status}; RLX_ROCM_BLAS=0 does without the library")


def _no_code(entry: str, what: str, make: Callable[[], str]) -> Loadable:
    raise InternalError("a product by a library has no code of its own")
