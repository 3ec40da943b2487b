"""The containers of the levels: `HirModule` (blocks), `MirModule` (a graph), and `GraphModule`, which holds any one.

HIR is a graph too: beside ordinary ops it may hold *blocks* (`Op.is_block`), which `lower_to_mir` replaces by MIR ops
according to the module's `FusionPolicy`. The blocks and the methods that build them live in `rlx.hir`.

    module = Graph.define("mlp", lambda m: m.linear(m.input("x", (1, 4)), m.param("w", (4, 2)), act="relu"))
    graph = module.into_graph()
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from rlx.errors import FormatError, LowerError
from rlx.ir.dims import Dim
from rlx.ir.dtype import DTypeLike
from rlx.ir.graph import Graph, Node, NodeId, TensorLike
from rlx.ir.leaves import Constant, Input
from rlx.ir.op import Op
from rlx.ir.provenance import NodeOrigin
from rlx.ir.rewrite.rebuild import Replacement, rebuild
from rlx.ir.shape import Shape
from rlx.ir.tensor import Tensor, building
from rlx.ir.text.graph_text import register_level
from rlx.ir.words import Words

if TYPE_CHECKING:
    from rlx.hir.builders import HirBuilders
    from rlx.ir.lir import LirModule
else:

    class HirBuilders:
        """Filled by rlx.hir.builders."""


MirNode, MirNodeId, MirOp = Node, NodeId, Op
HirNode = Node


class WrongInputCount(LowerError):
    """A block has another number of operands than it lowers from."""

    def __init__(self, op: str, expected: str, got: int) -> None:
        super().__init__(f"{op}: needs {expected} operands to lower, got {got}; rebuild the block with all of them")
        self.op, self.expected, self.got = op, expected, got


class MissingBias(LowerError):
    """A linear block says that it has a bias, but no operand for it."""

    def __init__(self, op: str) -> None:
        super().__init__(f"{op}: has_bias is set, but there is no bias operand; pass one or clear has_bias")
        self.op = op


class WrongStage(LowerError, AttributeError):
    """Something of one level was asked of a module at another."""


class FusionPolicy(Words):
    """What blocks lower to: fused ops at once (`Direct`), or chains that the fusion passes recognise (`Fusable`)."""

    Direct = "direct"
    Fusable = "fusable"

    def is_direct(self) -> bool:
        return self is FusionPolicy.Direct

    @staticmethod
    def for_autodiff() -> FusionPolicy:
        """Derivatives are taken of primitive chains."""
        return FusionPolicy.Fusable


class HirNodeId(NodeId):
    """The insertion index of a node of an HIR module; prints as `h3`."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"h{int(self)}"

    __repr__ = __str__


# The block builders replace graph builders of the same name (`rms_norm`, `attention`, ...); `HirMut` reaches those.
class HirModule(HirBuilders, Graph):  # type: ignore[misc]
    """A program of blocks and ordinary ops, and how its blocks are to be lowered."""

    level: ClassVar[str] = "hir"

    fusion_policy: FusionPolicy

    def __init__(self, name: str = "main", fusion_policy: FusionPolicy = FusionPolicy.Direct) -> None:
        # It brings the methods that build blocks, some in the place of methods of graphs.
        importlib.import_module("rlx.hir")
        super().__init__(name)
        self.fusion_policy = FusionPolicy(fusion_policy)

    def append(
        self,
        op: Op,
        inputs: Sequence[int] = (),
        shape: Shape | None = None,
        name: str | None = None,
        origin: NodeOrigin | None = None,
    ) -> Node:
        node = super().append(op, inputs, shape, name, origin)
        node.id, node.inputs = HirNodeId(node.id), tuple(HirNodeId(i) for i in node.inputs)
        return node

    def empty_like(self, name: str | None = None) -> Graph:
        fresh = super().empty_like(name)
        assert isinstance(fresh, HirModule)
        fresh.fusion_policy = self.fusion_policy
        return fresh

    def _canonical(self) -> tuple[Any, ...]:
        return (*super()._canonical(), self.fusion_policy)

    def with_fusion_policy(self, policy: FusionPolicy | str) -> HirModule:
        """Choose how blocks will be lowered; returns the module itself."""
        self.fusion_policy = FusionPolicy(policy)
        return self

    def input_batch_seq(
        self, name: str, batch: int | str | Dim, seq: int | str | Dim, hidden: int, dtype: DTypeLike = "f32"
    ) -> Tensor:
        """An input of shape [batch, seq, hidden]; the first two are usually symbols such as "B" and "S"."""
        return self.input(name, Shape.batch_seq(batch, seq, hidden, dtype))

    def mir(self, op: Op, inputs: Sequence[TensorLike] = (), shape: Shape | None = None) -> Tensor:
        """Any MIR op as it is."""
        return self.append_node(op, inputs, shape)

    def named(self, name: str, build: Callable[[HirModule], int | Tensor]) -> Tensor:
        """What `build(self)` returns, called `name`; the name becomes the label of everything it lowers to."""
        result = self.tensor(build(self))
        result.node.name = name
        return result

    @staticmethod
    def wrap_mir_graph(graph: Graph) -> HirModule:
        """The same program as an HIR module without blocks."""
        module = HirModule(graph.name)
        module.aliases = dict(graph.aliases)
        rebuild(graph, lambda node, operands: None, into=module)
        return module

    def lower_to_mir(self) -> MirModule:
        """The module with every block lowered by its policy."""
        return MirModule.from_graph(_lower(self, self.fusion_policy))

    def lower_for_autodiff(self) -> MirModule:
        """Like `lower_to_mir`, with the policy that derivatives need."""
        return MirModule.from_graph(_lower(self, FusionPolicy.for_autodiff()))

    def inspect(self) -> str:
        from rlx.ir.text.inspect import inspect_hir

        return inspect_hir(self)

    def __repr__(self) -> str:
        return f"<HirModule @{self.name}: {len(self.nodes)} nodes, {len(self.outputs)} outputs, {self.fusion_policy}>"


