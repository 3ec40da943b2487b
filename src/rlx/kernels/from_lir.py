"""LIR kernels to loop IR: a group of MIR nodes becomes one `Kernel` with its epilogue or pointwise expression.

Sizes that are symbolic become index parameters of the kernel, one per distinct expression, so that one piece of code
serves every binding. `MadeKernel` says what to pass for each parameter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rlx.ir.dims import product
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant
from rlx.ir.lir import LirKernel
from rlx.ir.shape import Dims, Shape, Size
from rlx.kernels.elementwise import Access, map_kernel
from rlx.kernels.expr import Expr, apply, can_lower, literal, operand
from rlx.kernels.extents import Extent
from rlx.kernels.loop_ir import Kernel
from rlx.kernels.matmul import Epilogue, Matrix, matmul_kernel
from rlx.kernels.targets import Target
from rlx.ops.arithmetic import Binary, Compare, Where
from rlx.ops.conversion import Cast
from rlx.ops.unary import Activation

_POINTWISE = (Activation, Binary, Compare, Where, Cast)


class MadeKernel(NamedTuple):
    """A loop kernel and its arguments: buffers in parameter order, then the value of every named extent."""

    kernel: Kernel
    buffers: tuple[NodeId, ...]
    extents: tuple[Size, ...]


def is_pointwise(graph: Graph, node: Node) -> bool:
    """Whether a node can be computed inside a map or an epilogue."""
    if not isinstance(node.op, _POINTWISE):
        return False
    dtypes = [graph.shape(i).dtype for i in node.inputs]
    return can_lower(node.op.mnemonic, *dtypes) and can_lower("cast", node.shape.dtype)


def make_kernel(name: str, graph: Graph, kernel: LirKernel, target: Target) -> MadeKernel:
    """The loop kernel of a `map` or `matmul` group."""
    maker = _Maker(name, graph, kernel, target)
    return maker.matmul() if kernel.kind == "matmul" else maker.map()


class _Maker:
    def __init__(self, name: str, graph: Graph, kernel: LirKernel, target: Target) -> None:
        self.name, self.graph, self.lir, self.target = name, graph, kernel, target
        self.nodes = [graph.nodes[i] for i in kernel.nodes]
        self.extent_names: dict[Size, str] = {}
        # Scalar constants are written into the code; everything else that is read is a buffer.
        self.read = [i for i in kernel.inputs if not _is_literal(graph.nodes[i])]

    def extent(self, size: Size) -> Extent:
        if isinstance(size, int):
            return size
        return self.extent_names.setdefault(size, f"d{len(self.extent_names)}")

    def finish(self, kernel: Kernel, buffers: Sequence[NodeId]) -> MadeKernel:
        by_name = {name: size for size, name in self.extent_names.items()}
        extents = tuple(by_name[p.name] for p in kernel.params if p.name in by_name)
        return MadeKernel(kernel, tuple(buffers), extents)

    def map(self) -> MadeKernel:
        dims = self.nodes[-1].shape.dims
        inputs = [self.access(f"x{n}", i, dims) for n, i in enumerate(self.read)]
        outputs = [self.access(f"y{n}", i, dims) for n, i in enumerate(self.lir.outputs)]
        values = {i: operand(n, self.graph.shape(i).dtype) for n, i in enumerate(self.read)}
        exprs = self.expressions(self.nodes, values)
        shape = [self.extent(d) for d in dims]
        kernel = map_kernel(self.name, self.target, shape, inputs, outputs, [exprs[i] for i in self.lir.outputs])
        return self.finish(kernel, [*self.read, *self.lir.outputs])

    def access(self, name: str, node: NodeId, dims: Dims) -> Access:
        shape = self.graph.shape(node)
        strides = tuple(self.extent(s) for s in broadcast_strides(shape, dims))
        return Access(name, shape.dtype, strides)

    def matmul(self) -> MadeKernel:
        head, *rest = self.nodes
        a, b = (self.graph.shape(i) for i in head.inputs)
        rows, depth, columns = self.extent(product(a.dims[:-1])), self.extent(a.dims[-1]), self.extent(b.dims[-1])
        extra = [i for i in self.read if i not in head.inputs]
        values: dict[NodeId, Expr] = {head.id: operand(0, head.shape.dtype)}
        values |= {i: operand(n + 1, self.graph.shape(i).dtype) for n, i in enumerate(extra)}
        (result,) = self.lir.outputs
        epilogue = None
        if rest:
            operands = tuple(self.beside(f"e{n}", i, head.shape) for n, i in enumerate(extra))
            epilogue = Epilogue(self.expressions(rest, values)[result], operands)
        kernel = matmul_kernel(
            self.name,
            self.target,
            m=rows,
            n=columns,
            k=depth,
            a=Matrix("a", a.dtype, depth),
            b=Matrix("b", b.dtype, columns),
            c=Matrix("c", self.graph.shape(result).dtype, columns),
            epilogue=epilogue,
        )
        return self.finish(kernel, [*head.inputs, result, *extra])

    def beside(self, name: str, node: NodeId, like: Shape) -> Matrix:
        """An operand of the epilogue as a matrix over (rows, columns)."""
        *leading, column = broadcast_strides(self.graph.shape(node), like.dims)
        # The innermost leading axis may have size 1, and then has no stride: rows follow each other along the next one.
        row: Size = next((s for s in reversed(leading) if s != 0), 0)
        return Matrix(name, self.graph.shape(node).dtype, self.extent(row), self.extent(column))

    def expressions(self, nodes: Sequence[Node], known: Mapping[NodeId, Expr]) -> dict[NodeId, Expr]:
        values = dict(known)
        for node in nodes:
            args = []
            for i in node.inputs:
                if i not in values:
                    values[i] = _literal(self.graph.nodes[i])
                args.append(values[i])
            to = node.op.to if isinstance(node.op, Cast) else None
            values[node.id] = apply(node.op.mnemonic, *args, to=to)
        return values


def _is_literal(node: Node) -> bool:
    return isinstance(node.op, Constant) and node.op.value.array.size == 1 and not node.shape.dtype.is_complex


def _literal(node: Node) -> Expr:
    assert isinstance(node.op, Constant)
    return literal(node.op.value.array.reshape(()).item(), node.shape.dtype)


def broadcast_strides(shape: Shape, dims: Dims) -> tuple[Size, ...]:
    """Element strides with which a contiguous value of type `shape` is read over the index space `dims`."""
    strides: list[Size] = []
    step: Size = 1
    for d in reversed(shape.dims):
        strides.append(0 if d == 1 else step)
        step = step * d
    strides += [0] * (len(dims) - shape.rank)
    return tuple(reversed(strides))
