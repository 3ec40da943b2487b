"""Cut a graph into kernels: products with their epilogues, pointwise nodes joined into maps, the rest node by node.

A pointwise node joins the kernel of its operand when it is that kernel's only reader, so that no value is computed
twice and none that is needed elsewhere disappears. Which ops are pointwise for a target is what its generator says.
"""

from __future__ import annotations

from collections.abc import Callable

from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant
from rlx.ir.lir import LirKernel
from rlx.ir.shape import Shape
from rlx.ops.contraction import MatMul
from rlx.ops.movement import Reshape

# Whether the target can compute a node inside a map or an epilogue.
Pointwise = Callable[[Graph, Node], bool]


def group_kernels(graph: Graph, is_pointwise: Pointwise) -> list[LirKernel]:
    """The kernels of a graph in an order in which they can run."""
    return _Grouping(graph, is_pointwise).kernels()


class _Grouping:
    def __init__(self, graph: Graph, is_pointwise: Pointwise) -> None:
        self.graph = graph
        self.is_pointwise = is_pointwise
        self.uses = graph.use_map()
        self.outputs = set(graph.outputs)
        # For every node computed by a kernel, the number of its group; groups are lists of nodes.
        self.group_of: dict[NodeId, int] = {}
        self.groups: list[list[Node]] = []
        self.kinds: list[str] = []

    def kernels(self) -> list[LirKernel]:
        for node in self.graph.nodes:
            if not node.is_leaf and not isinstance(node.op, Constant):
                self.place(node)
        made = [self.kernel(kind, nodes) for kind, nodes in zip(self.kinds, self.groups)]
        # A group ends up where its last node is, so that everything it reads has run.
        return sorted(made, key=lambda k: k.nodes[-1])

    def place(self, node: Node) -> None:
        if self.is_pointwise(self.graph, node):
            host = self.joinable(node)
            if host is not None:
                self.group_of[node.id] = host
                self.groups[host].append(node)
                return
            self.start("map", node)
        elif is_row_product(node, self.graph):
            self.start("matmul", node)
        elif isinstance(node.op, Reshape):
            self.start("view", node)
        else:
            self.start("call", node)

    def start(self, kind: str, node: Node) -> None:
        self.group_of[node.id] = len(self.groups)
        self.groups.append([node])
        self.kinds.append(kind)

    def joinable(self, node: Node) -> int | None:
        """The group that computes an operand of `node` and may compute `node` too."""
        for i in node.inputs:
            group = self.group_of.get(i)
            if group is None or self.kinds[group] not in ("map", "matmul"):
                continue
            last = self.groups[group][-1]
            alone = last.id == i and self.uses[i] == [node.id] and i not in self.outputs
            same_space = self.graph.shape(i).dims == node.shape.dims
            if alone and same_space and self.fits(node, i, group) and self.others_ready(node, group):
                return group
        return None

    def fits(self, node: Node, joined: NodeId, group: int) -> bool:
        """An epilogue addresses its operands by row and column of the product; a map has strides for any of them."""
        others = [self.graph.shape(i) for i in node.inputs if i != joined]
        return self.kinds[group] == "map" or all(is_row_operand(s, node.shape) for s in others)

    def others_ready(self, node: Node, group: int) -> bool:
        """The other operands of `node` exist before the group runs, so joining does not change the order."""
        first = self.groups[group][0].id
        for i in node.inputs:
            other = self.group_of.get(i)
            if other is not None and other != group and self.groups[other][-1].id > first:
                return False
        return True

    def kernel(self, kind: str, nodes: list[Node]) -> LirKernel:
        inside = {n.id for n in nodes}
        read = dict.fromkeys(i for n in nodes for i in n.inputs if i not in inside)
        stored = [n.id for n in nodes if n.id in self.outputs or any(u not in inside for u in self.uses[n.id])]
        return LirKernel.of(kind, [n.id for n in nodes], read, stored)


def is_row_product(node: Node, graph: Graph) -> bool:
    """A product `[.., K] x [K, N]`, whose leading axes are one long axis of rows."""
    if not isinstance(node.op, MatMul):
        return False
    a, b = (graph.shape(i) for i in node.inputs)
    types = (a.dtype, b.dtype, node.shape.dtype)
    return b.rank == 2 and a.dtype is b.dtype and all(t.is_float and not t.is_storage for t in types)


def is_row_operand(shape: Shape, product: Shape) -> bool:
    """A scalar, a row of the product, or as many rows as it has: one stride per row and one per column address it."""
    leading = shape.dims[:-1]
    return all(d == 1 for d in leading) or (shape.rank == product.rank and leading == product.dims[:-1])