register_level(HirModule)


def block_label(node: Node) -> str | None:
    """The node's own name, else what its block is called; ordinary ops without a name have no label."""
    return node.name or (getattr(node.op, "label", None) if node.op.is_block else None)


def _lower(hir: HirModule, policy: FusionPolicy) -> Graph:
    """Replace blocks, copy the rest; every new node remembers the HIR node it was made for."""
    graph = Graph(hir.name)
    graph.aliases = dict(hir.aliases)

    def visit(node: Node, operands: list[Any]) -> Replacement:
        if not node.op.is_block:
            return None
        start, label, origin = len(graph), block_label(node), _origin(node)
        with graph.originating(origin):
            result = _lower_block(graph, node.op, policy, operands)
        for made in graph.nodes[start:]:
            made.name, made.origin = made.name or label, origin
        return result

    ids = rebuild(hir, visit, into=graph).ids
    for node in hir.nodes:
        copied = graph.nodes[ids[node.id]] if node.id in ids else None
        if copied is not None and (copied.origin is None or copied.origin.hir is None):
            copied.origin = _origin(node)
    return graph


def _origin(node: Node) -> NodeOrigin:
    origin = node.origin or NodeOrigin()
    label, scope = block_label(node), origin.scope
    if node.op.is_block and label and (node.name or not origin.written):
        # A block is a part of the model, unless it was written as something inside of one.
        scope = f"{scope} / {label}" if scope else label
    return NodeOrigin(int(node.id), label, None, origin.source, scope, origin.written)


def _lower_block(graph: Graph, op: Any, policy: FusionPolicy, operands: list[Any]) -> Replacement:
    fewest, most = op.arity()
    if not (fewest <= len(operands) and (most is None or len(operands) <= most)):
        raise WrongInputCount(op.mnemonic, str(fewest) if fewest == most else f"{fewest} to {most}", len(operands))
    program = block_program(op, policy, tuple(x.type for x in operands))
    if any(isinstance(node.op, Constant) for node in program.nodes):
        # A graph holds a constant once, whichever blocks use it.
        lowered: Replacement = op.lower(policy, *operands)
        return lowered
    ids: list[NodeId] = []
    for node in program.nodes:
        is_operand = isinstance(node.op, Input)
        ids.append(operands[len(ids)].id if is_operand else graph.append_copy(node, [ids[i] for i in node.inputs]))
    graph.constraints.extend(program.constraints)
    results = [Tensor(graph, ids[o]) for o in program.outputs]
    return results[0] if len(results) == 1 else results


@lru_cache(maxsize=256)
def block_program(block: Any, policy: FusionPolicy, shapes: tuple[Shape, ...]) -> Graph:
    """A block alone as a program, its inputs first; equal layers of a model share one."""
    graph = Graph(block.mnemonic)
    with graph.originating(NodeOrigin()), building(graph):
        operands = [graph.input(f"operand_{i}", shape) for i, shape in enumerate(shapes)]
        results = block.lower(policy, *operands)
        graph.set_outputs(results if isinstance(results, tuple) else [results])
    return graph.freeze()


