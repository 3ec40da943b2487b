"""The annotated dump of a graph: one line per node with its tag, op, type, origin and whether it is an output.

For reading, not for parsing: `str(graph)` is the exact text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant, Input, Param
from rlx.ir.op import Op, kind_of
from rlx.ir.provenance import NodeOrigin
from rlx.ir.shape import Size
from rlx.ir.text.graph_text import show_value


def pretty_print(graph: Graph) -> str:
    """Header, histogram of op kinds, every node, outputs."""
    return "\n".join([pretty_stats(graph), *node_lines(graph, describe_op), return_line(graph)]) + "\n"


def pretty_stats(graph: Graph) -> str:
    """Name, counts, bytes of all values together, and the histogram of op kinds."""
    total: Size = 0
    for node in graph.nodes:
        for shape in node.shapes:
            total = total + shape.byte_size
    header = f"graph @{graph.name} ({len(graph.nodes)} nodes, {len(graph.outputs)} outputs, {human_bytes(total)} arena)"
    return f"{header}\n  op kinds: {histogram_text(kind_counts(graph))}"


def kind_counts(graph: Graph) -> dict[str, int]:
    """How many nodes there are of each op class."""
    return dict(Counter(kind_of(n.op) for n in graph.nodes))


def histogram_text(counts: dict[str, int]) -> str:
    """`MatMul=3, Add=1`: most frequent first, then by name."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{kind}={count}" for kind, count in ordered) or "none"


def human_bytes(size: Size) -> str:
    """Bytes with a unit of 1024s; the symbolic part of a size is written after the fixed one.

    >>> from rlx.ir.dims import Dim
    >>> human_bytes(3 * 1024), human_bytes(Dim.symbol("B") * 4 + 512)
    ('3.0 KB', '512 B + 4*B B')
    """
    if isinstance(size, int):
        return _with_unit(size)
    fixed = next((c for monomial, c in size.terms if not monomial), 0)
    symbolic = size - fixed
    return f"{_with_unit(fixed)} + {symbolic} B" if fixed else f"{symbolic} B"


def _with_unit(size: int) -> str:
    if size < 1024:
        return f"{size} B"
    scaled = float(size)
    for unit in ("KB", "MB", "GB"):
        scaled /= 1024
        if scaled < 1024 or unit == "GB":
            return f"{scaled:.1f} {unit}"
    raise AssertionError("unreachable")


def node_lines(graph: Graph, describe: Callable[[Op], tuple[str, str]]) -> list[str]:
    """One aligned line per node; `describe` gives an op's name and its attributes."""
    outputs = frozenset(graph.outputs)
    tags = [node_tag(node) for node in graph.nodes]
    width = max(map(len, tags), default=0)
    return [
        f"  {tag:<{width}} = {_node_text(node, describe)}{'  ← output' if node.id in outputs else ''}"
        for tag, node in zip(tags, graph.nodes)
    ]


def node_tag(node: Node) -> str:
    """`%0 [input "x"]`, `%1 [param "w"]`, `%4 ["name"]` or `%5`."""
    if isinstance(node.op, Input | Param):
        return f'{node.id} [{node.op.mnemonic} "{node.op.key}"]'
    return f'{node.id} ["{node.name}"]' if node.name else str(node.id)


def _node_text(node: Node, describe: Callable[[Op], tuple[str, str]]) -> str:
    name, attributes = describe(node.op)
    operands = f"({', '.join(map(str, node.inputs))})" if node.inputs else ""
    types = ", ".join(str(s) for s in node.shapes)
    origin = _origin_text(node.origin)
    return f"{name}{operands}{attributes} : {types}{f'  // {origin}' if origin else ''}"


def _origin_text(origin: NodeOrigin | None) -> str:
    if origin is None:
        return ""
    known = str(origin) if origin._replace(source=None, written=None) != NodeOrigin() else ""
    # The line of somebody who called a function that builds models says less than the part of the model.
    line = f"at {origin.source}" if origin.source and not origin.scope else ""
    return " ".join(part for part in (known, line) if part)


def describe_op(op: Op) -> tuple[str, str]:
    """The op's name, and its attributes in braces; bodies are summed up in a few words."""
    if isinstance(op, Input | Param):
        return op.mnemonic, ""
    if isinstance(op, Constant):
        array = op.value.array
        return op.mnemonic, f" {{value={array.item()}}}" if array.size == 1 else f' {{data="{op.value.digest}"}}'
    shown = [f"{key}={_brief(value)}" for key, value in op.shown_attributes.items()]
    return op.mnemonic, f" {{{', '.join(shown)}}}" if shown else ""


def _brief(value: object) -> str:
    if isinstance(value, Graph):
        return f"@{value.name}({len(value.nodes)} nodes)"
    if isinstance(value, tuple) and any(isinstance(v, Graph) for v in value):
        return f"({', '.join(_brief(v) for v in value)})"
    return show_value(value)


def return_line(graph: Graph) -> str:
    return f"  return {', '.join(map(str, graph.outputs))}".rstrip()


def ids_text(ids: Iterable[NodeId]) -> str:
    return ", ".join(map(str, ids)) or "none"
