"""Which ops can be parts of regions, and as what: a registry, so that region passes name no op.

register_fusion_fragment(ResizeNearest2x, {FusionRole.TransformStep}, resize_step)
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Any

from rlx.ir.op import Op
from rlx.ops.fused.regions import ChainStep, TransformStep
from rlx.ops.nn.convolution import ResizeNearest2x
from rlx.ops.pointwise.arithmetic import Binary, Compare, Where
from rlx.ops.pointwise.conversion import Cast
from rlx.ops.pointwise.unary import Activation

# What a step reads, and a step, as `rlx.ops.fused.regions` writes them.
Operand = tuple[str, int]
Step = tuple[Any, ...]
# The step that an op stands for, given what it reads.
StepOf = Callable[..., Step]


class FusionRole(enum.StrEnum):
    """What an op can be in a region."""

    TransformStep = "transform_step"
    RegionCompute = "region_compute"
    RegionPrologue = "region_prologue"
    BatchPlane = "batch_plane"


_FRAGMENTS: dict[FusionRole, dict[type[Op], StepOf]] = {role: {} for role in FusionRole}


def register_fusion_fragment(op: type[Op], roles: Iterable[FusionRole], step: StepOf) -> None:
    """Let nodes of `op` play `roles`; `step(op, *operands)` is the step of a chain that such a node stands for."""
    for role in roles:
        _FRAGMENTS[role][op] = step


def has_role(op: Op, role: FusionRole) -> bool:
    return type(op) in _FRAGMENTS[role]


def step_of(op: Op, *operands: Operand) -> Step:
    """The step that an op with any role stands for."""
    for fragments in _FRAGMENTS.values():
        if type(op) in fragments:
            return fragments[type(op)](op, *operands)
    raise KeyError(f"{op.mnemonic} is not registered as a fusion fragment")


_POINTWISE = (FusionRole.RegionCompute,)
_UNARY = (FusionRole.RegionCompute, FusionRole.BatchPlane)
_TRANSFORM = (FusionRole.TransformStep, FusionRole.RegionPrologue)

register_fusion_fragment(Activation, _UNARY, lambda op, x: ChainStep.Activation(op.kind, x))
register_fusion_fragment(Cast, _UNARY, lambda op, x: ChainStep.Cast(op.to, x))
register_fusion_fragment(Binary, _POINTWISE, lambda op, a, b: ChainStep.Binary(op.kind, a, b))
register_fusion_fragment(Compare, _POINTWISE, lambda op, a, b: ChainStep.Compare(op.kind, a, b))
register_fusion_fragment(Where, _POINTWISE, lambda op, c, a, b: ChainStep.Where(c, a, b))
register_fusion_fragment(ResizeNearest2x, _TRANSFORM, lambda op, x: TransformStep.ResizeNearest2x(x))
