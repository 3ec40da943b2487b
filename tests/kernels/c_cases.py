"""Kernels of whole graphs with the arguments they get, run by LLVM's code: what a second emitter is compared with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import ml_dtypes
import numpy as np
from c_runs import Case, copied

import rlx.backends.cpu
import rlx.sparse  # noqa: F401  (registers ops)
from op_samples import LEAVES, sample_graph, samples_of
from rlx.backends.native import kernels as native
from rlx.compile.compiler import CompilePipeline
from rlx.ir.binding import infer_binding
from rlx.ir.dims import bind_dim
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ir.op import OP_CLASSES
from rlx.kernels.from_lir import make_kernel
from rlx.kernels.ir.loop_ir import Buffer
from rlx.kernels.machines import Machine, host

# Loops run kernels of their own, and calls are Python: neither is a loop kernel.
NOT_KERNELS = ("view", "call", "loop")


def graph_cases(
    graph: Graph,
    arrays: Mapping[str, np.ndarray],
    machine: Machine | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Iterator[Case]:
    """The kernels of a graph in their order, up to the first step that is no kernel. `sizes` are for dims that the
    shapes of inputs do not tell."""
    machine = machine or host()
    lir = CompilePipeline.new("cpu").compile(graph).lir
    flat, plan = lir.as_graph(), lir.buffers
    inputs = [n for n in flat.nodes if n.op.mnemonic in ("input", "param")]
    given = {n.id: np.array(arrays[n.op.key], order="C") for n in inputs if n.op.key in arrays}
    if len(given) < len(inputs):
        return  # weights are laid out by a program of their own
    binding = infer_binding([(n.op.key, n.shape, given[n.id].shape) for n in inputs]) | dict(sizes or {})
    memory = {n.id: n.op.value.array.copy() for n in flat.nodes if n.op.mnemonic == "constant"} | given

    def place(node: int) -> np.ndarray:
        view = plan.view_aliases.get(node)
        shape = flat.shape(node).bind(binding)
        size = shape.size_bytes()
        root, offset = (node, 0) if view is None else (view.root, bind_dim(view.byte_offset, binding))
        if root not in memory:
            memory[root] = np.zeros(max(flat.shape(root).bind(binding).size_bytes(), size), np.uint8)
        raw = memory[root].reshape(-1).view(np.uint8)
        return raw[offset : offset + size].view(shape.dtype.numpy)

    for kernel in lir.kernels:
        if kernel.kind == "view":
            continue
        if kernel.kind in NOT_KERNELS:
            return
        made = make_kernel(kernel.kind, flat, kernel, machine)
        buffers = [p for p in made.kernel.params if isinstance(p, Buffer)]
        scalars = [p.name for p in made.kernel.params if not isinstance(p, Buffer)]
        # Kernels see a complex number as two real ones.
        arguments = {b.name: place(n).view(b.dtype.numpy) for b, n in zip(buffers, made.buffers, strict=True)}
        arguments |= dict(zip(scalars, (bind_dim(e, binding) for e in made.extents), strict=True))
        before = copied(arguments)
        native.load(made.kernel, machine)(*(arguments[p.name] for p in made.kernel.params))
        yield Case(made.kernel, before, copied(arguments))


# One type of each kind is enough: kernels differ by kind, not by width. f64 has expansions of its own.
SWEPT = {"f32", "f64", "bf16", "f16", "i32", "u8", "bool", "c64"}
# Not loop kernels, or nothing at all.
OPS = [n for n, c in OP_CLASSES.items() if n not in LEAVES and c.__module__.startswith(("rlx.ops", "rlx.sparse"))]


def op_cases(name: str, most: int | None = None) -> list[Case]:
    """The kernels of an op's samples, each form once, and those of maps and rows again with NaNs, infinities,
    subnormals and zeros of both signs among their operands; at most so many."""
    found: dict[str, Case] = {}
    for sample in samples_of(name):
        for dtype in [d for d in sample.dtypes if d in SWEPT] or sample.dtypes[:1]:
            graph = sample_graph(sample, dtype)
            arrays = {f"x{i}": a for i, a in enumerate(sample.arrays(dtype))}
            for case in graph_cases(graph, arrays, sizes=sample.binding):
                found.setdefault(case.kernel.text, case)
                if case.kernel.name.startswith(("map", "row", "reduce")):
                    found.setdefault(f"poisoned {case.kernel.text}", poisoned(case))
                if most is not None and len(found) >= most:
                    return list(found.values())[:most]
    return list(found.values())


def poisoned(case: Case, machine: Machine | None = None) -> Case:
    """The same kernel on operands with special values."""
    rng = np.random.default_rng(len(case.kernel.text))
    before = copied(case.before)
    for param in case.kernel.params:
        array = before[param.name]
        if not isinstance(param, Buffer) or not param.reads or param.dtype.is_int or param.dtype is DType.BOOL:
            continue
        tiny = float(ml_dtypes.finfo(array.dtype).smallest_subnormal)
        largest = float(ml_dtypes.finfo(array.dtype).max)
        values = [np.nan, np.inf, -np.inf, tiny, -3 * tiny, 0.0, -0.0, largest, -largest]
        at = rng.random(array.size) < 0.3
        array[at] = rng.choice(values, array.size)[at].astype(array.dtype)
    after = copied(before)
    native.load(case.kernel, machine or host())(*(after[p.name] for p in case.kernel.params))
    return Case(case.kernel, before, after)
