"""The program of a causal language model: one graph that serves prefill, decode, batches and every length.

It is written in HIR blocks and handed out lowered.

Inputs, with B sequences, S new tokens each, a cache of capacity C, and R rows of logits asked for:

    tokens     i32[B,S]          positions  i32[B,S]   where each token stands
    kv_len     i32[B]            keys that are valid after this step
    rows       i32[B,R]          which of the S tokens logits are wanted of
    rope.cos, rope.sin f32[C,D/2]   (and rope.local.cos, rope.local.sin)
    k.0, v.0, k.1, ...           caches [B,Hkv,C,D], returned updated and aliased
    k.0.scale, v.0.scale, ...    with q8 caches f32[B,Hkv,C]: what each row of codes is multiplied by
    conv.0, ssm.0, ...           of layers that keep a state instead: see `rlx.models.recurrent`
    buckets    i32[C]            with relative positions: the bucket of each distance
    pictures   f32[N,D]          where pictures may stand in texts: rows that are read in the place of words,
    seen       i32[B,S]          and which of them each token is, -1 for words
    source_len i32[B]            where an encoder has read a text: its length, and what each layer makes of it
    source.k.0, source.v.0, ...  f32[B,Hkv,E,D]

Outputs: logits f32[B,R,V], then the caches in the order of the inputs. Sequences of different lengths are padded on
the right: padding stands behind the real tokens, where `kv_len` hides it until real tokens overwrite it.

Without caches the inputs are `tokens`, `positions`, `rows` and the tables alone, and the only output is the first; with
adapters that drop inputs there is also `dropout_key` u32[2].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlx import ops
from rlx.hir import functions as blocks
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ir.module import HirModule
from rlx.ir.provenance import named_scope, written_as
from rlx.models.adapters import Adapter
from rlx.models.config import DecoderConfig, LatentConfig, RopeConfig
from rlx.models.experts import routed
from rlx.models.layers import Layers, append_to_cache, quantized_rows, split_last
from rlx.models.recurrent import RecurrentLayers
from rlx.models.weights import Weight, WeightFile
from rlx.ops.attn.operands import MaskKind
from rlx.ops.define.operands import same_graph
from rlx.ops.lowered.int8_products import ACTIVATIONS

if TYPE_CHECKING:
    from rlx.models.layouts import ValuePlaces

# Endings of tensors that hold tables or masks which the program makes itself.
_NOT_WEIGHTS = (
    ".rotary_emb.inv_freq",
    ".attn.bias",
    ".attn.masked_bias",
    ".attention.bias",
    ".attention.masked_bias",
    "rope_freqs.weight",
    "rope_factors_long.weight",
    "rope_factors_short.weight",
)


class DecoderProgram(NamedTuple):
    """A graph, the weights that its params need, and the inputs that hold its caches."""

    graph: Graph
    weights: dict[str, Weight]
    caches: tuple[str, ...]


# How caches are kept; i8 has a scale for each row.
KV_DTYPES = {"f32": DType.F32, "f16": DType.F16, "bf16": DType.BF16, "q8": DType.I8}
# How values between layers are kept: in floats, or as codes where stored weights are multiplied by them.
MODEL_ACTIVATIONS = (*ACTIVATIONS, "bf16", "f16")


def build_decoder(
    config: DecoderConfig,
    file: WeightFile,
    kv_dtype: DType | None = DType.F32,
    gives_states: bool = False,
    adapters: Sequence[Adapter] = (),
    places: ValuePlaces | None = None,
    cuts_rows: bool = False,
    reads_pictures: bool = False,
    labels: int = 0,
) -> DecoderProgram:
    """The program of `config` on the weights of `file` and `adapters`, with caches of `kv_dtype`. With `gives_states`
    its first output is not the logits, but the hidden states f32[B,R,D] that logits are made of.

    With `kv_dtype=None` there are no caches: every sequence is read from its beginning, as in training. `places` say
    where the values between layers lie in a program that is divided over devices. With `cuts_rows` the feed forward of
    the last layer computes only the rows that are asked for, as nothing behind it needs others: less work for long
    texts. Machines that run a decode step as one kernel want all layers alike. With `reads_pictures` rows of pictures
    may stand in the place of words. With `labels` the first output is the scores f32[B,R,labels] of a classifier."""
    return _Decoder(config, file, kv_dtype, adapters, places, cuts_rows, reads_pictures).build(gives_states, labels)


class _Decoder:
    def __init__(
        self,
        config: DecoderConfig,
        file: WeightFile,
        kv_dtype: DType | None,
        adapters: Sequence[Adapter],
        places: ValuePlaces | None,
        cuts_rows: bool = False,
        reads_pictures: bool = False,
    ) -> None:
        self.config, self.kv_dtype, self.value_places = config, kv_dtype, places
        # The layer whose feed forward has the rows that are asked for.
        self.cut_layer = config.layers - 1 if cuts_rows and config.ffn else None
        self.graph = HirModule(config.family)
        self.layers = Layers(self.graph, file, adapters)
        self.tokens = self.graph.input("tokens", ("B", "S"), DType.I32)
        self.positions = self.graph.input("positions", ("B", "S"), DType.I32)
        self.kv_len = None if kv_dtype is None else self.graph.input("kv_len", ("B",), DType.I32)
        self.places = ops.expand_dims(self.positions, -1)
        self.rows = self.graph.input("rows", ("B", "R"), DType.I32)
        if kv_dtype is None and any(adapter.dropout for adapter in adapters):
            self.layers.dropout_key = self.graph.input("dropout_key", (2,), DType.U32)
        self.pictures: tuple[Any, Any] | None = None
        if reads_pictures:
            rows = self.graph.input("pictures", ("N", config.hidden), DType.F32)
            self.pictures = rows, self.graph.input("seen", ("B", "S"), DType.I32)
        self.rope = self._tables("rope", config.rope)
        self.local_rope = self._tables("rope.local", config.local_rope) or self.rope
        self.buckets = self.graph.input("buckets", ("C",), DType.I32) if config.relative_buckets else None
        shares_bias = config.relative_buckets and not config.relative_by_layer
        self.bias = self._alibi() if config.alibi_slopes else self._relative(None) if shares_bias else None
        self.source_len = self.graph.input("source_len", ("B",), DType.I32) if config.reads_source else None
        self.caches: dict[str, Any] = {}
        self.recurrent = (
            RecurrentLayers(config, self.graph, self.layers, self.positions, self.kv_len, self.caches)
            if config.recurrent_layers
            else None
        )

    def _distances(self) -> Any:
        """i32[B,1,S,C]: the place of each key relative to a query, which is above 0 for keys ahead of it."""
        batch, seq = self.tokens.shape
        with same_graph(self.tokens):
            keys = ops.iota((1, 1, 1, "C" if self.kv_dtype is not None else seq), DType.I32, 3)
        return ops.sub(keys, ops.reshape(self.positions, (batch, 1, seq, 1)))

    def _alibi(self) -> Any:
        """f32[B,H,S,C]: what the distance from a query back to a key adds to its score, -inf for keys ahead of it."""
        heads, distance = len(self.config.alibi_slopes), self._distances()
        slopes = self.graph.constant(np.array(self.config.alibi_slopes, np.float32).reshape(1, heads, 1, 1))
        return ops.where(ops.le(distance, 0), ops.mul(ops.cast(distance, DType.F32), slopes), -math.inf)

    def _relative(self, layer: int | None) -> Any:
        """The same by a table with a number for each head and bucket of distances."""
        c, distance = self.config, self._distances()
        name = self.layers.file.name("relative_bias", layer)
        table = self.layers.table(f"{name}.weight", (c.relative_buckets, c.heads))
        # A row of each distance that there may be, [C,H], so that little is looked up for each pair.
        by_distance = ops.gather(table, self.buckets)
        batch, _, seq, keys = distance.shape
        back = ops.reshape(ops.maximum(ops.neg(distance), 0), (batch, seq, keys))
        found = ops.transpose(ops.gather(by_distance, back), (0, 3, 1, 2))
        return ops.where(ops.le(distance, 0), found, -math.inf)

    def _tables(self, name: str, rope: RopeConfig | None) -> tuple[RopeConfig, Any, Any] | None:
        if rope is None:
            return None
        cos, sin = (self.graph.input(f"{name}.{part}", ("C", rope.dims // 2), DType.F32) for part in ("cos", "sin"))
        return rope, cos, sin

    def build(self, gives_states: bool = False, labels: int = 0) -> DecoderProgram:
        c = self.config
        with named_scope("embedding"):
            x = self._placed(self._embedded())
        for layer in range(c.layers):
            with named_scope(f"layer {layer}"):
                x = self._placed(self._layer(x, layer))
        with named_scope("head"):
            wanted = x if self.cut_layer is not None else self._wanted(x)
            if self.value_places is not None:
                wanted = self.value_places.of_rows(wanted)
            states = self._norm(wanted, "final_norm", None) if c.final_norm else wanted
            if labels:
                result, gives_states = self.layers.linear(states, "score", None, labels), True
            else:
                result = states if gives_states else self._logits(states)
            if self.value_places is not None:
                result = self.value_places.of_result(result if gives_states else self.value_places.of_logits(result))
        head = f"{self.layers.file.name('head')}."
        self.layers.file.refuse_unused(lambda n: self._is_no_weight(n) or (gives_states and n.startswith(head)))
        self.graph.set_outputs([result, *self.caches.values()])
        for name, updated in self.caches.items():
            self.graph.alias(updated, name)
        return DecoderProgram(self.layers.lowered(), self.layers.weights, tuple(self.caches))

    def _wanted(self, x: Any) -> Any:
        """The rows [B,R,..] of [B,S,..] that are asked for."""
        return ops.gather_nd(x, ops.expand_dims(self.rows, -1), axes=(1,), batch_dims=1)

    def _placed(self, x: Any) -> Any:
        return x if self.value_places is None else self.value_places.of_hidden(x)

    def _embedded(self) -> Any:
        c = self.config
        x = self.layers.embedding(self.tokens, "embed", c.vocab, c.embed_width or c.hidden)
        if c.embed_width:
            x = self.layers.linear(x, "embed_project", None, c.hidden)
        if c.embed_scale != 1.0:
            x = ops.mul(x, c.embed_scale)
        if self.pictures is not None:
            rows, seen = self.pictures
            x = ops.where(ops.expand_dims(ops.ge(seen, 0), -1), ops.gather(rows, ops.maximum(seen, 0)), x)
        if c.learned_positions:
            # Padding may stand behind the last position that there is.
            places = ops.minimum(self.positions, c.context - 1)
            if c.position_offset:
                places = ops.add(places, c.position_offset)
            x = ops.add(x, self.layers.embedding(places, "positions", c.context + c.position_offset, c.hidden))
        return self._norm(x, "embed_norm", None) if c.embed_norm else x

    def _layer(self, x: Any, layer: int) -> Any:
        c, given = self.config, x
        with named_scope("attention"):
            read = self._before(given, "attn_norm", layer)
            x = self._residual(x, self._mixed(read, layer), "post_attn_norm", layer)
            if c.sum_norms:
                x = self._norm(x, "attn_norm", layer)
        if c.reads_source:
            with named_scope("source"):
                x = self._residual(
                    x, self._source(self._before(x, "source_norm", layer), layer), "post_source_norm", layer
                )
                x = self._norm(x, "source_norm", layer) if c.sum_norms else x
        if not c.ffn:
            return x
        with named_scope("feed forward"):
            if layer == self.cut_layer:
                given, read, x = map(self._wanted, (given, read, x))
            if not c.shared_norm:
                read = self._before(given if c.parallel_residual else x, "ffn_norm", layer)
            x = self._residual(x, self._feed_forward(read, layer), "post_ffn_norm", layer)
            return self._norm(x, "ffn_norm", layer) if c.sum_norms else x

    def _mixed(self, read: Any, layer: int) -> Any:
        """What tokens learn of those before them."""
        c = self.config
        if self.recurrent is not None and layer in c.recurrent_layers:
            return self.recurrent.mixed(read, layer)
        return self._latent(read, layer, c.latent) if c.latent is not None else self._attention(read, layer)

    def _norm(self, x: Any, role: str, layer: int | None, heads: int = 0) -> Any:
        c = self.config
        return self.layers.norm(x, role, layer, c.norm, c.norm_eps, c.norm_affine, heads)

    def _source(self, x: Any, layer: int) -> Any:
        """Attention to what an encoder has read."""
        c, (batch, seq) = self.config, self.tokens.shape
        q = self.layers.linear(x, "source_q", layer, c.heads * c.head_dim)
        queries = ops.transpose(ops.reshape(q, (batch, seq, c.heads, c.head_dim)), (0, 2, 1, 3))
        keys, values = (
            self.graph.input(f"source.{part}.{layer}", ("B", c.kv_heads, "E", c.head_dim), DType.F32) for part in "kv"
        )
        attended = blocks.attention(
            queries,
            keys,
            values,
            layout="bhsd",
            mask_kind="none",
            score_scale=c.attention_scale,
            kv_len=self.source_len,
        )
        return self._projected(attended, layer, "source_o")

    def _head_norms(self, q: Any, k: Any, layer: int) -> tuple[Any, Any]:
        heads, kv_heads = (self.config.heads, self.config.kv_heads) if self.config.qk_norm_by_head else (0, 0)
        return self._norm(q, "q_norm", layer, heads), self._norm(k, "k_norm", layer, kv_heads)

    def _before(self, x: Any, role: str, layer: int) -> Any:
        """What a half of a layer reads."""
        return self._norm(x, role, layer) if self.config.pre_norms else x

    def _residual(self, x: Any, y: Any, post_norm: str, layer: int) -> Any:
        if self.config.post_norms:
            y = self._norm(y, post_norm, layer)
        if self.config.residual_multiplier != 1.0:
            y = ops.mul(y, self.config.residual_multiplier)
        with written_as("residual"):
            return ops.add(x, y)

    def _attention(self, x: Any, layer: int) -> Any:
        c = self.config
        q, k, v = self._qkv(x, layer)
        if c.qk_norm and not c.qk_norm_after_rope:
            q, k = self._head_norms(q, k, layer)
        window = c.window(layer)
        tables = self.rope if window is None else self.local_rope
        if tables is not None and layer not in c.no_rope_layers:
            rope, cos, sin = tables
            q, k = (
                blocks.rope(h, cos, sin, c.head_dim, rope.dims, self.positions, style=rope.style, layout="bshd")
                for h in (q, k)
            )
        if c.qk_norm and c.qk_norm_after_rope:
            q, k = self._head_norms(q, k, layer)
        queries = ops.transpose(q, (0, 2, 1, 3))
        return self._projected(
            self._attended(queries, self._cached(f"k.{layer}", k), self._cached(f"v.{layer}", v), layer), layer
        )

    def _attended(self, queries: Any, keys: tuple[Any, ...], values: tuple[Any, ...], layer: int) -> Any:
        """[B,H,S,D] of queries [B,H,S,D], and of keys and values as `_cached` gives them."""
        c, window = self.config, self.config.window(layer)
        scales = (*keys[1:], *values[1:])
        options: dict[str, Any] = {
            "layout": "bhsd",
            "score_scale": c.attention_scale,
            "softcap": c.attention_softcap,
            "kv_len": self.kv_len,
        }
        bias = self._relative(layer) if c.relative_by_layer else self.bias
        if bias is not None:
            return blocks.attention(queries, keys[0], values[0], bias, scales=scales, mask_kind="bias", **options)
        # The op counts the keys before the query, files count the query's own key too.
        options["mask_kind"] = MaskKind.Causal if window is None else MaskKind.SlidingWindow(window - 1)
        options["positions"] = None if self.kv_dtype is None else self.positions
        if c.attention_sinks:
            sinks = self.layers.vector(f"{self.layers.file.name('sinks', layer)}.weight", c.heads)
            named = dict(zip(("k_scale", "v_scale"), scales))
            return ops.attention(queries, keys[0], values[0], sinks=sinks, **named, **options)
        return blocks.attention(queries, keys[0], values[0], scales=scales, **options)

    def _projected(self, attended: Any, layer: int, role: str = "o") -> Any:
        """What the layer adds, of attended heads [B,H,S,D]."""
        batch, heads, seq, width = attended.shape
        joined = ops.reshape(ops.transpose(attended, (0, 2, 1, 3)), (batch, seq, heads * width))
        return self.layers.linear(joined, role, layer, self.config.hidden)

    def _latent(self, x: Any, layer: int, latent: LatentConfig) -> Any:
        """Attention on vectors that keys and values are made of. They are never made: queries are taken to where the
        vectors are, q·(W·c) = (Wᵀ·q)·c, and what is attended is taken from there. One head of vectors serves all."""
        c, (batch, seq) = self.config, self.tokens.shape
        rank, width = latent.rank, latent.plain + latent.rope
        if latent.query_rank:
            low = self.layers.linear(x, "q_low", layer, latent.query_rank)
            low = self.layers.norm(low, "q_low_norm", layer, "rms", latent.norm_eps)
            q = self.layers.linear(low, "q_high", layer, c.heads * width)
        else:
            q = self.layers.linear(x, "q", layer, c.heads * width)
        plain, turned = split_last(ops.reshape(q, (batch, seq, c.heads, width)), (latent.plain, latent.rope))
        vectors, shared = split_last(self.layers.linear(x, "kv_low", layer, rank + latent.rope), (rank, latent.rope))
        vectors = self.layers.norm(vectors, "kv_low_norm", layer, "rms", latent.norm_eps)
        shared = ops.reshape(shared, (batch, seq, 1, latent.rope))
        if self.rope is not None:
            rope, cos, sin = self.rope
            turned, shared = (
                blocks.rope(h, cos, sin, latent.rope, rope.dims, self.positions, style=rope.style, layout="bshd")
                for h in (turned, shared)
            )
        whole = self.layers.table(
            f"{self.layers.file.name('kv_high', layer)}.weight", (c.heads * (latent.plain + latent.value), rank)
        )
        by_head = ops.reshape(whole, (c.heads, latent.plain + latent.value, rank))
        to_keys, to_values = (
            ops.narrow(by_head, 1, 0, latent.plain),
            ops.narrow(by_head, 1, latent.plain, latent.value),
        )
        taken = ops.matmul(ops.transpose(plain, (0, 2, 1, 3)), to_keys)
        queries = ops.concat([taken, ops.transpose(turned, (0, 2, 1, 3))], -1)
        kept = self._cached(f"k.{layer}", ops.concat([ops.reshape(vectors, (batch, seq, 1, rank)), shared], -1))
        attended = ops.narrow(self._attended(queries, kept, kept, layer), -1, 0, rank)
        return self._projected(ops.matmul(attended, ops.transpose(to_values, (0, 2, 1))), layer)

    def _qkv(self, x: Any, layer: int) -> list[Any]:
        """q [B,S,H,D], k and v [B,S,Hkv,D]."""
        c = self.config
        counts = (c.heads, c.kv_heads, c.kv_heads)
        widths = tuple(n * c.head_dim for n in counts)
        if c.fused_qkv:
            parts = split_last(self.layers.linear(x, "qkv", layer, sum(widths)), widths)
        else:
            parts = self.layers.linears(x, "qkv", layer, widths)
        if c.qkv_limit is not None:
            parts = [ops.clamp(p, -c.qkv_limit, c.qkv_limit) for p in parts]
        if c.qk_norm_whole:
            parts[:2] = [self._norm(p, role, layer) for p, role in zip(parts, ("q_norm", "k_norm"))]
        batch, seq = self.tokens.shape
        return [ops.reshape(p, (batch, seq, n, c.head_dim)) for p, n in zip(parts, counts)]

    def _cached(self, name: str, new: Any) -> tuple[Any, ...]:
        """All keys or values [B,Hkv,C,D] as they are stored, with the new ones [B,S,Hkv,D] appended, and the scales
        [B,Hkv,C] of their rows if they are codes; attention reads them so."""
        if self.kv_dtype is None:
            return (ops.transpose(new, (0, 2, 1, 3)),)
        if self.kv_dtype is not DType.I8:
            return (self._append(name, new, self.kv_dtype, (self.config.head_dim,)),)
        codes, scale = quantized_rows(new)
        all_codes = self._append(name, codes, DType.I8, (self.config.head_dim,))
        return all_codes, self._append(f"{name}.scale", scale, DType.F32, ())

    def _append(self, name: str, new: Any, dtype: DType, rest: tuple[int, ...]) -> Any:
        cache = self.graph.input(name, ("B", self.config.kv_heads, "C", *rest), dtype)
        self.caches[name] = append_to_cache(cache, new, self.places)
        return self.caches[name]

    def _feed_forward(self, x: Any, layer: int) -> Any:
        c = self.config
        if c.is_sparse(layer):
            return self._experts(x, layer)
        if c.fused_gate_up:
            gate, up = split_last(self.layers.linear(x, "gate_up", layer, 2 * c.ffn), (c.ffn, c.ffn))
            return self.layers.linear(self._gated(gate, up), "down", layer, c.hidden)
        return self._dense(x, layer, "", c.ffn)

    def _dense(self, x: Any, layer: int, prefix: str, width: int) -> Any:
        c = self.config
        if c.gated:
            up, gate = self.layers.linears(x, (f"{prefix}up", f"{prefix}gate"), layer, (width, width))
            inner = self._gated(gate, up)
        else:
            inner = self._activated(self.layers.linear(x, f"{prefix}up", layer, width))
        return self.layers.linear(inner, f"{prefix}down", layer, c.hidden)

    def _activated(self, x: Any) -> Any:
        y = ops.activation(self.config.activation, x)
        return ops.mul(y, y) if self.config.squared_activation else y

    def _gated(self, gate: Any, up: Any) -> Any:
        c = self.config
        return ops.mul(self._activated(gate), up) if c.squared_activation else blocks.gated(c.activation, gate, up)

    def _experts(self, x: Any, layer: int) -> Any:
        """Σ over the chosen experts of weight · down(act(gate(x)) · up(x)), plus that of the shared expert if any."""
        moe = self.config.moe
        assert moe is not None
        batch, seq, hidden = x.shape
        chosen, weights = routed(self.layers, moe, x, layer)
        ids = ops.reshape(chosen, (batch * seq * moe.top_k,))
        repeated = ops.broadcast_to(ops.expand_dims(x, 2), (batch, seq, moe.top_k, hidden))
        flat = ops.reshape(repeated, (batch * seq * moe.top_k, hidden))
        gate, up = (
            self.layers.expert_product(flat, role, layer, moe.experts, moe.ffn, ids)
            for role in ("experts_gate", "experts_up")
        )
        inner = self._inside_expert(gate, up)
        down = self.layers.expert_product(inner, "experts_down", layer, moe.experts, hidden, ids)
        each = ops.reshape(down, (batch, seq, moe.top_k, hidden))
        y = ops.reduce_sum(ops.mul(each, ops.expand_dims(weights, -1)), (2,))
        if moe.shared_ffn:
            shared = self._dense(x, layer, "shared_", moe.shared_ffn)
            if moe.shared_gate:
                shared = ops.mul(ops.sigmoid(self.layers.linear(x, "shared_router", layer, 1)), shared)
            y = ops.add(y, shared)
        return y

    def _inside_expert(self, gate: Any, up: Any) -> Any:
        moe = self.config.moe
        if moe is None or moe.swiglu_limit is None:
            return self._gated(gate, up)
        limit = moe.swiglu_limit
        gate, up = ops.minimum(gate, limit), ops.clamp(up, -limit, limit)
        return ops.mul(ops.add(up, 1.0), ops.mul(gate, ops.sigmoid(ops.mul(gate, moe.swiglu_slope))))

    def _logits(self, x: Any) -> Any:
        c = self.config
        if c.embed_width:
            x = self.layers.linear(x, "head_project", None, c.embed_width)
        logits = self.layers.linear(x, "embed" if c.tied else "head", None, c.vocab)
        if c.tied and self.layers.file.has("head", part="bias"):
            logits = ops.add(logits, self.layers.vector(f"{self.layers.file.name('head')}.bias", c.vocab))
        if c.logit_multiplier != 1.0:
            logits = ops.mul(logits, c.logit_multiplier)
        if c.final_softcap is not None:
            logits = ops.mul(ops.tanh(ops.div(logits, c.final_softcap)), c.final_softcap)
        return logits

    def _is_no_weight(self, name: str) -> bool:
        """Files of tied models may hold the head a second time, others layers that guess further tokens."""
        c = self.config
        is_copy = c.tied and name == f"{self.layers.file.name('head')}.weight"
        if c.extra_layers:
            numbers = range(c.layers, c.layers + c.extra_layers)
            is_copy |= name.startswith(tuple(f"{self.layers.file.layer_prefix}{i}." for i in numbers))
        return is_copy or name.endswith(_NOT_WEIGHTS)
