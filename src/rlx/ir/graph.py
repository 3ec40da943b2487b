"""`Graph`: an append-only list of nodes; insertion order is a topological order and ids are never reused.

The data structure lives here. The vocabulary that builds it (`g.matmul`, `g.layer_norm`, ...) is installed by
`rlx.ops.builders`, because it needs the ops; type checkers see it through the base class below.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from rlx.errors import OpError, RlxError, ShapeError
from rlx.ir.dim_binding import by_name
from rlx.ir.dims import Dim, DimConstraint, collect_constraints, require_at_most, require_equal
from rlx.ir.dtype import DType, DTypeLike
from rlx.ir.leaves import Constant, Input, Param, Project
from rlx.ir.op import Op
from rlx.ir.provenance import NodeOrigin, user_location
from rlx.ir.shape import Dims, Shape
from rlx.ir.tensor_data import TensorData

if TYPE_CHECKING:
    from rlx.ir.module import GraphModule, MirModule
    from rlx.ir.tensor import Tensor
    from rlx.ops.builders import GraphBuilders
else:

    class GraphBuilders:
        """Filled by rlx.ops.builders."""


class NodeId(int):
    """The insertion index of a node; prints as `%7`."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"%{int(self)}"

    __repr__ = __str__


class Node:
    """One op applied to earlier nodes. `shapes` has one entry per result."""

    __slots__ = ("id", "inputs", "name", "op", "origin", "shapes")

    def __init__(
        self,
        id: NodeId,
        op: Op,
        inputs: tuple[NodeId, ...],
        shapes: tuple[Shape, ...],
        name: str | None = None,
        origin: NodeOrigin | None = None,
    ) -> None:
        self.id, self.op, self.inputs, self.shapes, self.name, self.origin = id, op, inputs, shapes, name, origin

    @property
    def shape(self) -> Shape:
        """The type of the only result; an op with several results is read through `project`."""
        if len(self.shapes) != 1:
            raise OpError(f"{self.id} ({self.op.mnemonic}) has {len(self.shapes)} results; read one with project(i)")
        return self.shapes[0]

    @property
    def is_leaf(self) -> bool:
        """Input or Param: a value that comes from the caller."""
        return isinstance(self.op, Input | Param)

    def __repr__(self) -> str:
        types = ", ".join(str(s) for s in self.shapes)
        return f"{self.id}: {types} = {self.op.mnemonic}({', '.join(str(i) for i in self.inputs)})"


# What builder methods accept as an operand: a handle, a node id, or a value that becomes a constant.
TensorLike = Any


