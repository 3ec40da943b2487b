"""`Decoding`: the decode steps of one program on one GPU as single launches: their code, their memory, their arguments.

Memory of exchanges belongs to a number of sequences, and is used by one launch after the other in one stream. The table
of addresses is written again when weights or caches lie elsewhere, which is seldom.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from rlx.backends.api import KernelTime
from rlx.backends.cuda.arrays import DeviceArray
from rlx.backends.cuda.code import tensor_code
from rlx.backends.cuda.device import Gpu
from rlx.backends.cuda.hopper.tensor_maps import ArgumentBlock
from rlx.backends.cuda.modules import Function, Launch, launch
from rlx.backends.cuda.persistent.exchange import ADDRESSES, ENTRY, NUMBERS
from rlx.backends.cuda.persistent.kernel import kernel_text
from rlx.backends.cuda.persistent.plan import THREADS, Plan
from rlx.backends.cuda.persistent.step import Step, Unfit
from rlx.backends.cuda.streams import Event
from rlx.backends.program.device_programs import DeviceParams
from rlx.backends.program.program import Program
from rlx.kernels.emit.llvm_codegen import compile_optimized_assembly
from rlx.kernels.machines import Machine, machine_named

# Tables that are kept: sessions that take turns have caches of their own.
KEPT_TABLES = 8
# Bytes that the copy engine reads at a time.
LINE = 16
# Tags are 32 bits: after so many versions memory of exchanges begins anew.
MOST_VERSIONS = 1 << 30


def machine_refusal(machine: Machine) -> str:
    """Why a chip runs no decode step as one kernel; empty if it does."""
    return "" if machine.has_early_launch else f"{machine.name} has no engine that copies to shared memory"


def step_ptx(plan: Plan, machine: Machine) -> str:
    """The kernel as PTX."""
    return compile_optimized_assembly(kernel_text(plan, machine.triple), machine, "a decode step")


class Decoding:
    """A step on a GPU. `run` may be called by several threads: launches follow each other in the stream."""

    def __init__(self, step: Step, program: Program, gpu: Gpu) -> None:
        """Raises `Unfit` where a program does not return what the kernel writes."""
        self.step, self.gpu, self.machine = step, gpu, machine_named(gpu.info.arch)
        refusal = machine_refusal(self.machine)
        if refusal:
            raise Unfit(refusal)
        self._inputs = {leaf.name: number for number, leaf in enumerate(program.inputs)}
        self._rows = next((n for n, leaf in enumerate(program.inputs) if leaf.name == "rows"), -1)
        self._returned = program.returned
        tables = {name for layer in step.layers if layer.rope is not None for name in (layer.rope.cos, layer.rope.sin)}
        caches = {name for layer in step.layers for name in (layer.keys, layer.values)}
        kept = [number for number in program.returned[1:] if number >= len(program.inputs)]
        if program.moved or kept or {self._inputs.get(name) for name in caches} != {*program.returned[1:]}:
            raise Unfit("its caches are not stored over")
        self._in_table = sorted(self._inputs[name] for name in caches | tables)
        self._lock = threading.Lock()
        self._by_batch = cache(lambda batch, chooses: _ByBatch(step, batch, gpu, self.machine, chooses))
        self._unfit: dict[tuple[int, bool], str] = {}

    def batch(self, inputs: Sequence[DeviceArray]) -> int:
        """How many sequences there are, if each has one new token and asks for its logits; else 0."""
        tokens = inputs[self._inputs[self.step.tokens]].shape
        is_step = len(tokens) == 2 and tokens[1] == 1 and (self._rows < 0 or inputs[self._rows].shape == tokens)
        return tokens[0] if is_step else 0

    def batch_of(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """The same by names, before anything is on the GPU."""
        tokens = shapes[self.step.tokens]
        is_step = len(tokens) == 2 and tokens[1] == 1 and shapes.get("rows", tokens) == tokens
        return tokens[0] if is_step else 0

    def refusal(self, batch: int, chooses: bool = False) -> str:
        """Why so many sequences do not fit; empty if they do."""
        key = batch, chooses
        if key not in self._unfit:
            try:
                with self._lock:
                    self._by_batch(batch, chooses)
                self._unfit[key] = ""
            except Unfit as reason:
                self._unfit[key] = str(reason)
        return self._unfit[key]

    def run(
        self, batch: int, inputs: Sequence[DeviceArray], params: DeviceParams[DeviceArray]
    ) -> list[DeviceArray] | None:
        """The outputs of the program; caches are those that came in. None where the copy engine cannot read what is
        given: then nothing was done."""
        shape = (batch, 1, self.step.head.height)
        logits = DeviceArray.empty(shape, np.dtype(np.float32), self.gpu.stream, "logits")
        done = self._launch(batch, inputs, params, Written(logits.address))
        return [logits, *(inputs[number] for number in self._returned[1:])] if done else None

    def run_ahead(
        self,
        batch: int,
        inputs: Sequence[DeviceArray],
        params: DeviceParams[DeviceArray],
        moves: DeviceArray,
        steps: int,
    ) -> list[DeviceArray] | None:
        """So many steps in one launch: tokens chosen [steps, batch], and the caches."""
        chosen = DeviceArray.empty((steps, batch), np.dtype(np.int32), self.gpu.stream, "tokens")
        done = self._launch(batch, inputs, params, Written(0, moves.address, chosen.address, steps))
        return [chosen, *(inputs[number] for number in self._returned[1:])] if done else None

    def _launch(
        self, batch: int, inputs: Sequence[DeviceArray], params: DeviceParams[DeviceArray], written: Written
    ) -> bool:
        capacity = inputs[self._inputs[self.step.layers[0].keys]].shape[2]

        def address(name: str) -> int:
            number = self._inputs.get(name)
            return params.arrays[name].address if number is None else inputs[number].address

        # What the table depends on.
        key = (params.addresses.tobytes(), *(inputs[number].address for number in self._in_table))
        with self._lock:
            return self._by_batch(batch, bool(written.chosen)).launch(address, key, written, capacity)

    def timed(
        self, batch: int, inputs: Sequence[DeviceArray], params: DeviceParams[DeviceArray]
    ) -> tuple[list[DeviceArray] | None, KernelTime]:
        """Outputs, and how long the kernel took."""
        stream = self.gpu.stream
        start, stop = (Event(self.gpu, timed=True) for _ in range(2))
        stream.record(start)
        outputs = self.run(batch, inputs, params)
        stream.record(stop)
        stop.synchronize()
        return outputs, KernelTime("decode", f"one kernel of {len(self.step.layers)} layers", stop.seconds_since(start))


class Written(NamedTuple):
    """What a launch writes besides caches: logits of one step, or the tokens of several, and how sequences grow."""

    logits: int
    moves: int = 0
    chosen: int = 0
    steps: int = 1


class _ByBatch:
    """Code and memory for a number of sequences."""

    def __init__(self, step: Step, batch: int, gpu: Gpu, machine: Machine, chooses: bool) -> None:
        self.plan = Plan(step, batch, gpu.info.multiprocessors, gpu.info.shared_bytes, chooses=chooses)
        self.gpu, self.machine = gpu, machine
        self._function = self._loaded()
        if not self._function.blocks_per_multiprocessor(THREADS, self.plan.shared_bytes):
            raise Unfit(f"a block of it needs more than a multiprocessor of {gpu.info.name} has")
        stream = gpu.stream
        self._owned = DeviceArray.of(np.array(self.plan.owned(), np.int32), stream, "rows of blocks")
        size = self.plan.exchange_words * 8
        self._exchange = DeviceArray.empty((size,), np.dtype(np.uint8), stream, "words between blocks")
        self._launches = 0
        self._clear()
        self._tables: OrderedDict[tuple[object, ...], DeviceArray | None] = OrderedDict()
        self._arguments = ArgumentBlock(0, len(ADDRESSES) + len(NUMBERS))
        self._shape = Launch(self.plan.blocks, THREADS, self.plan.shared_bytes, cooperative=True)

    def _loaded(self) -> Function:
        text = kernel_text(self.plan, self.machine.triple)
        what = f"{text}\0{self.machine!r}"
        function = tensor_code(ENTRY, what, lambda: step_ptx(self.plan, self.machine)).function(self.gpu)
        function.allow_shared(self.plan.shared_bytes)
        return function

    def _clear(self) -> None:
        self.gpu.driver.cuMemsetD8Async(self._exchange.address, 0, self._exchange.nbytes, self.gpu.stream.handle)

    def launch(self, address: Callable[[str], int], key: tuple[object, ...], written: Written, capacity: int) -> bool:
        """`address` gives that of an input or a param; `key` is what the table depends on. False, and nothing is done,
        if an address is no multiple of what the copy engine reads at a time."""
        step, stream = self.plan.step, self.gpu.stream
        table = self._table(address, key)
        if table is None:
            return False
        if (self._launches + written.steps) * (len(step.layers) + 1) >= MOST_VERSIONS:
            self._launches = 0
            self._clear()
        given = [address(name) for name in (step.tokens, step.positions, step.lengths)]
        words = [table.address, self._owned.address, self._exchange.address, *given]
        words += [written.logits, written.moves, written.chosen, capacity, self._launches, written.steps]
        self._arguments.set_words(words)
        launch(self._function, self._shape, self._arguments.address, stream)
        self._launches += written.steps
        return True

    def _table(self, address: Callable[[str], int], key: tuple[object, ...]) -> DeviceArray | None:
        if key not in self._tables:
            entries = self.plan.table
            words = [entry.offset + (address(entry.name) if entry.name else 0) for entry in entries]
            is_aligned = all(word % LINE == 0 for entry, word in zip(entries, words) if entry.name)
            array = np.array(words, np.int64)
            self._tables[key] = DeviceArray.of(array, self.gpu.stream, "addresses") if is_aligned else None
            if len(self._tables) > KEPT_TABLES:
                self._tables.popitem(last=False)
        return self._tables[key]
