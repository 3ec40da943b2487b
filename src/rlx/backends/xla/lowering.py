"""Programs in the ops that have a rule: all others as their form here, or as their decomposition, again and again.

    lowered(graph)              # sizes are bound
    require_all(graph, options) # any sizes: an error that names the ops for which there is no way

Nothing runs on the host: an op that cannot be written for XLA is refused, with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from rlx.backends.compile_options import CompileOptions
from rlx.backends.engine import OP_FORMS
from rlx.backends.xla import (
    rules_control,
    rules_linalg,
    rules_movement,
    rules_parallel,
    rules_pointwise,
    rules_reduction,
)
from rlx.backends.xla.forms_collectives import COLLECTIVE_FORMS
from rlx.backends.xla.forms_complex import COMPLEX_FORMS
from rlx.backends.xla.forms_conv import CONV_FORMS, is_by_channel
from rlx.backends.xla.forms_factors import FACTOR_STEPS
from rlx.backends.xla.forms_order import ORDER_FORMS
from rlx.backends.xla.forms_quant import QUANT_FORMS
from rlx.backends.xla.stablehlo import RULES
from rlx.compile.claims.legalize import LegalizeError, Offender
from rlx.compile.lower.factorizations import FACTOR_FORMS
from rlx.compile.lower.lower import LOSS_FORMS
from rlx.errors import BindingError, OpError, ShapeError
from rlx.ir.binding import bind_graph
from rlx.ir.graph import Graph, Node
from rlx.ir.leaves import Constant, Input, Param, Project
from rlx.ir.op import OP_CLASSES, Op, kind_of
from rlx.ir.rewrite.dead_code import DeadCodeElimination
from rlx.ir.rewrite.rebuild import Replacement, all_bodies, map_bodies, rebuild
from rlx.ir.shape import Shape
from rlx.ops.nn.convolution import Conv
from rlx.ops.parallel.collectives import Collective
from rlx.ops.parallel.shard_map import ShardMap
from rlx.ops.pointwise.arithmetic import Binary
from rlx.ops.pointwise.unary import Activation
from rlx.ops.reduction.reductions import Reduce, ReduceOp
from rlx.ops.reduction.window_reductions import ReduceWindow

Form = Callable[..., Any]

# Better forms than decompositions, or the only ones: an op and its operands to a builder, or None.
FORMS: dict[type[Op], Callable[..., Form | None]] = {
    **COLLECTIVE_FORMS,
    **FACTOR_FORMS,
    **FACTOR_STEPS,
    **COMPLEX_FORMS,
    **CONV_FORMS,
    **LOSS_FORMS,
    **ORDER_FORMS,
    **QUANT_FORMS,
}

# A size that most programs have a meaning for.
_LIKELY = 8
_IN_PYTHON = "it calls Python while the program runs, and programs of XLA do not"
_BY_GENERATOR = "the compiler makes it for kernels of its own generator, which XLA takes the place of"
_SPARSE = "its steps follow the pattern of a sparse matrix one after the other; use the device cpu"
_GENERAL = "general eigenvalues are found step by step, which XLA has no program for on every chip; use the device cpu"
REFUSED: dict[str, str] = {
    "HostCallback": _IN_PYTHON,
    "DebugPrint": _IN_PYTHON,
    "Custom": "it is known by what its OpExtension computes in Python; build it from other ops, or register a block",
    **dict.fromkeys(("Eig", "Schur", "Sqrtm", "Logm"), _GENERAL),
    **dict.fromkeys(("Tridiagonalized", "TridiagonalBasis", "TridiagonalRotations", "RotatedRows"), _BY_GENERATOR),
    **dict.fromkeys(("Bidiagonalized", "BidiagonalRotations", "ReflectedRows", "SmallSolve"), _BY_GENERATOR),
    **dict.fromkeys(
        (
            "CsrTriangularSolve",
            "CsrIncompleteLu",
            "CsrIncompleteCholesky",
            "CsrDirectSolve",
            "CsrMaskedProduct",
        ),
        _SPARSE,
    ),
}


def has_rule(op: Op, types: Sequence[Shape], axes: frozenset[str] = frozenset()) -> bool:
    """Whether an op is written as it is; inside a program on parts, devices speak to each other along `axes`."""
    match op:
        case Collective():
            return op.axis_name in axes
        case Binary():
            return rules_pointwise.has_binary(op)
        case Activation():
            return rules_pointwise.has_activation(op, types[0].dtype)
        case Conv():
            return not is_by_channel(op, types)
        case Reduce(kind=kind) | ReduceWindow(kind=kind):
            return kind is not ReduceOp.Mean
    return type(op) in RULES


def _all_done(graph: Graph, axes: frozenset[str]) -> bool:
    return all(
        (node.op.is_structural or has_rule(node.op, [graph.shape(i) for i in node.inputs], axes))
        and all(_all_done(body, _axes_inside(node.op, axes)) for body in node.op.bodies.values())
        for node in graph.nodes
    )


def _axes_inside(op: Op, axes: frozenset[str]) -> frozenset[str]:
    """The axes along which devices speak to each other in the bodies of an op."""
    return frozenset(op.mesh.axis_names) if isinstance(op, ShardMap) else axes


def _form(op: Op, operands: Sequence[Any]) -> Form | None:
    """What replaces an op without a rule; None if nothing does."""
    make = FORMS.get(type(op)) or OP_FORMS.get(type(op))
    found = None if make is None else make(op, *operands)
    return op.decompose if found is None else found


def lowered(graph: Graph, axes: frozenset[str] = frozenset()) -> Graph:
    """A program with bound sizes in ops that have rules, without what nothing reads."""

    def visit(node: Node, operands: list[Any]) -> Replacement:
        if isinstance(node.op, Input | Param | Constant | Project):
            return None
        if not has_rule(node.op, [x.type for x in operands], axes):
            form = _form(node.op, operands)
            if form is None:
                raise _refusal([node])
            result: Replacement = form(*operands)
            return result
        inside = _axes_inside(node.op, axes)
        op = map_bodies(node.op, lambda body: lowered(body, inside))
        replaced: Replacement = None if op is node.op else op(*operands)
        return replaced

    while True:
        graph = DeadCodeElimination().run(graph)
        if _all_done(graph, axes):
            return graph
        graph = rebuild(graph, visit, "xla").graph


def require_all(graph: Graph, options: CompileOptions) -> Graph:
    """The program as the options want it; an error with all ops for which there is no way to XLA."""
    from rlx.compile.pipeline import lower_blocks
    from rlx.compile.precision.apply import AutoMixedPrecision
    from rlx.compile.precision.policy import PrecisionPolicy

    graph = lower_blocks(graph)
    if options.precision_policy != PrecisionPolicy.AlwaysF32:
        graph = AutoMixedPrecision(options.precision_policy).run(graph)
    refused = [n for g in (graph, *all_bodies(graph)) for n in g.nodes if _is_refused(n.op)]
    if refused:
        raise _refusal(refused)
    if graph.has_dynamic_dims():
        _try(graph)
    return graph


def _try(graph: Graph) -> None:
    """Lower a program for some sizes, so that a refusal does not wait for a run; if these do not fit, it does."""
    with suppress(ShapeError, BindingError, OpError):
        lowered(bind_graph(graph, dict.fromkeys(graph.dynamic_symbols(), _LIKELY)))


def _is_refused(op: Op) -> bool:
    kind = type(op)
    return not op.is_structural and not _has_form(kind) and kind not in RULES and kind.decompose is None


def _has_form(kind: type[Op]) -> bool:
    return kind in FORMS or kind in OP_FORMS


def _refusal(nodes: Sequence[Node]) -> LegalizeError:
    offenders = [Offender(node.id, kind_of(node.op)) for node in nodes]
    return LegalizeError("xla", offenders, {o.kind: refusal_of(o.kind) for o in offenders})


def refusal_of(kind: str) -> str:
    """Why an op is refused."""
    if kind in REFUSED:
        return REFUSED[kind]
    if kind == "DequantMoEWeights":
        return "blocks of this GGUF type are not decoded by XLA programs; use the device cpu, or quantize to another"
    return _BY_GENERATOR if OP_CLASSES[kind].lowered else "it has neither a rule nor a decomposition"


def claimed_ops() -> frozenset[str]:
    """The kinds that programs may have without being refused."""
    return frozenset(name for name, cls in OP_CLASSES.items() if cls in RULES or _has_form(cls) or not cls.primitive)


# The modules of rules register what is in them.
_LOADED = (rules_control, rules_linalg, rules_movement, rules_parallel, rules_pointwise, rules_reduction)
