"""Programs as StableHLO: a program with bound sizes in ops that have a rule goes in, the text of a module comes out.

    module = module_of(graph)
    module.text               # what XLA compiles
    module.failures           # what the last result stands for: 0, or the number of a check that did not hold

A rule says how one op is written: `@rule(Transpose)` over a function of the emitter, the op, its operands and the types
of its results. Ops without a rule are taken apart before; see `lowering`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rlx.backends.xla.shardy import Placement
from rlx.backends.xla.text import Block, Kind, Value, function
from rlx.errors import InternalError, RlxError
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node
from rlx.ir.leaves import Constant, Input, Param, Project
from rlx.ir.op import Op
from rlx.sharding import Mesh

Rule = Callable[..., "Value | Sequence[Value]"]

RULES: dict[type[Op], Rule] = {}

CODE = Kind((), DType.I32)


def rule(*kinds: type[Op]) -> Callable[[Rule], Rule]:
    """Register how ops are written: (emitter, op, operands, types of the results) to one value or several."""

    def register(write: Rule) -> Rule:
        RULES.update(dict.fromkeys(kinds, write))
        return write

    return register


class Module(NamedTuple):
    """The text, and the errors that a run may end with, in the order of the numbers that it returns for them."""

    text: str
    failures: tuple[RlxError, ...]


class Emitter:
    """Writes programs into a block. `code` is the number of the first check that did not hold so far, 0 for none; it is
    None while there was no check."""

    def __init__(
        self,
        block: Block,
        failures: list[RlxError],
        code: Value | None = None,
        mesh: Mesh | None = None,
        parts_of: Mesh | None = None,
    ) -> None:
        self.block, self.failures, self.code = block, failures, code
        # What the program is divided over; None: it is for one device.
        self.mesh = mesh
        # Inside a program on parts: the mesh whose devices have them.
        self.parts_of = parts_of

    def program(self, graph: Graph, leaves: Mapping[str, Value]) -> list[Value]:
        """The outputs of a program for its leaves."""
        made: list[Sequence[Value]] = []
        for node in graph.nodes:
            if isinstance(node.op, Input | Param):
                made.append([leaves[node.op.key]])
            elif isinstance(node.op, Constant):
                made.append([self.block.constant(node.op.value.array, node.shape.dtype)])
            elif isinstance(node.op, Project):
                made.append([made[node.inputs[0]][node.op.index]])
            else:
                made.append(self._node(node, [made[i][0] for i in node.inputs]))
        return [made[o][0] for o in graph.outputs]

    def _node(self, node: Node, operands: list[Value]) -> Sequence[Value]:
        kinds = tuple(Kind.of(shape) for shape in node.shapes)
        written = RULES[type(node.op)](self, node.op, operands, kinds)
        results = [written] if isinstance(written, Value) else list(written)
        if tuple(v.kind for v in results) != kinds:
            raise InternalError(f"xla: the rule of {node!r} gives {[str(v.kind) for v in results]}, not {kinds}")
        return results

    def body(self, graph: Graph, operands: Sequence[Value]) -> list[Value]:
        """The outputs of a body for its operands, in their order."""
        return self.program(graph, {str(n.name): v for n, v in zip(graph.inputs, operands, strict=True)})

    def inside(self, code: Value | None = None) -> Emitter:
        """For a region of an op in this block."""
        code = self.code if code is None else code
        return Emitter(Block(self.block), self.failures, code, self.mesh, self.parts_of)

    def channel(self) -> str:
        """The attribute that tells one exchange between devices from the others."""
        return f"channel_handle = #stablehlo.channel_handle<handle = {self.block.number()}, type = 1>"

    def require(self, holds: Value, error: RlxError) -> None:
        """Let the run end with an error unless a scalar is true."""
        block = self.block
        self.failures.append(error)
        before = self.current_code()
        failed = block.op("and", [block.compare("EQ", before, 0), block.unary("not", holds)], holds.kind)
        self.code = block.select(failed, len(self.failures), before)

    def current_code(self) -> Value:
        return self.block.constant(0, DType.I32) if self.code is None else self.code


def module_of(graph: Graph, donated: Mapping[str, int] | None = None, placement: Placement | None = None) -> Module:
    """A program as a module with one function, whose arguments are the leaves in their order. `donated` has the number
    of the output that may be stored over a leaf; `placement` says how it is divided over devices."""
    block = Block()
    emitter = Emitter(block, [], mesh=None if placement is None else placement.mesh)
    nodes = [node for node in graph.nodes if isinstance(node.op, Input | Param)]
    leaves = {_key(node): block.argument(Kind.of(node.shape)) for node in nodes}
    outputs = emitter.program(graph, leaves)
    if emitter.failures:
        outputs.append(emitter.current_code())
    block.returns(outputs, "func.return")
    homes = [(donated or {}).get(_key(node)) for node in nodes]

    def attributes(number: int) -> str:
        found = []
        if placement is not None:
            found.append(placement.argument_attribute(number, block.arguments[number].kind.rank))
        if homes[number] is not None:
            found.append(f"tf.aliasing_output = {homes[number]} : i32")
        return f" {{{', '.join(found)}}}" if found else ""

    def result(number: int, kind: Kind) -> str:
        if placement is None or number >= len(placement.results):
            return str(kind)
        found = placement.result_attribute(number, kind.rank)
        return f"{kind} {{{found}}}" if found else str(kind)

    results = [result(i, v.kind) for i, v in enumerate(outputs)]
    main = function("main", block, results, attributes, public=True)
    name = re.sub(r"\W", "_", graph.name) or "main"
    count = 1 if placement is None else placement.mesh.size
    head = f"attributes {{mhlo.num_partitions = {count} : i32, mhlo.num_replicas = 1 : i32}}"
    mesh = "" if placement is None else f"{placement.declaration}\n"
    return Module(f"module @{name} {head} {{\n{mesh}{main}\n}}\n", tuple(emitter.failures))


def _key(node: Node) -> str:
    op: Any = node.op
    return str(op.key)
