"""Programs in the ops that have a rule: all others as their form here, or as their decomposition, again and again.

    lowered(graph)              # sizes are bound
    require_all(graph, options) # any sizes: an error that names the ops for which there is no way

Nothing runs on the host: an op that cannot be written for XLA is refused, with its reason.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.compile_options import CompileOptions
from rlx.backends.forms.collectives import COLLECTIVE_FORMS
from rlx.backends.forms.complex_factors import COMPLEX_FORMS
from rlx.backends.forms.factor_steps import FACTOR_STEPS
from rlx.backends.forms.gguf_blocks import QUANT_FORMS
from rlx.backends.forms.running_joins import ORDER_FORMS
from rlx.backends.op_lowering import Forms, OpLowering, refusals_of
from rlx.backends.xla import (
    rules_control,
    rules_linalg,
    rules_movement,
    rules_parallel,
    rules_pointwise,
    rules_reduction,
)
from rlx.backends.xla.forms_conv import CONV_FORMS, is_by_channel
from rlx.backends.xla.stablehlo import RULES
from rlx.compile.lower.factorizations import FACTOR_FORMS
from rlx.compile.lower.lower import LOSS_FORMS
from rlx.ir.graph import Graph
from rlx.ir.op import Op
from rlx.ir.shape import Shape
from rlx.ops.nn.convolution import Conv
from rlx.ops.pointwise.arithmetic import Binary
from rlx.ops.pointwise.unary import Activation
from rlx.ops.reduction.reductions import Reduce, ReduceOp
from rlx.ops.reduction.window_reductions import ReduceWindow

# Better forms than decompositions, or the only ones.
FORMS: Forms = {
    **COLLECTIVE_FORMS,
    **FACTOR_FORMS,
    **FACTOR_STEPS,
    **COMPLEX_FORMS,
    **CONV_FORMS,
    **LOSS_FORMS,
    **ORDER_FORMS,
    **QUANT_FORMS,
}

REFUSED = refusals_of("XLA")


def has_rule(op: Op, types: Sequence[Shape]) -> bool:
    """Whether an op is written as it is."""
    match op:
        case Binary():
            return rules_pointwise.has_binary(op)
        case Activation():
            return rules_pointwise.has_activation(op)
        case Conv():
            return not is_by_channel(op, types)
        case Reduce(kind=kind) | ReduceWindow(kind=kind):
            return kind is not ReduceOp.Mean
    return type(op) in RULES


def lowered(graph: Graph) -> Graph:
    """A program with bound sizes in ops that have rules, without what nothing reads."""
    return LOWERING.lowered(graph)


def require_all(graph: Graph, options: CompileOptions) -> Graph:
    """The program as the options want it; an error with all ops for which there is no way to XLA."""
    return LOWERING.require_all(graph, options)


def claimed_ops() -> frozenset[str]:
    """The kinds that programs may have without being refused."""
    return LOWERING.claimed_ops()


LOWERING = OpLowering("xla", "XLA", RULES, has_rule, FORMS, REFUSED)

# The modules of rules register what is in them.
_LOADED = (rules_control, rules_linalg, rules_movement, rules_parallel, rules_pointwise, rules_reduction)
