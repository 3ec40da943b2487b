"""Nodes that stand for other nodes: functions of the file, If, and Loop, one round at a time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlx.errors import FormatError, UnsupportedOnnx
from rlx.formats.onnx import OnnxFunction, OnnxGraph, OnnxNode
from rlx.ir.dims import Dim
from rlx.onnx.values import NeedsValue, Sizes, Value

# The domain of nodes that only this module makes.
OWN = "rlx"
CONTROL = {("", "If"), ("", "Loop"), (OWN, "Round")}
_numbers = itertools.count()


@dataclass
class Expanded:
    """What a node becomes: values that are known at once, and nodes that come in its place."""

    values: dict[str, Value]
    nodes: list[OnnxNode]


def names_read(nodes: Iterable[OnnxNode]) -> set[str]:
    """Every name that these nodes read, those in their graphs included."""
    found: set[str] = set()
    for node in nodes:
        found.update(node.inputs)
        for graph in graphs_of(node):
            found |= names_read(graph.nodes) | {output.name for output in graph.outputs}
        if isinstance(node, _Round):
            assert node.body is not None
            found |= {name for names in node.collected for name in names} | names_read(node.body.nodes)
    return found - {""}


def graphs_of(node: OnnxNode) -> list[OnnxGraph]:
    found = []
    for value in node.attributes.values():
        found += [g for g in (value if isinstance(value, list) else [value]) if isinstance(g, OnnxGraph)]
    return found


def all_nodes(nodes: Iterable[OnnxNode]) -> Iterable[OnnxNode]:
    """These nodes and those of their graphs."""
    for node in nodes:
        yield node
        for graph in graphs_of(node):
            yield from all_nodes(graph.nodes)


def in_order(nodes: Sequence[OnnxNode]) -> Sequence[OnnxNode]:
    """Nodes behind those whose results they read, as the standard asks for; some tools append what they add.

    What reads in a circle stays where it is, to be named when it is met.
    """
    makers = {name: number for number, node in enumerate(nodes) for name in node.outputs if name}
    needs = [{makers[name] for name in names_read([node]) if name in makers} for node in nodes]
    if all(all(n < number for n in needed) for number, needed in enumerate(needs)):
        return nodes
    readers: dict[int, list[int]] = {}
    for number, needed in enumerate(needs):
        for n in needed:
            readers.setdefault(n, []).append(number)
    ready = [number for number, needed in enumerate(needs) if not needed]
    heapq.heapify(ready)
    found = []
    while ready:
        number = heapq.heappop(ready)
        found.append(number)
        for reader in readers.get(number, ()):
            needs[reader].discard(number)
            if not needs[reader]:
                heapq.heappush(ready, reader)
    placed = {*found}
    return [nodes[number] for number in [*found, *(n for n in range(len(nodes)) if n not in placed)]]


def _renamed(nodes: Iterable[OnnxNode], names: Mapping[str, str]) -> list[OnnxNode]:
    """Copies of nodes that read and write other names."""

    def of_graph(graph: OnnxGraph) -> OnnxGraph:
        own = {value.name for value in graph.inputs} | {*graph.constants}
        own |= {name for node in graph.nodes for name in node.outputs}
        outer = {old: new for old, new in names.items() if old not in own}
        outputs = [value._replace(name=outer.get(value.name, value.name)) for value in graph.outputs]
        return replace(graph, nodes=_renamed(graph.nodes, outer), outputs=outputs)

    def of_attribute(value: Any) -> Any:
        if isinstance(value, OnnxGraph):
            return of_graph(value)
        return [of_attribute(v) for v in value] if isinstance(value, list) else value

    return [
        replace(
            node,
            inputs=[names.get(name, name) for name in node.inputs],
            outputs=[names.get(name, name) for name in node.outputs],
            attributes={key: of_attribute(value) for key, value in node.attributes.items()},
        )
        for node in nodes
    ]


def _copied(
    nodes: Sequence[OnnxNode], constants: Mapping[str, Any], given: Mapping[str, str]
) -> tuple[dict[str, Value], list[OnnxNode], dict[str, str]]:
    """A copy of a body in which everything it defines has new names; what is `given` goes by the names there."""
    prefix = f"{next(_numbers)}/"
    own = {name for node in nodes for name in node.outputs if name} | {*constants}
    names = {name: prefix + name for name in own} | dict(given)
    return {names[name]: value for name, value in constants.items()}, _renamed(nodes, names), names


def _same(source: str, target: str) -> OnnxNode:
    return OnnxNode("Identity", "", "", [source], [target], {})


def call_function(node: OnnxNode, function: OnnxFunction, opsets: Mapping[str, int]) -> Expanded:
    """The nodes of a function in place of its call."""
    given = dict.fromkeys(function.inputs, "") | dict(zip(function.inputs, node.inputs))
    _, nodes, names = _copied(in_order(function.nodes), {}, given)
    attributes = {**function.defaults, **node.attributes}
    versions = {**opsets, **function.opsets}
    inner = [_with_attributes(part, attributes, versions) for part in nodes]
    ends = [
        _same(names.get(inside, inside), outside) for inside, outside in zip(function.outputs, node.outputs) if outside
    ]
    return Expanded({}, [*inner, *ends])


def _with_attributes(node: OnnxNode, given: Mapping[str, Any], versions: Mapping[str, int]) -> OnnxNode:
    """A node of a function, with what its call says."""
    attributes = {key: _inner_attributes(value, given, versions) for key, value in node.attributes.items()}
    attributes |= {name: given[source] for name, source in node.references.items() if source in given}
    return replace(node, attributes=attributes, references={}, opset=versions.get(node.domain, 0))


def _inner_attributes(value: Any, given: Mapping[str, Any], versions: Mapping[str, int]) -> Any:
    if isinstance(value, OnnxGraph):
        return replace(value, nodes=[_with_attributes(node, given, versions) for node in value.nodes])
    return value


def expand(node: OnnxNode, env: Mapping[str, Value], path: str) -> Expanded:
    """If: the branch that is taken. Loop: its next round."""
    if isinstance(node, _Round):
        return _next_round(node, env, path)
    if node.op == "If":
        return _branch(node, env, path)
    return _loop(node, env, path)


def _branch(node: OnnxNode, env: Mapping[str, Value], path: str) -> Expanded:
    taken = known_number(node.inputs[0], env)
    graph = node.attributes.get("then_branch" if taken else "else_branch")
    if not isinstance(graph, OnnxGraph):
        raise FormatError(f"{path}: node {node}: it has no graph for this branch")
    values, nodes, names = _copied(in_order(graph.nodes), graph.constants, {})
    inside = [names.get(output.name, output.name) for output in graph.outputs]
    return Expanded(values, [*nodes, *(_same(a, b) for a, b in zip(inside, node.outputs) if b)])


def known_number(name: str, env: Mapping[str, Value]) -> Any:
    """The one number of a value that decides what comes next; a run must tell where it is not known."""
    value = env[name]
    if isinstance(value, Sizes):
        number = value.numbers.reshape(-1)[0]
        if isinstance(number, Dim):
            raise NeedsValue(name)
        return number
    if not isinstance(value, np.ndarray):
        raise NeedsValue(name)
    return value.reshape(-1)[0]


@dataclass
class _Round(OnnxNode):
    """A loop that has come as far as `number`: inputs are its limit, its condition and what it carries."""

    number: int = 0
    # Names of what each round has left, for each result that gathers the rounds.
    collected: Sequence[tuple[str, ...]] = ()
    body: OnnxGraph | None = None


def _loop(node: OnnxNode, env: Mapping[str, Value], path: str) -> Expanded:
    body = node.attributes.get("body")
    if not isinstance(body, OnnxGraph):
        raise FormatError(f"{path}: node {node}: it has no body")
    inputs = [*node.inputs, *[""] * (2 - len(node.inputs))]
    if len(body.inputs) != len(inputs) or len(body.outputs) < len(inputs) - 1:
        raise FormatError(f"{path}: node {node}: its body does not fit what it carries")
    gathered = len(body.outputs) - len(inputs) + 1
    start = _Round("Round", OWN, node.name, inputs, node.outputs, {}, {}, 0, 0, [()] * gathered, body)
    return _next_round(start, env, path)


def _next_round(node: _Round, env: Mapping[str, Value], path: str) -> Expanded:
    body = node.body
    assert body is not None
    limit, condition, *carried = node.inputs
    if limit and node.number >= known_number(limit, env):
        return _loop_end(node, carried, path)
    if condition and not known_number(condition, env):
        return _loop_end(node, carried, path)
    prefix = f"round {next(_numbers)}/"
    values: dict[str, Value] = {f"{prefix}number": np.asarray(node.number, np.int64)}
    if not condition:
        condition = f"{prefix}condition"
        values[condition] = np.asarray(True)
    given = dict(zip((value.name for value in body.inputs), (f"{prefix}number", condition, *carried)))
    constants, nodes, names = _copied(in_order(body.nodes), body.constants, given)
    left = [names.get(output.name, output.name) for output in body.outputs]
    after = left[1 : len(carried) + 1]
    collected = [(*before, new) for before, new in zip(node.collected, left[len(carried) + 1 :])]
    later = replace(node, inputs=[limit, left[0], *after], number=node.number + 1, collected=collected)
    return Expanded({**values, **constants}, [*nodes, later])


def _loop_end(node: _Round, carried: Sequence[str], path: str) -> Expanded:
    nodes = [_same(a, b) for a, b in zip(carried, node.outputs) if b]
    for rounds, output in zip(node.collected, node.outputs[len(carried) :]):
        if not output:
            continue
        if not rounds:
            raise UnsupportedOnnx(f"{path}: node {node}: gathering the results of no round is not supported")
        sequence = f"rounds of {output}"
        nodes.append(OnnxNode("SequenceConstruct", "", "", list(rounds), [sequence], {}))
        nodes.append(OnnxNode("ConcatFromSequence", "", "", [sequence], [output], {"axis": 0, "new_axis": 1}))
    return Expanded({}, nodes)
