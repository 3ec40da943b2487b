"""`CustomFn`: a program used as one op, with derivative programs of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from rlx.ir.dims import Dim
from rlx.ir.graph import Graph
from rlx.ir.op import op
from rlx.ir.rewrite.inline import check_operands, inline_graph, same_type
from rlx.ir.shape import Shape, Size
from rlx.ir.tensor import Tensor
from rlx.ops.control.bodies import (
    Array,
    TransformableBodyOp,
    build_body,
    input_types,
    one_or_tuple,
    output_types,
    run_body,
    types_text,
)
from rlx.ops.control.body_transforms import Flags, as_tuple, batch_body, filled, types, with_batch_axis
from rlx.ops.define.samples import Sample, sample, spec

__all__ = ["CustomFn", "MultiOutputHandle", "custom_fn", "custom_fn_multi"]


@op("custom_fn")
class CustomFn(TransformableBodyOp):
    """The outputs of fwd_body, differentiated by the given programs instead of through its ops.

    vjp_body takes the primals, then "primal_output" and "d_output", and returns one gradient per input. jvp_body takes
    the primals, then "tangent_0", "tangent_1", ... and, if it wants it, "primal_output", and returns the tangent of the
    output. For a function with several results the special names are numbered ("primal_output_0", "d_output_0", ...)
    and jvp_body returns as many tangents. Primals are the Inputs with other names, in declaration order.

    With saving_body, reverse mode runs that program instead of fwd_body: its outputs are those of fwd_body and then
    residuals. vjp_body takes its outputs (and their gradients) in the place of those of fwd_body. Reverse mode makes of
    it a function whose fwd_body is that program (`is_saving`) and leaves the ops of the program behind: a second
    derivative goes through the residuals too, of which vjp_body knows nothing.

    Where a derivative program is missing, fwd_body is differentiated.
    """

    fwd_body: Graph
    vjp_body: Graph | None = None
    jvp_body: Graph | None = None
    saving_body: Graph | None = None
    is_saving: bool = False

    def num_inputs(self) -> int:
        return len(self.fwd_body.inputs)

    def check(self) -> None:
        super().check()
        primals, results = input_types(self.fwd_body), output_types(self.fwd_body)
        if not results:
            raise self.fail("fwd_body has no outputs")
        if self.saving_body is not None:
            self._check_saving(self.saving_body, primals, results)
        if self.vjp_body is not None:
            self._check_vjp(self.vjp_body, primals, output_types(self.saving_body or self.fwd_body))
        if self.jvp_body is not None:
            self._check_jvp(self.jvp_body, primals, results)

    def _check_saving(self, body: Graph, primals: Sequence[Shape], results: Sequence[Shape]) -> None:
        check_operands(body, primals, f"{self.name} saving_body")
        found = output_types(body)
        if len(found) < len(results) or not all(same_type(a, b, self.name) for a, b in zip(results, found)):
            raise self.fail(
                f"saving_body must return the outputs of fwd_body, {types_text(results)}, and then residuals; "
                f"it returns {types_text(found)}"
            )

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

    def form_for(self, rule: str, active: Flags) -> Callable[..., Any] | None:
        """The function itself where it has no program for the derivative; the saving program for reverse mode."""
        if (rule == "vjp" and self.vjp_body is None) or (rule == "jvp" and self.jvp_body is None):
            return self.decompose
        if rule == "vjp" and self.saving_body is not None:
            saving, count = CustomFn(self.saving_body, self.vjp_body, is_saving=True), len(self.fwd_body.outputs)
            return lambda *inputs: one_or_tuple(as_tuple(saving(*inputs))[:count])
        return None

    def value_and_jvp(self, primals: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> tuple[Any, Any]:
        assert self.jvp_body is not None
        value = as_tuple(self(*primals))
        named = {f"tangent_{i}": t for i, t in enumerate(filled(tangents, types(primals)))}
        named |= dict(zip(primal_output_names(len(value)), value))
        pushed = inline_graph(self.jvp_body, _arranged(self.jvp_body, primals, named))
        return one_or_tuple(value), one_or_tuple([t if t.dtype.is_inexact else None for t in pushed])

    def vjp_wrt(self, wrt: Flags, ct: Any, y: Any, operands: Sequence[Tensor]) -> list[Tensor | None]:
        assert self.vjp_body is not None
        value = as_tuple(y)
        named = dict(zip(primal_output_names(len(value)), value))
        named |= dict(zip(cotangent_names(len(value)), filled(as_tuple(ct), types(value))))
        gradients = inline_graph(self.vjp_body, _arranged(self.vjp_body, operands, named))
        return [g if wanted else None for g, wanted in zip(gradients, wrt)]

    def batch(self, size: Size, operands: Sequence[Tensor], batched: Sequence[bool]) -> Any:
        return self.over_batch(size, tuple(batched))(*operands)

    def over_batch(self, size: Size, batched: Flags) -> CustomFn:
        """The function over a leading axis of some inputs, and of all outputs; with the programs to match."""
        special = {f"tangent_{i}": b for i, b in enumerate(batched)}
        for body in (self.fwd_body, self.saving_body or self.fwd_body):
            count = len(body.outputs)
            special |= dict.fromkeys((*primal_output_names(count), *cotangent_names(count)), True)

        def derivative(body: Graph | None, summed: Flags | None = None) -> Graph | None:
            if body is None:
                return None
            primals = iter(batched)
            flags = [special[str(n.name)] if n.name in special else next(primals) for n in body.inputs]
            return _batched_body(body, size, flags, summed)

        return CustomFn(
            _batched_body(self.fwd_body, size, batched),
            derivative(self.vjp_body, batched),
            derivative(self.jvp_body),
            None if self.saving_body is None else _batched_body(self.saving_body, size, batched),
            self.is_saving,
        )

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


def _arranged(body: Graph, primals: Sequence[Tensor], named: dict[str, Tensor]) -> list[Tensor]:
    """The operands of a derivative program: values by their special names, primals for the others in order."""
    rest = iter(primals)
    return [named[str(n.name)] if n.name in named else next(rest) for n in body.inputs]


def _batched_body(body: Graph, size: Size, batched: Sequence[bool], summed: Flags | None = None) -> Graph:
    """`body` over a batch, with its Inputs called as before. All outputs get the axis, except gradients of what has
    none (`summed` tells for every output whether it has): these are summed over it."""
    from rlx.ops.reduction.reductions import reduce_sum

    shapes = {
        str(n.name): n.shape.with_dims((size, *n.shape.dims)) if b else n.shape for n, b in zip(body.inputs, batched)
    }

    def run(*operands: Tensor) -> tuple[Tensor, ...]:
        outputs = with_batch_axis(*batch_body(body, size, operands, batched), size)
        wide = summed if summed is not None else (True,) * len(outputs)
        return tuple(o if w or not o.dtype.is_inexact else reduce_sum(o, (0,)) for o, w in zip(outputs, wide))

    return build_body(body.name, run, **shapes)


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
