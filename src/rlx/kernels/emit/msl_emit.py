"""Loop IR -> Metal's shading language: one library of many kernels.

Each buffer has an index in the order of parameters, sizes come together in the one after the last. A block is a
threadgroup; there are as many of them as parallel iterations, in one dimension. There is no f64. The fragments of waves
are simdgroup matrices.

>>> from rlx.ir.dtype import DType
>>> from rlx.kernels.ir.builder import KernelBuilder
>>> k = KernelBuilder("double")
>>> x, y, n = k.pointer("x", DType.F32), k.pointer("y", DType.F32, write=True), k.index("n")
>>> with k.parallel("i", n) as i:
...     k.store(y, i, k.load(x, i) * 2.0)
>>> print(msl_module([GpuKernel("k0", k.build())]).split("#define LANES")[1])  # doctest: +ELLIPSIS
(count) for (int l = 0; l < (count); l++)
<BLANKLINE>
kernel void k0(device const float *b_x [[buffer(0)]], device float *b_y [[buffer(1)]],
    constant int64_t *sizes [[buffer(2)]],
    uint block_ [[threadgroup_position_in_grid]], uint thread_ [[thread_index_in_threadgroup]]) {
    const int64_t n_n = sizes[0];
    const int64_t v0 = block_;
    float v1 = b_x[v0];
    float v2 = v1 * 2.0f;
    b_y[v0] = v2;
}
<BLANKLINE>
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlx.errors import BackendError
from rlx.ir.dtype import DType
from rlx.kernels.emit.c_text import VALUE_TYPE
from rlx.kernels.emit.gpu_c_emit import LITERALS, OWN_TYPE, GpuCFunction, GpuKernel, GpuPrelude, gpu_module
from rlx.kernels.ir.groups import Exchange
from rlx.kernels.ir.loop_ir import Buffer, Literal, Space, Statement
from rlx.kernels.ir.regions import Region
from rlx.kernels.ir.wave_fragments import FragmentFill, FragmentLoad, FragmentMma, FragmentStore

_MATRIX_ELEMENTS = {DType.F16: "half", DType.F32: "float"}

# Without contraction a product and a sum round twice, as everywhere in rlx.
HEADER = f"""\
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp contract(off)
{LITERALS}"""

# Memory that threads share, seen as another type: f16 lies there as its bits.
MATRIX_HEADER = """\
#include <metal_simdgroup_matrix>
#ifndef SHARED_AS
#define SHARED_AS(type, pointer) ((threadgroup type *)(pointer))
#endif
"""


def msl_module(kernels: Sequence[GpuKernel]) -> str:
    """The text of a library with all kernels."""
    prelude = MslPrelude()
    has_matrices = any(a.space is Space.FRAGMENT for k in kernels for a in k.kernel.arrays)
    header = HEADER.replace("\n", f"\n{MATRIX_HEADER}", 1) if has_matrices else HEADER
    return gpu_module(header, [_Function(kernel, prelude) for kernel in kernels], prelude)


class MslPrelude(GpuPrelude):
    def literal(self, dtype: DType, literal: Literal) -> str:
        """Floats in decimal digits, enough of them to be exact: C++14 has no hexadecimal ones."""
        if dtype is DType.F64:
            raise BackendError("Metal has no f64; cast to f32, or use the device cpu")
        if dtype is not DType.F32:
            return super().literal(dtype, literal)
        with np.errstate(over="ignore"):
            number = float(np.float32(literal))
        if not math.isfinite(number):
            return super().literal(dtype, number)
        digits = f"{abs(number):.9g}"
        digits = digits if any(c in digits for c in ".e") else f"{digits}.0"
        return f"(-{digits}f)" if math.copysign(1.0, number) < 0 else f"{digits}f"

    def exchange(self, name: str, kind: str, combined: str) -> str:
        return f"""\
static inline void {name}(device {kind} *p, {kind} x) {{
    device atomic_uint *place = (device atomic_uint *)p;
    uint old = atomic_load_explicit(place, memory_order_relaxed), now;
    do {{
        {kind} seen = as_type<{kind}>(old);
        now = as_type<uint>({combined});
    }} while (!atomic_compare_exchange_weak_explicit(place, &old, now, memory_order_relaxed, memory_order_relaxed));
}}
"""


class _Function(GpuCFunction):
    spaces = {Space.GLOBAL: "device", Space.SHARED: "threadgroup", Space.LOCAL: "", Space.TABLE: "constant"}
    block_number = "block_"
    thread_number = "thread_"
    barrier_call = "threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);"

    def fragment(self, array: Buffer) -> str:
        kind = _MATRIX_ELEMENTS[array.dtype]
        return f"simdgroup_matrix<{kind}, {array.cols}, {array.rows}> {self.buffers[array]};"

    def statement(self, statement: Statement) -> None:
        match statement:
            case FragmentFill(_, fragment, literal):
                kind, name = _MATRIX_ELEMENTS[fragment.dtype], self.buffers[fragment]
                number = self.prelude.literal(DType.F32, literal)
                shape = f"{kind}, {fragment.cols}, {fragment.rows}"
                self.line(f"{name} = make_filled_simdgroup_matrix<{shape}>({kind}({number}));")
            case FragmentLoad(_, fragment, source, transposed):
                turned = ", ulong2(0, 0), true" if transposed else ""
                self.line(f"simdgroup_load({self.buffers[fragment]}, {self.matrix_at(source)}{turned});")
            case FragmentStore(_, target, fragment):
                self.line(f"simdgroup_store({self.buffers[fragment]}, {self.matrix_at(target)});")
            case FragmentMma(_, total, a, b):
                sums, *factors = (self.buffers[f] for f in (total, a, b))
                self.line(f"simdgroup_multiply_accumulate({sums}, {', '.join(factors)}, {sums});")
            case Exchange(result, "xor", value, lane, _):
                self.assign(result, f"simd_shuffle_xor({self.at(value)}, ushort({self.at(lane)}))")
            case _:
                super().statement(statement)

    def matrix_at(self, tile: Region) -> str:
        """Where a matrix lies in memory that threads share, and how far apart its rows are."""
        kind = _MATRIX_ELEMENTS[tile.buffer.dtype]
        place = f"{self.buffers[tile.buffer]} + {self.at(tile.offset)}"
        return f"SHARED_AS({kind}, {place}), {self.at(tile.stride)}"

    def head(self) -> list[str]:
        buffers, scalars = self.params
        lines = [
            ", ".join(
                f"device {self.element(b)} *{self.buffers[b]} [[buffer({number})]]" for number, b in enumerate(buffers)
            )
        ]
        if scalars:
            lines.append(f"constant int64_t *sizes [[buffer({len(buffers)})]]")
        numbers = "uint block_ [[threadgroup_position_in_grid]], uint thread_ [[thread_index_in_threadgroup]]"
        params = ",\n    ".join([*filter(None, lines), numbers])
        return f"kernel void {self.entry}({params}) {{".split("\n")

    def arguments(self) -> None:
        for number, value in enumerate(self.params[1]):
            self.line(f"const {VALUE_TYPE[value.dtype]} {self.names[value]} = sizes[{number}];")

    def as_type(self, kind: str, x: str) -> str:
        return f"as_type<{OWN_TYPE[kind]}>({x})"
