"""The program of a text encoder: one graph for every batch and length, pooling included.

Inputs, with B texts padded on the right to S tokens:

    ids      i32[B,S]       lengths  i32[B]     tokens of each text
    rope.cos, rope.sin      f32[S,D/2]          with rotary positions (and rope.local.cos, rope.local.sin)
    buckets  i32[S,S]                           with relative positions: the bucket of each distance
    types    i32[B,S]                           of a classifier that tells the first text of a pair from the second

Outputs: hidden states f32[B,S,D], then, with pooling, one vector per text f32[B,E]. Hidden states of padding mean
nothing. Of a classifier the only output are scores, f32[B,labels] or f32[B,S,labels].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rlx import ops
from rlx.hir import functions as blocks
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ir.module import HirModule
from rlx.ir.provenance import named_scope, written_as
from rlx.models.adapters import Adapter
from rlx.models.config import DisentangledConfig, EncoderConfig, HeadConfig, PoolingMode, RopeConfig
from rlx.models.layers import Layers, split_last
from rlx.models.weights import Weight, WeightFile
from rlx.ops.define.operands import same_graph

if TYPE_CHECKING:
    from rlx.models.layouts import ValuePlaces

_TINY = 1e-12
# What is added to the score of a token that is too far away: nothing is left of it, and sums stay finite.
_FAR = -1e9
# Beginnings of tensors that guess words, which files of classifiers may still have.
_OTHER_HEADS = (
    "cls.",
    "lm_head.",
    "lm_predictions.",
    "mask_predictions.",
    "predictions.",
    "generator_",
    "discriminator_",
)


def _residual(x: Any, y: Any) -> Any:
    with written_as("residual"):
        return ops.add(x, y)


class EncoderProgram(NamedTuple):
    """A graph and the weights that its params need."""

    graph: Graph
    weights: dict[str, Weight]


def build_encoder(
    config: EncoderConfig, file: WeightFile, adapters: Sequence[Adapter] = (), places: ValuePlaces | None = None
) -> EncoderProgram:
    """The program of `config` on the weights of `file` and of `adapters`; `places` are those of `build_decoder`."""
    return _Encoder(config, file, adapters, places).build()


class _Encoder:
    def __init__(
        self, config: EncoderConfig, file: WeightFile, adapters: Sequence[Adapter], places: ValuePlaces | None
    ) -> None:
        self.config, self.value_places = config, places
        self.graph = HirModule(config.family)
        self.layers = Layers(self.graph, file, adapters)
        self.ids = self.graph.input("ids", ("B", "S"), DType.I32)
        self.lengths = self.graph.input("lengths", ("B",), DType.I32)
        self.tables = self._rope_inputs("rope", config.rope)
        self.local_tables = self._rope_inputs("rope.local", config.local_rope) or self.tables
        self.near = self._near_bias() if config.local_layers else None
        self.types = None
        if config.head is not None and config.token_types > 1:
            self.types = self.graph.input("types", ("B", "S"), DType.I32)
        has_buckets = config.relative_buckets or config.disentangled is not None
        self.buckets = self.graph.input("buckets", ("S", "S"), DType.I32) if has_buckets else None
        shares_bias = config.relative_buckets and not config.relative_by_layer
        self.bias = self._relative_bias(None) if shares_bias else None
        self.places = None if config.disentangled is None else self._place_rows(config.disentangled)

    def _rope_inputs(self, name: str, rope: RopeConfig | None) -> tuple[RopeConfig, Any, Any] | None:
        if rope is None:
            return None
        cos, sin = (self.graph.input(f"{name}.{part}", ("S", rope.dims // 2), DType.F32) for part in ("cos", "sin"))
        return rope, cos, sin

    def build(self) -> EncoderProgram:
        c = self.config
        with named_scope("embedding"):
            x = self._embedded()
            if c.embed_norm and not c.norm_behind_project:
                x = self._norm(x, "embed_norm", None)
            if c.embed_width:
                x = self.layers.linear(x, "embed_project", None, c.hidden)
            if c.embed_norm and c.norm_behind_project:
                x = self._norm(x, "embed_norm", None)
            x = self._placed(x)
        for layer in range(c.layers):
            with named_scope(f"layer {layer}"):
                x = self._placed(self._pre_normed(x, layer) if c.pre_norms else self._post_normed(x, layer))
        if c.pre_norms:
            x = self._norm(x, "final_norm", None)
        if c.head is not None:
            with named_scope("head"):
                outputs = [self._scores(x, c.head)]
        else:
            outputs = [x, self._vector(x)] if c.pooling else [x]
        if self.value_places is not None:
            outputs = [self.value_places.of_result(y) for y in outputs]
        self.layers.file.refuse_unused(self._is_head)
        self.graph.set_outputs(outputs)
        return EncoderProgram(self.layers.lowered(), self.layers.weights)

    def _vector(self, x: Any) -> Any:
        """One vector per text."""
        c = self.config
        with named_scope("pooling"):
            pooled = [self._pooled(x, mode) for mode in c.pooling]
            vector = pooled[0] if len(pooled) == 1 else ops.concat(pooled, -1)
            for place, dense in enumerate(c.dense):
                vector = self.layers.linear(vector, "dense", place, dense.outputs)
                vector = vector if dense.activation is None else ops.activation(dense.activation, vector)
            return _unit(vector) if c.normalize else vector

    def _scores(self, x: Any, head: HeadConfig) -> Any:
        """The scores of labels."""
        if not head.of_tokens:
            x = self._pooled(x, "mean" if head.reads_mean else "cls")
        if head.dense:
            x = self.layers.linear(x, "head_dense", None, self.config.hidden)
            x = x if head.activation is None else ops.activation(head.activation, x)
        if head.norm:
            x = self._norm(x, "head_norm", None)
        return self.layers.linear(x, "head_out", None, len(head.labels))

    def _placed(self, x: Any) -> Any:
        return x if self.value_places is None else self.value_places.of_hidden(x)

    def _post_normed(self, x: Any, layer: int) -> Any:
        with named_scope("attention"):
            x = self._norm(_residual(x, self._attention(x, layer)), "attn_norm", layer)
        with named_scope("feed forward"):
            return self._norm(_residual(x, self._feed_forward(x, layer)), "ffn_norm", layer)

    def _pre_normed(self, x: Any, layer: int) -> Any:
        with named_scope("attention"):
            # The embeddings are normalised already, so that the first layer may leave its norm out.
            read = self._norm(x, "attn_norm", layer) if self.layers.file.has("attn_norm", layer) else x
            x = _residual(x, self._attention(read, layer))
        with named_scope("feed forward"):
            return _residual(x, self._feed_forward(self._norm(x, "ffn_norm", layer), layer))

    def _embedded(self) -> Any:
        c, width = self.config, self.config.embed_width or self.config.hidden
        x = self.layers.embedding(self.ids, "embed", c.vocab, width)
        if c.embed_scale != 1.0:
            x = ops.mul(x, c.embed_scale)
        if c.learned_positions:
            table = self.layers.table(f"{self.layers.file.name('positions')}.weight", (c.table_rows, width))
            x = ops.add(x, ops.narrow(table, 0, c.position_offset, self.ids.shape[1]))
        if c.token_types:
            types = self.layers.table(f"{self.layers.file.name('token_types')}.weight", (c.token_types, width))
            x = ops.add(x, ops.narrow(types, 0, 0, 1) if self.types is None else ops.gather(types, self.types))
        return x

    def _norm(self, x: Any, role: str, layer: int | None) -> Any:
        return self.layers.norm(x, role, layer, self.config.norm, self.config.norm_eps)

    def _relative_bias(self, layer: int | None) -> Any:
        """[B,H,S,S]: what distances add to the scores, -inf for padding."""
        c = self.config
        name = self.layers.file.name("relative_bias", layer)
        table = self.layers.table(f"{name}.weight", (c.relative_buckets, c.heads))
        by_distance = ops.transpose(ops.gather(table, self.buckets), (2, 0, 1))
        return ops.add(ops.expand_dims(by_distance, 0), self._hidden_padding())

    def _hidden_padding(self) -> Any:
        """[B,1,1,S]: -inf for padding, else 0."""
        batch, seq = self.ids.shape
        hidden = ops.where(self._is_token(), 0.0, -math.inf)
        return ops.reshape(ops.cast(hidden, DType.F32), (batch, 1, 1, seq))

    def _place_rows(self, d: DisentangledConfig) -> Any:
        """[2·span, D]: what stands for each place of one token relative to another."""
        rows = self.layers.table(f"{self.layers.file.name('places')}.weight", (2 * d.span, self.config.hidden))
        return self._norm(rows, "places_norm", None) if d.norm else rows

    def _disentangled_bias(self, d: DisentangledConfig, q: Any, k: Any, layer: int) -> Any:
        """[B,H,S,S]: what queries make of the places of keys, and keys of those of queries, -inf for padding."""
        c, (batch, seq) = self.config, self.ids.shape
        bias = self._hidden_padding()
        for words, role, is_wanted in ((q, "k", d.of_keys), (k, "q", d.of_queries)):
            if not is_wanted:
                continue
            places = self.layers.linear(
                self.places, role if d.shared else f"places_{role}", layer, c.heads * c.head_dim
            )
            places = ops.transpose(ops.reshape(places, (2 * d.span, c.heads, c.head_dim)), (1, 2, 0))
            by_head = ops.transpose(ops.reshape(words, (batch, seq, c.heads, c.head_dim)), (0, 2, 1, 3))
            scores = ops.mul(ops.matmul(by_head, places), c.attention_scale)
            of_queries = role == "q"
            chosen = ops.transpose(self.buckets, (1, 0)) if of_queries else self.buckets
            chosen = ops.broadcast_to(ops.reshape(chosen, (1, 1, seq, seq)), (batch, c.heads, seq, seq))
            found = ops.take_along_axis(scores, chosen, -1, mode="clip")
            bias = ops.add(bias, ops.transpose(found, (0, 1, 3, 2)) if of_queries else found)
        return bias

    def _near_bias(self) -> Any:
        """[B,1,S,S]: very negative for tokens that are far away, -inf for padding. Not -inf for both: then padding that
        is far from all tokens would see nothing, and become NaN."""
        seq = self.ids.shape[1]
        places = self._places()
        distance = ops.sub(ops.reshape(places, (seq, 1)), ops.reshape(places, (1, seq)))
        far = ops.cast(ops.where(ops.le(ops.abs_(distance), self.config.local_reach), 0.0, _FAR), DType.F32)
        return ops.add(ops.reshape(far, (1, 1, seq, seq)), self._hidden_padding())

    def _is_token(self) -> Any:
        """bool[B,S]: what is not padding."""
        return ops.lt(self._places(), ops.expand_dims(self.lengths, -1))

    def _places(self) -> Any:
        """i32[1,S]: 0, 1, 2, ..."""
        with same_graph(self.ids):
            return ops.iota((1, self.ids.shape[1]), DType.I32, 1)

    def _attention(self, x: Any, layer: int) -> Any:
        c = self.config
        widths = (c.heads * c.head_dim,) * 3
        if c.fused_qkv:
            parts = split_last(self.layers.linear(x, "qkv", layer, sum(widths)), widths)
        else:
            parts = self.layers.linears(x, "qkv", layer, widths)
        q, k, v = parts
        is_local = c.is_local(layer)
        tables = self.local_tables if is_local else self.tables
        if tables is not None:
            rope, cos, sin = tables
            q, k = (blocks.rope(h, cos, sin, c.head_dim, style=rope.style, layout="bsm") for h in (q, k))
        bias = self.near if is_local else self.bias
        if c.relative_by_layer:
            bias = self._relative_bias(layer)
        if c.disentangled is not None:
            bias = self._disentangled_bias(c.disentangled, q, k, layer)
        attended = blocks.attention(
            q,
            k,
            v,
            bias,
            num_heads=c.heads,
            layout="bsm",
            mask_kind="none" if bias is None else "bias",
            score_scale=c.attention_scale,
            kv_len=self.lengths if bias is None else None,
        )
        return self.layers.linear(attended, "o", layer, c.hidden)

    def _feed_forward(self, x: Any, layer: int) -> Any:
        c = self.config
        if c.fused_gate_up:
            gate, up = split_last(self.layers.linear(x, "gate_up", layer, 2 * c.ffn), (c.ffn, c.ffn))
            return self.layers.linear(blocks.gated(c.activation, gate, up), "down", layer, c.hidden)
        if c.gated:
            up, gate = self.layers.linears(x, ("up", "gate"), layer, (c.ffn, c.ffn))
            inner = blocks.gated(c.activation, gate, up)
        else:
            inner = ops.activation(c.activation, self.layers.linear(x, "up", layer, c.ffn))
        return self.layers.linear(inner, "down", layer, c.hidden)

    def _pooled(self, x: Any, mode: PoolingMode) -> Any:
        """f32[B,D] from hidden states; padding does not count."""
        batch, _, width = x.shape
        if mode == "cls":
            return ops.reshape(ops.narrow(x, 1, 0, 1), (batch, width))
        if mode == "lasttoken":
            last = ops.maximum(ops.sub(self.lengths, 1), 0)
            return ops.gather_nd(x, ops.expand_dims(last, -1), axes=(1,), batch_dims=1)
        present = ops.expand_dims(self._is_token(), -1)
        if mode == "max":
            return ops.reduce_max(ops.where(present, x, -math.inf), (1,))
        if mode == "weightedmean":
            # Token i counts i + 1 times.
            places = ops.cast(ops.add(self._places(), 1), DType.F32)
            weights = ops.where(present, ops.expand_dims(places, -1), 0.0)
            return ops.div(ops.reduce_sum(ops.mul(x, weights), (1,)), ops.reduce_sum(weights, (1,)))
        total = ops.reduce_sum(ops.where(present, x, 0.0), (1,))
        count = ops.maximum(ops.cast(self.lengths, DType.F32), 1.0)
        return ops.div(total, ops.expand_dims(ops.sqrt(count) if mode == "mean_sqrt_len_tokens" else count, -1))

    def _is_head(self, name: str) -> bool:
        """Tensors of what stands on the encoder (poolers, heads), and of what the program makes itself. Of a classifier
        everything is needed but what it was trained with before."""
        base = self.layers.file.name("embed").split(".")[0] + "."
        is_outside = name.startswith(_OTHER_HEADS) if self.config.head is not None else not name.startswith(base)
        return is_outside or name.startswith(f"{base}pooler.") or name.endswith(".position_ids")


def _unit(x: Any) -> Any:
    """Rows of length 1."""
    norm = ops.sqrt(ops.reduce_sum(ops.mul(x, x), (-1,), keepdims=True))
    return ops.div(x, ops.maximum(norm, _TINY))
