"""`CustomFn`: a program used as one op, with derivative programs of the user's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rlx.ir.dims import Dim
from rlx.ir.graph import Graph
from rlx.ir.inline import check_operands, inline_graph, same_type
from rlx.ir.op import op
from rlx.ir.shape import Shape
from rlx.ir.tensor import Tensor
from rlx.ops.bodies import Array, BodyOp, build_body, input_types, one_or_tuple, output_types, run_body, types_text
from rlx.ops.samples import Sample, sample, spec

__all__ = ["CustomFn", "MultiOutputHandle", "custom_fn", "custom_fn_multi"]


@op("custom_fn")
class CustomFn(BodyOp):
    """The outputs of fwd_body, differentiated by the given programs instead of through its ops.

    vjp_body takes the primals, then "primal_output" and "d_output", and returns one gradient per input. jvp_body takes
    the primals, then "tangent_0", "tangent_1", ... and, if it wants it, "primal_output", and returns the tangent of the
    output. For a function with several results the special names are numbered ("primal_output_0", "d_output_0", ...)
    and jvp_body returns as many tangents. Primals are the Inputs with other names, in declaration order.
    """

    fwd_body: Graph
    vjp_body: Graph | None = None
    jvp_body: Graph | None = None

    def num_inputs(self) -> int:
        return len(self.fwd_body.inputs)

    def check(self) -> None:
        super().check()
        primals, results = input_types(self.fwd_body), output_types(self.fwd_body)
        if not results:
            raise self.fail("fwd_body has no outputs")
        if self.vjp_body is not None:
            self._check_vjp(self.vjp_body, primals, results)
        if self.jvp_body is not None:
            self._check_jvp(self.jvp_body, primals, results)

    def _check_vjp(self, body: Graph, primals: Sequence[Shape], results: Sequence[Shape]) -> None:
        special = dict(zip(primal_output_names(len(results)), results)) | dict(
            zip(cotangent_names(len(results)), results)
        )
        self._check_inputs("vjp_body", body, primals, special, required=special)
        gradients = output_types(body)
        if len(gradients) != len(primals):
            raise self.fail(f"vjp_body must return one gradient per input, {len(primals)}, it returns {len(gradients)}")
        for i, (primal, gradient) in enumerate(zip(primals, gradients)):
            # Integers have no gradient; what a body returns for them is ignored.
            if primal.dtype.is_inexact and not same_type(primal, gradient, self.name):
                raise self.fail(f"vjp_body returns {gradient} as the gradient of input {i}, which is {primal}")

    def _check_jvp(self, body: Graph, primals: Sequence[Shape], results: Sequence[Shape]) -> None:
        tangents = {f"tangent_{i}": primal for i, primal in enumerate(primals)}
        optional = dict(zip(primal_output_names(len(results)), results))
        self._check_inputs("jvp_body", body, primals, tangents | optional, required=tangents)
        found = output_types(body)
        if len(found) != len(results) or not all(same_type(a, b, self.name) for a, b in zip(results, found)):
            raise self.fail(
                f"jvp_body must return the tangents of the outputs, {types_text(results)}, "
                f"it returns {types_text(found)}"
            )

    def _check_inputs(
        self,
        field: str,
        body: Graph,
        primals: Sequence[Shape],
        special: dict[str, Shape],
        required: dict[str, Shape],
    ) -> None:
        """Inputs with special names have the types given for them; the others are the primals."""
        missing = [name for name in required if not body.has_leaf(name)]
        if missing:
            raise self.fail(f"{field} needs the input {missing[0]!r} ({required[missing[0]]})")
        own = [n for n in body.inputs if n.name not in special]
        if len(own) != len(primals):
            names = ", ".join(str(n.name) for n in own) or "none"
            raise self.fail(f"{field} needs one input per primal, {len(primals)}, it has {len(own)} ({names})")
        wanted = [*zip(own, primals), *((n, special[str(n.name)]) for n in body.inputs if n.name in special)]
        for node, shape in wanted:
            if not same_type(shape, node.shape, self.name):
                raise self.fail(f"the input {node.name!r} of {field} is {node.shape}, it must be {shape}")

    def infer(self, *inputs: Shape) -> tuple[Shape, ...]:
        check_operands(self.fwd_body, inputs, self.name)
        return output_types(self.fwd_body)

    def eval(self, *inputs: Array) -> Any:
        return one_or_tuple(run_body(self.fwd_body, inputs))

    def decompose(self, *inputs: Tensor) -> Any:
        return one_or_tuple(inline_graph(self.fwd_body, inputs))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in ("f16", "bf16", "f32", "f64"):
            x = Shape((3,), dtype)
            product = build_body("product", lambda a, b: a * b, a=x, b=x)
            vjp = build_body("product_vjp", lambda a, b, y, d: (d * b, d * a), a=x, b=x, primal_output=x, d_output=x)
            jvp = build_body("product_jvp", lambda a, b, ta, tb: ta * b + a * tb, a=x, b=x, tangent_0=x, tangent_1=x)
            yield sample(cls(product, vjp, jvp), spec(3), spec(3), dtypes=(dtype,))
        x = Shape(("B", 2), "f32")
        several = build_body("several", lambda v: (v + v, v < v * v), x=x)
        yield sample(cls(several), spec("B", 2), B=3, dtypes=("f32",))


def primal_output_names(count: int) -> tuple[str, ...]:
    """How derivative programs call the results of the function: numbered when there are several."""
    return ("primal_output",) if count == 1 else tuple(f"primal_output_{i}" for i in range(count))


def cotangent_names(count: int) -> tuple[str, ...]:
    """How vjp programs call the gradients of the results."""
    return ("d_output",) if count == 1 else tuple(f"d_output_{i}" for i in range(count))


def custom_fn(
    inputs: Sequence[Any], fwd_body: Graph, vjp_body: Graph | None = None, jvp_body: Graph | None = None
) -> Any:
    """`fwd_body` applied to `inputs` as one op with its own derivatives; see `CustomFn`."""
    return CustomFn(fwd_body, vjp_body, jvp_body)(*inputs)


class MultiOutputHandle(NamedTuple):
    """The results of a function with several: `handle.output(g, i)` is result i.

    `offsets` are the positions that the results would have in one flat array, and the total last.
    """

    source: tuple[Any, ...]
    sub_shapes: tuple[Shape, ...]
    offsets: tuple[int | Dim, ...]

    @property
    def n_outputs(self) -> int:
        return len(self.source)

    def output(self, graph: Graph, index: int) -> Any:
        """Result number `index`; `graph` is the one the function was built into."""
        if not 0 <= index < self.n_outputs:
            raise IndexError(f"output {index} does not exist; the function has {self.n_outputs}")
        return self.source[index]


def custom_fn_multi(
    inputs: Sequence[Any], fwd_body: Graph, vjp_body: Graph | None = None, jvp_body: Graph | None = None
) -> MultiOutputHandle:
    """`custom_fn` with several results of any dtype and shape."""
    results = custom_fn(inputs, fwd_body, vjp_body, jvp_body)
    source = results if isinstance(results, tuple) else (results,)
    shapes = output_types(fwd_body)
    offsets: list[int | Dim] = [0]
    for shape in shapes:
        offsets.append(offsets[-1] + shape.element_count)
    return MultiOutputHandle(source, shapes, tuple(offsets))
