"""Fused transformer blocks: an attention block, and a whole post-norm layer, as one op each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlx.ir.dims import require_equal
from rlx.ir.op import Op, op
from rlx.ir.shape import Shape, Size
from rlx.ops.attn.attention import Attention
from rlx.ops.attn.operands import AttentionLayout, MaskKind
from rlx.ops.define.operands import convert, promote_inexact, require_float, require_rank, require_same_dtype
from rlx.ops.define.samples import Sample, Spec, sample, spec
from rlx.ops.define.widening import as_f64, rounded, rounded_tensor
from rlx.ops.nn.norms import LayerNorm
from rlx.ops.nn.rotary import Rope
from rlx.ops.pointwise.unary import Activation, ActivationKind, activation

__all__ = ["FusedAttentionBlock", "FusedTransformerLayer", "fused_attention_block", "fused_transformer_layer"]

Array = np.ndarray[Any, np.dtype[Any]]


class _FusedBlock(Op):
    """Operands by name, in an order that the attributes decide."""

    is_fused = True
    num_heads: int
    head_dim: int

    def names(self) -> tuple[str, ...]:
        """The names of the operands, in order."""
        raise NotImplementedError

    def named(self, operands: Sequence[Any]) -> dict[str, Any]:
        names = self.names()
        if len(operands) != len(names):
            raise self.fail(f"with these attributes the operands are {', '.join(names)}; got {len(operands)}")
        return dict(zip(names, operands))

    @property
    def width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def attention(self) -> Attention:
        return Attention(self.num_heads, self.head_dim, MaskKind.Custom, layout=AttentionLayout.Bsm)

    def check_types(self, found: dict[str, Shape], wanted: dict[str, tuple[Size, ...]]) -> None:
        """All operands but the mask are floats of one dtype, and have the wanted dims."""
        floats = [shape for name, shape in found.items() if name not in ("mask", "cos", "sin")]
        require_float(self, *floats)
        require_same_dtype(self, *floats)
        for name, dims in wanted.items():
            shape = found.get(name)
            if shape is None:
                continue
            if shape.rank != len(dims) or not all(require_equal(a, b, self.name) for a, b in zip(shape.dims, dims)):
                raise self.fail(f"{name} must be {list(dims)}, got {shape}")


@op("fused_attention_block")
class FusedAttentionBlock(_FusedBlock):
    """q, k, v = split(hidden·qkv_w [+ qkv_b]); [rope of q and k]; attention under the mask; ·out_w [+ out_b].

    hidden [B, S, M], qkv_w [M, 3·H·D], out_w [H·D, M], mask as in `Attention` (custom). The operands are hidden,
    qkv_w, out_w, mask; then qkv_b, out_b with `has_bias`; then cos, sin with `has_rope`.
    """

    is_heavy = True

    precision_class = "data_movement"

    has_bias: bool = False
    has_rope: bool = False

    def names(self) -> tuple[str, ...]:
        biases = ("qkv_b", "out_b") if self.has_bias else ()
        return ("hidden", "qkv_w", "out_w", "mask", *biases, *(("cos", "sin") if self.has_rope else ()))

    @property
    def rope(self) -> Rope:
        return Rope(self.head_dim, self.head_dim)

    def infer(self, *operands: Shape) -> Shape:
        found = self.named(operands)
        hidden = found["hidden"]
        require_rank(self, hidden, 3)
        model = hidden.dims[-1]
        wanted = {"qkv_w": (model, 3 * self.width), "out_w": (self.width, model)}
        self.check_types(found, wanted | {"qkv_b": (3 * self.width,), "out_b": (model,)})
        heads = hidden.with_dims((*hidden.dims[:2], self.width))
        self.attention.infer(heads, heads, heads, found["mask"])
        if self.has_rope:
            self.rope.infer(heads, found["cos"], found["sin"])
        return hidden

    @np.errstate(all="ignore")
    def eval(self, *operands: Array) -> Array:
        found = self.named(operands)
        hidden, qkv_w, out_w = as_f64(found["hidden"], found["qkv_w"], found["out_w"])
        qkv = hidden @ qkv_w + (as_f64(found["qkv_b"])[0] if self.has_bias else 0.0)
        q, k, v = np.split(qkv, 3, axis=-1)
        if self.has_rope:
            q, k = (self.rope.eval(x, found["cos"], found["sin"]) for x in (q, k))
        out = self.attention.eval(q, k, v, found["mask"]) @ out_w
        return rounded(out + (as_f64(found["out_b"])[0] if self.has_bias else 0.0), found["hidden"].dtype)

    def decompose(self, *operands: Any) -> Any:
        from rlx.ops.linalg.contraction import matmul
        from rlx.ops.shape.movement import narrow

        found = self.named(operands)
        dtype = found["hidden"].dtype
        wide = dtype.accumulator
        qkv = matmul(found["hidden"], found["qkv_w"], out_dtype=wide)
        if self.has_bias:
            qkv = qkv + convert(found["qkv_b"], wide)
        q, k, v = (narrow(qkv, -1, i * self.width, self.width) for i in range(3))
        if self.has_rope:
            q, k = (self.rope(x, found["cos"], found["sin"]) for x in (q, k))
        out = matmul(self.attention(q, k, v, found["mask"]), convert(found["out_w"], wide))
        if self.has_bias:
            out = out + convert(found["out_b"], wide)
        return rounded_tensor(out, dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        core = (spec(2, 3, 6), spec(6, 24), spec(8, 6), spec(2, 3, values=1.0))
        biases, tables = (spec(24), spec(6)), (spec(5, 2), spec(5, 2))
        yield sample(cls(2, 4), *core)
        yield sample(cls(2, 4, True), *core, *biases)
        yield sample(cls(2, 4, False, True), *core, *tables)
        yield sample(cls(2, 4, True, True), *core, *biases, *tables)
        symbolic = (spec("B", "S", 6), spec(6, 24), spec(8, 6), spec("B", "S", dtype="bool"))
        yield sample(cls(2, 4), *symbolic, B=2, S=3)


@op("fused_transformer_layer")
class FusedTransformerLayer(_FusedBlock):
    """A post-norm encoder layer: h = LN1(attention_block(hidden) + hidden); y = LN2(act(h·fc1)·fc2 + h).

    With biases the operands are hidden, qkv_w, qkv_b, out_w, out_b, ln1_g, ln1_b, fc1_w, fc1_b, fc2_w, fc2_b, ln2_g,
    ln2_b, mask; without them hidden, qkv_w, out_w, ln1_g, ln1_b, fc1_w, fc2_w, ln2_g, ln2_b, mask.
    """

    is_heavy = True

    intermediate_size: int
    eps1: float = 1e-12
    eps2: float = 1e-12
    activation: ActivationKind = ActivationKind.Gelu
    has_bias: bool = True

    def names(self) -> tuple[str, ...]:
        attention = ("qkv_w", "qkv_b", "out_w", "out_b", "ln1_g", "ln1_b")
        feed_forward = ("fc1_w", "fc1_b", "fc2_w", "fc2_b", "ln2_g", "ln2_b")
        biases = () if self.has_bias else ("qkv_b", "out_b", "fc1_b", "fc2_b")
        return ("hidden", *(n for n in (*attention, *feed_forward) if n not in biases), "mask")

    @property
    def block(self) -> FusedAttentionBlock:
        return FusedAttentionBlock(self.num_heads, self.head_dim, self.has_bias)

    def _block_operands(self, found: dict[str, Any]) -> list[Any]:
        return [found[name] for name in self.block.names()]

    def infer(self, *operands: Shape) -> Shape:
        found = self.named(operands)
        hidden = self.block.infer(*self._block_operands(found))
        model, inner = hidden.dims[-1], self.intermediate_size
        wanted: dict[str, tuple[Size, ...]] = dict.fromkeys(("ln1_g", "ln1_b", "ln2_g", "ln2_b", "fc2_b"), (model,))
        self.check_types(found, wanted | {"fc1_w": (model, inner), "fc1_b": (inner,), "fc2_w": (inner, model)})
        return hidden

    @np.errstate(all="ignore")
    def eval(self, *operands: Array) -> Array:
        found = self.named(operands)
        wide = {name: x if name == "mask" else as_f64(x)[0] for name, x in found.items()}
        attended = self.block.eval(*self._block_operands(wide)) + wide["hidden"]
        h = LayerNorm(-1, self.eps1).eval(attended, wide["ln1_g"], wide["ln1_b"])
        inner = Activation(self.activation).eval(h @ wide["fc1_w"] + wide.get("fc1_b", 0.0))
        out = inner @ wide["fc2_w"] + wide.get("fc2_b", 0.0) + h
        y = LayerNorm(-1, self.eps2).eval(out, wide["ln2_g"], wide["ln2_b"])
        return rounded(y, found["hidden"].dtype)

    def decompose(self, *operands: Any) -> Any:
        from rlx.ops.linalg.contraction import matmul

        found = self.named(operands)
        dtype = found["hidden"].dtype
        wide = {name: x if name == "mask" else convert(x, dtype.accumulator) for name, x in found.items()}
        attended = self.block(*self._block_operands(wide)) + wide["hidden"]
        h = LayerNorm(-1, self.eps1)(attended, wide["ln1_g"], wide["ln1_b"])
        inner = matmul(h, wide["fc1_w"])
        inner = activation(self.activation, inner + wide["fc1_b"] if self.has_bias else inner)
        out = matmul(inner, wide["fc2_w"]) + h
        out = out + wide["fc2_b"] if self.has_bias else out
        return rounded_tensor(LayerNorm(-1, self.eps2)(out, wide["ln2_g"], wide["ln2_b"]), dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        def operands(has_bias: bool, *lead: int | str) -> list[Spec]:
            shapes: dict[str, Spec] = {name: spec(6) for name in ("out_b", "fc2_b", "ln1_g", "ln1_b", "ln2_g", "ln2_b")}
            shapes |= {"hidden": spec(*lead, 6), "qkv_w": spec(6, 24), "qkv_b": spec(24), "out_w": spec(8, 6)}
            shapes |= {"fc1_w": spec(6, 5), "fc1_b": spec(5), "fc2_w": spec(5, 6), "mask": spec(*lead, values=1.0)}
            return [shapes[name] for name in cls(2, 4, 5, has_bias=has_bias).names()]

        yield sample(cls(2, 4, 5, 1e-3, 1e-3), *operands(True, 2, 3))
        yield sample(cls(2, 4, 5, 1e-3, 1e-2, "relu", False), *operands(False, 2, 3))
        yield sample(cls(2, 4, 5, 1e-3, 1e-3), *operands(True, "B", "S"), B=2, S=3)


def fused_attention_block(
    hidden: Any,
    qkv_w: Any,
    out_w: Any,
    mask: Any,
    num_heads: int,
    head_dim: int,
    biases: tuple[Any, Any] | None = None,
    rope_tables: tuple[Any, Any] | None = None,
) -> Any:
    """Projection to q, k, v, attention under `mask`, and the output projection, as one op."""
    hidden, qkv_w, out_w, *bias = promote_inexact(hidden, qkv_w, out_w, *(biases or ()))
    op = FusedAttentionBlock(num_heads, head_dim, biases is not None, rope_tables is not None)
    return op(hidden, qkv_w, out_w, mask, *bias, *(rope_tables or ()))


def fused_transformer_layer(
    operands: Sequence[Any],
    num_heads: int,
    head_dim: int,
    intermediate_size: int,
    eps1: float = 1e-12,
    eps2: float = 1e-12,
    activation: ActivationKind | str = ActivationKind.Gelu,
) -> Any:
    """A post-norm encoder layer as one op; `operands` in the order of `FusedTransformerLayer`, 14 with biases or 10."""
    *floats, mask = operands
    settings = (num_heads, head_dim, intermediate_size, eps1, eps2, ActivationKind(activation), len(operands) == 14)
    return FusedTransformerLayer(*settings)(*promote_inexact(*floats), mask)
