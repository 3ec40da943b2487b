"""What fusion passes share: they reach into bodies, and they can say where they almost fired."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

from rlx.compile.claims.fusion.miss_reasons import MissReason
from rlx.ir.graph import Graph
from rlx.ir.rewrite.passes import Pass
from rlx.ir.rewrite.rebuild import Replacement, rebuild_bodies
from rlx.ir.rewrite.rules import Match, NearMiss, Rule, RuleSet, apply_rules


class FusionPass(Pass):
    """A pass that looks for one pattern; `missed` says where the pattern is present but stays as it is, and why."""

    # What reports call the pattern.
    pattern: ClassVar[str]

    @abstractmethod
    def missed(self, graph: Graph) -> list[NearMiss]: ...


class RulePass(FusionPass):
    """Rules applied everywhere, bodies included, until none fires."""

    @property
    @abstractmethod
    def rules(self) -> RuleSet: ...

    def run(self, graph: Graph) -> Graph:
        graph = rebuild_bodies(graph, self.run, self.name).graph
        return apply_rules(graph, self.rules, self.name).graph

    def missed(self, graph: Graph) -> list[NearMiss]:
        """The near-misses of the rules in `graph` itself, and every place where one would fire, as `NotFused`."""
        observers = [Rule(r.name, r.roots, _observing(r.apply), r.exact) for r in self.rules.rules]
        return apply_rules(graph, RuleSet(self.name, observers)).misses


def _observing(apply: Callable[[Match], Replacement]) -> Callable[[Match], Replacement]:
    def observe(m: Match) -> Replacement:
        return None if apply(m) is None else m.miss(MissReason.NotFused)

    return observe
