"""Programs as JSON: what `Programs` hold, with code by the names that the object cache has for it.

A document is `{"format", "version", "sizes", "codes", "main", "prepare"}`; preparations are `[program, results]`. Sizes
are written once, as numbers or as the text of dims, and named by their number; so is code, as `[name, key, grid]`.
Programs with loops, or with host calls whose ops are not plain data, are not written.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlx.backends.memory import Array, aligned_copy
from rlx.backends.native.kernels import Loader
from rlx.backends.program.grid import Grid
from rlx.backends.program.program import (
    Code,
    ConstantValue,
    HostStep,
    Leaf,
    NativeStep,
    Operand,
    Place,
    Preparation,
    Program,
    Programs,
    Step,
    Value,
)
from rlx.errors import FormatError, RlxError
from rlx.ir.dims import DimConstraint, as_offset
from rlx.ir.graph import NodeId
from rlx.ir.op import REGISTRY, Op
from rlx.ir.shape import Shape, Size, parse_shape
from rlx.ir.tensor_data import TensorData
from rlx.ir.text.graph_text import parse_value, show_value

FORMAT, VERSION = "rlx.cpu_programs", 2
# Bytes of constants beyond which a program is not worth writing: its constants are its weights.
MAX_CONSTANTS = 1 << 20

# A JSON value that this module has written, or is about to check.
_Json = Any


def programs_to_json(programs: Programs, any_constants: bool = False) -> str | None:
    """The document of programs; None for those that cannot be written, or are not worth it unless `any_constants`."""
    writer = _Writer(None if any_constants else MAX_CONSTANTS)
    try:
        main = writer.program(programs.main)
        prepare = [[writer.program(p.program), p.results] for p in programs.prepare]
    except _Unwritable:
        return None
    document = {
        "format": FORMAT,
        "version": VERSION,
        "sizes": [s if isinstance(s, int) else str(s) for s in writer.sizes],
        "codes": [[code.name, code.key, grid] for (code, _), grid in zip(writer.codes, writer.grids)],
        "main": main,
        "prepare": prepare,
    }
    return json.dumps(document, separators=(",", ":"))


def programs_from_json(text: str | bytes, loader: Loader) -> Programs | None:
    """The programs in a document; None if code that they need is gone. A FormatError for what is no such document."""
    try:
        document = json.loads(text)
        if document["format"] != FORMAT or document["version"] != VERSION:
            raise FormatError(f"the programs have version {document['version']!r}; this rlx reads version {VERSION}")
        codes = []
        for name, key, grid in document["codes"]:
            code = loader.find(name, key)
            if code is None:
                return None
            codes.append((code, _read_grid(grid)))
        reader = _Reader([as_offset(s) for s in document["sizes"]], codes)
        prepare = [Preparation(reader.program(p), tuple(map(str, results))) for p, results in document["prepare"]]
        return Programs(reader.program(document["main"]), tuple(prepare))
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, RecursionError, RlxError) as error:
        raise FormatError(f"these are no programs: {type(error).__name__}: {error}") from None


class _Unwritable(Exception):
    """A program that has something in it that JSON has no form for."""


class _Writer:
    def __init__(self, max_constants: int | None) -> None:
        self.max_constants = max_constants
        self.sizes: dict[Size, int] = {}
        self.codes: dict[tuple[Code, Grid], int] = {}
        self.grids: list[_Json] = []

    def size(self, size: Size) -> int:
        return self.sizes.setdefault(size, len(self.sizes))

    def place(self, place: Place) -> list[int]:
        return [place.value, self.size(place.offset)]

    def program(self, program: Program) -> _Json:
        size = sum(c.array.nbytes for c in program.constants)
        if self.max_constants is not None and size > self.max_constants:
            raise _Unwritable
        return {
            "name": program.name,
            "steps": [self.step(s) for s in program.steps],
            "inputs": [[leaf.name, str(leaf.shape), leaf.align] for leaf in program.inputs],
            "params": [[leaf.name, str(leaf.shape), leaf.align] for leaf in program.params],
            "outputs": [int(o) for o in program.outputs],
            "visible": [[int(n), *self.place(v.place), str(v.shape)] for n, v in program.visible.items()],
            "stored": [str(shape) for shape in program.stored],
            "returned": program.returned,
            "moved": program.moved,
            "overwritten": program.overwritten,
            "host_results": program.host_results,
            "constants": [_write_constant(c) for c in program.constants],
            "addresses": program.addresses,
            "arena_size": self.size(program.arena_size),
            "constraints": [[str(c.left), str(c.right), c.reason, c.relation] for c in program.constraints],
        }

    def step(self, step: Step) -> _Json:
        if isinstance(step, HostStep):
            operands = [int(i) for i in step.operands]
            return [step.op.mnemonic, _write_attributes(step.op), int(step.node), operands, step.align]
        if not isinstance(step, NativeStep) or step.grid.asked is not None:
            raise _Unwritable
        return [self.code(step), [self.argument(a) for a in step.arguments], *step.label]

    def code(self, step: NativeStep) -> int:
        known = len(self.codes)
        number = self.codes.setdefault((step.code, step.grid), known)
        if number == known:
            self.grids.append([step.grid.literals, step.grid.steps, step.grid.result])
        return number

    def argument(self, argument: Operand | Size) -> _Json:
        if not isinstance(argument, Operand):
            return self.size(argument)
        return [*self.place(argument.place), *map(self.size, argument.slot), int(argument.writes)]


class _Reader:
    def __init__(self, sizes: Sequence[Size], codes: Sequence[tuple[Code, Grid]]) -> None:
        self.sizes, self.codes = sizes, codes
        self.shapes: dict[str, Shape] = {}

    def shape(self, text: str) -> Shape:
        if text not in self.shapes:
            self.shapes[text] = parse_shape(text)
        return self.shapes[text]

    def program(self, document: Mapping[str, _Json]) -> Program:
        return Program(
            name=str(document["name"]),
            steps=tuple(self.step(s) for s in document["steps"]),
            inputs=tuple(self.leaf(*leaf) for leaf in document["inputs"]),
            params=tuple(self.leaf(*leaf) for leaf in document["params"]),
            outputs=tuple(NodeId(o) for o in document["outputs"]),
            visible={
                NodeId(n): Value(Place(value, self.sizes[offset]), self.shape(shape))
                for n, value, offset, shape in document["visible"]
            },
            stored=tuple(self.shape(s) for s in document["stored"]),
            returned=tuple(document["returned"]),
            moved=tuple((output, number) for output, number in document["moved"]),
            overwritten=tuple(document["overwritten"]),
            host_results=int(document["host_results"]),
            constants=tuple(_read_constant(*c) for c in document["constants"]),
            addresses=int(document["addresses"]),
            arena_size=self.sizes[document["arena_size"]],
            constraints=tuple(
                DimConstraint(as_offset(a), as_offset(b), reason, relation)
                for a, b, reason, relation in document["constraints"]
            ),
        )

    def leaf(self, name: str, text: str, align: int) -> Leaf:
        shape = self.shape(text)
        return Leaf(name, shape, shape.dtype.numpy, align)

    def step(self, entry: Sequence[_Json]) -> Step:
        if isinstance(entry[0], str):
            mnemonic, attributes, node, operands, align = entry
            return HostStep(_read_op(mnemonic, attributes), NodeId(node), tuple(map(NodeId, operands)), align)
        number, arguments, kind, ops = entry
        return NativeStep(*self.codes[number], tuple(self.argument(a) for a in arguments), (kind, ops))

    def argument(self, entry: _Json) -> Operand | Size:
        if isinstance(entry, int):
            return self.sizes[entry]
        value, offset, start, size, writes = entry
        sizes = self.sizes
        return Operand(Place(value, sizes[offset]), (sizes[start], sizes[size]), bool(writes))


def _write_attributes(op: Op) -> dict[str, str]:
    if op.bodies or any(isinstance(v, TensorData) for v in op.shown_attributes.values()):
        raise _Unwritable
    return {name: show_value(value) for name, value in op.shown_attributes.items()}


def _read_op(mnemonic: str, attributes: Mapping[str, str]) -> Op:
    return REGISTRY[mnemonic](**{name: parse_value(text) for name, text in attributes.items()})


def _read_grid(entry: Sequence[_Json]) -> Grid:
    literals, steps, result = entry
    return Grid(tuple(literals), tuple((op, a, b) for op, a, b in steps), result)


def _write_constant(constant: ConstantValue) -> _Json:
    array = constant.array
    data = TensorData(array)
    return [constant.value, str(data.shape), base64.b64encode(data.array.tobytes()).decode()]


def _read_constant(value: int, text: str, data: str) -> ConstantValue:
    array: Array = TensorData.from_bytes(base64.b64decode(data, validate=True), parse_shape(text)).array
    return ConstantValue(value, aligned_copy(np.asarray(array)))
