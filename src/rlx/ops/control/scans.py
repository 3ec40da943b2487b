"""`Scan`: a loop with a known number of steps, and the builders of its common forms.

`rlx.scan` builds the op from a Python function; `rlx.ops.control.scan_gradients` holds the backward sweeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from rlx.errors import OpError
from rlx.ir.dims import ceildiv, require_at_most, require_equal
from rlx.ir.graph import Graph
from rlx.ir.op import op
from rlx.ir.rewrite.inline import check_operands, same_type
from rlx.ir.shape import Shape, Size
from rlx.ir.tensor import Tensor
from rlx.ops.control import scan_rules
from rlx.ops.control.bodies import Array, TransformableBodyOp, build_body, one_or_tuple, output_types, run_body
from rlx.ops.define.samples import Sample, sample, spec

__all__ = [
    "Scan",
    "scan",
    "scan_checkpointed",
    "scan_trajectory",
    "scan_with_bcasts_and_xs",
    "scan_with_xs",
]


def checkpoint_steps(length: Size, count: int) -> list[Size]:
    """The steps whose carries are kept: step ceil((k+1) * length / count) - 1 for k < count; the last one is kept.

    >>> checkpoint_steps(7, 3)
    [2, 4, 6]
    """
    return [ceildiv((k + 1) * length, count) - 1 for k in range(count)]


def saved_rows(length: Size, num_checkpoints: int) -> Size:
    """How many carries a trajectory holds."""
    return num_checkpoints or length


@op("scan")
class Scan(TransformableBodyOp):
    """`length` steps: carries, ys[t] = body(carries, bcasts, x[t] for every xs), from t = 0 up, or down with `reverse`.

    Operands are `num_carry` carries, `num_bcast` values that every step sees, and `num_xs` arrays `[length, *step]`.
    The body takes the carries, the bcasts and one row of each xs; it returns the next carries, of the same types, and
    then any number of ys. Results are the final carries and the stacked ys `[length, *y]`.

    With `save_trajectory` each carry result is the trajectory `[length, *carry]` instead, row t being the carry after
    the step that read row t. With `num_checkpoints` = K > 0 the trajectory has the K rows of `checkpoint_steps` only;
    without `save_trajectory` K is kept for the gradient, which then recomputes the carries between them. `unroll` is
    advice on how many steps one iteration of the loop should take.
    """

    primitive = True

    body: Graph
    length: Size
    num_carry: int = 1
    num_bcast: int = 0
    num_xs: int = 0
    reverse: bool = False
    save_trajectory: bool = False
    num_checkpoints: int = 0
    unroll: int = 1

    def check(self) -> None:
        super().check()
        if min(self.num_carry, self.num_bcast, self.num_xs) < 0 or self.unroll < 1:
            raise self.fail("num_carry, num_bcast and num_xs cannot be negative, and unroll is at least 1")
        self._require_enough_steps()
        if len(self.body.outputs) < self.num_carry:
            raise self.fail(
                f"the body @{self.body.name} returns {len(self.body.outputs)} values, fewer than the "
                f"{self.num_carry} carries"
            )

    def _require_enough_steps(self) -> None:
        """Fixed lengths are refused with the attributes; a symbolic one becomes a constraint of the program."""
        if self.num_checkpoints < 0 or not require_at_most(self.num_checkpoints, self.length, self.mnemonic):
            raise self.fail(f"num_checkpoints must be between 0 and length={self.length}, got {self.num_checkpoints}")

    def infer(self, *operands: Shape) -> tuple[Shape, ...]:
        wanted = self.num_carry + self.num_bcast + self.num_xs
        if len(operands) != wanted:
            raise self.fail(
                f"needs {self.num_carry} carries, {self.num_bcast} bcasts and {self.num_xs} xs, "
                f"got {len(operands)} operands"
            )
        self._require_enough_steps()
        carries, bcasts, xs = self.split(operands)
        for i, x in enumerate(xs):
            if not x.rank or not require_equal(x.dims[0], self.length, "scan"):
                raise self.fail(f"xs {i} needs {self.length} rows, [{self.length},*step], got {x}")
        check_operands(self.body, [*carries, *bcasts, *(x.with_dims(x.dims[1:]) for x in xs)], "scan")
        found = output_types(self.body)
        for i, (carry, after) in enumerate(zip(carries, found)):
            if not same_type(carry, after, "scan"):
                raise self.fail(f"carry {i} is {carry}, but the body @{self.body.name} returns {after} for it")
        rows = saved_rows(self.length, self.num_checkpoints)
        kept = [c.with_dims((rows, *c.dims)) for c in carries] if self.save_trajectory else carries
        ys = found[self.num_carry :]
        return (*kept, *(y.with_dims((self.length, *y.dims)) for y in ys))

    def split(self, operands: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """Carries, bcasts and xs among `operands`."""
        first_x = self.num_carry + self.num_bcast
        return operands[: self.num_carry], operands[self.num_carry : first_x], operands[first_x:]

    def eval(self, *operands: Array) -> Any:
        carries, bcasts, xs = self.split(operands)
        length = int(self.length)
        rows: list[list[Array]] = []
        for step in range(length):
            t = length - 1 - step if self.reverse else step
            results = run_body(self.body, [*carries, *bcasts, *(x[t] for x in xs)])
            carries = results[: self.num_carry]
            rows.append(results)
        if not self.save_trajectory:
            return one_or_tuple([*carries, *self._stacked(rows)[self.num_carry :]])
        saved = [rows[int(s)] for s in checkpoint_steps(length, self.num_checkpoints)] if self.num_checkpoints else rows
        return one_or_tuple([*self._stacked(saved)[: self.num_carry], *self._stacked(rows)[self.num_carry :]])

    def _stacked(self, rows: list[list[Array]]) -> list[Array]:
        """Each body output stacked over the steps; with `reverse` the last step comes first, beside its row of xs."""
        if self.reverse:
            rows = rows[::-1]
        types = output_types(self.body)
        if not rows:
            return [np.empty((0, *t.static_dims), t.dtype.numpy) for t in types]
        return [np.stack([row[i] for row in rows]) for i in range(len(types))]

    def form_for(self, rule: str, active: tuple[bool, ...]) -> Callable[..., Any] | None:
        """For reverse mode, the scan that saves the carries it needs; see `rlx.ops.control.scan_rules`."""
        return scan_rules.reverse_form(self, active) if rule == "vjp" else None

    def value_and_jvp(self, primals: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> tuple[Any, Any]:
        return scan_rules.value_and_jvp(self, primals, tangents)

    def vjp_wrt(self, wrt: tuple[bool, ...], ct: Any, y: Any, operands: Sequence[Tensor]) -> list[Tensor | None]:
        return scan_rules.vjp_wrt(self, wrt, ct, y, operands)

    def batch(self, size: Size, operands: Sequence[Tensor], batched: Sequence[bool]) -> Any:
        return scan_rules.batch(self, size, operands, batched)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in ("f16", "bf16", "f32", "f64", "i32", "c64"):
            x = Shape((2,), dtype)
            fold = build_body("fold", lambda c, x: (c + x, c * x), carry=x, x=x)
            yield sample(cls(fold, 4, num_xs=1), spec(2), spec(4, 2), dtypes=(dtype,))
        x = Shape((2,), "f32")
        keep = build_body("keep", lambda c, w, x: c * w + x, carry=x, w=Shape((), "f32"), x=x)
        operands = (spec(2), spec(), spec(5, 2))
        for reverse in (False, True):
            for checkpoints in (0, 2, 5):
                settings = {"num_bcast": 1, "num_xs": 1, "reverse": reverse, "num_checkpoints": checkpoints}
                yield sample(cls(keep, 5, **settings), *operands, dtypes=("f32",))
                yield sample(cls(keep, 5, save_trajectory=True, **settings), *operands, dtypes=("f32",))
        yield sample(cls(keep, 0, num_bcast=1, num_xs=1), spec(2), spec(), spec(0, 2), dtypes=("f32",))
        yield sample(
            cls(keep, 0, num_bcast=1, num_xs=1, save_trajectory=True), spec(2), spec(), spec(0, 2), dtypes=("f32",)
        )
        mixed = build_body(
            "mixed", lambda n, c, x: (n + 1, c * x, c < x), n=Shape((), "i32"), c=Shape(("B",), "f32"), x=Shape(())
        )
        counter = spec(values=3, dtype="i32")
        yield sample(cls(mixed, "S", num_carry=2, num_xs=1), counter, spec("B"), spec("S"), B=2, S=3, dtypes=("f32",))
        square = build_body("square", lambda x: x * x, x=Shape((), "f64"))
        yield sample(cls(square, 3, num_carry=0, num_xs=1, reverse=True), spec(3), dtypes=("f64",))
        double = build_body("double", lambda c: c + c, carry=Shape((), "f32"))
        yield sample(cls(double, 3), spec(), dtypes=("f32",))


def scan(init: Any, body: Graph, length: Size) -> Any:
    """The carry after `length` steps of `body`, which takes and returns it. From a Python function: `rlx.scan`."""
    return Scan(body, length)(init)


def scan_trajectory(init: Any, body: Graph, length: Size) -> Any:
    """The carries after every step, `[length, *carry]`."""
    return Scan(body, length, save_trajectory=True)(init)


def scan_checkpointed(init: Any, body: Graph, length: Size, num_checkpoints: int) -> Any:
    """`scan` whose gradient keeps `num_checkpoints` (1 to `length`) carries and recomputes the others."""
    if num_checkpoints < 1:
        raise OpError(f"scan_checkpointed: num_checkpoints must be between 1 and {length}, got {num_checkpoints}")
    return Scan(body, length, num_checkpoints=num_checkpoints)(init)


def scan_with_xs(init: Any, xs: Sequence[Any], body: Graph, length: Size) -> Any:
    """`scan` in which step t also sees row t of every xs."""
    return Scan(body, length, num_xs=len(xs))(init, *xs)


def scan_with_bcasts_and_xs(init: Any, bcasts: Sequence[Any], xs: Sequence[Any], body: Graph, length: Size) -> Any:
    """`scan` in which every step sees all of `bcasts`, and step t row t of every xs."""
    return Scan(body, length, num_bcast=len(bcasts), num_xs=len(xs))(init, *bcasts, *xs)
