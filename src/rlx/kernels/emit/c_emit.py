"""Loop IR -> C99 text, for any C compiler: microcontrollers, and a second opinion on every kernel.

A kernel becomes the same two functions as in LLVM: one over the parameters in order plus the range `first`, `last` of
parallel iterations, and one that reads the parameters from 8-byte slots. The same kernel legalised for the same machine
gives the same bits as LLVM's code, NaNs apart, whose payloads neither promises.

>>> from rlx.ir.dtype import DType
>>> from rlx.kernels.ir.builder import KernelBuilder
>>> from rlx.kernels.machines import CORTEX_M4
>>> k = KernelBuilder("double")
>>> x, y, n = k.pointer("x", DType.F32), k.pointer("y", DType.F32, write=True), k.index("n")
>>> with k.parallel("i", n) as i:
...     k.store(y, i, k.load(x, i) * 2.0)
>>> print(c_source([k.build()], CORTEX_M4).split("#define")[1])  # doctest: +ELLIPSIS
 LANES(count) for (int l = 0; l < (count); l++)
<BLANKLINE>
void rlx_double(const float *restrict x, float *restrict y, int64_t n, int64_t first, int64_t last) {
    for (int64_t i = first > 0 ? first : 0, i_stop_ = last < n ? last : n; i < i_stop_; i++) {
        float v0 = x[i];
        float v1 = v0 * 0x1p+1f;
        y[i] = v1;
    }
}
...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlx.errors import BackendError
from rlx.kernels.emit.c_ops import COps
from rlx.kernels.emit.c_text import HEADER, MEMORY_TYPE, VALUE_TYPE, Prelude, identifier, literal_text
from rlx.kernels.ir.groups import refuse_groups
from rlx.kernels.ir.loop_ir import (
    Atomic,
    Buffer,
    Const,
    For,
    Kernel,
    Load,
    LoopKind,
    Space,
    Store,
    Value,
)
from rlx.kernels.legalize import legalize
from rlx.kernels.machines import Machine


def c_symbol(name: str) -> str:
    """The C function of a kernel; its name alone may be one of the C library."""
    return f"rlx_{name}"


def c_packed_symbol(name: str) -> str:
    """The C function that reads its parameters from slots: `void (const void *args, int64_t first, int64_t last)`."""
    return f"{c_symbol(name)}_packed"


def c_source(kernels: Sequence[Kernel], machine: Machine, fused: bool = True) -> str:
    """One C file of kernels with different names, legalised for a machine.

    `fused` says that `fma` rounds once, as on machines with such an instruction.
    """
    names = [k.name for k in kernels]
    if len(set(names)) < len(names):
        raise BackendError(f"kernels of one C file need different names, got {sorted(names)}")
    prelude = Prelude()
    # C has no f16, no sums of two that end at 16 bits, nor a dot product of bf16 whose subnormals count as 0.
    plain = replace(machine, has_f16_conversion=False, dot2_lanes=(), pair_lanes=())
    legal = [legalize(k, plain) for k in kernels]
    for kernel in legal:
        refuse_groups(kernel, "the C emitter")
    functions = [CFunction(kernel, prelude, fused).text() for kernel in legal]
    return "\n".join([HEADER + prelude.text, *functions])


class CFunction(COps):
    """One kernel as C."""

    def __init__(self, kernel: Kernel, prelude: Prelude, fused: bool) -> None:
        super().__init__(prelude, fused)
        self.kernel = kernel
        self.buffers = {b: identifier(b.name) for b in (*kernel.params, *kernel.arrays) if isinstance(b, Buffer)}
        for param in kernel.params:
            if isinstance(param, Value):
                self.names[param] = identifier(param.name)
        self.taken = {*self.buffers.values(), *self.names.values()}
        overlapping = [b for b in self.buffers if not b.noalias]
        # Memory that is seen as two types goes through memcpy: C assumes that it is not.
        self.retyped = frozenset(overlapping) if len({MEMORY_TYPE[b.dtype] for b in overlapping}) > 1 else frozenset()

    def text(self) -> str:
        tables = [self.table(a) for a in self.kernel.arrays if a.space is Space.TABLE]
        for array in self.kernel.arrays:
            if array.space is not Space.TABLE:
                self.line(f"{MEMORY_TYPE[array.dtype]} {self.buffers[array]}[{array.size}];")
        self.block(self.kernel.body)
        symbol = c_symbol(self.kernel.name)
        params = ", ".join([*map(self.parameter, self.kernel.params), "int64_t first, int64_t last"])
        unused = [] if self.kernel.parallel_loop else ["    (void)first;", "    (void)last;"]
        return "\n".join([*tables, f"void {symbol}({params}) {{", *unused, *self.lines, "}", "", *self.packed(), ""])

    # Functions.

    def parameter(self, param: Buffer | Value, qualified: bool = True) -> str:
        if isinstance(param, Value):
            return f"{VALUE_TYPE[param.dtype]} {self.names[param]}"
        const = "" if param.writes else "const "
        restrict = "restrict " if qualified and param.noalias else ""
        return f"{const}{MEMORY_TYPE[param.dtype]} *{restrict}{self.buffers[param]}"

    def packed(self) -> list[str]:
        lines = [f"void {c_packed_symbol(self.kernel.name)}(const void *args, int64_t first, int64_t last) {{"]
        names = []
        for slot, param in enumerate(self.kernel.params):
            names.append(self.names[param] if isinstance(param, Value) else self.buffers[param])
            lines.append(f"    {self.parameter(param, qualified=False)};")
            lines.append(f"    memcpy(&{names[-1]}, (const char *)args + {8 * slot}, sizeof {names[-1]});")
        if not names:
            lines.append("    (void)args;")
        call = ", ".join([*names, "first", "last"])
        return [*lines, f"    {c_symbol(self.kernel.name)}({call});", "}"]

    def table(self, array: Buffer) -> str:
        # A name of the file's, which other kernels' tables may also have.
        self.buffers[array] = name = f"{c_symbol(self.kernel.name)}_{array.name}"
        data = ", ".join(literal_text(array.dtype, x) for x in array.data)
        return f"static const {MEMORY_TYPE[array.dtype]} {name}[{array.size}] = {{{data}}};"

    # Statements.

    def atomic(self, atomic: Atomic) -> None:
        name = self.prelude.atomic(atomic.op, atomic.value.dtype)
        self.line(f"{name}(&{self.buffers[atomic.buffer]}[{self.at(atomic.offset)}], {self.at(atomic.value)});")

    def barrier(self) -> None:
        raise BackendError(f"kernel {self.kernel.name} has barriers between threads; C has none")

    def place(self, buffer: Buffer, offset: Value, lanes: int) -> str:
        """The index of lane `l` of an access."""
        if offset.lanes > 1 or lanes == 1:
            return f"{self.buffers[buffer]}[{self.at(offset)}]"
        return f"{self.buffers[buffer]}[{self.at(offset)} + l]"

    def load(self, load: Load) -> None:
        place = self.place(load.buffer, load.offset, load.result.lanes)
        if load.buffer in self.retyped:
            place = f"{self.prelude.fetch(load.buffer.dtype)}(&{place})"
        if load.mask is not None and load.other is not None:
            place = f"{self.at(load.mask)} ? {place} : {self.at(load.other)}"
        self.assign(load.result, place)

    def store(self, store: Store) -> None:
        place = self.place(store.buffer, store.offset, store.value.lanes)
        data = self.at(store.value)
        if store.buffer in self.retyped:
            text = f"{self.prelude.put(store.buffer.dtype)}(&{place}, {data});"
        else:
            text = f"{place} = {data};"
        if store.mask is not None:
            text = f"if ({self.at(store.mask)}) {text}"
        self.line(text if store.value.lanes == 1 else f"LANES({store.value.lanes}) {text}")

    # Control.

    def flag(self, name: str, condition: str) -> str:
        return f"const bool {name} = {condition}"

    def loop_head(self, loop: For) -> str:
        start, stop, step = (self.at(v) for v in (loop.start, loop.stop, loop.step))
        index = self.index_name(loop.index)
        following = f"{index}++" if isinstance(loop.step, Const) and loop.step.literal == 1 else f"{index} += {step}"
        if loop.kind is LoopKind.PARALLEL:
            last = f"{index}_stop_"
            bounds = f"{index} = first > 0 ? first : 0, {last} = last < {stop} ? last : {stop}"
        else:
            bounds, last = f"{index} = {start}", stop
        return f"for (int64_t {bounds}; {index} < {last}; {following}) {{"

    def loop_ends(self, loop: For) -> None:
        self.taken.discard(self.names[loop.index])

    def index_name(self, value: Value) -> str:
        """The loop's own name for its index, unless something else is called so."""
        name = identifier(value.name)
        if not value.name.isidentifier() or name in self.taken:
            return self.fresh(value)
        self.names[value] = name
        self.taken.add(name)
        return name