class Graph(GraphBuilders):
    """A program: nodes, and which of them are its outputs."""

    level: ClassVar[str] = "mir"

    name: str
    nodes: list[Node]
    outputs: list[NodeId]

    def __init__(self, name: str = "main") -> None:
        self.name = name
        self.nodes = []
        self.outputs = []
        # Output number -> name of the input whose buffer it may overwrite.
        self.aliases: dict[int, str] = {}
        # Sizes that must agree at run time, found by shape inference.
        self.constraints: list[DimConstraint] = []
        self._leaf_ids: dict[str, NodeId] = {}
        self._scalars: dict[TensorData, NodeId] = {}
        self._frozen = False
        self._frozen_nesting: int | None = None
        self._frozen_symbols: tuple[str, ...] | None = None
        self._origin: NodeOrigin | Callable[[], NodeOrigin] | None = None

    # Reading

    def __len__(self) -> int:
        return len(self.nodes)

    def __bool__(self) -> bool:
        return True

    def is_empty(self) -> bool:
        return not self.nodes

    def node(self, node_id: int | Tensor) -> Node:
        index = _id_of(node_id)
        if not 0 <= index < len(self.nodes):
            raise OpError(f"graph @{self.name} has no node %{index}; it has {len(self.nodes)} nodes")
        return self.nodes[index]

    # In-place rewriting is the same access in Python; both names of the seed documents exist.
    node_mut = node

    def nodes_mut(self) -> list[Node]:
        return self.nodes

    def shape(self, node_id: int | Tensor) -> Shape:
        return self.node(node_id).shape

    def shape_of(self, node_id: int | Tensor) -> tuple[Dims, DType]:
        """Dims and dtype of a node, as pyrlx gives them; `shape` is both in one."""
        shape = self.shape(node_id)
        return shape.dims, shape.dtype

    def tensor(self, node_id: int | Tensor) -> Tensor:
        """The handle of a node."""
        from rlx.ir.tensor import Tensor

        return Tensor(self, self.node(node_id).id)

    @property
    def inputs(self) -> list[Node]:
        """Input nodes in declaration order."""
        return [n for n in self.nodes if isinstance(n.op, Input)]

    @property
    def params(self) -> list[Node]:
        """Param nodes in declaration order."""
        return [n for n in self.nodes if isinstance(n.op, Param)]

    def leaf(self, key: str) -> Node:
        """The Input or Param called `key`."""
        if key not in self._leaf_ids:
            known = ", ".join(self._leaf_ids) or "none"
            raise OpError(f"graph @{self.name} has no input or param {key!r}; it has: {known}")
        return self.nodes[self._leaf_ids[key]]

    def has_leaf(self, key: str) -> bool:
        return key in self._leaf_ids

    def users(self, node_id: int | Tensor) -> list[NodeId]:
        """Nodes that read this one, each once. For many questions use `use_map`."""
        wanted = _id_of(node_id)
        return [n.id for n in self.nodes[wanted + 1 :] if wanted in n.inputs]

    def use_count(self, node_id: int | Tensor) -> int:
        return len(self.users(node_id))

    def use_map(self) -> list[list[NodeId]]:
        """For every node the nodes that read it (once per reader), in one walk."""
        uses: list[list[NodeId]] = [[] for _ in self.nodes]
        for node in self.nodes:
            for i in dict.fromkeys(node.inputs):
                uses[i].append(node.id)
        return uses

    def topo_order(self) -> Iterator[NodeId]:
        return (n.id for n in self.nodes)

    def reverse_topo(self) -> Iterator[NodeId]:
        return (n.id for n in reversed(self.nodes))

    # Building

    def append(
        self,
        op: Op,
        inputs: Sequence[int] = (),
        shape: Shape | None = None,
        name: str | None = None,
        origin: NodeOrigin | None = None,
    ) -> Node:
        """Add a node: check operands, infer result types, compare with `shape` when one is given."""
        if self._frozen:
            raise OpError(
                f"graph @{self.name} is frozen (it is the body of an op or a finished trace); copy it to change it"
            )
        ids = tuple(NodeId(i) for i in inputs)
        try:
            shapes = self._infer(op, ids)
            if shape is not None:
                self._check_declared(op, shapes, shape)
        except RlxError as error:
            raise _located(error) from None
        node_id = NodeId(len(self.nodes))
        if isinstance(op, Input | Param):
            if op.key in self._leaf_ids:
                raise OpError(f"graph @{self.name} already has an input or param called {op.key!r}; names are unique")
            self._leaf_ids[op.key] = node_id
            name = name or op.key
        if origin is None:
            origin = self._origin() if callable(self._origin) else self._origin or NodeOrigin.here()
        node = Node(node_id, op, ids, shapes, name, origin)
        self.nodes.append(node)
        return node

    def append_copy(self, node: Node, inputs: Sequence[int]) -> NodeId:
        """Add a node of another graph on operands of the same types: nothing has to be inferred or checked again.

        Whoever copies a graph also carries its `constraints` over.
        """
        if self._frozen:
            raise OpError(f"graph @{self.name} is frozen; copy it to change it")
        node_id = NodeId(len(self.nodes))
        if isinstance(node.op, Input | Param):
            self._leaf_ids[node.op.key] = node_id
        ids = tuple(NodeId(i) for i in inputs)
        self.nodes.append(Node(node_id, node.op, ids, node.shapes, node.name, node.origin))
        return node_id

    def _infer(self, op: Op, ids: tuple[NodeId, ...]) -> tuple[Shape, ...]:
        operand_shapes: list[Shape] = []
        for i in ids:
            if not 0 <= i < len(self.nodes):
                raise OpError(
                    f"{op.mnemonic}: operand {i} does not exist; graph @{self.name} has {len(self.nodes)} nodes"
                )
            shapes = self.nodes[i].shapes
            if len(shapes) != 1 and not isinstance(op, Project):
                producer = self.nodes[i].op.mnemonic
                raise OpError(
                    f"{op.mnemonic}: operand {i} ({producer}) has {len(shapes)} results; read one with project(i)"
                )
            operand_shapes.extend(shapes)
        fewest, most = op.arity()
        if not isinstance(op, Project) and not (fewest <= len(ids) and (most is None or len(ids) <= most)):
            wanted = str(fewest) if fewest == most else f"{fewest} or more" if most is None else f"{fewest} to {most}"
            raise OpError(f"{op.mnemonic}: needs {wanted} operands, got {len(ids)}")
        with collect_constraints(self.constraints):
            result = op.infer(*operand_shapes)
            results = result if isinstance(result, tuple) else (result,)
            _require_sizes(op, operand_shapes, results)
        return results

    def _check_declared(self, op: Op, shapes: tuple[Shape, ...], declared: Shape) -> None:
        if len(shapes) != 1:
            raise OpError(f"{op.mnemonic}: has {len(shapes)} results, so no single output shape can be declared")
        with collect_constraints(self.constraints):
            if not compatible(shapes[0], declared, op.mnemonic):
                raise ShapeError(f"{op.mnemonic}: the declared output is {declared}, but inference gives {shapes[0]}")

    def append_node(
        self, op: Op, inputs: Sequence[TensorLike] = (), shape: Shape | None = None, name: str | None = None
    ) -> Tensor:
        """Append any op; operands may be handles, ids or values."""
        from rlx.ir.tensor import emit_into

        result = emit_into(self, op, inputs, shape=shape)
        if name is not None:
            self.node(result).name = name
        return result

    add_node = append_node

    def input(self, name: str, dims: Shape | Iterable[int | str | Dim], dtype: DTypeLike | None = None) -> Tensor:
        """A tensor given at every run. `dims` may hold names: `g.input("x", ("B", "S", 384), "f32")`."""
        return self.tensor(self.append(Input(name, _leaf_shape(name, dims, dtype))).id)

    def param(self, name: str, dims: Shape | Iterable[int | str | Dim], dtype: DTypeLike | None = None) -> Tensor:
        """A weight, set once by `set_param`."""
        return self.tensor(self.append(Param(name, _leaf_shape(name, dims, dtype))).id)

    def constant(self, value: Any, dtype: DTypeLike | None = None) -> Tensor:
        """A value that is part of the program; equal scalars share one node."""
        from rlx.ir.tensor import constant_data

        data = value if isinstance(value, TensorData) else constant_data(value, dtype)
        if data.array.size == 1 and data in self._scalars:
            return self.tensor(self._scalars[data])
        node = self.append(Constant(data))
        if data.array.size == 1:
            self._scalars[data] = node.id
        return self.tensor(node.id)

    def set_outputs(self, outputs: Iterable[int | Tensor]) -> None:
        """Choose the results. Results of a multi-result node are named through `project`."""
        ids = [self.node(o).id for o in outputs]
        for i in ids:
            _ = self.nodes[i].shape
        self.outputs = ids

    def set_inputs(self, node_id: int | Tensor, inputs: Iterable[int | Tensor]) -> None:
        """Rewire a node in place. Types are not inferred again; run `verify_all` afterwards."""
        self.node(node_id).inputs = tuple(NodeId(_id_of(i)) for i in inputs)

    def alias(self, output: int | Tensor, input: str | int | Tensor) -> None:
        """Let `output` (which must be one of the outputs) be stored over the buffer of `input`, of the same type."""
        out = self.node(output)
        source = self.leaf(input) if isinstance(input, str) else self.node(input)
        if out.id not in self.outputs or not isinstance(source.op, Input):
            raise OpError(f"alias: needs an output and an input of graph @{self.name}, got {out!r} and {source!r}")
        if out.shape != source.shape:
            raise ShapeError(f"alias: the output is {out.shape}, the input {source.op.key!r} is {source.shape}")
        number = self.outputs.index(out.id)
        if any(key == source.op.key and k != number for k, key in self.aliases.items()):
            raise OpError(f"alias: another output of graph @{self.name} is stored over input {source.op.key!r} already")
        self.aliases[number] = source.op.key

    def freeze(self) -> Graph:
        """Forbid further change; bodies of ops are frozen."""
        self._frozen = True
        return self

    @property
    def is_frozen(self) -> bool:
        return self._frozen

    @property
    def nesting(self) -> int:
        """How deep programs lie in programs here: 0 when no op has a body."""
        if self._frozen_nesting is not None:
            return self._frozen_nesting
        nesting = max((1 + body.nesting for n in self.nodes for body in n.op.bodies.values()), default=0)
        if self._frozen:
            self._frozen_nesting = nesting
        return nesting

    @contextmanager
    def originating(self, origin: NodeOrigin | Callable[[], NodeOrigin] | None) -> Iterator[None]:
        """Nodes appended inside get this provenance instead of the caller's source line; a function is asked for it
        whenever a node is appended."""
        previous, self._origin = self._origin, origin
        try:
            yield
        finally:
            self._origin = previous

    def empty_like(self, name: str | None = None) -> Graph:
        """A new graph of the same class with no nodes; aliases are kept, because outputs keep their order."""
        fresh = type(self)(self.name if name is None else name)
        fresh.aliases = dict(self.aliases)
        return fresh

    def copy(self) -> Graph:
        """An independent copy that may be changed."""
        twin = self.empty_like()
        twin.nodes = [Node(n.id, n.op, n.inputs, n.shapes, n.name, n.origin) for n in self.nodes]
        twin.outputs = list(self.outputs)
        twin.constraints = list(self.constraints)
        twin._leaf_ids = dict(self._leaf_ids)
        twin._scalars = dict(self._scalars)
        return twin

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> Graph:
        return self.copy()

    # Symbolic dims

    def has_dynamic_dims(self) -> bool:
        return bool(self.dynamic_symbols())

    def dynamic_symbols(self) -> tuple[str, ...]:
        """The symbols used by any type or attribute in the graph, bodies included, sorted."""
        if self._frozen_symbols is not None:
            return self._frozen_symbols
        found: set[str] = set()
        for node in self.nodes:
            for shape in node.shapes:
                found.update(shape.dynamic_symbols())
            found.update(node.op.dynamic_symbols())
        symbols = tuple(sorted(found))
        if self._frozen:
            self._frozen_symbols = symbols
        return symbols

    def bind(self, binding: Mapping[str, int | Dim] | Mapping[Dim, int | Dim]) -> Graph:
        """The graph with symbols, given by name or themselves, replaced everywhere, bodies included. Node ids stay."""
        from rlx.ir.binding import bind_graph

        return bind_graph(self, by_name(binding))

    # Identity

    def _canonical(self) -> tuple[Any, ...]:
        """Name, leaves in order, other nodes in order with operands renumbered, outputs, aliases."""
        order = [n for n in self.nodes if n.is_leaf] + [n for n in self.nodes if not n.is_leaf]
        number = {n.id: i for i, n in enumerate(order)}
        nodes = tuple((n.op, tuple(number[i] for i in n.inputs), n.shapes) for n in order)
        outputs = tuple(number[o] for o in self.outputs)
        return (self.level, self.name, nodes, outputs, tuple(sorted(self.aliases.items())))

    def __eq__(self, other: object) -> bool:
        """Structural: same leaves, same ops with the same attributes on the same operands, same outputs."""
        if self is other:
            return True
        if not isinstance(other, Graph) or len(self.nodes) != len(other.nodes):
            return False
        return self._canonical() == other._canonical()

    def __hash__(self) -> int:
        # Only frozen graphs (bodies of ops) are used as keys; any graph may be hashed cheaply.
        return hash((self.name, len(self.nodes), len(self.outputs)))

    def fingerprint(self) -> str:
        """64 bits of blake2b over the program text, in hex: the same on every machine and run."""
        return hashlib.blake2b(str(self).encode(), digest_size=8).hexdigest()

    def __str__(self) -> str:
        from rlx.ir.text.graph_text import show

        return show(self)

    def __repr__(self) -> str:
        return f"<Graph @{self.name}: {len(self.nodes)} nodes, {len(self.outputs)} outputs>"

    def inspect(self) -> str:
        """The annotated dump of `inspect_graph`."""
        from rlx.ir.text.inspect import inspect_graph

        return inspect_graph(self)

    # Stages

    @staticmethod
    def define(name: str, build: Any) -> GraphModule:
        """An HIR module from a builder function that returns the output."""
        from rlx.ir.module import GraphModule

        return GraphModule.define(name, build)

    @staticmethod
    def hir(name: str) -> GraphModule:
        from rlx.ir.module import GraphModule

        return GraphModule.hir(name)

    def module(self) -> GraphModule:
        from rlx.ir.module import GraphModule

        return GraphModule.from_graph(self)

    def to_mir(self) -> MirModule:
        from rlx.ir.module import MirModule

        return MirModule.from_graph(self)

    @staticmethod
    def from_hir(hir: Any) -> Graph:
        """Lower an HIR module."""
        graph: Graph = hir.lower_to_mir().into_graph()
        return graph

    @staticmethod
    def from_lir(lir: Any) -> Graph:
        """The MIR graph inside an LIR module."""
        graph: Graph = lir.into_graph()
        return graph

    @staticmethod
    def inspect_module(module: Any) -> str:
        text: str = module.inspect()
        return text


