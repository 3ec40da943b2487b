"""Ops that users add at run time: an `OpExtension` in a registry, and `Custom`, the op that refers to it by name.

    class Scale(rlx.OpExtension):
        def name(self): return "scale"
        def num_inputs(self): return 1
        def infer_shape(self, inputs, attrs): return inputs[0]
        def eval(self, arrays, attrs): return arrays[0] * np.frombuffer(attrs, "f4")[0]

    rlx.register_op(Scale())
    y = g.custom_op("scale", np.float32(3).tobytes(), [x])

Rules return `NotImplemented` when there is none, which is an error for whoever needs it. That is not the same as a
zero derivative: `[]` from `vjp`, `None` from `jvp`.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlx.errors import BackendError, NoJvpRule, NoVjpRule, NoVmapRule, OpError
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.op import Op, op
from rlx.ir.shape import Shape, Size
from rlx.ir.tensor import Tensor, lift, target_graph
from rlx.ops.control.bodies import Array, one_or_tuple
from rlx.ops.control.body_transforms import as_tuple, filled, types
from rlx.ops.define.samples import Sample, sample, spec

__all__ = [
    "Custom",
    "JvpContext",
    "OpExtension",
    "OpRegistry",
    "VjpContext",
    "VmapContext",
    "custom_op",
    "custom_op_packed",
    "global_registry",
    "lookup_op",
    "register_op",
]


class VjpContext(NamedTuple):
    """For `OpExtension.vjp`: the gradient of the result, and the graph `bwd` in which gradients are built.

    `fwd_map` gives the id in `bwd` of the node and of its inputs. An op with several results finds the gradients of
    all of them in `upstreams`.
    """

    upstream: NodeId
    fwd_map: Mapping[NodeId, NodeId]
    bwd: Graph
    upstreams: tuple[NodeId, ...]


class JvpContext(NamedTuple):
    """For `OpExtension.jvp`: the tangent of every input, None where it is zero, and the graph being built."""

    tangents: Sequence[NodeId | None]
    fwd_map: Mapping[NodeId, NodeId]
    bwd: Graph


class VmapContext(NamedTuple):
    """For `OpExtension.vmap`: the inputs in the graph `out`, and which of them have a leading batch axis."""

    lifted_inputs: Sequence[NodeId]
    is_batched: Sequence[bool]
    batch_size: Size
    out: Graph


class OpExtension:
    """What a custom op is. `name`, `num_inputs` and `infer_shape` are required, everything else is optional."""

    def name(self) -> str:
        """The name under which `custom_op` finds it."""
        raise NotImplementedError

    def num_inputs(self) -> int:
        raise NotImplementedError

    def infer_shape(self, inputs: Sequence[Shape], attrs: bytes) -> Shape | tuple[Shape, ...]:
        """The result type, or a tuple of them for several results."""
        raise NotImplementedError

    def eval(self, arrays: Sequence[Array], attrs: bytes) -> Any:
        """The result (a tuple for several) in NumPy; the reference backend runs it."""
        return NotImplemented

    def vjp(self, node: Node, context: VjpContext) -> Any:
        """Pairs of (input number, id of its gradient); inputs that are left out have gradient zero."""
        return NotImplemented

    def jvp(self, node: Node, context: JvpContext) -> Any:
        """The id of the tangent of the result (a tuple for several), or None for zero."""
        return NotImplemented

    def vmap(self, node: Node, context: VmapContext) -> Any:
        """The id of the result with a leading batch axis (a tuple for several)."""
        return NotImplemented


class OpRegistry:
    """Custom ops by name; safe to use from several threads."""

    def __init__(self) -> None:
        self._extensions: dict[str, OpExtension] = {}
        self._lock = threading.Lock()
        # How often a name got another meaning: what was compiled before is out of date then.
        self.replaced = 0

    def register(self, extension: OpExtension) -> None:
        """Add a custom op; one of the same name is replaced, with a warning."""
        name = extension.name()
        with self._lock:
            known = self._extensions.get(name)
            self._extensions[name] = extension
            self.replaced += known is not None and known is not extension
        if known is not None and known is not extension:
            warnings.warn(f"the custom op {name!r} was registered before; the new one replaces it", stacklevel=2)

    def lookup(self, name: str) -> OpExtension | None:
        return self._extensions.get(name)

    def list(self) -> list[str]:
        """The names, sorted."""
        with self._lock:
            return sorted(self._extensions)


_GLOBAL = OpRegistry()


def global_registry() -> OpRegistry:
    """The registry that graphs refer to."""
    return _GLOBAL


def register_op(extension: OpExtension) -> None:
    """Add a custom op to the global registry."""
    _GLOBAL.register(extension)


def lookup_op(name: str) -> OpExtension | None:
    """The custom op called `name`, or None."""
    return _GLOBAL.lookup(name)


@op("custom")
class Custom(Op):
    """The registered op `key` applied to its inputs, with `attrs` as bytes of its own.

    With `packed_shape` the result has that type (several logical results in one flat array); otherwise the extension
    infers the types.
    """

    primitive = True
    # Nothing is known about the function, not even that it gives the same result twice.
    mergeable = False

    key: str
    attrs: bytes = b""
    packed_shape: Shape | None = None

    def extension(self) -> OpExtension:
        """The registered meaning of this op."""
        found = lookup_op(self.key)
        if found is None:
            known = ", ".join(_GLOBAL.list()) or "none"
            raise OpError(f"custom: no op {self.key!r} is registered (known: {known}); call rlx.register_op first")
        return found

    def num_inputs(self) -> int:
        return self.extension().num_inputs()

    def infer(self, *inputs: Shape) -> Shape | tuple[Shape, ...]:
        extension = self.extension()
        if len(inputs) != extension.num_inputs():
            raise self.fail(f"{self.key!r} takes {extension.num_inputs()} inputs, got {len(inputs)}")
        if self.packed_shape is not None:
            return self.packed_shape
        return extension.infer_shape(list(inputs), self.attrs)

    def eval(self, *inputs: Array) -> Any:
        result = self.extension().eval(list(inputs), self.attrs)
        if result is NotImplemented:
            raise BackendError(
                f"custom: {self.key!r} has no kernel for the reference backend; give its OpExtension an eval method"
            )
        return one_or_tuple([np.asarray(r) for r in result]) if isinstance(result, tuple) else np.asarray(result)

    def jvp(self, primals: Sequence[Tensor], tangents: Sequence[Tensor | None], y: Any) -> Any:
        node, ids, graph = self._node(primals, y)
        known = [None if t is None else lift(t, graph).id for t in tangents]
        result = self.extension().jvp(node, JvpContext(known, ids, graph))
        if result is NotImplemented:
            raise NoJvpRule(f"custom op {self.key!r}", "its OpExtension does not give jvp")
        if result is None:
            return None
        return _tensors(result, graph)

    def vjp(self, ct: Any, y: Any, *inputs: Tensor) -> list[Tensor | None]:
        node, ids, graph = self._node(inputs, y)
        cotangents = tuple(lift(c, graph).id for c in filled(as_tuple(ct), types(as_tuple(y))))
        result = self.extension().vjp(node, VjpContext(cotangents[0], ids, graph, cotangents))
        if result is NotImplemented:
            raise NoVjpRule(f"custom op {self.key!r}", "its OpExtension does not give vjp")
        gradients: list[Tensor | None] = [None] * len(inputs)
        for number, gradient in result:
            gradients[number] = graph.tensor(gradient)
        return gradients

    def batch(self, size: Size, operands: Sequence[Tensor], batched: Sequence[bool]) -> Any:
        node, _, graph = self._node(operands, None)
        result = self.extension().vmap(node, VmapContext(node.inputs, tuple(batched), size, graph))
        if result is NotImplemented:
            raise NoVmapRule(f"custom op {self.key!r}", "its OpExtension does not give vmap")
        return _tensors(result, graph)

    def _node(self, inputs: Sequence[Tensor], y: Any) -> tuple[Node, dict[NodeId, NodeId], Graph]:
        """The op as a node of the program being built, and the map of ids that extensions expect."""
        graph = target_graph(inputs)
        assert graph is not None
        operands = tuple(lift(x, graph).id for x in inputs)
        results = [lift(r, graph) for r in as_tuple(y)] if y is not None else []
        # Of several results, the projections are known; the node itself is what they read.
        own = results[0].id if len(results) == 1 else results[0].node.inputs[0] if results else NodeId(len(graph))
        node = Node(own, self, operands, tuple(r.type for r in results))
        return node, {i: i for i in (*operands, own)}, graph

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for extension in (_SampleScale(), _SampleHalves()):
            if lookup_op(extension.name()) is None:
                register_op(extension)
        scale = cls("sample.scale", np.float32(1.5).tobytes())
        yield sample(scale, spec(2, 3))
        yield sample(scale, spec("B", 3), B=2)
        yield sample(cls("sample.halves"), spec(4), dtypes=("f32", "i32"))
        yield sample(cls("sample.scale", np.float32(-1).tobytes(), Shape((4,), "f32")), spec(4), dtypes=("f32",))


def _tensors(result: Any, graph: Graph) -> Any:
    return tuple(graph.tensor(r) for r in result) if isinstance(result, tuple) else graph.tensor(result)


class _SampleScale(OpExtension):
    """x times the f32 in attrs; registered when samples are asked for."""

    def name(self) -> str:
        return "sample.scale"

    def num_inputs(self) -> int:
        return 1

    def infer_shape(self, inputs: Sequence[Shape], attrs: bytes) -> Shape:
        return inputs[0]

    def eval(self, arrays: Sequence[Array], attrs: bytes) -> Array:
        return (arrays[0].astype(np.float64) * np.frombuffer(attrs, np.float32)[0]).astype(arrays[0].dtype)

    def vjp(self, node: Node, context: VjpContext) -> Any:
        return [(0, context.bwd.append(node.op, [context.upstream]).id)]

    def jvp(self, node: Node, context: JvpContext) -> Any:
        return context.bwd.append(node.op, [i for i in context.tangents if i is not None]).id

    def vmap(self, node: Node, context: VmapContext) -> Any:
        return context.out.append(node.op.replace(packed_shape=None), context.lifted_inputs).id


class _SampleHalves(OpExtension):
    """The first and the second half of x: two results."""

    def name(self) -> str:
        return "sample.halves"

    def num_inputs(self) -> int:
        return 1

    def infer_shape(self, inputs: Sequence[Shape], attrs: bytes) -> tuple[Shape, ...]:
        half = inputs[0].with_dim(0, inputs[0].dims[0] // 2)
        return half, half

    def eval(self, arrays: Sequence[Array], attrs: bytes) -> tuple[Array, ...]:
        middle = len(arrays[0]) // 2
        return arrays[0][:middle], arrays[0][middle:]

    def vjp(self, node: Node, context: VjpContext) -> Any:
        from rlx.ops.shape.movement import concat

        return [(0, concat([context.bwd.tensor(u) for u in context.upstreams]))]

    def jvp(self, node: Node, context: JvpContext) -> Any:
        return Custom(self.name())(*(context.bwd.tensor(t) for t in context.tangents if t is not None))

    def vmap(self, node: Node, context: VmapContext) -> Any:
        from rlx.ops.shape.movement import narrow

        x = context.out.tensor(context.lifted_inputs[0])
        half = x.shape[1] // 2
        return narrow(x, 1, 0, half), narrow(x, 1, half, half)


def custom_op(name: str, attrs: bytes, inputs: Sequence[Any]) -> Any:
    """A registered op; its extension infers the result type."""
    return Custom(name, attrs)(*inputs)


def custom_op_packed(name: str, attrs: bytes, inputs: Sequence[Any], out_shape: Shape) -> Any:
    """A registered op whose result type the caller gives: several logical results in one array, read with narrow."""
    return Custom(name, attrs, out_shape)(*inputs)
