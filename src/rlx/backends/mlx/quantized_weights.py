"""Weights in MLX's own format: codes of 4 or 8 bits, a scale and an offset for each group of a row.

    form = packing_of(op, types)                 # None where the format has no place for the weights
    codes, scales, offsets = packed(form, weight, sides, k, n)

A group stands for scale·code + offset. Blocks of GGUF fit where they have one scale and one offset for 32 numbers or
more; their codes are only put into another order. Ours with scales beside them fit where blocks are as long as groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rlx.backends.mlx.device import mx
from rlx.ir.graph import Graph, NodeId
from rlx.ir.leaves import Param
from rlx.ir.shape import Shape
from rlx.ops.quant.quantized_weights import DequantMatMul
from rlx.quant.schemes import QuantKind, QuantScheme

# The groups that MLX has kernels for.
_GROUPS = (32, 64, 128)

# Codes [n, k], scales and offsets [n, k / group].
Parts = tuple[Any, Any, Any]


class Packing(NamedTuple):
    """How a kind of weights is packed: bits of a code, numbers in a group, and what reads the bytes."""

    scheme: QuantScheme
    bits: int
    group: int


def _bytes_of(weight: Any) -> Any:
    return mx.view(weight.reshape(-1), mx.uint8)


def _blocks(weight: Any, n: int, size: int) -> Any:
    return _bytes_of(weight).reshape(n, -1, size)


def _half(blocks: Any, at: int) -> Any:
    """The f16 at a byte of every block."""
    return mx.view(mx.contiguous(blocks[..., at : at + 2]), mx.float16)[..., 0].astype(mx.float32)


def _low(x: Any) -> Any:
    return mx.bitwise_and(x, mx.array(15, mx.uint8))


def _high(x: Any, bits: int = 4) -> Any:
    return mx.right_shift(x, mx.array(bits, mx.uint8))


def _up(x: Any, bits: int = 4) -> Any:
    return mx.left_shift(x, mx.array(bits, mx.uint8))


def _nibbles(x: Any) -> Any:
    """Low nibbles of all bytes, then the high ones."""
    return mx.concatenate([_low(x), _high(x)], axis=-1)


def _from_signed(x: Any) -> Any:
    """Signed bytes counted from -128."""
    return mx.bitwise_xor(x, mx.array(128, mx.uint8))


def _q4_0(weight: Any, n: int) -> Parts:
    blocks = _blocks(weight, n, 18)
    step = _half(blocks, 0)
    return _nibbles(blocks[..., 2:]), step, -8.0 * step


def _q4_1(weight: Any, n: int) -> Parts:
    blocks = _blocks(weight, n, 20)
    return _nibbles(blocks[..., 4:]), _half(blocks, 0), _half(blocks, 2)


def _q8_0(weight: Any, n: int) -> Parts:
    blocks = _blocks(weight, n, 34)
    step = _half(blocks, 0)
    return _from_signed(blocks[..., 2:]), step, -128.0 * step


def _q4_k(weight: Any, n: int) -> Parts:
    """Eight rows of 32 in a block, each with a scale and a minimum of six bits; see `rlx.quant.decode`."""
    blocks = _blocks(weight, n, 144)
    first, second, rest = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    low = [mx.bitwise_and(part, mx.array(63, mx.uint8)) for part in (first, second)]
    top = [_up(_high(part, 6)) for part in (first, second)]
    scales = mx.concatenate([low[0], mx.bitwise_or(_low(rest), top[0])], axis=-1).astype(mx.float32)
    minimums = mx.concatenate([low[1], mx.bitwise_or(_high(rest), top[1])], axis=-1).astype(mx.float32)
    codes = _nibbles(blocks[..., 16:].reshape(*blocks.shape[:2], 4, 32))
    steps, offsets = _half(blocks, 0)[..., None] * scales, -_half(blocks, 2)[..., None] * minimums
    return codes, steps.reshape(n, -1), offsets.reshape(n, -1)


_OF_GGUF: dict[QuantKind, tuple[int, Callable[[Any, int], Parts]]] = {
    QuantKind.GgufQ4_0: (4, _q4_0),
    QuantKind.GgufQ4_1: (4, _q4_1),
    QuantKind.GgufQ8_0: (8, _q8_0),
    QuantKind.GgufQ4K: (4, _q4_k),
}
_BESIDE = {QuantKind.Int4Block: 4, QuantKind.Int8Block: 8, QuantKind.Int8BlockAsym: 8}


def packing_of(op: DequantMatMul, types: Sequence[Shape]) -> Packing | None:
    """How MLX holds the weights of a product with operands of these types."""
    scheme, k = op.scheme, types[0].dims[-1]
    if not all(t.is_static for t in types[1:]) or not isinstance(k, int) or not k or 0 in types[1].dims:
        return None
    if scheme.kind in _OF_GGUF:
        return Packing(scheme, _OF_GGUF[scheme.kind][0], 32)
    if scheme.kind in _BESIDE and scheme.block_size in _GROUPS and k % scheme.block_size == 0:
        return Packing(scheme, _BESIDE[scheme.kind], scheme.block_size)
    return None


def packed(form: Packing, weight: Any, sides: Sequence[Any], k: int, n: int) -> Parts:
    """Weights for `mx.quantized_matmul`."""
    kind = form.scheme.kind
    if kind in _OF_GGUF:
        codes, scales, offsets = _OF_GGUF[kind][1](weight, n)
    else:
        codes, scales, offsets = _beside(form, weight, sides, k, n)
    codes = codes.reshape(n, k)
    if form.bits == 4:
        pairs = codes.reshape(n, k // 2, 2)
        codes = mx.bitwise_or(pairs[..., 0], _up(pairs[..., 1]))
    return mx.view(mx.contiguous(codes), mx.uint32), mx.contiguous(scales), mx.contiguous(offsets)


def _beside(form: Packing, weight: Any, sides: Sequence[Any], k: int, n: int) -> Parts:
    """Codes [k, n] with scales, and perhaps zero points, [k / block, n] beside them."""
    data = _bytes_of(weight)
    if form.bits == 4:
        codes = mx.stack([_low(data), _high(data)], axis=-1).reshape(-1)[: k * n].reshape(k, n)
    else:
        codes = _from_signed(data).reshape(k, n)
    scales = sides[0].astype(mx.float32).reshape(k // form.group, n)
    zero = mx.array(128.0 if form.bits == 8 else 0.0)
    if len(sides) > 1 and sides[1].size and form.scheme.kind is not QuantKind.Int8Block:
        zero = zero + sides[1].astype(mx.float32).reshape(scales.shape)
    return mx.transpose(codes), mx.transpose(scales), mx.transpose(-zero * scales)


class WeightToPack(NamedTuple):
    """A param that products read packed; `sides` are the params with its scales and zero points."""

    form: Packing
    sides: tuple[str, ...]
    k: int
    n: int


def weights_to_pack(graph: Graph) -> dict[str, WeightToPack]:
    """The params that nothing reads but products with weights that MLX has a format for, all in one form, by name."""
    uses = graph.use_map()
    found: dict[str, WeightToPack] = {}
    for node in graph.params:
        forms = {_packed_by(graph, reader, node.id) for reader in uses[node.id]}
        (form,) = forms if len(forms) == 1 else (None,)
        if form is not None and node.id not in graph.outputs and isinstance(node.op, Param):
            found[str(node.op.key)] = form
    return found


def _packed_by(graph: Graph, reader: NodeId, weight: NodeId) -> WeightToPack | None:
    node = graph.nodes[reader]
    if not isinstance(node.op, DequantMatMul) or list(node.inputs).count(weight) != 1 or node.inputs[1] != weight:
        return None
    types = [graph.shape(i) for i in node.inputs]
    form = packing_of(node.op, types)
    sides = [graph.nodes[i].op for i in node.inputs[2:]]
    if form is None or not all(isinstance(side, Param) for side in sides):
        return None
    keys = tuple(str(side.key) for side in sides if isinstance(side, Param))
    return WeightToPack(form, keys, int(types[0].dims[-1]), int(node.shape.dims[-1]))