def _id_of(value: int | Tensor) -> int:
    return value if isinstance(value, int) else value.id


def _leaf_shape(name: str, dims: Shape | Iterable[int | str | Dim], dtype: DTypeLike | None) -> Shape:
    if isinstance(dims, Shape):
        if dtype is not None and dims.with_dtype(dtype) != dims:
            raise ShapeError(f"{name!r}: the dtype {dtype} contradicts the shape {dims}")
        return dims
    return Shape(dims, "f32" if dtype is None else dtype)


def _require_sizes(op: Op, operands: Sequence[Shape], results: Sequence[Shape]) -> None:
    """Refuse negative sizes; those such as `S - 3` become constraints where they first appear."""
    sizes = [d for shape in results for d in shape.dims if type(d) is not int]
    if op._sizes:
        sizes += [d for d in op.size_attributes if type(d) is not int]
    for d in dict.fromkeys(sizes):
        if not any(d in x.dims for x in operands) and not require_at_most(0, d, op.mnemonic):
            raise ShapeError(f"{op.mnemonic}: the size {d} is negative, whatever its symbols are")


def compatible(inferred: Shape, declared: Shape, reason: str) -> bool:
    """Equal types, or one element each with the same dtype; sizes only known at run time become constraints."""
    if inferred == declared:
        return True
    if inferred.dtype is not declared.dtype:
        return False
    if inferred.element_count == 1 and declared.element_count == 1:
        return True
    if inferred.rank != declared.rank:
        return False
    return all(require_equal(a, b, reason) for a, b in zip(inferred.dims, declared.dims))


def _located(error: RlxError) -> RlxError:
    """The error with the user's source line appended, once."""
    location = user_location()
    if location is None or getattr(error, "located", False):
        return error
    message = f"{error}\n  at {location.file}:{location.line} in {location.function}"
    located = type(error)(message)
    located.located = True  # type: ignore[attr-defined]
    return located