class HirMut:
    """The vocabulary of graphs on an HIR module: every method appends the ordinary op, never the block of that name.

    `HirMut(hir).rms_norm(...)` is the MIR op `rms_norm`; `hir.rms_norm(...)` is a block.
    """

    __slots__ = ("hir",)

    def __init__(self, hir: HirModule) -> None:
        self.hir = hir

    def __getattr__(self, name: str) -> Any:
        # What comes after the block builders in the method order is the graph itself.
        return vars(self.hir)[name] if name in vars(self.hir) else getattr(super(HirBuilders, self.hir), name)


# The trait of the seed documents; the methods are those of Graph.
HirGraphExt = HirMut


class MirModule:
    """A graph at the middle level; a thin wrapper that says which level it is."""

    __slots__ = ("graph",)

    def __init__(self, name: str = "main") -> None:
        self.graph = Graph(name)

    @staticmethod
    def new(name: str) -> MirModule:
        return MirModule(name)

    @staticmethod
    def from_graph(graph: Graph) -> MirModule:
        module = MirModule.__new__(MirModule)
        module.graph = graph
        return module

    @property
    def name(self) -> str:
        return self.graph.name

    @property
    def outputs(self) -> list[NodeId]:
        return self.graph.outputs

    def set_outputs(self, outputs: Iterable[int | Tensor]) -> None:
        self.graph.set_outputs(outputs)

    def into_graph(self) -> Graph:
        return self.graph

    as_graph = as_graph_mut = into_graph

    def __len__(self) -> int:
        return len(self.graph)

    def __bool__(self) -> bool:
        return True

    def is_empty(self) -> bool:
        return self.graph.is_empty()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MirModule) and self.graph == other.graph

    def __hash__(self) -> int:
        return hash(self.graph)

    def inspect(self) -> str:
        from rlx.ir.text.inspect import inspect_mir

        return inspect_mir(self)

    def __str__(self) -> str:
        return str(self.graph)

    def __repr__(self) -> str:
        return f"<MirModule @{self.name}: {len(self)} nodes>"


class GraphStage(Words):
    """The level a module is at."""

    Hir = "hir"
    Mir = "mir"
    Lir = "lir"


