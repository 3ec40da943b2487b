"""Rewrite rules: named data with a pattern on the op of a node, a rewrite, and the reason of every near-miss.

    @rewrites(Activation, exact=True)
    def drop_double_negation(m: Match) -> Tensor | None:
        \"\"\"neg(neg(x)) -> x\"\"\"
        inner = m.producer(0)
        if m.op.kind != "neg" or not is_negation(inner):
            return None
        return m.value(inner.inputs[0])

A rule looks at the old graph through its `Match` and builds its result in the new one. Nodes that a rewrite absorbs are
left for dead-code removal, so a rule never has to delete anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rlx.errors import InternalError
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.op import Op
from rlx.ir.provenance import SourceLocation
from rlx.ir.rewrite.dead_code import live_nodes, remove_dead_nodes
from rlx.ir.rewrite.rebuild import Replacement, rebuild
from rlx.ir.tensor import Tensor


class NearMiss(NamedTuple):
    """A rule that almost fired: where, and why it did not."""

    rule: str
    node: NodeId
    reason: str
    detail: str
    source: SourceLocation | None

    def __str__(self) -> str:
        where = f" ({self.source})" if self.source else ""
        return f"{self.rule} at {self.node}{where}: {self.reason}{': ' + self.detail if self.detail else ''}"


class Match:
    """One node as a rule sees it: its producers and uses in the old graph, its operands in the new one."""

    __slots__ = ("_run", "graph", "node", "operands", "rule")

    def __init__(self, run: _Run, node: Node, operands: list[Any], rule: Rule) -> None:
        self._run, self.graph, self.node, self.operands, self.rule = run, run.graph, node, operands, rule

    @property
    def op(self) -> Any:
        return self.node.op

    def producer(self, operand: int) -> Node:
        """The node that computes an operand."""
        return self.graph.nodes[self.node.inputs[operand]]

    def input_of(self, node: Node, operand: int) -> Node:
        return self.graph.nodes[node.inputs[operand]]

    def value(self, old: NodeId) -> Tensor:
        """A node of the old graph in the new one."""
        return Tensor(self._run.new, self._run.ids[old])

    def users(self, node: Node) -> list[NodeId]:
        return self._run.uses[node.id]

    def is_output(self, node: Node) -> bool:
        return node.id in self._run.outputs

    def is_only_use(self, node: Node) -> bool:
        """Nothing but one other node reads it: absorbing it loses nothing and repeats nothing."""
        return len(self._run.uses[node.id]) == 1 and node.id not in self._run.outputs

    def redirect(self, node: Node, value: Tensor) -> None:
        """Let readers of `node` that come after this one read `value`, of the same type, instead."""
        assert value.type == node.shape, f"{node!r} cannot be replaced by {value!r}"
        self._run.ids[node.id] = value.id

    def miss(self, reason: str, detail: str = "") -> Tensor | None:
        """Record why the rule does not fire; returns None, so that `return m.miss(...)` reads well."""
        source = self.node.origin.source if self.node.origin else None
        self._run.misses.append(NearMiss(self.rule.name, self.node.id, reason, detail, source))
        return None


@dataclass(frozen=True)
class Rule:
    """`apply` on every node whose op is one of `roots`. An inexact rule may change rounding."""

    name: str
    roots: tuple[type[Op], ...]
    apply: Callable[[Match], Replacement]
    exact: bool = True


def rewrites(*roots: type[Op], exact: bool) -> Callable[[Callable[[Match], Replacement]], Rule]:
    """Make a rule of a function; its name is the function's."""

    def make(apply: Callable[[Match], Replacement]) -> Rule:
        return Rule(apply.__name__, roots, apply, exact)

    return make


class RuleSet:
    """Rules indexed by the op class at their root; sets join with `+`."""

    def __init__(self, name: str, rules: Iterable[Rule]) -> None:
        self.name = name
        self.rules = tuple(rules)
        self._by_root: dict[type[Op], list[Rule]] = {}
        for rule in self.rules:
            for root in rule.roots:
                self._by_root.setdefault(root, []).append(rule)

    def for_op(self, op: Op) -> Sequence[Rule]:
        return self._by_root.get(type(op), ())

    def exact(self) -> RuleSet:
        """Only the rules that leave every bit as it is."""
        return RuleSet(self.name, [r for r in self.rules if r.exact])

    def __add__(self, other: RuleSet) -> RuleSet:
        return RuleSet(f"{self.name}+{other.name}", (*self.rules, *other.rules))


@dataclass
class Rewritten:
    """The graph after rewriting, how often each rule fired, the near-misses of the last round, and where nodes went."""

    graph: Graph
    fired: Counter[str] = field(default_factory=Counter)
    misses: list[NearMiss] = field(default_factory=list)
    ids: dict[NodeId, NodeId] = field(default_factory=dict)


class _Run:
    """One walk over one graph."""

    def __init__(self, graph: Graph, rules: RuleSet) -> None:
        self.graph, self.rules = graph, rules
        # Nodes that nothing needs are no readers, and not worth rewriting.
        self.live = live_nodes(graph)
        self.uses = [[u for u in users if u in self.live] for users in graph.use_map()]
        self.outputs = set(graph.outputs)
        self.new = graph.empty_like()
        self.ids: dict[NodeId, NodeId] = {}
        self.fired: Counter[str] = Counter()
        self.misses: list[NearMiss] = []

    def visit(self, node: Node, operands: list[Any]) -> Replacement:
        for rule in self.rules.for_op(node.op) if node.id in self.live else ():
            replacement = rule.apply(Match(self, node, operands, rule))
            if replacement is not None:
                self.fired[rule.name] += 1
                return replacement
        return None


# Rules that keep undoing each other would never end; real programs need a handful of rounds.
MAX_ROUNDS = 32


def apply_rules(graph: Graph, rules: RuleSet, pass_name: str | None = None) -> Rewritten:
    """Apply the rules everywhere, again and again until none fires; absorbed nodes are removed after each round."""
    total = Rewritten(graph, ids={n.id: n.id for n in graph.nodes})
    if not any(rules.for_op(n.op) for n in graph.nodes):
        return total
    for _ in range(MAX_ROUNDS):
        run = _Run(total.graph, rules)
        rebuilt = rebuild(total.graph, run.visit, pass_name or rules.name, into=run.new, ids=run.ids)
        total.misses = run.misses
        if not run.fired:
            return total
        cleaned = remove_dead_nodes(rebuilt.graph)
        total.fired += run.fired
        total.ids = {
            old: cleaned.ids[rebuilt.ids[mid]]
            for old, mid in total.ids.items()
            if mid in rebuilt.ids and rebuilt.ids[mid] in cleaned.ids
        }
        total.graph = cleaned.graph
    last = ", ".join(f"{name} x{count}" for name, count in run.fired.items())
    raise InternalError(f"rule set {rules.name} does not come to rest after {MAX_ROUNDS} rounds; still firing: {last}")
