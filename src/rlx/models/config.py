"""What a model is, in numbers: `DecoderConfig` for models that write text, `EncoderConfig` for models that embed it.

One class covers all families: a family is a set of values, never a branch on its name. `rlx.models.config_gguf` and
`rlx.models.config_hf` make them from what model files say.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rlx.errors import FormatError
from rlx.ops.nn.rotary import RopeStyle
from rlx.ops.pointwise.unary import ActivationKind

NormKind = Literal["rms", "layer"]
RopeScaling = Literal["default", "linear", "llama3", "yarn", "longrope"]


@dataclass(frozen=True)
class RopeConfig:
    """Rotary positions: `dims` features of each head turn by position·base^(-2i/dims), as `scaling` changes it.

    `factors` divide the frequencies (llama3 files give them ready; longrope has `long_factors` for caches that exceed
    `original_context`). See `rlx.models.rope_tables`.
    """

    base: float
    dims: int
    style: RopeStyle = RopeStyle.NeoX
    scaling: RopeScaling = "default"
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Refuse numbers for which the tables of `rlx.models.rope_tables` have no value."""
        given = {name: getattr(self, name) for name in ("base", "factor", "low_freq_factor", "high_freq_factor")}
        given |= {"beta_fast": self.beta_fast, "beta_slow": self.beta_slow}
        if self.attention_factor is not None:
            given["attention_factor"] = self.attention_factor
        for name, value in given.items():
            if not 0 < value < 1e30:
                raise FormatError(f"rotary positions: {name} must be a positive number, got {value}")
        if not all(0 < value < 1e30 for value in (*self.factors, *self.long_factors)):
            raise FormatError("rotary positions: the factors of frequencies must be positive numbers")
        least = 0 if self.scaling == "llama3" and self.factors else _LEAST_CONTEXT.get(self.scaling, 0)
        if self.original_context < least:
            raise FormatError(
                f"rotary positions: {self.scaling} needs an original context of at least {least}, "
                f"got {self.original_context}"
            )
        if self.scaling == "yarn" and self.base == 1:
            raise FormatError("rotary positions: yarn needs a base other than 1")
        if self.scaling == "llama3" and self.low_freq_factor == self.high_freq_factor:
            raise FormatError(
                f"rotary positions: llama3 needs two factors that differ, got {self.low_freq_factor} twice"
            )


# Logarithms of the original context are divided by (longrope), or taken (yarn).
_LEAST_CONTEXT: dict[str, int] = {"llama3": 1, "yarn": 1, "longrope": 2}


ExpertScore = Literal["softmax", "sigmoid"]


@dataclass(frozen=True)
class MoeConfig:
    """A feed-forward layer of `experts`, of which each token meets the `top_k` that its router scores highest.

    Weights are the scores, each a `score` of what the router says: the softmax over all experts, or a sigmoid of its
    own. With `corrected` a bias is added to the scores for choosing alone. Of `groups` of experts a token meets those
    of `top_groups`, which are judged by their best `group_judges` scores. With `renormalize` the weights of the chosen
    ones are made to add up to 1; then they are multiplied by `scale`.

    `shared_ffn` is the width of an expert that every token meets (0: none), with `shared_gate` weighted by a sigmoid.
    With a `swiglu_limit` l the inside of an expert is (u + 1)·g·sigmoid(`swiglu_slope`·g), of g up to l and u within
    ±l.
    """

    experts: int
    top_k: int
    ffn: int
    renormalize: bool
    score: ExpertScore = "softmax"
    corrected: bool = False
    groups: int = 1
    top_groups: int = 1
    group_judges: int = 1
    scale: float = 1.0
    shared_ffn: int = 0
    shared_gate: bool = True
    swiglu_limit: float | None = None
    swiglu_slope: float = 1.702
    dense_layers: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= self.experts:
            raise FormatError(f"experts: a token meets {self.top_k} of {self.experts}")
        size = self.experts // max(self.groups, 1)
        if self.groups < 1 or self.experts % self.groups or not 1 <= self.top_groups <= self.groups:
            raise FormatError(f"experts: {self.top_groups} of {self.groups} groups of {self.experts} experts")
        if self.groups > 1 and (self.top_groups * size < self.top_k or size < self.group_judges):
            raise FormatError(
                f"experts: {self.top_groups} groups of {size} experts are too small for {self.top_k} per token"
            )


