"""The backward sweeps of a single-carry scan: `ScanBackward` (to the initial carry) and `ScanBackwardXs` (to one xs).

Both run the same recurrence from the last step to the first,

    dc += upstream[t]                                        (trajectory form; otherwise dc starts as upstream)
    dc, dx[t].. = body_vjp(carry before step t, x[t].., dc)

and differ in what they return. Gradients of general scans are written as reversed `Scan` ops directly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlx.ir.dims import require_at_most, require_equal
from rlx.ir.graph import Graph
from rlx.ir.op import op
from rlx.ir.rewrite.inline import check_operands, inline_graph, same_type
from rlx.ir.shape import Shape, Size
from rlx.ir.tensor import Tensor
from rlx.ops.control.bodies import Array, BodyOp, build_body, output_types, run_body, types_text
from rlx.ops.control.scans import Scan, checkpoint_steps, saved_rows
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.shape.movement import concat, expand, expand_dims, narrow, squeeze

__all__ = [
    "ScanBackward",
    "ScanBackwardXs",
    "scan_backward",
    "scan_backward_with_checkpoints",
    "scan_backward_xs",
    "scan_backward_xs_with_checkpoints",
]


class _Sweep(BodyOp):
    """What both sweeps share: attributes, types and the recurrence."""

    body_vjp: Graph
    length: Size
    save_trajectory: bool = True
    num_xs: int = 0
    num_checkpoints: int = 0
    forward_body: Graph | None = None

    def check(self) -> None:
        super().check()
        self._require_enough_steps()
        if self._is_checkpointed and self.forward_body is None:
            raise self.fail(f"num_checkpoints={self.num_checkpoints} needs forward_body to recompute the carries")

    def _require_enough_steps(self) -> None:
        """Fixed lengths are refused with the attributes; a symbolic one becomes a constraint of the program."""
        if self.num_checkpoints < 0 or not require_at_most(self.num_checkpoints, self.length, self.mnemonic):
            raise self.fail(f"num_checkpoints must be between 0 and length={self.length}, got {self.num_checkpoints}")

    @property
    def _is_checkpointed(self) -> bool:
        return self.num_checkpoints not in (0, self.length)

    def _infer_sweep(
        self, init: Shape, trajectory: Shape, upstream: Shape, xs: Sequence[Shape]
    ) -> tuple[Shape, tuple[Shape, ...]]:
        """The types of the gradients of the initial carry and of every xs."""
        if len(xs) != self.num_xs:
            raise self.fail(f"needs init, trajectory, upstream and {self.num_xs} xs, got {3 + len(xs)} operands")
        self._require_enough_steps()
        rows = init.with_dims((saved_rows(self.length, self.num_checkpoints), *init.dims))
        for what, wanted, got in (
            ("trajectory", rows, trajectory),
            ("upstream", rows if self.save_trajectory else init, upstream),
        ):
            if not same_type(wanted, got, self.name):
                raise self.fail(f"{what} must be {wanted}, got {got}")
        for i, x in enumerate(xs):
            if not x.rank or not require_equal(x.dims[0], self.length, self.name):
                raise self.fail(f"xs {i} needs {self.length} rows, [{self.length},*step], got {x}")
        steps = [x.with_dims(x.dims[1:]) for x in xs]
        check_operands(self.body_vjp, [init, *steps, init], f"{self.name} body_vjp")
        if self.forward_body is not None:
            check_operands(self.forward_body, [init, *steps], f"{self.name} forward_body")
        found = output_types(self.body_vjp)
        wanted_types = [init, *steps]
        if len(found) != len(wanted_types) or not all(same_type(a, b, self.name) for a, b in zip(wanted_types, found)):
            raise self.fail(
                f"body_vjp must return the gradients of the carry and of each step, {types_text(wanted_types)}, "
                f"it returns {types_text(found)}"
            )
        return init, tuple(xs)

    def _eval_sweep(
        self, init: Array, trajectory: Array, upstream: Array, xs: Sequence[Array]
    ) -> tuple[Array, list[Array]]:
        length = int(self.length)
        rows = self.num_checkpoints or length
        row_at = {int(step): k for k, step in enumerate(checkpoint_steps(length, rows))} if length else {}
        before = self._carries_before(init, trajectory, xs, row_at)
        dc = np.zeros_like(init) if self.save_trajectory else upstream
        dxs = [np.zeros_like(x) for x in xs]
        for t in reversed(range(length)):
            if self.save_trajectory and t in row_at:
                dc = dc + upstream[row_at[t]]
            dc, *dx = run_body(self.body_vjp, [before[t], *(x[t] for x in xs), dc])
            for gradient, row in zip(dxs, dx):
                gradient[t] = row
        return np.asarray(dc), dxs

    def _carries_before(
        self, init: Array, trajectory: Array, xs: Sequence[Array], row_at: dict[int, int]
    ) -> list[Array]:
        """The carry that each step started from: a saved row, or recomputed from the last one."""
        carries, carry = [], init
        for t in range(int(self.length)):
            carries.append(carry)
            if t in row_at:
                carry = trajectory[row_at[t]]
            else:
                assert self.forward_body is not None
                carry = run_body(self.forward_body, [carry, *(x[t] for x in xs)])[0]
        return carries

    def _build_sweep(self, init: Tensor, trajectory: Tensor, upstream: Tensor, xs: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of the initial carry and of every xs, from reversed scans."""
        if self._is_checkpointed:
            return self._build_segments(init, trajectory, upstream, xs)
        before = narrow(concat([expand_dims(init, 0), trajectory]), 0, 0, self.length)
        if not self.save_trajectory:
            return self._reversed_scan(upstream, before, xs, None, self.length)
        return self._reversed_scan(_zeros_like(init), before, xs, upstream, self.length)

    def _build_segments(self, init: Tensor, trajectory: Tensor, upstream: Tensor, xs: Sequence[Tensor]) -> list[Tensor]:
        """Between two saved carries, the last segment first: run forward again, then sweep back."""
        assert self.forward_body is not None
        stops = [c + 1 for c in checkpoint_steps(self.length, self.num_checkpoints)]
        starts = [0, *stops[:-1]]
        dc = _zeros_like(init) if self.save_trajectory else upstream
        pieces: list[list[Tensor]] = []
        for k in reversed(range(self.num_checkpoints)):
            steps = stops[k] - starts[k]
            anchor = narrow(trajectory, 0, k - 1, 1) if k else expand_dims(init, 0)
            rows = [narrow(x, 0, starts[k], steps) for x in xs]
            again = Scan(self.forward_body, steps - 1, num_xs=len(xs), save_trajectory=True)
            first = squeeze(anchor, 0)
            carries = again(first, *(narrow(x, 0, 0, steps - 1) for x in rows))
            if self.save_trajectory:
                dc = dc + squeeze(narrow(upstream, 0, k, 1), 0)
            dc, *dx = self._reversed_scan(dc, concat([anchor, carries]), rows, None, steps)
            pieces.append(dx)
        return [dc, *(concat(parts[::-1]) for parts in zip(*pieces))]

    def _reversed_scan(
        self, dc: Tensor, before: Tensor, xs: Sequence[Tensor], upstream: Tensor | None, length: Size
    ) -> list[Tensor]:
        carry = dc.type
        inputs = {"dc": carry, "before": carry} | {f"x{i}": _row_type(x) for i, x in enumerate(xs)}
        operands = [dc, before, *xs]
        if upstream is not None:
            inputs["upstream"] = carry
            operands.append(upstream)

        def step(dc: Tensor, before: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
            total = dc if upstream is None else dc + rest[-1]
            return inline_graph(self.body_vjp, [before, *rest[: len(xs)], total])

        body = build_body(self.body_vjp.name, step, **inputs)
        results = Scan(body, length, num_xs=len(operands) - 1, reverse=True)(*operands)
        return list(results) if isinstance(results, tuple) else [results]


def _row_type(x: Tensor) -> Shape:
    return x.type.with_dims(x.shape[1:])


def _zeros_like(x: Tensor) -> Tensor:
    return expand(x.graph.constant(0, x.dtype), x.shape)


@op("scan_backward")
class ScanBackward(_Sweep):
    """The gradient of a single-carry scan to its initial carry.

    Operands: init, the trajectory that the forward scan saved, the gradient of its result, and the xs. `body_vjp`
    takes (carry, x_t.., d_output) and returns the gradients of carry and x_t... The forward result was the
    trajectory with `save_trajectory`, else the final carry. With `num_checkpoints` = K < length the trajectory has
    only the rows of `checkpoint_steps`, and `forward_body` recomputes the carries between them.
    """

    def infer(self, init: Shape, trajectory: Shape, upstream: Shape, *xs: Shape) -> Shape:
        return self._infer_sweep(init, trajectory, upstream, xs)[0]

    def eval(self, init: Array, trajectory: Array, upstream: Array, *xs: Array) -> Array:
        return self._eval_sweep(init, trajectory, upstream, xs)[0]

    def decompose(self, init: Tensor, trajectory: Tensor, upstream: Tensor, *xs: Tensor) -> Tensor:
        return self._build_sweep(init, trajectory, upstream, xs)[0]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from _sweep_samples(cls)
        double = build_body("double_vjp", lambda carry, d: d + d, carry=Shape((2,)), d_output=Shape((2,)))
        yield sample(cls(double, 3), spec(2), spec(3, 2), spec(3, 2), dtypes=("f32",))


@op("scan_backward_xs")
class ScanBackwardXs(_Sweep):
    """The gradient of a single-carry scan to xs number `xs_idx`, `[length, *step]`; otherwise as `ScanBackward`."""

    xs_idx: int = 0

    def check(self) -> None:
        super().check()
        if not 0 <= self.xs_idx < self.num_xs:
            raise self.fail(f"xs_idx={self.xs_idx} is not one of the {self.num_xs} xs")

    def infer(self, init: Shape, trajectory: Shape, upstream: Shape, *xs: Shape) -> Shape:
        return self._infer_sweep(init, trajectory, upstream, xs)[1][self.xs_idx]

    def eval(self, init: Array, trajectory: Array, upstream: Array, *xs: Array) -> Array:
        return self._eval_sweep(init, trajectory, upstream, xs)[1][self.xs_idx]

    def decompose(self, init: Tensor, trajectory: Tensor, upstream: Tensor, *xs: Tensor) -> Tensor:
        return self._build_sweep(init, trajectory, upstream, xs)[1 + self.xs_idx]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from _sweep_samples(cls, xs_idx=0)


def _sweep_samples(cls: type[_Sweep], **settings: Any) -> Iterator[Sample]:
    """Sweeps of carry * x, whose gradients are (d * x, d * carry)."""
    sizes = [(length, checkpoints, "f32") for length, checkpoints in ((3, 0), (1, 0), (0, 0), (5, 5), (7, 3))]
    sizes += [(5, 2, dtype) for dtype in ("f16", "bf16", "f32", "f64")]
    for length, checkpoints, dtype in sizes:
        backward, forward = _product_bodies(Shape((2,), dtype))
        attributes = {"num_xs": 1, "num_checkpoints": checkpoints, "forward_body": forward} | settings
        rows = spec(checkpoints or length, 2)
        for trajectory, upstream in ((True, rows), (False, spec(2))):
            op = cls(backward, length, trajectory, **attributes)
            yield sample(op, spec(2), rows, upstream, spec(length, 2), dtypes=(dtype,))
    backward, forward = _product_bodies(Shape(("B",), "f64"))
    yield sample(
        cls(backward, "S", num_xs=1, **settings),
        spec("B"), spec("S", "B"), spec("S", "B"), spec("S", "B"), dtypes=("f64",), B=2, S=4,
    )  # fmt: skip
    yield sample(
        cls(backward, "S", num_xs=1, num_checkpoints=2, forward_body=forward, **settings),
        spec("B"), spec(2, "B"), spec(2, "B"), spec("S", "B"), dtypes=("f64",), B=2, S=5,
    )  # fmt: skip


def _product_bodies(x: Shape) -> tuple[Graph, Graph]:
    backward = build_body("product_vjp", lambda c, x, d: (d * x, d * c), carry=x, x=x, d_output=x)
    return backward, build_body("product", lambda c, x: c * x, carry=x, x=x)


def scan_backward(
    init: Any,
    trajectory: Any,
    upstream: Any,
    xs: Sequence[Any],
    body_vjp: Graph,
    length: Size,
    save_trajectory: bool = True,
) -> Any:
    """The gradient to the initial carry; see `ScanBackward`."""
    return ScanBackward(body_vjp, length, save_trajectory, len(xs))(init, trajectory, upstream, *xs)


def scan_backward_with_checkpoints(
    init: Any,
    trajectory: Any,
    upstream: Any,
    xs: Sequence[Any],
    body_vjp: Graph,
    length: Size,
    save_trajectory: bool,
    num_checkpoints: int,
    forward_body: Graph | None = None,
) -> Any:
    """`scan_backward` from `num_checkpoints` saved carries; the others are recomputed with `forward_body`."""
    op = ScanBackward(body_vjp, length, save_trajectory, len(xs), num_checkpoints, forward_body)
    return op(init, trajectory, upstream, *xs)


def scan_backward_xs(
    init: Any,
    trajectory: Any,
    upstream: Any,
    xs: Sequence[Any],
    body_vjp: Graph,
    length: Size,
    save_trajectory: bool,
    xs_idx: int,
) -> Any:
    """The gradient to xs number `xs_idx`; see `ScanBackwardXs`."""
    op = ScanBackwardXs(body_vjp, length, save_trajectory, len(xs), xs_idx=xs_idx)
    return op(init, trajectory, upstream, *xs)


def scan_backward_xs_with_checkpoints(
    init: Any,
    trajectory: Any,
    upstream: Any,
    xs: Sequence[Any],
    body_vjp: Graph,
    length: Size,
    save_trajectory: bool,
    xs_idx: int,
    num_checkpoints: int,
    forward_body: Graph | None = None,
) -> Any:
    """`scan_backward_xs` from `num_checkpoints` saved carries; the others are recomputed with `forward_body`."""
    op = ScanBackwardXs(body_vjp, length, save_trajectory, len(xs), num_checkpoints, forward_body, xs_idx)
    return op(init, trajectory, upstream, *xs)
