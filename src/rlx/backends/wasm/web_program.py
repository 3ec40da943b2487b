"""A program as the JSON document that the runtime in JavaScript reads, and the bytes that it keeps in memory.

    {"format", "version", "name", "module", "sizes", "grids", "programs", "inputs", "outputs", "constraints", "ids",
     "weights", "parts"}

Sizes are written once and named by their number: a number, or a sum of terms `[coefficient, factor, ...]` whose factors
are symbols or `[function, a, b]`. `programs` are the bodies of loops after the program itself, which is the first;
`grids` say how many iterations each kernel `k0`, `k1`, .. has. Ops without a kernel are refused by name: a page has no
Python to run them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlx.backends.memory import Array
from rlx.backends.program.grid import Grid
from rlx.backends.program.program import Code, HostStep, LoopStep, NativeStep, Operand, Place, Program
from rlx.backends.program.signature import Signature
from rlx.backends.wasm.sandbox import aligned
from rlx.errors import BackendError
from rlx.ir.dim_algebra import DimAtom
from rlx.ir.shape import Shape, Size
from rlx.ops.control.branches import If, While
from rlx.ops.control.scans import Scan

FORMAT, VERSION = "rlx.web", 1

# A JSON value.
Json = Any


class WebProgram:
    """The document of a program, without its parts, and the pieces of its memory in order: `(offset, array)`. Kernels
    have the numbers of their place in `codes`, which are those of the program and of the bodies of its loops."""

    def __init__(
        self,
        program: Program,
        codes: Mapping[int, Code],
        signature: Signature,
        params: Sequence[Array],
        for_gpu: bool = False,
    ) -> None:
        self._for_gpu = for_gpu
        self._kernels = {number: position for position, number in enumerate(codes)}
        self._grids: list[Json] = [[] for _ in codes]
        self._sizes: dict[Size, int] = {}
        self._programs: list[Json] = []
        self.pieces: list[tuple[int, Array]] = []
        self.weight_bytes = 0
        self._program(program)
        offsets = [self._keep(array) for array in params]
        self.document: dict[str, Json] = {
            "format": FORMAT,
            "version": VERSION,
            "name": program.name,
            "programs": self._programs,
            "inputs": [self._named(name, shape) for name, shape in signature.inputs.items()],
            "outputs": [self._type(shape) for shape in signature.outputs],
            "constraints": [
                [
                    _expression(c.left),
                    _expression(c.right),
                    c.relation,
                    f"{c.reason} needs {c.left} {c.relation} {c.right}",
                ]
                for c in program.constraints
            ],
            "ids": [[c.op.mnemonic, c.key, [self._size(s) for s in c.sizes]] for c in signature.id_checks],
            "params": offsets,
            "grids": self._grids,
            "weightBytes": self.weight_bytes,
        }
        # Last: what comes before names sizes.
        self.document["sizes"] = [_expression(s) for s in self._sizes]

    def _size(self, size: Size) -> int:
        return self._sizes.setdefault(size, len(self._sizes))

    def _place(self, place: Place) -> list[int]:
        return [place.value, self._size(place.offset)]

    def _type(self, shape: Shape) -> dict[str, Json]:
        return {"dtype": shape.dtype.value, "shape": [self._size(d) for d in shape.dims]}

    def _named(self, name: str, shape: Shape) -> dict[str, Json]:
        return {"name": name, **self._type(shape), "declared": [str(d) for d in shape.dims]}

    def _keep(self, array: Array) -> int:
        """Have an array in memory; where it begins, after the first of them."""
        offset = self.weight_bytes
        self.pieces.append((offset, array))
        self.weight_bytes += aligned(array.nbytes)
        return offset

    def _program(self, program: Program) -> int:
        """Append a program and the bodies of its loops; its number."""
        number = len(self._programs)
        self._programs.append(None)
        self._programs[number] = {
            "addresses": program.addresses,
            "firstParam": program.first_param,
            "arena": self._size(program.arena_size),
            "inputs": [self._size(leaf.shape.byte_size) for leaf in program.inputs],
            "stored": [self._size(shape.byte_size) for shape in program.stored],
            "returned": list(program.returned),
            "moved": [list(pair) for pair in program.moved],
            "overwritten": list(program.overwritten),
            "outputs": [self._output(program, node) for node in program.outputs],
            "constants": [[c.value, self._keep(c.array)] for c in program.constants],
            "steps": [self._step(program, step) for step in program.steps],
        }
        return number

    def _output(self, program: Program, node: Any) -> Json:
        value = program.visible[node]
        return [*self._place(value.place), self._size(value.shape.byte_size)]

    def _step(self, program: Program, step: NativeStep | HostStep | LoopStep) -> Json:
        if isinstance(step, HostStep):
            why = "an effect of the host" if step.op.effect else "no kernel, it runs in Python on the host"
            becoming = "be run by WebGPU, only by WebAssembly (leave gpu away)" if self._for_gpu else "become a page"
            raise BackendError(f"export: @{program.name} cannot {becoming}: {step.op.mnemonic} has {why}")
        if isinstance(step, LoopStep):
            return self._loop(step)
        kernel = self._kernels[step.code.address]
        self._grids[kernel] = _grid(step.grid, step.code.name)
        return [
            kernel,
            *(self._place(a.place) if isinstance(a, Operand) else self._size(a) for a in step.arguments),
        ]

    def _loop(self, step: LoopStep) -> Json:
        op = step.op
        found = {
            "bodies": [self._program(body) for body in step.bodies],
            "operands": [self._place(p) for p in step.operands],
            "results": [self._place(p) for p in step.results],
            "bytes": [self._size(t.byte_size) for t in step.types],
        }
        if isinstance(op, Scan):
            return {
                "loop": "scan",
                **found,
                "length": self._size(op.length),
                "carries": op.num_carry,
                "shared": op.num_bcast,
                "reverse": op.reverse,
                "trajectory": op.save_trajectory,
                "checkpoints": op.num_checkpoints,
            }
        if isinstance(op, While):
            return {"loop": "while", **found, "limit": op.max_iterations}
        if isinstance(op, If):
            return {"loop": "if", **found}
        raise BackendError(f"export: the loop {op.mnemonic} has no form in a page")


def _grid(grid: Grid, name: str) -> Json:
    if grid.asked is not None:
        raise BackendError(f"export: the number of iterations of kernel {name} cannot be written down")
    return [list(grid.literals), [list(step) for step in grid.steps], grid.result]


def _expression(size: Size) -> Json:
    if isinstance(size, int):
        return size

    def factor(f: str | DimAtom) -> Json:
        return f if isinstance(f, str) else [f.kind, *(_expression(a) for a in f.args)]

    return [[coefficient, *map(factor, monomial)] for monomial, coefficient in size.terms]


def parts_of(program: WebProgram, part_bytes: int) -> Iterator[bytearray]:
    """The memory of a program in parts of at most so many bytes; all but the last one have as many."""
    part, start = bytearray(min(part_bytes, program.weight_bytes)), 0
    for offset, array in program.pieces:
        view, done = array.reshape(-1).view(np.uint8), 0
        while done < len(view):
            at = offset + done - start
            if at >= part_bytes:
                yield part
                start += part_bytes
                part = bytearray(min(part_bytes, program.weight_bytes - start))
                continue
            count = min(len(view) - done, part_bytes - at)
            part[at : at + count] = view[done : done + count].tobytes()
            done += count
    if part:
        yield part


_TYPED_ARRAYS: Mapping[str, str] = {
    "f64": "Float64Array",
    "f32": "Float32Array",
    "f16": "Uint16Array",
    "bf16": "Uint16Array",
    "i64": "BigInt64Array",
    "u64": "BigUint64Array",
    "i32": "Int32Array",
    "u32": "Uint32Array",
    "i16": "Int16Array",
    "u16": "Uint16Array",
    "i8": "Int8Array",
    "u8": "Uint8Array",
    "bool": "Uint8Array",
    "c64": "Float32Array",
    "c128": "Float64Array",
}


def declaration(signature: Signature) -> str:
    """What the program takes and gives, for TypeScript."""

    def array(shape: Shape) -> str:
        found = _TYPED_ARRAYS.get(shape.dtype.value)
        if found is None:
            raise BackendError(f"export: JavaScript has no arrays of {shape.dtype}; cast to another type")
        return found

    inputs = [f"  /** {s} */\n  {_quoted(n)}: {array(s)} | Tensor<{array(s)}>;" for n, s in signature.inputs.items()]
    outputs = [f"  /** {s} */ Tensor<{array(s)}>," for s in signature.outputs]
    lines = [
        f"// What @{signature.name} takes and gives. Symbols in types stand for sizes that inputs determine.",
        'import type { Tensor } from "./rlx.js";',
        "",
        "export interface Inputs {",
        *inputs,
        "}",
        "",
        "export type Outputs = [",
        *outputs,
        "];",
        "",
    ]
    return "\n".join(lines)


def _quoted(name: str) -> str:
    return name if name.isidentifier() else f'"{name}"'


def check_types(shapes: Mapping[str, Shape]) -> None:
    """Refuse inputs whose elements JavaScript has no arrays for."""
    for name, shape in shapes.items():
        if shape.dtype.value not in _TYPED_ARRAYS:
            raise BackendError(f"export: {name!r} is {shape}, and JavaScript has no arrays of {shape.dtype}")