@dataclass(frozen=True)
class LatentConfig:
    """Attention whose keys and values are made of one vector of `rank` features, and of `rope` features more that turn
    and that all heads share; queries of a head have `plain` features and `rope` that turn. With a `query_rank` queries
    are made of a vector of that length."""

    rank: int
    plain: int
    rope: int
    value: int
    query_rank: int = 0
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        check_sizes("latent attention", {n: getattr(self, n) for n in ("rank", "plain", "rope", "value")})


@dataclass(frozen=True)
class SsmConfig:
    """A state-space layer of `inner` features, each of which keeps `state` numbers of what was read, behind a
    convolution of `taps` tokens.

    In Mamba each of them decays for itself, by steps that are made of `rank` numbers; with `part_norm_eps` these, and
    what enters and leaves the states, are normalised first. In Mamba-2 all of one of the `heads` decay together, in
    steps within `step_limits`, and heads of one of the `groups` share what enters and leaves.
    """

    inner: int
    state: int
    taps: int
    rank: int = 0
    part_norm_eps: float | None = None
    heads: int = 0
    groups: int = 1
    step_limits: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        check_sizes("state space", {n: getattr(self, n) for n in ("inner", "state", "groups")})
        if self.taps < 2:
            raise FormatError(f"state space: convolutions are of 2 tokens or more, got {self.taps}")
        if self.heads and (self.inner % self.heads or self.heads % self.groups):
            raise FormatError(
                f"state space: {self.heads} heads in {self.groups} groups do not divide {self.inner} features"
            )
        if not self.heads and self.rank < 1:
            raise FormatError(f"state space: steps need a rank of at least 1, got {self.rank}")


