"""A GPU-like backend: rlx writes the kernels, a driver runs them in memory of its own. This GPU is an interpreter."""

from __future__ import annotations

import numpy as np

from rlx.backends.api import Backend, Executable, Prepared
from rlx.backends.options_to_pipeline import compile_with_options
from rlx.backends.program.program import ARENA, Loading, NativeStep, Operand, build_programs
from rlx.compile.target import DeviceInfo, Found, Target
from rlx.errors import BackendError
from rlx.ir.binding import infer_binding
from rlx.ir.dims import bind_dim
from rlx.ir.op import OP_CLASSES
from rlx.kernels.cpu.ops import OpSite
from rlx.kernels.cpu.schedules import TABLE as CPU_SCHEDULES
from rlx.kernels.from_lir import generator
from rlx.kernels.gpu.iteration_threads import iterations_as_threads
from rlx.kernels.gpu.schedules import TABLE as GPU_SCHEDULES
from rlx.kernels.ir.interpret import interpret
from rlx.kernels.machines import machine_named
from rlx.kernels.schedules import Schedule

# For ops with loops of their own, four threads in a block; for all else the schedules of GPUs.
FOUR = Schedule("four", lambda *site: iterations_as_threads(CPU_SCHEDULES.make(*site), threads=4))
SCHEDULES = GPU_SCHEDULES.over({OpSite: [FOUR]})
MACHINE = machine_named("sm_90a")


class Code:
    """What the emitter gives and the driver takes; here the kernel itself."""

    def __init__(self, kernel):
        self.code, self.kernel, self.name, self.key, self.address = self, kernel, kernel.name, kernel.text, id(self)


class SlateExecutable(Executable):
    def __init__(self, compiled):
        self._compiled, self.programs = compiled, build_programs(compiled, Loading(MACHINE, Code, SCHEDULES))

    def run(self, inputs, params):
        values = {**(params.values if isinstance(params, Prepared) else params), **inputs}
        for piece in self.programs.prepare:
            values |= zip(piece.results, run(piece.program, values), strict=True)
        return run(self.programs.main, values)

    @property
    def report(self):
        return self._compiled.report("slate", lambda graph, kernel: "slate")


def run(program, values):
    """The outputs of a program; every value lies in memory of the device, where kernels find it by its number."""
    leaves = [*program.inputs, *program.params]
    sizes = infer_binding((leaf.name, leaf.shape, values[leaf.name].shape) for leaf in leaves)
    for constraint in program.constraints:
        constraint.check(sizes)
    stored = [np.zeros(shape.bind(sizes).size_bytes(), np.uint8) for shape in program.stored]
    memory = {ARENA: np.zeros(bind_dim(program.arena_size, sizes), np.uint8)}
    memory |= enumerate([values[leaf.name] for leaf in program.inputs] + stored, ARENA + 1)
    memory |= enumerate([values[leaf.name] for leaf in program.params], program.first_param)
    memory |= {constant.value: constant.array for constant in program.constants}
    memory = {number: np.array(array, order="C").reshape(-1).view(np.uint8) for number, array in memory.items()}

    def at(place, dtype, size=None):
        start = bind_dim(place.offset, sizes)
        there = memory[place.value][start : None if size is None else start + size]
        return there[: there.size // dtype.itemsize * dtype.itemsize].view(dtype)

    def argument(param, given):
        return at(given.place, param.dtype.numpy) if isinstance(given, Operand) else bind_dim(given, sizes)

    for step in program.steps:
        if not isinstance(step, NativeStep):
            raise BackendError(f"slate has no kernel for {step.op.mnemonic}; use the device cpu")
        given = zip(step.code.kernel.params, step.arguments, strict=True)
        interpret(step.code.kernel, {param.name: argument(param, value) for param, value in given})
    outputs = [program.visible[node] for node in program.outputs]
    found = [(place, shape.bind(sizes)) for place, shape in outputs]
    return [at(place, s.dtype.numpy, s.size_bytes()).reshape(s.dims).copy() for place, s in found]


class SlateBackend(Backend):
    name = "slate"

    def supported_ops(self):
        return frozenset(OP_CLASSES)

    def compile(self, graph, options):
        return SlateExecutable(compile_with_options(graph, "slate", options))


TARGET = Target(
    name="slate",
    about="a toy that interprets kernels",
    probe=lambda: Found((DeviceInfo(0, "chalk"),)),
    machine=lambda name: MACHINE if name is None else machine_named(name),
    generator=generator,
    backend=lambda chosen: SlateBackend(),
)
