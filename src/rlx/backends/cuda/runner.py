"""`Runner`: runs one program on a GPU, for any number of threads at once.

The program never changes. What a run needs besides is a context, taken for its time from a free list: the launches for
the run's sizes, and memory for values between kernels. Runs of one program on one GPU follow each other in a stream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from weakref import ref

import numpy as np

from rlx.backends.api import Guards, ShortCall
from rlx.backends.cuda.arrays import DeviceArray
from rlx.backends.cuda.context import COPY, Context, Contexts, codes_of
from rlx.backends.cuda.device import Gpu
from rlx.backends.cuda.memory import Array, DeviceBuffer
from rlx.backends.cuda.persistent.runner import Decoding
from rlx.backends.cuda.short_calls import has_short_calls, short_call
from rlx.backends.kernel_times import times
from rlx.backends.program.device_programs import DeviceParams
from rlx.backends.program.host_calls import HostCalls
from rlx.backends.program.inputs import Shapes, bound_sizes, wrong_input
from rlx.backends.program.plan import HostCall, Located, Plan
from rlx.backends.program.program import ARENA, Leaf, Program
from rlx.ir.graph import NodeId
from rlx.knobs import knobs

# Combinations of shapes whose launches are kept.
KEPT_PLANS = 64


class Runner:
    """A program on a GPU with its plans."""

    def __init__(self, program: Program, gpu: Gpu, decoding: Decoding | None = None) -> None:
        """`decoding` runs the steps of sequences with one new token each, where it can."""
        self._decoding = decoding
        self.program, self.gpu, self.stream = program, gpu, gpu.stream
        self._codes = codes_of(program)
        self._is_native = program.is_native
        self._constants: dict[int, DeviceArray] = {}
        self._contexts = lru_cache(KEPT_PLANS)(self._bound)
        self._leaves = [(leaf, leaf.name, leaf.dtype) for leaf in program.inputs]
        # Decoders look at each step for the way that it goes.
        self.has_short_calls = decoding is None and has_short_calls(program)
        self._last: Contexts | None = None

    def run(self, inputs: Mapping[str, Array | DeviceArray], params: DeviceParams[DeviceArray]) -> list[DeviceArray]:
        """The outputs, in the memory of the GPU; they may still be being computed. An input that the program stores
        over is stored over if it lies on the GPU."""
        self.gpu.use()
        arrays = self._inputs(inputs)
        if self._decoding is not None and knobs.cuda_one_kernel:
            batch = self._decoding.batch(arrays)
            if batch and not self._decoding.refusal(batch):
                outputs = self._decode(batch, arrays, params)
                if outputs is not None:
                    return outputs
        contexts = self._contexts(tuple([a.shape for a in arrays]), params.symbolic_shapes)
        context = contexts.take()
        try:
            results = self._execute(contexts, context, arrays, params)
        finally:
            contexts.give(context)
        self._last = contexts
        return results

    def short_call(self, params: DeviceParams[DeviceArray], result_class: type, guards: Guards) -> ShortCall | None:
        """A shorter way for arrays such as those of the last run; None where there is none."""
        contexts = self._last
        if not self.has_short_calls or contexts is None or contexts.params != params.symbolic_shapes:
            return None
        known = contexts.short
        if known is None or known[0]() is not params or known[1:3] != (result_class, guards):
            call = short_call(self.gpu, contexts, params, result_class, guards)
            known = contexts.short = ref(params), result_class, guards, call
        return known[3]

    def run_ahead(
        self,
        inputs: Mapping[str, Array | DeviceArray],
        params: DeviceParams[DeviceArray],
        moves: Array,
        steps: int,
    ) -> list[DeviceArray] | None:
        """Steps of a decoder in one launch; None, and nothing is done, where they cannot be."""
        decoding = self._decoding
        if decoding is None or not knobs.cuda_one_kernel or times.get() is not None:
            return None
        batch = decoding.batch_of({name: value.shape for name, value in inputs.items()})
        if not batch or decoding.refusal(batch, chooses=True):
            return None
        self.gpu.use()
        moved = DeviceArray.of(np.ascontiguousarray(moves, np.int32), self.stream, "by how much sequences grow")
        return decoding.run_ahead(batch, self._inputs(inputs), params, moved, steps)

    def _inputs(self, inputs: Mapping[str, Array | DeviceArray]) -> list[DeviceArray]:
        """All of them on the GPU, those that are stored over in memory of their own."""
        stream, arrays = self.stream, []
        for leaf, name, dtype in self._leaves:
            given = inputs.get(name)
            if type(given) is not DeviceArray or given.dtype != dtype or given.stream is not stream:
                given = self._input(leaf, inputs)
            arrays.append(given)
        if self.program.overwritten:
            self._make_exclusive(arrays)
        return arrays

    def _decode(
        self, batch: int, inputs: list[DeviceArray], params: DeviceParams[DeviceArray]
    ) -> list[DeviceArray] | None:
        """A step as one kernel; None if it cannot be."""
        assert self._decoding is not None
        noted = times.get()
        if noted is None:
            return self._decoding.run(batch, inputs, params)
        outputs, time = self._decoding.timed(batch, inputs, params)
        if outputs is not None:
            noted.append(time)
        return outputs

    def _input(self, leaf: Leaf, inputs: Mapping[str, Array | DeviceArray]) -> DeviceArray:
        """An array of the host on the GPU."""
        given = inputs.get(leaf.name)
        if isinstance(given, np.ndarray) and given.dtype == leaf.dtype:
            return DeviceArray.of(given, self.stream, f"the input {leaf.name!r}")
        raise wrong_input(self.program, leaf, given)

    def _make_exclusive(self, arrays: list[DeviceArray]) -> None:
        """Copy inputs that the run writes into where another input lies in the same memory."""
        buffers = [id(array.buffer) for array in arrays]
        if len(set(buffers)) == len(buffers):
            return
        owners = Counter(buffers)
        for number in self.program.overwritten:
            buffer = id(arrays[number].buffer)
            if owners[buffer] > 1:
                owners[buffer] -= 1
                arrays[number] = arrays[number].copy()

    def _bound(self, inputs: Shapes, params: Shapes) -> Contexts:
        """The contexts for the shapes of inputs and of those params that have symbolic sizes."""
        binding = bound_sizes(self.program, inputs, params)
        return Contexts(Plan(self.program, binding, lambda: COPY), self._context, inputs, params)

    def _context(self, plan: Plan) -> Context:
        for _, array in plan.constants:
            if id(array) not in self._constants:
                self._constants[id(array)] = DeviceArray.of(array, self.stream, "a constant")
        addresses = {number: self._constants[id(array)].address for number, array in plan.constants}
        return Context(plan, self._codes, addresses, self.stream)

    def _execute(
        self, contexts: Contexts, context: Context, inputs: list[DeviceArray], params: DeviceParams[DeviceArray]
    ) -> list[DeviceArray]:
        program, words, plan, stream = self.program, context.words, contexts.plan, self.stream
        context.take_arena()
        allocate = self.gpu.pool.allocate
        whole = inputs.copy()
        for dims, dtype, size in contexts.stored:
            whole.append(DeviceArray(allocate(size, stream, "an output"), dims, dtype, stream))
        for number, array in enumerate(whole, ARENA + 1):
            words[number] = array.address
        context.place_params(params)
        scratch = self.gpu.scratch(context.scratch_bytes) if context.scratch_bytes else None
        context.place_scratch(scratch)
        host = None if self._is_native else _HostCalls(self, plan, context)
        noted = times.get()
        for part in plan.parts:
            if isinstance(part, HostCall):
                assert host is not None
                host.call(part)
            elif noted is None:
                context.run(part)
            else:
                noted += context.run_timed(part)
        if host is None:
            results = [whole[i] for i in program.returned]
        else:
            results = [whole[i] if i >= 0 else host.output(n) for i, n in zip(program.returned, program.outputs)]
        for output, number in program.moved:
            self._copy_bytes(results[output].address, inputs[number].address, results[output].nbytes)
            results[output] = inputs[number]
        return results

    def _copy_bytes(self, source: int, to: int, size: int) -> None:
        if size and source != to:
            self.gpu.driver.cuMemcpyDtoDAsync_v2(to, source, size, self.stream.handle)


class _HostCalls(HostCalls):
    """Ops that run on the host, on copies of the values that they read."""

    def __init__(self, runner: Runner, plan: Plan, context: Context) -> None:
        super().__init__(plan)
        self._runner, self._context = runner, context
        self._kept: list[DeviceBuffer] = []

    def _address(self, node: NodeId) -> int:
        located = self._plan.arrays[node]
        return int(self._context.values[located.value]) + located.offset

    def array(self, node: NodeId) -> Array:
        located = self._plan.arrays[node]
        array = np.empty(located.dims, located.dtype)
        self._runner.gpu.staging.download(self._address(node), array, self._runner.stream)
        return array

    def keep(self, call: HostCall, located: Located, array: Array) -> None:
        stream = self._runner.stream
        if located.value != ARENA:
            buffer = self._runner.gpu.pool.allocate(array.nbytes, stream, f"the result of {call.op.mnemonic}")
            self._kept.append(buffer)
            self._context.values[located.value] = buffer.address
        self._runner.gpu.staging.upload(np.ascontiguousarray(array), self._address(call.node), stream)

    def output(self, node: NodeId) -> DeviceArray:
        """A copy of a value, for the caller to keep."""
        located = self._plan.arrays[node]
        array = DeviceArray.empty(located.dims, located.dtype, self._runner.stream, "an output")
        self._runner._copy_bytes(self._address(node), array.address, array.nbytes)
        return array