@dataclass(frozen=True)
class DecoderConfig:
    """A causal language model.

    `windows[i]` is how many keys, its own included, a query of layer i sees; None is all of them. Layers with a window
    use `local_rope` where there is one, `no_rope_layers` none. Head h adds `alibi_slopes[h]` times the place of a key
    relative to the query, which is 0 or less, to its score.

    Norms stand before attention and feed-forward (`pre_norms`), behind them (`post_norms`), or both, or behind the sums
    (`sum_norms`); without `norm_affine` they have no weights. `qk_norm` normalises q and k head by head
    (`qk_norm_by_head`: with weights for each), after the rotation with `qk_norm_after_rope`, or as a whole
    (`qk_norm_whole`); q, k and v are first cut to ±`qkv_limit`.

    With `attention_sinks` each head has a logit for looking at nothing. With `latent` attention `head_dim` is what is
    kept of a token. With `parallel_residual` both halves of a layer read its input, with `shared_norm` by one norm.

    With `relative_buckets` a bias per head and bucket of distances is added to the scores, which each layer may have
    for itself (`relative_by_layer`). With `reads_source` each layer also attends to a text that an encoder has read.

    In the place of attention `recurrent_layers` have a state that each token changes: that of `ssm`, or the last inputs
    of a convolution of `short_conv` tokens. Models with an `ffn` of 0 have no feed-forward halves.

    Learned positions begin at row `position_offset`. Embeddings may have an `embed_width` of their own (0: they have
    none). Files may hold `extra_layers` behind the last one, which guess further tokens, and which nothing here reads.
    """

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context: int
    norm: NormKind = "rms"
    norm_eps: float = 1e-6
    norm_affine: bool = True
    activation: ActivationKind = ActivationKind.Silu
    squared_activation: bool = False
    gated: bool = True
    rope: RopeConfig | None = None
    local_rope: RopeConfig | None = None
    alibi_slopes: tuple[float, ...] = ()
    no_rope_layers: frozenset[int] = frozenset()
    learned_positions: bool = False
    position_offset: int = 0
    windows: tuple[int | None, ...] = ()
    attention_scale: float | None = None
    attention_softcap: float | None = None
    attention_sinks: bool = False
    final_softcap: float | None = None
    qk_norm: bool = False
    qk_norm_whole: bool = False
    qk_norm_by_head: bool = False
    qk_norm_after_rope: bool = False
    qkv_limit: float | None = None
    pre_norms: bool = True
    post_norms: bool = False
    sum_norms: bool = False
    parallel_residual: bool = False
    shared_norm: bool = False
    fused_qkv: bool = False
    fused_gate_up: bool = False
    tied: bool = False
    embed_norm: bool = False
    embed_width: int = 0
    final_norm: bool = True
    embed_scale: float = 1.0
    residual_multiplier: float = 1.0
    logit_multiplier: float = 1.0
    moe: MoeConfig | None = None
    latent: LatentConfig | None = None
    recurrent_layers: frozenset[int] = frozenset()
    ssm: SsmConfig | None = None
    short_conv: int = 0
    extra_layers: int = 0
    relative_buckets: int = 0
    relative_max_distance: int = 128
    relative_by_layer: bool = False
    reads_source: bool = False

    def __post_init__(self) -> None:
        sizes = {n: getattr(self, n) for n in ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "context")}
        check_sizes(self.family, sizes)
        if self.heads % self.kv_heads:
            raise FormatError(f"{self.family}: {self.heads} heads are not a multiple of {self.kv_heads} key heads")
        if self.windows and len(self.windows) != self.layers:
            raise FormatError(f"{self.family}: {len(self.windows)} attention windows for {self.layers} layers")
        if any(w is not None and w < 1 for w in self.windows):
            raise FormatError(f"{self.family}: an attention window must be at least 1, got {list(self.windows)}")
        if self.recurrent_layers and self.ssm is None and self.short_conv < 2:
            raise FormatError(f"{self.family}: convolutions are of 2 tokens or more, got {self.short_conv}")
        if len(self.alibi_slopes) not in (0, self.heads):
            raise FormatError(f"{self.family}: {len(self.alibi_slopes)} slopes of distances for {self.heads} heads")
        for rope in (self.rope, self.local_rope):
            if rope is not None and (rope.dims % 2 or not 0 < rope.dims <= self.head_dim or rope.base <= 0):
                raise FormatError(
                    f"{self.family}: rotary positions of {rope.dims} features, base {rope.base}, "
                    f"do not fit heads of {self.head_dim}"
                )

    def window(self, layer: int) -> int | None:
        return self.windows[layer] if self.windows else None

    def is_sparse(self, layer: int) -> bool:
        """Whether the feed-forward part of `layer` is made of experts."""
        return self.moe is not None and layer not in self.moe.dense_layers


PoolingMode = Literal["mean", "cls", "max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens"]


@dataclass(frozen=True)
class DenseConfig:
    """A linear layer behind the pooling, and what is done to its result; its weights lie in a `folder` of their own."""

    folder: str
    inputs: int
    outputs: int
    activation: ActivationKind | None = None

    def __post_init__(self) -> None:
        check_sizes("Dense", {"in_features": self.inputs, "out_features": self.outputs})


@dataclass(frozen=True)
class DisentangledConfig:
    """Attention that also scores what a query makes of the place of a key (`of_keys`), and what the key makes of the
    place of the query (`of_queries`).

    There are 2·`span` places; with `buckets`, far ones are shared by distances up to `max_distance`. They
    have a norm of their own (`norm`), and with `shared` the projections of the words.
    """

    span: int
    max_distance: int
    buckets: int = 0
    of_keys: bool = True
    of_queries: bool = True
    shared: bool = True
    norm: bool = True


@dataclass(frozen=True)
class HeadConfig:
    """What a classifier makes of hidden states: scores of `labels` for each text, or with `of_tokens` for each token.

    Of a text it reads the first token, or with `reads_mean` the mean of all. With `dense` a linear layer comes first,
    with an activation, and with `norm` a norm behind it. Labels exclude each other, unless there are `several`.
    """

    labels: tuple[str, ...]
    of_tokens: bool = False
    reads_mean: bool = False
    dense: bool = False
    activation: ActivationKind | None = None
    norm: bool = False
    several: bool = False


