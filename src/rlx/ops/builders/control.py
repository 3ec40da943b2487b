"""Builder methods for programs inside programs: branches, loops, scans, custom functions and custom ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx import ops
from rlx.ops.builders.base import Builder, DeclaredShape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlx.ir.graph import Graph, TensorLike
    from rlx.ir.shape import Shape, Size
    from rlx.ir.tensor import Tensor
    from rlx.ops.control.custom_functions import MultiOutputHandle


class ControlBuilders(Builder):
    """Ops with bodies. A body's inputs are, in order of declaration: carry, broadcast values, slices of this step."""

    __slots__ = ()

    def if_(self, pred: TensorLike, then_body: Graph, else_body: Graph, captures: Sequence[TensorLike] = ()) -> Tensor:
        """The result of one body, both taking `captures` as inputs."""
        return self._build(ops.if_, pred, then_body, else_body, captures)

    def while_(
        self, carries: Sequence[TensorLike], cond: Graph, body: Graph, max_iterations: int | None = None
    ) -> Tensor:
        """The first carry after `body` has run while `cond` held; `while_multi` gives all of them."""
        return self._build(ops.while_, carries, cond, body, max_iterations)

    def while_multi(
        self, carries: Sequence[TensorLike], cond: Graph, body: Graph, max_iterations: int | None = None
    ) -> tuple[Tensor, ...]:
        return self._build(ops.while_multi, carries, cond, body, max_iterations)

    def scan(self, init: TensorLike, body: Graph, length: Size) -> Tensor:
        """The carry after `length` steps."""
        return self._build(ops.scan, init, body, length)

    def scan_trajectory(self, init: TensorLike, body: Graph, length: Size) -> Tensor:
        """The carries after every step, [length, *carry]."""
        return self._build(ops.scan_trajectory, init, body, length)

    def scan_checkpointed(self, init: TensorLike, body: Graph, length: Size, num_checkpoints: int) -> Tensor:
        """The last carry; the reverse pass recomputes from `num_checkpoints` saved ones."""
        return self._build(ops.scan_checkpointed, init, body, length, num_checkpoints)

    def scan_with_xs(self, init: TensorLike, xs: Sequence[TensorLike], body: Graph, length: Size) -> Tensor:
        """The last carry, with step t reading row t of every x."""
        return self._build(ops.scan_with_xs, init, xs, body, length)

    def scan_with_bcasts_and_xs(
        self, init: TensorLike, bcasts: Sequence[TensorLike], xs: Sequence[TensorLike], body: Graph, length: Size
    ) -> Tensor:
        """`scan_with_xs`, with values that are the same in every step."""
        return self._build(ops.scan_with_bcasts_and_xs, init, bcasts, xs, body, length)

    def scan_backward(
        self,
        init: TensorLike,
        traj: TensorLike,
        upstream: TensorLike,
        xs: Sequence[TensorLike],
        body_vjp: Graph,
        length: Size,
        save_trajectory: bool,
        shape: DeclaredShape = None,
    ) -> Tensor:
        """The gradient of a scan in its initial carry."""
        operands = (init, traj, upstream, xs, body_vjp, length, save_trajectory)
        return self._build(ops.scan_backward, *operands, shape=shape)

    def scan_backward_with_checkpoints(
        self,
        init: TensorLike,
        traj: TensorLike,
        upstream: TensorLike,
        xs: Sequence[TensorLike],
        body_vjp: Graph,
        length: Size,
        save_trajectory: bool,
        num_checkpoints: int,
        forward_body: Graph | None = None,
        shape: DeclaredShape = None,
    ) -> Tensor:
        """`scan_backward` from a trajectory that holds some of the carries only."""
        operands = (init, traj, upstream, xs, body_vjp, length, save_trajectory, num_checkpoints, forward_body)
        return self._build(ops.scan_backward_with_checkpoints, *operands, shape=shape)

    def scan_backward_xs(
        self,
        init: TensorLike,
        traj: TensorLike,
        upstream: TensorLike,
        xs: Sequence[TensorLike],
        body_vjp: Graph,
        length: Size,
        save_trajectory: bool,
        xs_idx: int,
        shape: DeclaredShape = None,
    ) -> Tensor:
        """The gradient of a scan in xs[xs_idx]."""
        operands = (init, traj, upstream, xs, body_vjp, length, save_trajectory, xs_idx)
        return self._build(ops.scan_backward_xs, *operands, shape=shape)

    def scan_backward_xs_with_checkpoints(
        self,
        init: TensorLike,
        traj: TensorLike,
        upstream: TensorLike,
        xs: Sequence[TensorLike],
        body_vjp: Graph,
        length: Size,
        save_trajectory: bool,
        xs_idx: int,
        num_checkpoints: int,
        forward_body: Graph | None = None,
        shape: DeclaredShape = None,
    ) -> Tensor:
        """`scan_backward_xs` from a trajectory that holds some of the carries only."""
        operands = (init, traj, upstream, xs, body_vjp, length, save_trajectory, xs_idx, num_checkpoints, forward_body)
        return self._build(ops.scan_backward_xs_with_checkpoints, *operands, shape=shape)

    def custom_fn(
        self,
        inputs: Sequence[TensorLike],
        fwd_body: Graph,
        vjp_body: Graph | None = None,
        jvp_body: Graph | None = None,
    ) -> Tensor:
        """A call of `fwd_body`, with its own derivatives when bodies for them are given."""
        return self._build(ops.custom_fn, inputs, fwd_body, vjp_body, jvp_body)

    def custom_fn_multi(
        self,
        inputs: Sequence[TensorLike],
        fwd_body: Graph,
        vjp_body: Graph | None = None,
        jvp_body: Graph | None = None,
    ) -> MultiOutputHandle:
        """A call of a body with several outputs; `.output(g, i)` reads one."""
        return self._build(ops.custom_fn_multi, inputs, fwd_body, vjp_body, jvp_body)

    def custom_op(self, name: str, attrs: bytes, inputs: Sequence[TensorLike]) -> Tensor:
        """An op registered with `register_op`; it infers its own type."""
        return self._build(ops.custom_op, name, attrs, inputs)

    def custom_op_packed(self, name: str, attrs: bytes, inputs: Sequence[TensorLike], out_shape: Shape) -> Tensor:
        """A registered op whose result type the caller states; several results come packed in one."""
        return self._build(ops.custom_op_packed, name, attrs, inputs, out_shape)
