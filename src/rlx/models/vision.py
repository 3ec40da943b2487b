"""The programs of models that see: a tower for pictures, and one for the texts beside them.

Pictures: pixels f32[B,C,H,W] of one size to hidden states f32[B,S,D], one vector per picture f32[B,E], and of a
classifier scores f32[B,labels]. Texts: ids i32[B,S] and the place of the token that is read, i32[B,1], to vectors
f32[B,E].
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rlx import ops
from rlx.hir import functions as blocks
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ir.module import HirModule
from rlx.ir.provenance import named_scope, written_as
from rlx.models.config_hf_vision import TextTowerConfig, TowerConfig, VisionConfig
from rlx.models.layers import Layers, split_last
from rlx.models.weights import Weight, WeightFile
from rlx.ops.attn.operands import MaskKind
from rlx.ops.pointwise.unary import ActivationKind


class TowerProgram(NamedTuple):
    """A graph and the weights that its params need."""

    graph: Graph
    weights: dict[str, Weight]


class ConnectorConfig(NamedTuple):
    """What makes rows of a language model, `width` wide, of the hidden states of a tower: of squares of `shuffle` by
    `shuffle` of them one each by a linear layer, or with an `activation` one of each by two."""

    width: int
    shuffle: int = 1
    activation: ActivationKind | None = None


def build_rows(
    config: VisionConfig, connector: ConnectorConfig, file: WeightFile, height: int, width: int, final_norm: bool
) -> TowerProgram:
    """The program that makes rows [B,N,D] of a language model of pictures of so many pixels."""
    tower = _Tower(config.tower, file, "vision")
    x = tower.run(_embedded(tower, config, height, width))
    rows, columns = height // config.patch, width // config.patch
    with named_scope("connector"):
        x = ops.narrow(x, 1, x.shape[1] - rows * columns, rows * columns)
        x = tower.norm(x, "final_norm", None) if final_norm else x
        side, hidden = connector.shuffle, config.tower.hidden
        if side > 1:
            apart = ops.reshape(x, (x.shape[0], rows // side, side, columns // side, side * hidden))
            together = (x.shape[0], rows * columns // side**2, side * side * hidden)
            x = ops.reshape(ops.transpose(apart, (0, 1, 3, 2, 4)), together)
        if connector.activation is not None:
            x = ops.activation(connector.activation, tower.layers.linear(x, "connector_up", None, connector.width))
        x = tower.layers.linear(x, "connector", None, connector.width)
    return tower.finished([x])


def build_vision(config: VisionConfig, file: WeightFile, height: int, width: int) -> TowerProgram:
    """The program for pictures of so many pixels; the places of their squares are in the file already."""
    c, tower = config, _Tower(config.tower, file, "vision")
    layers = tower.layers
    x = _embedded(tower, config, height, width)
    x = tower.run(x)
    with named_scope("head"):
        if not c.norms_vector:
            x = tower.norm(x, "final_norm", None)
        vector = tower.attended_vector(x) if c.pooling == "attended" else _row(x, 0)
        if c.norms_vector:
            vector = tower.norm(vector, "final_norm", None)
        if c.projection:
            vector = layers.linear(vector, "projection", None, c.projection)
        outputs = [x, vector]
        if c.labels:
            read = vector
            if c.reads_mean:
                squares = ops.narrow(x, 1, 1, x.shape[1] - 1)
                read = ops.concat([vector, ops.reduce_mean(squares, (1,))], -1)
            outputs.append(layers.linear(read, "classifier", None, len(c.labels)))
    return tower.finished(outputs)


def build_texts(config: TextTowerConfig, file: WeightFile) -> TowerProgram:
    """The program for texts."""
    tower = _Tower(config.tower, file, "text")
    hidden = config.tower.hidden
    ids = tower.graph.input("ids", ("B", "S"), DType.I32)
    rows = tower.graph.input("rows", ("B", 1), DType.I32)
    with named_scope("embedding"):
        x = tower.layers.embedding(ids, "embed", config.vocab, hidden)
        places = tower.layers.table(f"{file.name('positions')}.weight", (config.context, hidden))
        x = ops.add(x, ops.narrow(places, 0, 0, ids.shape[1]))
    x = tower.run(x)
    with named_scope("head"):
        chosen = ops.gather_nd(x, ops.expand_dims(rows, -1), axes=(1,), batch_dims=1)
        chosen = ops.reshape(chosen, (ids.shape[0], hidden))
        vector = tower.layers.linear(tower.norm(chosen, "final_norm", None), "projection", None, config.dimension)
    return tower.finished([vector])


def _embedded(tower: _Tower, c: VisionConfig, height: int, width: int) -> Any:
    """Hidden states of the squares of pictures, and before them of the tokens that the tower has itself."""
    layers, hidden, patch = tower.layers, c.tower.hidden, c.patch
    file, rows, columns = layers.file, height // patch, width // patch
    pixels = tower.graph.input("pixels", ("B", c.channels, height, width), DType.F32)
    batch = pixels.shape[0]
    with named_scope("embedding"):
        cut = ops.reshape(pixels, (batch, c.channels, rows, patch, columns, patch))
        squares = ops.reshape(
            ops.transpose(cut, (0, 2, 4, 1, 3, 5)), (batch, rows * columns, c.channels * patch * patch)
        )
        x = layers.linear(squares, "patch", None, hidden)
        places = layers.table(f"{file.name('positions')}.weight", (rows * columns + c.has_first, hidden))
        if c.has_first:
            first = ops.broadcast_to(
                ops.reshape(layers.vector(f"{file.name('first')}.weight", hidden), (1, 1, hidden)), (batch, 1, hidden)
            )
            x = ops.concat([first, x], 1)
        x = ops.add(x, places)
        if c.registers:
            more = layers.table(f"{file.name('registers')}.weight", (c.registers, hidden))
            more = ops.broadcast_to(ops.expand_dims(more, 0), (batch, c.registers, hidden))
            x = ops.concat([ops.narrow(x, 1, 0, 1), more, ops.narrow(x, 1, 1, rows * columns)], 1)
        return tower.norm(x, "norm_before", None) if c.norm_before else x


class _Tower:
    """Layers that both kinds of towers have."""

    def __init__(self, config: TowerConfig, file: WeightFile, kind: str) -> None:
        self.config = config
        self.graph = HirModule(f"{config.family}_{kind}")
        self.layers = Layers(self.graph, file)

    def run(self, x: Any) -> Any:
        for layer in range(self.config.layers):
            with named_scope(f"layer {layer}"):
                with named_scope("attention"):
                    x = self._added(x, self._attention(self.norm(x, "attn_norm", layer), layer), "attn_scale", layer)
                with named_scope("feed forward"):
                    x = self._added(x, self._feed_forward(self.norm(x, "ffn_norm", layer), layer), "ffn_scale", layer)
        return x

    def norm(self, x: Any, role: str, layer: int | None) -> Any:
        return self.layers.norm(x, role, layer, "layer", self.config.norm_eps)

    def finished(self, outputs: list[Any]) -> TowerProgram:
        self.layers.file.refuse_unused(lambda name: False)
        self.graph.set_outputs(outputs)
        return TowerProgram(self.layers.lowered(), self.layers.weights)

    def attended_vector(self, x: Any) -> Any:
        """[B,D]: what a query of its own finds in x."""
        c, batch = self.config, x.shape[0]
        probe = self.layers.table(f"{self.layers.file.name('probe')}.weight", (1, c.hidden))
        q = self.layers.linear(
            ops.broadcast_to(ops.expand_dims(probe, 0), (batch, 1, c.hidden)), "probe_q", None, c.hidden
        )
        k, v = self.layers.linears(x, ("probe_k", "probe_v"), None, (c.hidden, c.hidden))
        found = blocks.attention(q, k, v, num_heads=c.heads, layout="bsm", mask_kind="none")
        found = self.layers.linear(found, "probe_o", None, c.hidden)
        read = self.norm(found, "probe_norm", None)
        inner = self._activated(self.layers.linear(read, "probe_up", None, c.ffn))
        return _row(ops.add(found, self.layers.linear(inner, "probe_down", None, c.hidden)), 0)

    def _added(self, x: Any, y: Any, scale: str, layer: int) -> Any:
        if self.config.scaled_halves:
            y = ops.mul(y, self.layers.vector(f"{self.layers.file.name(scale, layer)}.weight", self.config.hidden))
        with written_as("residual"):
            return ops.add(x, y)

    def _attention(self, x: Any, layer: int) -> Any:
        c = self.config
        q, k, v = self.layers.linears(x, ("q", "k", "v"), layer, (c.hidden,) * 3)
        kind = MaskKind.Causal if c.causal else "none"
        attended = blocks.attention(q, k, v, num_heads=c.heads, layout="bsm", mask_kind=kind)
        return self.layers.linear(attended, "o", layer, c.hidden)

    def _feed_forward(self, x: Any, layer: int) -> Any:
        c = self.config
        if c.gated:
            gate, up = split_last(self.layers.linear(x, "gate_up", layer, 2 * c.ffn), (c.ffn, c.ffn))
            return self.layers.linear(blocks.gated(c.activation, gate, up), "down", layer, c.hidden)
        inner = self._activated(self.layers.linear(x, "up", layer, c.ffn))
        return self.layers.linear(inner, "down", layer, c.hidden)

    def _activated(self, x: Any) -> Any:
        slope = self.config.sigmoid_slope
        if slope is None:
            return ops.activation(self.config.activation, x)
        return ops.mul(x, ops.sigmoid(ops.mul(x, slope)))


def _row(x: Any, place: int) -> Any:
    """[B,D] of [B,S,D]."""
    return ops.reshape(ops.narrow(x, 1, place, 1), (x.shape[0], x.shape[2]))


def spread_places(table: np.ndarray[Any, Any], rows: int, columns: int) -> np.ndarray[Any, Any]:
    """f32[rows·columns, D]: places that were learned for a square grid, for another grid. Between them lie cubic
    curves, as torch's `interpolate(mode="bicubic")` draws them."""
    side = round(len(table) ** 0.5)
    if (rows, columns) == (side, side):
        return table
    grid = table.astype(np.float64).reshape(side, side, -1)
    down, across = _cubic(side, rows), _cubic(side, columns)
    return np.einsum("ij,jkd,lk->ild", down, grid, across).reshape(rows * columns, -1).astype(np.float32)


def _cubic(given: int, wanted: int) -> np.ndarray[Any, Any]:
    """f64[wanted, given]: what each of the given places counts at the wanted ones; those beyond the ends are the last
    ones again."""
    centres = (np.arange(wanted) + 0.5) * given / wanted - 0.5
    below = np.floor(centres).astype(np.int64)
    weights = np.zeros((wanted, given))
    for step in (-1, 0, 1, 2):
        distance = np.abs(centres - (below + step))
        near = (1.25 * distance - 2.25) * distance**2 + 1.0
        far = ((-0.75 * distance + 3.75) * distance - 6.0) * distance + 3.0
        np.add.at(weights, (np.arange(wanted), np.clip(below + step, 0, given - 1)), np.where(distance <= 1, near, far))
    return weights
