"""Loop IR -> OpenCL C: one module of many kernels.

Memory comes as buffers with a byte in each at which an array begins. A block is a work-group; there are as many of them
as parallel iterations, in one dimension.

>>> from rlx.ir.dtype import DType
>>> from rlx.kernels.ir.builder import KernelBuilder
>>> k = KernelBuilder("double")
>>> x, y, n = k.pointer("x", DType.F32), k.pointer("y", DType.F32, write=True), k.index("n")
>>> with k.parallel("i", n) as i:
...     k.store(y, i, k.load(x, i) * 2.0)
>>> print(opencl_module([GpuKernel("k0", k.build())]).split("#define LANES")[1])  # doctest: +ELLIPSIS
(count) for (int l = 0; l < (count); l++)
<BLANKLINE>
__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void k0(__global uchar *b_x_in, ulong b_x_at, __global uchar *b_y_in, ulong b_y_at, int64_t n_n) {
    __global const float *restrict b_x = (__global const float *)(b_x_in + b_x_at);
    __global float *restrict b_y = (__global float *)(b_y_in + b_y_at);
    const int64_t v0 = get_group_id(0);
    float v1 = b_x[v0];
    float v2 = v1 * 0x1p+1f;
    b_y[v0] = v2;
}
<BLANKLINE>
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.kernels.emit.c_text import VALUE_TYPE
from rlx.kernels.emit.gpu_c_emit import LITERALS, OWN_TYPE, GpuCFunction, GpuKernel, GpuPrelude, gpu_module
from rlx.kernels.ir.loop_ir import Buffer, Space

HEADER = f"""\
#pragma OPENCL FP_CONTRACT OFF
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
{"".join(f"typedef {own} {name};{chr(10)}" for name, own in OWN_TYPE.items() if name != own)}{LITERALS}"""


def opencl_module(kernels: Sequence[GpuKernel]) -> str:
    """The text of a program with all kernels."""
    prelude = OpenClPrelude()
    return gpu_module(HEADER, [_Function(kernel, prelude) for kernel in kernels], prelude)


class OpenClPrelude(GpuPrelude):
    def exchange(self, name: str, kind: str, combined: str) -> str:
        own = OWN_TYPE[kind]
        return f"""\
static inline void {name}(__global {kind} *p, {kind} x) {{
    volatile __global uint *place = (volatile __global uint *)p;
    uint old, now = *place;
    do {{
        old = now;
        {kind} seen = as_{own}(old);
        now = atomic_cmpxchg(place, old, as_uint({combined}));
    }} while (now != old);
}}
"""


class _Function(GpuCFunction):
    spaces = {Space.GLOBAL: "__global", Space.SHARED: "__local", Space.LOCAL: "", Space.TABLE: "__constant"}
    block_number = "get_group_id(0)"
    thread_number = "get_local_id(0)"
    barrier_call = "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);"

    def head(self) -> list[str]:
        params = []
        for param in self.kernel.params:
            if isinstance(param, Buffer):
                name = self.buffers[param]
                params += [f"__global uchar *{name}_in", f"ulong {name}_at"]
            else:
                params.append(f"{VALUE_TYPE[param.dtype]} {self.names[param]}")
        size = f"__attribute__((reqd_work_group_size({self.threads}, 1, 1)))"
        return [f"__kernel {size}", f"void {self.entry}({', '.join(params)}) {{"]

    def arguments(self) -> None:
        for buffer in self.params[0]:
            kind, name = self.element(buffer), self.buffers[buffer]
            restrict = "restrict " if buffer.noalias else ""
            self.line(f"__global {kind} *{restrict}{name} = (__global {kind} *)({name}_in + {name}_at);")

    def as_type(self, kind: str, x: str) -> str:
        return f"as_{OWN_TYPE[kind]}({x})"
