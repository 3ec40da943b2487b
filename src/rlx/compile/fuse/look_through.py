"""Who reads what, when kernels read through views: the graph without its transparent nodes.

A transparent node is no kernel. Each kernel that reads it computes it along the way: views are strides and offsets,
positions and sizes are known, and some ops cost less than storing their result. A view is not transparent where
somebody needs it in memory: the caller, the host, a product that needs rows side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rlx.compile.fuse.index_maps import Unmappable, is_view
from rlx.compile.fuse.matmul_nest import is_product, operand_layout, product_form
from rlx.compile.fuse.node_roles import (
    is_native,
    is_table,
    kernel_kind,
    may_be_transparent,
)
from rlx.compile.generators import Generator
from rlx.compile.weights.sink_casts import widened_dtype
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.kernel_kind import CALL, MAP, VIEW


class Covered:
    """What a kernel computes: nodes of its own, and transparent ones."""

    def __init__(self, nodes: Iterable[NodeId], transparent: set[NodeId]) -> None:
        self.nodes, self.transparent = set(nodes), transparent

    def __contains__(self, node: object) -> bool:
        return node in self.nodes or node in self.transparent


class KernelReads:
    """The readers and operands of nodes, transparent ones looked through."""

    def __init__(self, graph: Graph, generator: Generator) -> None:
        self.graph, self.generator = graph, generator
        self.uses = graph.use_map()
        self.outputs = set(graph.outputs)
        self.transparent = {n.id for n in graph.nodes if may_be_transparent(graph, n, generator, self.uses[n.id])}
        # From the end: a view that somebody needs may itself need what it is a view of.
        for node in reversed(graph.nodes):
            if node.id in self.transparent and self.is_needed_in_memory(node):
                self.transparent.discard(node.id)
        for node in graph.nodes:
            # Operands that could be read through views one at a time, but not together.
            if is_product(node) and product_form(graph, node, self.transparent, generator) is None:
                self.transparent.difference_update(node.inputs)

    def kind(self, node: Node) -> str:
        """The kind of the kernel that a node would be alone."""
        found = kernel_kind(self.graph, node, self.generator, self.transparent)
        # Results have memory of their own, which the kernel that computes them can as well write in their form.
        return MAP if found == VIEW and node.id in self.outputs and is_native(node, self.generator) else found

    def is_needed_in_memory(self, node: Node) -> bool:
        if node.id in self.outputs:
            return True
        return any(not self.reads_through(self.graph.nodes[u], node) for u in self.uses[node.id])

    def reads_through(self, reader: Node, node: Node) -> bool:
        """Whether `reader` needs no copy of a transparent node."""
        if reader.id in self.transparent:
            return True
        if is_product(reader):
            return product_form(self.graph, reader, self.views_below(node), self.generator) is not None
        if is_table(reader, node.id):
            return self.has_strides(node.id) and node.id not in reader.inputs[1:]
        own = self.generator.own_kernel(self.graph, reader)
        if own is None:
            return self.kind(reader) not in (CALL, VIEW)
        return all(k in own.strided and self.has_strides(i) for k, i in enumerate(reader.inputs) if i == node.id)

    def has_strides(self, operand: NodeId) -> bool:
        """Whether a view is one stride per axis of what is in memory below it."""
        try:
            operand_layout(self.graph, operand, self.transparent)
        except Unmappable:
            return False
        return True

    def views_below(self, node: Node) -> set[NodeId]:
        """A node and the views through which it reads, as far as these are looked through."""
        found: set[NodeId] = set()
        while node.id in self.transparent:
            found.add(node.id)
            if not is_view(self.graph, node) and widened_dtype(self.graph, node) is None:
                break
            node = self.graph.nodes[node.inputs[0]]
        return found

    def bases(self, node: NodeId) -> Iterator[NodeId]:
        """The nodes with memory or kernels of their own that a node reads."""
        return self.bases_below(*self.graph.nodes[node].inputs)

    def bases_below(self, *operands: NodeId) -> Iterator[NodeId]:
        """The nodes with memory or kernels of their own that operands are, or are computed from along the way."""
        stack = list(reversed(operands))
        while stack:
            operand = stack.pop()
            if operand in self.transparent:
                stack.extend(reversed(self.graph.nodes[operand].inputs))
            else:
                yield operand

    def readers(self, node: NodeId) -> Iterator[NodeId]:
        """The nodes with kernels of their own that read a node."""
        stack = list(self.uses[node])
        seen = set(stack)
        while stack:
            user = stack.pop()
            if user not in self.transparent:
                yield user
                continue
            fresh = [u for u in self.uses[user] if u not in seen]
            seen.update(fresh)
            stack.extend(fresh)

    def roots(self, nodes: Iterable[NodeId]) -> list[NodeId]:
        """What a kernel of these nodes stores: what others read, what is returned, and what nobody ever reads."""
        inside = set(nodes)
        return [n for n in sorted(inside) if n in self.outputs or not self.is_read_only_by(n, inside)]

    def is_read_only_by(self, node: NodeId, inside: set[NodeId]) -> bool:
        readers = set(self.readers(node))
        return bool(readers) and readers <= inside

    def tables(self) -> dict[NodeId, set[NodeId]]:
        """The values in which something is looked up, through views, and by whom."""
        found: dict[NodeId, set[NodeId]] = {}
        for reader in (n for n in self.graph.nodes if n.inputs and is_table(n, n.inputs[0])):
            table = reader.inputs[0]
            while table in self.transparent:
                table = self.graph.nodes[table].inputs[0]
            found.setdefault(table, set()).add(reader.id)
        return found

    def closure(self, nodes: Iterable[NodeId]) -> list[NodeId]:
        """These nodes and the transparent ones that they read, in the order of the graph."""
        found: set[NodeId] = set()
        stack = list(nodes)
        while stack:
            node = stack.pop()
            if node not in found:
                found.add(node)
                stack.extend(i for i in self.graph.nodes[node].inputs if i in self.transparent)
        return sorted(found)
