"""A libhipblaslt without a GPU, which keeps books: what was created and not destroyed, what was multiplied, on which
stream. Products happen when the stream of the stand-in for HIP does its work."""

from __future__ import annotations

import ctypes
import itertools
from types import SimpleNamespace

import ml_dtypes
import numpy as np

from backends.cuda.fake_libcuda import _number, _set

_TYPES = {0: np.float32, 2: np.float16, 14: ml_dtypes.bfloat16}
_PLAIN, _TURNED = 111, 112


class FakeHipBlasLt:
    def __init__(self, hip):
        self.hip, self.live, self.products, self.status = hip, {}, [], 0
        self._handles = itertools.count(0x7000)

    def _new(self, kind, out, **what):
        handle = next(self._handles)
        self.live[handle] = SimpleNamespace(kind=kind, **what)
        _set(out, handle)
        return 0

    def _known(self, handle, kind):
        found = self.live[_number(handle)]
        assert found.kind == kind, f"a {found.kind} where a {kind} is needed"
        return found

    def _gone(self, handle, kind):
        self._known(handle, kind)
        del self.live[_number(handle)]
        return 0

    def hipblasLtCreate(self, out):
        return self._new("handle", out)

    def hipblasLtDestroy(self, handle):
        return self._gone(handle, "handle")

    def hipblasLtMatmulDescCreate(self, out, compute, scale):
        assert (compute, scale) == (2, 0), "sums and factors in f32"
        return self._new("product", out, turned={0: _PLAIN, 1: _PLAIN})

    def hipblasLtMatmulDescSetAttribute(self, product, attribute, value, size):
        assert _number(size) == 4 and value._obj.value in (_PLAIN, _TURNED)
        self._known(product, "product").turned[attribute] = value._obj.value
        return 0

    def hipblasLtMatmulDescDestroy(self, product):
        return self._gone(product, "product")

    def hipblasLtMatrixLayoutCreate(self, out, dtype, rows, columns, pitch):
        rows, columns, pitch = (_number(x) for x in (rows, columns, pitch))
        assert pitch >= rows > 0 and columns > 0
        return self._new("layout", out, dtype=_TYPES[dtype], dims=(rows, columns), pitch=pitch, batch=1, stride=0)

    def hipblasLtMatrixLayoutSetAttribute(self, layout, attribute, value, size):
        known = self._known(layout, "layout")
        assert (attribute, _number(size)) in ((0, 4), (1, 8))
        setattr(known, "batch" if attribute == 0 else "stride", value._obj.value)
        return 0

    def hipblasLtMatrixLayoutDestroy(self, layout):
        return self._gone(layout, "layout")

    def hipblasLtMatmul(
        self, handle, product, alpha, a, a_is, b, b_is, beta, c, c_is, d, d_is, algo, work, size, stream
    ):
        if self.status:
            return self.status
        self._known(handle, "handle")
        turned = dict(self._known(product, "product").turned)
        left, right, to = (SimpleNamespace(**vars(self._known(x, "layout"))) for x in (a_is, b_is, d_is))
        assert (alpha._obj.value, beta._obj.value) == (1.0, 0.0) and _number(c) == _number(d) and algo is None
        assert left.batch == right.batch == to.batch and left.dtype is right.dtype
        addresses = [_number(x) for x in (a, b, d)]

        def multiplied():
            for i in range(to.batch):
                x, y, z = (self._view(at, it, i) for at, it in zip(addresses, (left, right, to)))
                x, y = (m.T if turned[n] == _TURNED else m for n, m in enumerate((x, y)))
                z[...] = (x.astype(np.float32) @ y.astype(np.float32)).astype(to.dtype)

        self.hip._work(stream, multiplied)
        self.products.append((to.dims, left.dtype, to.batch))
        return 0

    def _view(self, address, layout, number):
        """A matrix whose columns lie side by side; all of it must be memory of the device."""
        rows, columns = layout.dims
        size = np.dtype(layout.dtype).itemsize
        start, count = address + number * layout.stride * size, (columns - 1) * layout.pitch + rows
        assert self.hip.memory_at(start, count * size) is not None, "memory that is not there"
        raw = np.frombuffer((ctypes.c_char * (count * size)).from_address(start), np.uint8).view(layout.dtype)
        return np.lib.stride_tricks.as_strided(raw, (rows, columns), (size, layout.pitch * size))
