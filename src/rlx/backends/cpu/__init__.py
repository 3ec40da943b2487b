"""The CPU backend: kernels from our own generator, run in order over an arena.

What has no kernel yet is a `call`: the op's definition runs on the host, and the report says so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np

from rlx.backends.api import Array, Backend, CompileOptions, Executable
from rlx.compile.pipeline import lower_to_lir
from rlx.ir.binding import infer_binding
from rlx.ir.dims import bind_dim
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant, Input, Param
from rlx.ir.lir import LirKernel, LirModule
from rlx.kernels.from_lir import MadeKernel, is_pointwise, make_kernel
from rlx.kernels.native import Loader, NativeKernel
from rlx.kernels.object_cache import DiskCache
from rlx.kernels.targets import host

NATIVE = ("Activation", "Binary", "Compare", "Where", "Cast", "MatMul", "Reshape")


class CpuBackend(Backend):
    """`Session("cpu")`."""

    name = "cpu"

    def supported_ops(self) -> frozenset[str]:
        return frozenset(NATIVE)

    def compile(self, graph: Graph, options: CompileOptions) -> Executable:
        return CpuExecutable(lower_to_lir(graph.copy(), is_pointwise))


class CpuExecutable(Executable):
    """Native kernels and host calls over one plan; holds no state of a run."""

    def __init__(self, lir: LirModule) -> None:
        self.lir = lir
        self._graph = lir.as_graph()
        self._steps = [self._step(number, kernel) for number, kernel in enumerate(lir.kernels)]
        self._arenas = _ArenaPool()

    def _step(self, number: int, kernel: LirKernel) -> Callable[[_Run], None]:
        if kernel.kind == "view":
            return partial(_view, kernel)
        if kernel.kind == "call":
            return partial(_call, self._graph.nodes[kernel.nodes[0]])
        made = make_kernel(f"{kernel.kind}{number}", self._graph, kernel, host())
        return partial(_launch, made, _loader().load(made.kernel))

    def run(self, inputs: Mapping[str, Array], params: Mapping[str, Array]) -> list[Array]:
        values = {**params, **inputs}
        leaves = [
            (n.op.key, n.shape, values[n.op.key].shape) for n in self._graph.nodes if isinstance(n.op, Input | Param)
        ]
        binding = infer_binding(leaves)
        with self._arenas.borrow(int(bind_dim(self.lir.arena_size, binding))) as arena:
            run = _Run(self.lir, binding, values, arena)
            for step in self._steps:
                step(run)
            # Outputs never live in the arena; one that is an input or a view is copied for the caller.
            return [run.owned(o) for o in self._graph.outputs]

    @property
    def report(self) -> str:
        counts: dict[str, int] = {}
        lines = []
        for kernel in self.lir.kernels:
            counts[kernel.kind] = counts.get(kernel.kind, 0) + 1
            ops = " + ".join(self._graph.nodes[i].op.mnemonic for i in kernel.nodes)
            where = {"view": "no code", "call": "host (no native kernel)"}.get(kernel.kind, f"native {host().name}")
            lines.append(f"  {kernel.kind:7} {where:24} {ops}")
        summary = ", ".join(f"{n} {kind}" for kind, n in counts.items())
        return "\n".join([f"cpu: @{self.lir.name}, {summary}; arena {self.lir.arena_size} bytes", *lines]) + "\n"


@cache
def _loader() -> Loader:
    """One per process: kernels with the same text are one piece of code, kept on disk for the next process."""
    return Loader(host(), DiskCache())


class _Run:
    """The values of one run."""

    def __init__(self, lir: LirModule, binding: Mapping[str, int], leaves: Mapping[str, Array], arena: Array) -> None:
        self.lir, self.graph, self.binding, self.arena = lir, lir.as_graph(), binding, arena
        self.values: dict[NodeId, tuple[Array, ...]] = {}
        for node in self.graph.nodes:
            if isinstance(node.op, Input | Param):
                # Not ascontiguousarray, which gives scalars an axis.
                self.values[node.id] = (np.asarray(leaves[node.op.key], order="C"),)
            elif isinstance(node.op, Constant):
                self.values[node.id] = (node.op.value.array,)
        self.made: set[NodeId] = set()

    def array(self, node: NodeId) -> Array:
        """A value as a contiguous array."""
        return np.asarray(self.values[node][0], order="C")

    def allocate(self, node: NodeId) -> Array:
        shape = self.graph.shape(node).bind(self.binding)
        dims = shape.static_dims
        slot = self.lir.buffers.slot(node)
        if slot is None:
            array = np.empty(dims, shape.dtype.numpy)
            self.made.add(node)
        else:
            start = int(bind_dim(slot.offset, self.binding))
            size = int(bind_dim(slot.size, self.binding))
            array = self.arena[start : start + size].view(shape.dtype.numpy).reshape(dims)
        self.values[node] = (array,)
        return array

    def owned(self, node: NodeId) -> Array:
        value = self.values[node][0]
        if node in self.made:
            self.made.discard(node)
            return value
        return np.array(value)


def _launch(made: MadeKernel, native: NativeKernel, run: _Run) -> None:
    outputs = {b for b in made.buffers if b not in run.values}
    buffers = [run.allocate(b) if b in outputs else run.array(b) for b in made.buffers]
    native(*buffers, *(int(bind_dim(e, run.binding)) for e in made.extents))


def _view(kernel: LirKernel, run: _Run) -> None:
    node = kernel.nodes[0]
    dims = run.graph.shape(node).bind(run.binding).static_dims
    run.values[node] = (run.array(kernel.inputs[0]).reshape(dims),)


def _call(node: Node, run: _Run) -> None:
    operands = [a for i in node.inputs for a in run.values[i]]
    result: Any = node.op.bind(run.binding).eval(*operands)
    results = result if isinstance(result, tuple) else (result,)
    # A definition may return a view of its operand, whose slot is free for others once the operand is dead.
    run.values[node.id] = tuple(np.array(r) if np.may_share_memory(r, run.arena) else np.asarray(r) for r in results)


class _ArenaPool:
    """Arenas are reused between runs, each by one run at a time."""

    def __init__(self) -> None:
        self._free: list[Array] = []
        self._lock = threading.Lock()

    def borrow(self, size: int) -> _Borrowed:
        with self._lock:
            fitting = next((i for i, a in enumerate(self._free) if a.nbytes >= size), None)
            arena = self._free.pop(fitting) if fitting is not None else None
        return _Borrowed(self, _aligned(size) if arena is None else arena)

    def give_back(self, arena: Array) -> None:
        with self._lock:
            self._free.append(arena)


class _Borrowed:
    def __init__(self, pool: _ArenaPool, arena: Array) -> None:
        self.pool, self.arena = pool, arena

    def __enter__(self) -> Array:
        return self.arena

    def __exit__(self, *error: object) -> None:
        self.pool.give_back(self.arena)


def _aligned(size: int, alignment: int = 64) -> Array:
    buffer = np.empty(size + alignment, np.uint8)
    start = -buffer.ctypes.data % alignment
    return buffer[start : start + size]
