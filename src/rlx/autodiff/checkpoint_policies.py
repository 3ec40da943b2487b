"""What `rlx.checkpoint(policy=...)` keeps for reverse mode instead of computing it again, under JAX's names.

    block = rlx.checkpoint(block, policy=rlx.checkpoint_policies.dots_with_no_batch_dims_saveable)

A policy is a function of an op of the program and the types of its operands.
"""

from __future__ import annotations

from collections.abc import Callable

from rlx.ir.op import Op
from rlx.ir.shape import Shape
from rlx.ops.control.recomputation import CheckpointName
from rlx.ops.linalg.contraction import DotGeneral, MatMul
from rlx.ops.nn.convolution import ConvBase

__all__ = [
    "Policy",
    "checkpoint_dots",
    "checkpoint_dots_with_no_batch_dims",
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
    "everything_saveable",
    "nothing_saveable",
    "save_any_names_but_these",
    "save_anything_except_these_names",
    "save_from_both_policies",
    "save_only_these_names",
]

Policy = Callable[..., bool]


def everything_saveable(op: Op, *operands: Shape) -> bool:
    """Keep every value, as if there were no checkpoint."""
    return True


def nothing_saveable(op: Op, *operands: Shape) -> bool:
    """Keep the arguments alone, as without a policy."""
    return False


def dots_saveable(op: Op, *operands: Shape) -> bool:
    """Keep the results of products of matrices and of convolutions."""
    return isinstance(op, MatMul | DotGeneral | ConvBase)


def dots_with_no_batch_dims_saveable(op: Op, *operands: Shape) -> bool:
    """Keep the results of products in which one matrix meets all rows: those of linear layers, but no scores of
    attention."""
    if isinstance(op, DotGeneral):
        return not op.lhs_batch
    return isinstance(op, MatMul) and min(x.rank for x in operands) <= 2


def save_only_these_names(*names_which_can_be_saved: str) -> Policy:
    """Keep what `rlx.checkpoint_name` gives one of these names."""
    names = frozenset(names_which_can_be_saved)

    def policy(op: Op, *operands: Shape) -> bool:
        return isinstance(op, CheckpointName) and op.label in names

    return policy


def save_any_names_but_these(*names_not_to_save: str) -> Policy:
    """Keep what has a name, but none of these."""
    names = frozenset(names_not_to_save)

    def policy(op: Op, *operands: Shape) -> bool:
        return isinstance(op, CheckpointName) and op.label not in names

    return policy


def save_anything_except_these_names(*names_not_to_save: str) -> Policy:
    """Keep every value but those with one of these names."""
    names = frozenset(names_not_to_save)

    def policy(op: Op, *operands: Shape) -> bool:
        return not (isinstance(op, CheckpointName) and op.label in names)

    return policy


def save_from_both_policies(policy_1: Policy, policy_2: Policy) -> Policy:
    """Keep what either policy keeps."""

    def policy(op: Op, *operands: Shape) -> bool:
        return policy_1(op, *operands) or policy_2(op, *operands)

    return policy


checkpoint_dots = dots_saveable
checkpoint_dots_with_no_batch_dims = dots_with_no_batch_dims_saveable
