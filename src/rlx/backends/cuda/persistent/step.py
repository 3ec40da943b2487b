"""`Step`: one token of every sequence through a decoder, in the words of models.

`matching` finds it in a program; `plan` shares it out. Weights, caches and tables are names of inputs and params of the
program.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from rlx.quant.schemes import QuantScheme


class Unfit(Exception):
    """A program that is no decode step of this form; the text says what does not fit."""


class Norm(NamedTuple):
    """Over a whole vector, or over each head. Without `is_rms` its mean is subtracted first."""

    gain: str
    eps: float
    is_rms: bool = True
    shift: str = ""


class Rows(NamedTuple):
    """`height` rows from `first` on of a weight [n, depth], and what is added to their products. With a scheme the
    weight is panels (`rlx.quant.panels`)."""

    weight: str
    first: int
    height: int
    depth: int
    bias: str = ""
    bias_first: int = 0
    scheme: QuantScheme | None = None


class Rope(NamedTuple):
    """Tables [positions, pairs] by which the first 2·pairs elements of a head turn: element i with i + pairs, or with
    its neighbour."""

    cos: str
    sin: str
    pairs: int
    is_split: bool = True


class Layer(NamedTuple):
    """x += out(attention(norm(x))), then x += down(activation(gate(norm(x))) · up(norm(x))); where there are norms
    behind the halves, what is added is normed."""

    attention_norm: Norm | None
    q: Rows
    k: Rows
    v: Rows
    keys: str
    values: str
    out: Rows
    ffn_norm: Norm | None
    up: Rows
    down: Rows
    gate: Rows | None = None
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    rope: Rope | None = None
    window: int | None = None
    post_attention_norm: Norm | None = None
    post_ffn_norm: Norm | None = None


Activation = Literal["silu", "gelu_tanh", "relu", "sigmoid"]


class Step(NamedTuple):
    """`scale` is what scores are multiplied by. Keys before its own that a query sees are those of the window."""

    element: str  # "bf16" or "f16": weights that are no panels, caches, and operands of products
    tokens: str
    positions: str
    lengths: str
    embed: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: tuple[Layer, ...]
    final_norm: Norm | None
    head: Rows
    scale: float
    softcap: float | None = None
    activation: Activation = "silu"
    embed_scale: float = 1.0
    embed_scheme: QuantScheme | None = None
    logit_scale: float = 1.0
    logit_softcap: float | None = None

    @property
    def group(self) -> int:
        """Heads of q that share one of k."""
        return self.heads // self.kv_heads
