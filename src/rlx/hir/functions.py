"""Blocks by functions, as `rlx.ops` has ops: each appends one block to the module that its operands belong to.

    m = HirModule("layer")
    x, w, gamma = m.input("x", ("B", 8)), m.param("w", (4, 8)), m.param("gamma", (8,))
    y = linear(rms_norm(x, gamma, np.zeros(8, "f4")), w, transposed=True)

The models of `rlx.models` are written in these. Lowered with the policy `Fusable`, each is the ops of the function of
the same name in `rlx.ops`. Reports call what becomes of a block by its name here, or by what `written_as` says.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rlx.hir.blocks import (
    HirAttention,
    HirDequantMatMul,
    HirGated,
    HirLayerNorm,
    HirRmsNorm,
    HirRoPE,
    Linear,
)
from rlx.ir.provenance import is_written, written_as
from rlx.ops.attn.attention import build_attention
from rlx.ops.attn.operands import AttentionLayout, MaskKind
from rlx.ops.define.operands import promote_inexact
from rlx.ops.nn.rotary import RopeStyle, build_rotation
from rlx.ops.pointwise.unary import ActivationKind
from rlx.quant.schemes import QuantScheme

__all__ = ["attention", "dequant_linear", "gated", "layer_norm", "linear", "rms_norm", "rope"]


def _called(name: str) -> AbstractContextManager[None]:
    return nullcontext() if is_written() else written_as(name)


def linear(
    x: Any, w: Any, bias: Any = None, activation: ActivationKind | str | None = None, transposed: bool = False
) -> Any:
    """act(x·w + bias), or act(x·wᵀ + bias); bias and activation being optional."""
    with _called("linear"):
        block = Linear(activation, bias is not None, transposed)
        return block(x, w) if bias is None else block(x, w, bias)


def dequant_linear(x: Any, w: Any, scheme: QuantScheme, outputs: int) -> Any:
    """x·W with W [in, outputs] stored as GGUF blocks."""
    with _called("linear"):
        return HirDequantMatMul(scheme, outputs)(x, w)


def rms_norm(x: Any, gamma: Any, beta: Any, eps: float = 1e-6) -> Any:
    """x/√(mean(x²) + eps)·gamma + beta over the last axis."""
    with _called("rms_norm"):
        return HirRmsNorm(eps)(*promote_inexact(x, gamma, beta))


def layer_norm(x: Any, gamma: Any, beta: Any, eps: float = 1e-5) -> Any:
    """(x - mean)/√(variance + eps)·gamma + beta over the last axis."""
    with _called("layer_norm"):
        return HirLayerNorm(eps)(*promote_inexact(x, gamma, beta))


def gated(activation: ActivationKind | str, gate: Any, up: Any) -> Any:
    """act(gate)·up; with silu that is what papers call SwiGLU."""
    with _called(_GATED.get(str(activation), f"gated {activation}")):
        return HirGated(activation)(gate, up)


_GATED = {"silu": "swiglu", "gelu": "geglu", "gelu_approx": "geglu"}


def rope(
    x: Any,
    cos: Any,
    sin: Any,
    head_dim: int,
    n_rot: int | None = None,
    positions: Any = None,
    *,
    style: RopeStyle | str = RopeStyle.NeoX,
    layout: AttentionLayout | str | None = None,
) -> Any:
    """Rotary positions; see `rlx.ops.rope`."""
    with _called("rope"):
        return build_rotation(HirRoPE, x, (cos, sin), head_dim, n_rot, positions, style, layout, None)


def attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    *,
    num_heads: int | None = None,
    mask_kind: MaskKind | str | tuple[MaskKind, int] | None = None,
    layout: AttentionLayout | str | None = None,
    score_scale: float | None = None,
    softcap: float | None = None,
    kv_len: Any = None,
    positions: Any = None,
    scales: tuple[Any, ...] = (),
) -> Any:
    """Attention; see `rlx.ops.attention`. `scales` are those of k and v if these are codes, else nothing."""
    with _called("attention"):
        return build_attention(
            HirAttention,
            (q, k, v),
            mask,
            num_heads=num_heads,
            head_dim=None,
            mask_kind=mask_kind,
            window=0,
            num_kv_heads=None,
            layout=layout,
            kv_len=kv_len,
            positions=positions,
            scales=scales,
            score_scale=score_scale,
            softcap=softcap,
            has_scales=bool(scales),
        )
