"""`OpLowering`: programs in the ops that an engine has a rule for. All others become their form, or their
decomposition, again and again.

    lowering = OpLowering("xla", "XLA", RULES, has_rule, FORMS, REFUSED)
    lowering.lowered(graph)               # sizes are bound
    lowering.require_all(graph, options)  # any sizes: an error that names the ops for which there is no way
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rlx.backends.compile_options import CompileOptions
from rlx.backends.engine import OP_FORMS
from rlx.compile.claims.legalize import LegalizeError, Offender
from rlx.errors import BindingError, OpError, RlxError, ShapeError
from rlx.ir.binding import bind_graph
from rlx.ir.graph import Graph, Node
from rlx.ir.leaves import Constant, Input, Param, Project
from rlx.ir.op import OP_CLASSES, Op, kind_of
from rlx.ir.rewrite.dead_code import DeadCodeElimination
from rlx.ir.rewrite.rebuild import Replacement, all_bodies, map_bodies, rebuild
from rlx.ir.shape import Shape
from rlx.ops.control.effects import RuntimeAssert
from rlx.ops.linalg.solve import not_finite, not_positive_definite, singular
from rlx.ops.lowered.factor_steps import RequireFactors
from rlx.ops.parallel.collectives import Collective
from rlx.ops.parallel.shard_map import ShardMap

Form = Callable[..., Any]
# An op and its operands to a builder, or None.
Forms = Mapping[type[Op], Callable[..., Form | None]]

# A size that most programs have a meaning for.
_LIKELY = 8


def has_checks(graph: Graph) -> bool:
    """Whether a run of a program may end with an error that depends on its numbers."""
    return any(
        isinstance(node.op, RuntimeAssert | RequireFactors) for g in (graph, *all_bodies(graph)) for node in g.nodes
    )


def failed_factors(op: RequireFactors, dims: Sequence[int]) -> RlxError:
    """What a run ends with if matrices do not have the factors that are asked for; `dims` are those of the answers."""
    if op.of == "cholesky":
        return not_positive_definite(op.of)
    return not_finite(op.of) if op.of == "svd" else singular(op.of, dims[-1])


def refusals_of(engine: str) -> dict[str, str]:
    """Why engines refuse what they all refuse, by the names of ops."""
    in_python = f"it calls Python while the program runs, and programs of {engine} do not"
    sparse = "its steps follow the pattern of a sparse matrix one after the other; use the device cpu"
    general = f"general eigenvalues are found step by step, for which {engine} has no program; use the device cpu"
    solvers = ("CsrTriangularSolve", "CsrIncompleteLu", "CsrIncompleteCholesky", "CsrDirectSolve", "CsrMaskedProduct",
               "PanelCholesky")  # fmt: skip
    return {
        **dict.fromkeys(("HostCallback", "DebugPrint"), in_python),
        "Custom": "its OpExtension computes it in Python; build it from other ops, or register a block",
        **dict.fromkeys(("Eig", "Schur", "Sqrtm", "Logm"), general),
        **dict.fromkeys(solvers, sparse),
    }


def _axes_inside(op: Op, axes: frozenset[str]) -> frozenset[str]:
    """The axes along which devices speak to each other in the bodies of an op."""
    return frozenset(op.mesh.axis_names) if isinstance(op, ShardMap) else axes


class OpLowering:
    """What one engine can be told. `rules` are the ops that it has a rule for, `has_rule` says whether it is one for
    operands of these types; `refused` are reasons by the names of ops."""

    def __init__(
        self,
        target: str,
        engine: str,
        rules: Container[type[Op]],
        has_rule: Callable[[Op, Sequence[Shape]], bool],
        forms: Forms,
        refused: Mapping[str, str],
        objection: Callable[[Shape], str | None] = lambda shape: None,
    ) -> None:
        self._target, self._engine, self._rules, self.has_rule = target, engine, rules, has_rule
        self._forms, self._refused, self._objection = forms, refused, objection

    def lowered(self, graph: Graph, axes: frozenset[str] = frozenset()) -> Graph:
        """A program with bound sizes in ops that have rules, without what nothing reads. Along `axes` devices speak to
        each other: what an engine tells them is in the bodies of a `ShardMap`."""

        def visit(node: Node, operands: list[Any]) -> Replacement:
            if isinstance(node.op, Input | Param | Constant | Project):
                return None
            if not self._is_ready(node.op, [x.type for x in operands], axes):
                form = self._form(node.op, operands)
                if form is None:
                    raise self._refusal([node])
                result: Replacement = form(*operands)
                return result
            inside = _axes_inside(node.op, axes)
            op = map_bodies(node.op, lambda body: self.lowered(body, inside))
            replaced: Replacement = None if op is node.op else op(*operands)
            return replaced

        while True:
            graph = DeadCodeElimination().run(graph)
            self._require_types(graph)
            if self._is_done(graph, axes):
                return graph
            graph = rebuild(graph, visit, self._target).graph

    def _is_done(self, graph: Graph, axes: frozenset[str]) -> bool:
        return all(
            (node.op.is_structural or self._is_ready(node.op, [graph.shape(i) for i in node.inputs], axes))
            and all(self._is_done(body, _axes_inside(node.op, axes)) for body in node.op.bodies.values())
            for node in graph.nodes
        )

    def _is_ready(self, op: Op, types: Sequence[Shape], axes: frozenset[str]) -> bool:
        return op.axis_name in axes if isinstance(op, Collective) else self.has_rule(op, types)

    def _form(self, op: Op, operands: Sequence[Any]) -> Form | None:
        """What replaces an op without a rule; None if nothing does."""
        make = self._forms.get(type(op)) or OP_FORMS.get(type(op))
        found = None if make is None else make(op, *operands)
        return op.decompose if found is None else found

    def require_all(self, graph: Graph, options: CompileOptions) -> Graph:
        """The program as the options want it; an error with all ops for which there is no way to the engine."""
        from rlx.compile.pipeline import lower_blocks
        from rlx.compile.precision.apply import AutoMixedPrecision
        from rlx.compile.precision.policy import PrecisionPolicy

        graph = lower_blocks(graph)
        if options.precision_policy != PrecisionPolicy.AlwaysF32:
            graph = AutoMixedPrecision(options.precision_policy).run(graph)
        self._require_types(graph)
        refused = [n for g in (graph, *all_bodies(graph)) for n in g.nodes if self._is_refused(n.op)]
        if refused:
            raise self._refusal(refused)
        if graph.has_dynamic_dims():
            self._try(graph)
        return graph

    def _try(self, graph: Graph) -> None:
        """Lower a program for some sizes, so that a refusal does not wait for a run; if these do not fit, it does."""
        with suppress(ShapeError, BindingError, OpError):
            self.lowered(bind_graph(graph, dict.fromkeys(graph.dynamic_symbols(), _LIKELY)))

    def _require_types(self, graph: Graph) -> None:
        """Refuse values of types that the engine has not."""
        found: dict[Offender, str] = {}
        for node in (n for g in (graph, *all_bodies(graph)) for n in g.nodes):
            for reason in filter(None, map(self._objection, node.shapes)):
                found[Offender(node.id, kind_of(node.op))] = reason
        if found:
            raise LegalizeError(self._target, list(found), {o.kind: reason for o, reason in found.items()})

    def _is_refused(self, op: Op) -> bool:
        kind = type(op)
        has_way = op.is_structural or self._has_form(kind) or kind in self._rules
        return not has_way and kind.decompose is None

    def _has_form(self, kind: type[Op]) -> bool:
        return kind in self._forms or kind in OP_FORMS

    def _refusal(self, nodes: Sequence[Node]) -> LegalizeError:
        offenders = [Offender(node.id, kind_of(node.op)) for node in nodes]
        return LegalizeError(self._target, offenders, {o.kind: self.refusal_of(o.kind) for o in offenders})

    def refusal_of(self, kind: str) -> str:
        """Why an op is refused."""
        if kind in self._refused:
            return self._refused[kind]
        if kind == "DequantMoEWeights":
            blocks = "blocks of this GGUF type are not decoded by"
            return f"{blocks} {self._engine} programs; use the device cpu, or quantize to another"
        if OP_CLASSES[kind].lowered:
            return f"the compiler makes it for kernels of its own generator, which {self._engine} takes the place of"
        return "it has neither a rule nor a decomposition"

    def claimed_ops(self) -> frozenset[str]:
        """The kinds that programs may have without being refused."""
        return frozenset(
            name for name, cls in OP_CLASSES.items() if cls in self._rules or self._has_form(cls) or not cls.primitive
        )