class GraphModule:
    """One program at one stage. Block builders work at HIR, methods of `Graph` at MIR and LIR."""

    __slots__ = ("content",)

    def __init__(self, content: HirModule | MirModule | LirModule) -> None:
        self.content = content

    # Making one

    @staticmethod
    def define(name: str, build: Callable[[HirModule], int | Tensor]) -> GraphModule:
        """An HIR module whose only output is what `build` returns."""
        hir = HirModule(name)
        hir.set_outputs([build(hir)])
        return GraphModule(hir)

    @staticmethod
    def hir(name: str) -> GraphModule:
        return GraphModule(HirModule(name))

    @staticmethod
    def mir(name: str) -> GraphModule:
        return GraphModule(MirModule(name))

    @staticmethod
    def from_hir(hir: HirModule) -> GraphModule:
        return GraphModule(hir)

    @staticmethod
    def from_graph(graph: Graph) -> GraphModule:
        """A module at the level of the graph."""
        return GraphModule(graph if isinstance(graph, HirModule) else MirModule.from_graph(graph))

    @staticmethod
    def from_mir(mir: MirModule) -> GraphModule:
        return GraphModule(mir)

    @staticmethod
    def from_lir(lir: LirModule) -> GraphModule:
        return GraphModule(lir)

    # Reading

    @property
    def stage(self) -> GraphStage:
        if isinstance(self.content, HirModule):
            return GraphStage.Hir
        return GraphStage.Mir if isinstance(self.content, MirModule) else GraphStage.Lir

    @property
    def name(self) -> str:
        return self.content.name

    def __len__(self) -> int:
        """How many nodes there are."""
        content = self.content
        return len(content.nodes if isinstance(content, HirModule) else content.as_graph().nodes)

    @property
    def fusion_policy(self) -> FusionPolicy:
        return self._need_hir("fusion_policy").fusion_policy

    def as_hir(self) -> HirModule | None:
        return self.content if isinstance(self.content, HirModule) else None

    def as_mir(self) -> MirModule | None:
        return self.content if isinstance(self.content, MirModule) else None

    def as_lir(self) -> LirModule | None:
        return None if isinstance(self.content, HirModule | MirModule) else self.content

    def as_graph(self) -> Graph | None:
        """The MIR graph; None at HIR, which has to be lowered first."""
        return None if isinstance(self.content, HirModule) else self.content.as_graph()

    def inspect(self) -> str:
        return self.content.inspect()

    # Building

    @staticmethod
    def block(hir: HirModule, name: str, build: Callable[[HirModule], int | Tensor]) -> Tensor:
        return hir.named(name, build)

    def named(self, name: str, build: Callable[[HirModule], int | Tensor]) -> Tensor:
        return self._need_hir("named").named(name, build)

    def with_fusion_policy(self, policy: FusionPolicy | str) -> GraphModule:
        self._need_hir("with_fusion_policy").with_fusion_policy(policy)
        return self

    def input(self, name: str, dims: Shape | Iterable[int | str | Dim], dtype: DTypeLike | None = None) -> Tensor:
        return self._program().input(name, dims, dtype)

    def param(self, name: str, dims: Shape | Iterable[int | str | Dim], dtype: DTypeLike | None = None) -> Tensor:
        return self._program().param(name, dims, dtype)

    def hir_mir(self, op: Op, inputs: Sequence[TensorLike] = (), shape: Shape | None = None) -> Tensor:
        """Any MIR op as it is, in an HIR module."""
        return self._need_hir("hir_mir").mir(op, inputs, shape)

    def set_outputs(self, outputs: Iterable[int | Tensor]) -> None:
        self._program().set_outputs(outputs)

    def set_hir_outputs(self, outputs: Iterable[int | Tensor]) -> None:
        self._need_hir("set_hir_outputs").set_outputs(outputs)

    def finish_hir(self, output: int | Tensor) -> GraphModule:
        """Make `output` the only result."""
        self.set_hir_outputs([output])
        return self

    # Changing the stage

    def lower(self) -> GraphModule:
        """HIR becomes MIR; other stages stay as they are."""
        return GraphModule(self.content.lower_to_mir()) if isinstance(self.content, HirModule) else self

    def into_hir(self) -> HirModule | None:
        return self.as_hir()

    def into_lir(self) -> LirModule | None:
        return self.as_lir()

    def into_mir(self) -> MirModule:
        """HIR is lowered, LIR gives the graph inside it."""
        if isinstance(self.content, HirModule):
            return self.content.lower_to_mir()
        return self.content if isinstance(self.content, MirModule) else self.content.mir

    def into_graph(self) -> Graph:
        return self.into_mir().into_graph()

    def _program(self) -> Graph:
        return self.content if isinstance(self.content, HirModule) else self.content.as_graph()

    def _need_hir(self, what: str) -> HirModule:
        if isinstance(self.content, HirModule):
            return self.content
        raise WrongStage(
            f"{what} needs a module at stage hir, but @{self.name} is at {self.stage}; "
            f"build blocks before lowering, or use the methods of as_graph()"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "content":
            raise AttributeError(name)
        # A property of this class comes here when it has raised WrongStage.
        if name in vars(HirBuilders) or name in vars(GraphModule):
            return getattr(self._need_hir(name), name)
        graph = self.as_graph()
        if graph is None:
            raise WrongStage(
                f"{name} belongs to graphs, but module @{self.name} is at stage hir; "
                "call lower() first, or use as_hir() to work on the HIR module itself"
            )
        return getattr(graph, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GraphModule) and self.content == other.content

    def __hash__(self) -> int:
        return hash((self.stage, self.name))

    def __str__(self) -> str:
        return str(self.content)

    def __repr__(self) -> str:
        return f"GraphModule({self.content!r})"


def hir_to_graph(hir: HirModule) -> Graph:
    """Lower an HIR module and return the graph."""
    return hir.lower_to_mir().into_graph()


def hir_to_json(hir: HirModule) -> str:
    """The module as JSON, constants and policy included."""
    from rlx.ir.serialize import to_json

    return to_json(hir)


def hir_from_json(text: str | bytes) -> HirModule:
    """The module that `hir_to_json` wrote."""
    from rlx.ir.serialize import from_json

    graph = from_json(text)
    if not isinstance(graph, HirModule):
        raise FormatError(f"the file holds a program at level {graph.level}, not hir; read it with from_json")
    return graph
