"""Programs of own kernels, run natively with several numbers of threads and, kernel by kernel, in the interpreter of
the loop IR, which checks every access."""

from __future__ import annotations

import numpy as np

import rlx
from rlx.backends.api import CompileOptions
from rlx.backends.cpu import CpuBackend
from rlx.backends.native import kernels as native
from rlx.backends.native.elf import undefined_symbols
from rlx.backends.program import command_table
from rlx.ir.binding import infer_binding
from rlx.ir.dims import bind_dim
from rlx.ir.tensor import building
from rlx.kernels.emit.llvm_codegen import compile_object
from rlx.kernels.from_lir import make_kernel
from rlx.kernels.ir.interpret import interpret
from rlx.kernels.ir.loop_ir import Buffer
from rlx.kernels.machines import MACHINES, NEON, RISCV, host, runs_here


class Program:
    """A function of tensors as a compiled program; `dims` are the (symbolic) dims of its arguments."""

    def __init__(self, function, *types, kinds=None):
        self.graph = rlx.Graph("program")
        with building(self.graph):
            result = function(*(self.graph.input(f"x{i}", dims, dtype) for i, (dims, dtype) in enumerate(types)))
        self.graph.set_outputs(result if isinstance(result, tuple | list) else [result])
        self.executable = CpuBackend().compile(self.graph.copy(), CompileOptions())
        self.kinds = [k.kind for k in self.executable.lir.kernels if k.kind != "view"]
        assert "call" not in self.kinds
        assert kinds is None or self.kinds == kinds

    def __call__(self, *arrays):
        """The results; every number of threads must give the same bits."""
        given = {f"x{i}": np.asarray(a) for i, a in enumerate(arrays)}
        shared, command_table.WORTH_SHARING = command_table.WORTH_SHARING, 0
        try:
            with rlx.threads(1):
                alone = [np.asarray(r) for r in self.executable.run(given, {})]
            for count in (2, 3):
                with rlx.threads(count):
                    for a, b in zip(alone, self.executable.run(given, {}), strict=True):
                        assert a.tobytes() == np.asarray(b).tobytes()
        finally:
            command_table.WORTH_SHARING = shared
        return alone

    def kernels(self, target):
        """The loop kernels of the program for a target, and what each is called with."""
        lir = self.executable.lir
        for number, kernel in enumerate(k for k in lir.kernels if k.kind != "view"):
            yield make_kernel(f"{kernel.kind}{number}", lir.as_graph(), kernel, target)

    def interpreted(self, *arrays):
        """The results of the same kernels in the interpreter."""
        return self.results(arrays, host(), lambda kernel, arguments: interpret(kernel, arguments))

    def ran_on(self, target, *arrays):
        """The results of the kernels for another target, which must run here."""

        def run(kernel, arguments):
            native.load(kernel, target)(*(arguments[p.name] for p in kernel.params))

        return self.results(arrays, target, run)

    def results(self, arrays, target, run):
        lir = self.executable.lir
        graph, plan = lir.as_graph(), lir.buffers
        arrays = [np.array(a, order="C") for a in arrays]
        inputs = [n for n in graph.nodes if n.op.mnemonic == "input"]
        given = {n.id: arrays[int(n.op.key[1:])] for n in inputs}
        binding = infer_binding([(n.op.key, n.shape, given[n.id].shape) for n in inputs])
        memory = {n.id: n.op.value.array.copy() for n in graph.nodes if n.op.mnemonic == "constant"} | given

        def place(node):
            view = plan.view_aliases.get(node)
            shape = graph.shape(node).bind(binding)
            size = shape.size_bytes()
            root, offset = (node, 0) if view is None else (view.root, bind_dim(view.byte_offset, binding))
            if root not in memory:
                memory[root] = np.zeros(max(graph.shape(root).bind(binding).size_bytes(), size), np.uint8)
            raw = memory[root].reshape(-1).view(np.uint8)
            return raw[offset : offset + size].view(shape.dtype.numpy)

        for made in self.kernels(target):
            buffers = [p.name for p in made.kernel.params if isinstance(p, Buffer)]
            sizes = [p.name for p in made.kernel.params if not isinstance(p, Buffer)]
            # Kernels see complex numbers as their parts.
            parts = [memory.view(memory.real.dtype) for memory in map(place, made.buffers)]
            arguments = dict(zip(buffers, parts, strict=True))
            arguments |= dict(zip(sizes, (bind_dim(e, binding) for e in made.extents), strict=True))
            run(made.kernel, arguments)
        return [place(o).reshape(graph.shape(o).bind(binding).static_dims) for o in graph.outputs]

    def check_everywhere(self, *arrays):
        """The interpreter and every target that runs here give the same bits; others give code without calls."""
        wanted = [r.tobytes() for r in self(*arrays)]
        assert [r.tobytes() for r in self.interpreted(*arrays)] == wanted
        for target in MACHINES.values():
            if runs_here(target):
                assert [r.tobytes() for r in self.ran_on(target, *arrays)] == wanted, target.name
            elif target in (NEON, RISCV):
                for made in self.kernels(target):
                    assert undefined_symbols(compile_object(made.kernel, target)) == set()