@dataclass(frozen=True)
class EncoderConfig:
    """A bidirectional encoder of the BERT family.

    Embeddings may have an `embed_width` of their own, from which a linear layer leads to `hidden` (0: they have none);
    they are normalised with `embed_norm`, before that layer or behind it (`norm_behind_project`). Learned positions are
    a table of `table_rows` rows, used from `position_offset` on (RoBERTa: padding id + 1). With `relative_buckets` a
    bias per head and bucket of distances is added to the scores (MPNet), which each layer may have for itself
    (`relative_by_layer`). `rope` replaces learned positions (NomicBERT). Norms stand after each residual, or with
    `pre_norms` before each half of a layer and once at the end (ModernBERT). In layers for which `is_local` holds,
    tokens see those up to `local_reach` away, and turn by `local_rope`.

    Heads are `head_width` wide (0: together as wide as the layers). Of classifiers, `head` says what stands on it.
    """

    family: str
    layers: int
    hidden: int
    heads: int
    ffn: int
    vocab: int
    context: int
    head_width: int = 0
    table_rows: int = 0
    embed_width: int = 0
    embed_scale: float = 1.0
    norm: NormKind = "layer"
    norm_eps: float = 1e-12
    activation: ActivationKind = ActivationKind.Gelu
    gated: bool = False
    rope: RopeConfig | None = None
    learned_positions: bool = True
    position_offset: int = 0
    token_types: int = 0
    relative_buckets: int = 0
    relative_max_distance: int = 128
    relative_by_layer: bool = False
    disentangled: DisentangledConfig | None = None
    attention_scale: float | None = None
    fused_qkv: bool = False
    fused_gate_up: bool = False
    pre_norms: bool = False
    norm_behind_project: bool = False
    embed_norm: bool = True
    local_reach: int = 0
    local_rope: RopeConfig | None = None
    local_layers: frozenset[int] = frozenset()
    pad_id: int = 0
    pooling: tuple[PoolingMode, ...] = field(default=())
    dense: tuple[DenseConfig, ...] = ()
    normalize: bool = False
    head: HeadConfig | None = None

    def __post_init__(self) -> None:
        check_sizes(
            self.family, {n: getattr(self, n) for n in ("layers", "hidden", "heads", "ffn", "vocab", "context")}
        )
        if self.hidden % self.heads and not self.head_width:
            raise FormatError(f"{self.family}: {self.heads} heads do not divide a width of {self.hidden}")
        for rope in (self.rope, self.local_rope):
            if rope is not None and (rope.dims % 2 or not 0 < rope.dims <= self.head_dim):
                raise FormatError(f"{self.family}: rotary positions of {rope.dims} features do not fit its heads")
        width = self.hidden * len(self.pooling)
        for dense in self.dense:
            if dense.inputs != width:
                raise FormatError(f"{self.family}: {dense.folder} reads {dense.inputs} features, and there are {width}")
            width = dense.outputs

    @property
    def dimension(self) -> int:
        """The length of a vector."""
        return self.dense[-1].outputs if self.dense else self.hidden * len(self.pooling)

    @property
    def head_dim(self) -> int:
        return self.head_width or self.hidden // self.heads

    def is_local(self, layer: int) -> bool:
        return layer in self.local_layers


@dataclass(frozen=True)
class Seq2SeqConfig:
    """A model that reads a text with an encoder, and writes another with a decoder, which begins with the token `start`
    and then with `first`, where there are any. Tokens of `never` are not written."""

    encoder: EncoderConfig
    decoder: DecoderConfig
    start: int
    first: tuple[int, ...] = ()
    never: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        wrong = next((t for t in (self.start, *self.first, *self.never) if not 0 <= t < self.decoder.vocab), None)
        if wrong is not None:
            raise FormatError(f"token {wrong} is not one of the {self.decoder.vocab} tokens of this model")


# More than any model has: a file that says more is damaged, and must not make anybody build lists of that length.
MAX_LAYERS = 4096


def checked_layers(count: int) -> int:
    """A number of layers that a model can have."""
    if not 1 <= count <= MAX_LAYERS:
        raise FormatError(f"a model has from 1 to {MAX_LAYERS} layers, got {count}")
    return count


def check_sizes(family: str, sizes: dict[str, int]) -> None:
    """Refuse sizes that no model can have, before anything is allocated for them."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size < 2**31:
            raise FormatError(f"{family}: {name} must be a whole number from 1 on, got {size!r}")
