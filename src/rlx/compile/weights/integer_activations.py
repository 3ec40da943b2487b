"""Activations of 8 or 16 bits: products with stored weights as dot products of whole numbers, on request.

    x @ W                  ->    s·t·int8_matmul(codes(x), int8_panels(W))          s per row of x, t per column of W
    panel_matmul(x, P)     ->    int8_block_matmul(int8_blocks(x), P)               scales per block or span
    expert_matmul(x, P, r) ->    int8_expert_matmul(int8_blocks(x), P, r)           the same for rows of experts
    x @ W                  ->    int16_matmul(int16_rows(x), int16_panels(W))       16 bits: scales per block of both

A value that several products read is turned into codes once. Codes of weights follow from weights alone and so become
part of `prepare`. Answers change: activations keep 8 bits of what they had. With 16 bits they change by less than
what tells two words apart, and take part are products with blocks of files and with weights that are stored as f16 or
bf16: those that are f32 stay so.

"auto" is what language models do by themselves: 16 bits where weights allow it, for any number of rows. Against f64 the
answers then have a KL divergence below 1e-6 (`benchmarks/parity.py`), and one row, few and many are all faster than
with floats. Where a machine has no fast dot products for the codes of a type, its products keep floats.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping
from typing import Any, NamedTuple

from rlx.compile.claims.fusion.patterns import is_plain_matmul
from rlx.compile.weights.pack_floats import PanelWidth
from rlx.compile.weights.sink_casts import widen_late, widened_dtype
from rlx.compile.weights.split import fixed_sources
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant, Param
from rlx.ir.provenance import SourceLocation
from rlx.ir.rewrite.rebuild import Replacement, rebuild
from rlx.ops.linalg.contraction import MatMul
from rlx.ops.lowered.expert_products import ExpertMatMul, Int8ExpertMatMul
from rlx.ops.lowered.int8_products import (
    ACTIVATIONS,
    BLOCK,
    LEVELS,
    WORD,
    ZERO,
    Int8BlockMatMul,
    Int8Blocks,
    Int8MatMul,
    Int8Panels,
    has_byte_codes,
)
from rlx.ops.lowered.int16_products import Int16MatMul, Int16Panels, Int16Rows
from rlx.ops.lowered.quantized_panels import PanelMatMul
from rlx.ops.pointwise.arithmetic import div, gt, mul, where
from rlx.ops.pointwise.conversion import cast
from rlx.ops.pointwise.unary import abs_, round_
from rlx.ops.quant.quantized_weights import DequantMatMul
from rlx.ops.reduction.reductions import reduce_max
from rlx.quant.panels import PanelFormat
from rlx.quant.schemes import QuantScheme

# Products with fewer columns cost less than turning their rows into codes.
MIN_COLUMNS = 16


class Int8Change(NamedTuple):
    """What became of a product: done where `reason` is empty."""

    product: str
    kind: str
    reason: str
    source: SourceLocation | None

    def __str__(self) -> str:
        where = f" ({self.source})" if self.source else ""
        became = f"left alone, {self.reason}" if self.reason else f"activations as {self.kind}"
        return f"{self.product}{where}: {became}"


class Int8Result(NamedTuple):
    graph: Graph
    changes: tuple[Int8Change, ...] = ()


def int8_activations(
    graph: Graph,
    panel_width: PanelWidth,
    kind: str = "int8",
    has_byte_dots: Callable[[PanelFormat], bool] = lambda layout: True,
    has_word_dots: bool = True,
) -> Int8Result:
    """The graph with the products of activations and stored weights in codes, and what became of each; `kind` is one
    of `ACTIVATIONS`. With "auto" only weights for which there are fast dot products take part."""
    digits, is_auto = ACTIVATIONS[kind], kind == "auto"
    kind = "int16" if is_auto else kind
    if digits > 1:
        # Codes are made from weights as they are stored.
        graph = widen_late(graph)
    leaves = {n.id: (n.id,) for n in graph.nodes if isinstance(n.op, Param | Constant)}
    fixed: dict[NodeId, Collection[NodeId]] = {**leaves, **fixed_sources(graph)}
    candidates = [n for n in graph.nodes if _is_candidate(graph, n, fixed, is_auto)]
    reasons = {n.id: _obstacle(graph, n, digits) for n in candidates}
    if is_auto:
        reasons |= {n.id: _slowness(n, has_byte_dots, has_word_dots) for n in candidates if not reasons[n.id]}
    changes = tuple(_change(graph, graph.nodes[i], kind, reason, fixed) for i, reason in reasons.items())
    chosen = {i for i, reason in reasons.items() if not reason}
    if not chosen:
        return Int8Result(graph, changes)
    rows = _Rows(digits)
    panels: dict[NodeId, Any] = {}

    def visit(node: Node, operands: list[Any]) -> Replacement:
        if node.id not in chosen:
            return None
        x, weight, *route = operands
        if isinstance(node.op, ExpertMatMul):
            form = Int8ExpertMatMul(node.op.scheme, node.op.experts, node.op.n, digits)
            return form(rows.blocks(x, node.op.scheme), weight, *route)
        if isinstance(node.op, PanelMatMul):
            return Int8BlockMatMul(node.op.scheme, node.op.n, digits)(rows.blocks(x, node.op.scheme), weight)
        n = int(node.shape.dims[-1])
        if digits > 1:
            if node.inputs[1] not in panels:
                stored = weight.graph.tensor(weight.node.inputs[0])
                panels[node.inputs[1]] = Int16Panels(panel_width(DType.F32, n))(stored)
            return Int16MatMul(n)(rows.words(x), panels[node.inputs[1]])
        if node.inputs[1] not in panels:
            panels[node.inputs[1]] = Int8Panels(panel_width(DType.I32, n))(weight)
        codes, scale = rows.codes(x)
        lines, columns = panels[node.inputs[1]]
        return mul(mul(cast(Int8MatMul(n)(codes, lines), DType.F32), columns), scale)

    return Int8Result(rebuild(graph, visit, "int8_activations").graph, changes)


class _Rows:
    """Activations as codes, each value once."""

    def __init__(self, digits: int) -> None:
        self._digits = digits
        self._codes: dict[NodeId, tuple[Any, Any]] = {}
        self._blocks: dict[tuple[NodeId, Int8Blocks], Any] = {}
        self._words: dict[NodeId, Any] = {}

    def codes(self, x: Any) -> tuple[Any, Any]:
        """u8 codes with 128 for 0, and a scale for each row: scale = max|x|/127."""
        if x.id not in self._codes:
            scale = mul(reduce_max(abs_(x), (-1,), keepdims=True), 1 / LEVELS)
            inverse = where(gt(scale, 0.0), div(1.0, scale), 0.0)
            self._codes[x.id] = cast(round_(mul(x, inverse)) + float(ZERO), DType.U8), scale
        return self._codes[x.id]

    def blocks(self, x: Any, scheme: QuantScheme) -> Any:
        form = Int8Blocks(scheme, self._digits)
        if (x.id, form) not in self._blocks:
            self._blocks[x.id, form] = form(x)
        return self._blocks[x.id, form]

    def words(self, x: Any) -> Any:
        if x.id not in self._words:
            self._words[x.id] = Int16Rows()(x)
        return self._words[x.id]


def _is_candidate(graph: Graph, node: Node, fixed: Container[NodeId], is_auto: bool) -> bool:
    """A product of something that is computed in every run by something that is not."""
    if not isinstance(node.op, PanelMatMul | ExpertMatMul | MatMul | DequantMatMul):
        return False
    if is_auto and isinstance(node.op, MatMul) and widened_dtype(graph, graph.nodes[node.inputs[1]]) is None:
        return False
    if is_auto and isinstance(node.op, DequantMatMul):
        return False
    return node.inputs[1] in fixed and node.inputs[0] not in fixed


def _obstacle(graph: Graph, node: Node, digits: int) -> str:
    """Why a product keeps its activations; empty if it does not."""
    x = graph.shape(node.inputs[0])
    k, n = x.dims[-1], node.shape.dims[-1]
    if x.dtype is not DType.F32 or node.shape.dtype is not DType.F32:
        return f"it multiplies {x.dtype} and not f32"
    if not isinstance(k, int) or not isinstance(n, int) or n < MIN_COLUMNS:
        return f"it has fewer than {MIN_COLUMNS} columns, or a size that is not fixed"
    if isinstance(node.op, PanelMatMul | ExpertMatMul):
        layout = node.op.scheme.panel_format
        if layout is None or not has_byte_codes(layout):
            return f"codes of {node.op.scheme} are not parts of bytes"
        return "" if k % BLOCK == 0 else f"its inner size {k} is not a multiple of {BLOCK}"
    if isinstance(node.op, DequantMatMul):
        return f"weights of {node.op.scheme} have no panels"
    if digits > 1 and widened_dtype(graph, graph.nodes[node.inputs[1]]) is None:
        return f"its weight is {graph.shape(node.inputs[1]).dtype}; store it as f16, bf16 or a GGUF type"
    weight, unit = graph.shape(node.inputs[1]), WORD if digits == 1 else BLOCK
    if not is_plain_matmul(graph, node) or weight.rank != 2:
        return "it is a product of several matrices"
    return "" if k % unit == 0 and k > 0 else f"its inner size {k} is not a multiple of {unit}"


def _slowness(node: Node, has_byte_dots: Callable[[PanelFormat], bool], has_word_dots: bool) -> str:
    """Why floats are faster; empty if they are not."""
    if isinstance(node.op, MatMul):
        return "" if has_word_dots else "this machine has no fast dot products of 16-bit numbers"
    assert isinstance(node.op, PanelMatMul | ExpertMatMul) and node.op.scheme.panel_format is not None
    if has_byte_dots(node.op.scheme.panel_format):
        return ""
    return f"this machine has no fast dot products for codes of {node.op.scheme}"


def _change(
    graph: Graph, node: Node, kind: str, reason: str, sources: Mapping[NodeId, Collection[NodeId]]
) -> Int8Change:
    names = [str(graph.nodes[i].name) for i in sorted(sources[node.inputs[1]]) if graph.nodes[i].name]
    weights = f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else "".join(names)
    text = f"{node.op.mnemonic} by {weights or 'a constant'} {graph.shape(node.inputs[0])} -> {node.shape}"
    return Int8Change(text, kind, reason, node.origin.source if node.origin is not None else None)
