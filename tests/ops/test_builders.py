"""Builder methods of Graph: each records what its functional constructor records, and checks a declared type."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from rlx import ops
from rlx.errors import OpError, ShapeError, TraceError
from rlx.ir.fft import FftNorm
from rlx.ir.graph import Graph, NodeId
from rlx.ir.interpret import interpret
from rlx.ir.shape import Shape
from rlx.ir.tensor import Tensor, building
from rlx.ops.builders import GraphBuilders, GraphExt

# Every builder that the seed documents name: methods of Graph, then of GraphExt.
_SEED_METHODS = """
attention attention_opts attention_kind attention_kind_opts attention_bias axial_rope2d relu_backward
activation_backward layer_norm_backward_input rms_norm_backward_input rms_norm_backward_gamma rms_norm_backward_beta
rope_backward cumsum_backward gather_backward group_norm_backward_input group_norm_backward_gamma
group_norm_backward_beta layer_norm_backward_gamma maxpool2d_backward conv2d_backward_input conv2d_backward_weight
softmax_cross_entropy_with_logits softmax_cross_entropy_backward complex_norm_sq attention_backward
attention_backward_all complex_norm_sq_backward conjugate linear_bias linear_bias_act linear_fused
shared_matmul_pair swiglu_ffn fused_swiglu_ffn conv2d conv_transpose2d binary activation quantize
quantize_per_channel dequantize dequantize_per_channel pad_last_axis_to_pow2 split_spectrum fft_real fft_batch_real
rfft irfft stft fft_conv1d fftfreq_tensor rfftfreq_tensor psd_real ifft_spectrum psd custom_op custom_op_packed fft
fft_norm fft_axis fftn ifftn matmul dense_solve batched_dense_solve lora_matmul dequant_matmul dequant_matmul_packed
dequant_matmul_nvfp4 fused_matmul_bias_act q_matmul q_conv2d layer_norm2d group_norm layer_norm fused_residual_ln
fused_residual_rms_norm reduce softmax cumsum sample reshape gather concat selective_scan gated_delta_net
gated_delta_net_carry scan scan_checkpointed scan_with_bcasts_and_xs scan_with_xs scan_backward
scan_backward_with_checkpoints scan_backward_xs scan_backward_xs_with_checkpoints custom_fn custom_fn_multi
scan_trajectory gaussian_splat_render gaussian_splat_render_meta gaussian_splat_prepare gaussian_splat_rasterize
gaussian_splat_render_decomposed gaussian_splat_render_backward mm add sub mul div gelu gelu_approx silu relu exp
sqrt neg tanh ln layer_norm2d group_norm conv2d conv_transpose2d rms_norm sum mean sm reshape_ transpose_ narrow_
concat_ gather_ eq lt attention_ rope rope_n cast
"""
SEED_METHODS = _SEED_METHODS.split()
_TWO_OPERANDS = "add sub mul div maximum minimum eq ne lt le gt ge"
_ONE_OPERAND = "gelu gelu_approx silu relu sigmoid tanh exp log sqrt rsqrt neg sin cos tan atan recip"


# Written by another module that may be absent.
SPLAT_METHODS = {name for name in SEED_METHODS if name.startswith("gaussian_splat_")}


class Case(NamedTuple):
    """Operand types, further arguments, and the functional form when it is called otherwise than the method."""

    shapes: tuple[str, ...]
    arguments: tuple[Any, ...] = ()
    function: Callable[..., Any] | None = None
    joined: bool = False


def case(*shapes: str, args: tuple[Any, ...] = (), function: Callable[..., Any] | None = None, joined=False) -> Case:
    return Case(shapes, args, function, joined)


def step_body(*inputs: str) -> Graph:
    """The next carry: the sum of all inputs."""
    body = Graph("step")
    total, *others = [body.input(f"i{n}", Shape.of(s)) for n, s in enumerate(inputs)]
    for other in others:
        total = body.add(total, other)
    body.set_outputs([total])
    return body


def vjp_body(inputs: int) -> Graph:
    """A carry, slices and the carry's gradient in, all f32[2]; a gradient out for the carry and every slice."""
    body = Graph("vjp")
    given = [body.input(f"i{n}", (2,)) for n in range(inputs)]
    body.set_outputs([given[-1]] * (inputs - 1))
    return body


QKV = ("f32[2,3,8]",) * 3
IMAGE = ("f32[2,4,6,6]", "f32[6,2,3,3]")
CONV = ([3, 3], [1, 1], [1, 1], [1, 1], 2)
NORM = ("f32[3,4]", "f32[4]", "f32[4]")
CHANNELS = ("f32[2,4,3,3]", "f32[4]", "f32[4]")
GATED = ("f32[2,3,2,4]",) * 3 + ("f32[2,3,2]",) * 2
HEADS = {"num_heads": 2, "head_dim": 4}

CASES: dict[str, Case] = {
    "activation": case("f32[3]", function=lambda x: ops.activation("gelu", x)),
    "activation_by_kind": case("f32[3]", function=lambda x: ops.activation("gelu", x)),
    "binary": case("f32[3]", "f32[3]", function=lambda a, b: ops.binary("max", a, b)),
    "compare": case("f32[3]", "f32[3]", function=lambda a, b: ops.compare("ge", a, b)),
    "cast": case("f32[3]", args=("f16",)),
    "where": case("bool[3]", "f32[3]", "f32[3]"),
    "clamp": case("f32[3]", args=(0.0, 1.0)),
    "pow": case("f32[3]", args=(2.0,), function=ops.pow_),
    "abs": case("f32[3]", function=ops.abs_),
    "round": case("f32[3]", function=ops.round_),
    "stop_gradient": case("f32[3]"),
    **{name: case("f32[2,3]", "f32[3]") for name in _TWO_OPERANDS.split()},
    **{name: case("f32[2,3]") for name in _ONE_OPERAND.split()},
    "matmul": case("f32[2,3]", "f32[3,4]"),
    "mm": case("f32[2,3]", "f32[3,4]", function=ops.matmul),
    "dot_general": case("f32[2,3]", "f32[3,4]", args=((1,), (0,))),
    "dense_solve": case("f32[3,3]", "f32[3]"),
    "batched_dense_solve": case("f32[2,3,3]", "f32[2,3]"),
    "lora_matmul": case("f32[2,3]", "f32[3,4]", "f32[3,1]", "f32[1,4]", args=(0.5,)),
    "grouped_matmul": case("f32[2,3]", "f32[5,3,4]", "i32[2]"),
    "fused_matmul_bias_act": case("f32[2,3]", "f32[3,4]", "f32[4]", args=("gelu",)),
    "linear_fused": case("f32[2,3]", "f32[3,4]", "f32[4]", args=("relu",), function=ops.fused_matmul_bias_act),
    "linear_bias": case("f32[2,3]", "f32[3,4]", "f32[4]", function=lambda x, w, b: ops.matmul(x, w) + b),
    "linear_bias_act": case(
        "f32[2,3]", "f32[3,4]", "f32[4]", args=("relu",), function=lambda x, w, b, act: ops.relu(ops.matmul(x, w) + b)
    ),
    "shared_matmul_pair": case(
        "f32[2,3]", "f32[3,4]", "f32[3,5]", function=lambda x, a, b: (ops.matmul(x, a), ops.matmul(x, b))
    ),
    "swiglu_ffn": case(
        "f32[2,3]",
        "f32[3,4]",
        "f32[3,4]",
        "f32[4,3]",
        function=lambda x, up, gate, down: ops.matmul(up_times_gate(x, up, gate), down),
    ),
    "fused_swiglu_ffn": case(
        "f32[2,3]",
        "f32[3,4]",
        "f32[3,4]",
        "f32[4,3]",
        function=lambda x, up, gate, down: ops.matmul(ops.fused_swiglu(ops.matmul(x, ops.concat([up, gate], 1))), down),
    ),
    "reshape": case("f32[2,6]", args=((3, -1),)),
    "reshape_": case("f32[2,6]", args=((3, -1),), function=ops.reshape),
    "transpose": case("f32[2,6]", args=((1, 0),), function=ops.transpose),
    "narrow": case("f32[2,6]", args=(1, 2, 3), function=ops.narrow),
    "where_": case("bool[3]", "f32[3]", "f32[3]", function=ops.where),
    "eq_": case("f32[3]", "f32[3]", function=ops.eq),
    "lt_": case("f32[3]", "f32[3]", function=ops.lt),
    "pad_axis_to_len": case("f32[2,6]", args=(1, 8), function=lambda x, axis, n: ops.pad(x, 0, [0, 0], [0, 2])),
    "reverse_last_axis": case("f32[2,6]", function=lambda x: ops.reverse(x, (-1,))),
    "zeros_tensor": case(args=((2, 6), "i32"), function=lambda dims, dtype: ops.zeros(dims, dtype)),
    "transpose_": case("f32[2,6]", args=((1, 0),), function=ops.transpose),
    "narrow_": case("f32[2,6]", args=(1, 2, 3), function=ops.narrow),
    "expand": case("f32[2,1]", args=((2, 3),)),
    "concat": case("f32[2,1]", "f32[2,3]", args=(1,), joined=True),
    "concat_": case("f32[2,1]", "f32[2,3]", args=(1,), joined=True, function=ops.concat),
    "gather": case("f32[5,3]", "i32[2]", args=(0,)),
    "gather_": case("f32[5,3]", "i32[2]", args=(0,), function=ops.gather),
    "scatter_add": case("f32[2,3]", "i32[2]", args=(5,)),
    "reduce": case("f32[2,3]", args=("max", (1,), True)),
    "sum": case("f32[2,3]", args=((1,), True), function=ops.reduce_sum),
    "mean": case("f32[2,3]", args=((0,), False), function=ops.reduce_mean),
    "softmax": case("f32[2,3]", args=(-1,)),
    "sm": case("f32[2,3]", args=(0,), function=ops.softmax),
    "cumsum": case("f32[2,3]", args=(1, True)),
    "topk": case("f32[2,5]", args=(2,)),
    "sample": case(
        "f32[2,5]",
        args=(3, 0.9, 0.7, 42),
        function=lambda x, k, p, t, seed: ops.sample(x, ops.sampling_key(seed), k, p, t),
    ),
    "conv2d": case(*IMAGE, args=CONV, function=lambda x, w, *_: ops.conv(x, w, 1, 1, 1, 2)),
    "conv_transpose2d": case(
        "f32[2,4,3,3]",
        "f32[4,2,2,2]",
        args=([2, 2], [2, 2], [0, 0], [1, 1], [1, 1], 2),
        function=lambda x, w, *_: ops.conv_transpose(x, w, 2, 0, 1, 1, 2),
    ),
    "im2col": case("f32[2,4,6,6]", args=((3, 3), (1, 1), (1, 1), (1, 1))),
    "pool": case("f32[2,4,6,6]", args=("max", (2, 2), (2, 2), (0, 0))),
    "resize_nearest_2x": case("f32[2,4,3,3]"),
    "layer_norm": case(*NORM, args=(-1, 1e-3)),
    "ln": case(*NORM, args=(1e-3,), function=lambda x, g, b, eps: ops.layer_norm(x, g, b, -1, eps)),
    "layer_norm2d": case(*CHANNELS, args=(1e-3,)),
    "group_norm": case(*CHANNELS, args=(2, 1e-3)),
    "rms_norm": case(*NORM, args=(1e-3,), function=lambda x, g, b, eps: ops.rms_norm(x, g, b, -1, eps)),
    "batch_norm_inference": case(*NORM, "f32[4]", "f32[4]", args=(1e-3,)),
    "fused_residual_ln": case("f32[3,4]", "f32[3,4]", "f32[4]", "f32[4]", "f32[4]", args=(1e-3,)),
    "fused_residual_rms_norm": case("f32[3,4]", "f32[3,4]", "f32[4]", "f32[4]", "f32[4]", args=(1e-3,)),
    "softmax_cross_entropy_with_logits": case("f32[3,5]", "i32[3]"),
    "attention": case(*QKV, "f32[2,3]", args=(2, 4), function=lambda q, k, v, m, h, d: masked(q, k, v, m)),
    "attention_": case(*QKV, "f32[2,3]", args=(2, 4), function=lambda q, k, v, m, h, d: masked(q, k, v, m)),
    "attention_opts": case(
        *QKV,
        "f32[2,3]",
        args=(2, 4, 0.5, 3.0),
        function=lambda q, k, v, m, h, d, s, c: masked(q, k, v, m, score_scale=s, softcap=c),
    ),
    "attention_kind": case(
        *QKV, args=(2, 4, "causal"), function=lambda q, k, v, *_: ops.attention(q, k, v, mask_kind="causal", **HEADS)
    ),
    "attention_kind_opts": case(
        *QKV,
        args=(2, 4, ops.MaskKind.SlidingWindow(1), 0.5, 3.0),
        function=lambda q, k, v, *_: ops.attention(
            q, k, v, mask_kind="sliding_window", window=1, score_scale=0.5, softcap=3.0, **HEADS
        ),
    ),
    "attention_bias": case(
        *QKV,
        "f32[2,2,3,3]",
        args=(2, 4),
        function=lambda q, k, v, b, *_: ops.attention(q, k, v, b, mask_kind="bias", **HEADS),
    ),
    "rope": case("f32[2,3,8]", "f32[3,2]", "f32[3,2]", args=(4,)),
    "rope_n": case("f32[2,3,8]", "f32[3,2]", "f32[3,2]", args=(4, 2), function=ops.rope),
    "axial_rope2d": case("f32[2,6,8]", args=(3, 2, 4, 2, 100.0, 1)),
    "selective_scan": case("f32[2,3,4]", "f32[2,3,4]", "f32[4,5]", "f32[2,3,5]", "f32[2,3,5]", args=(5,)),
    "gated_delta_net": case(*GATED, args=(4,)),
    "gated_delta_net_carry": case(*GATED, "f32[2,2,4,4]", args=(4,)),
    "relu_backward": case("f32[3]", "f32[3]"),
    "activation_backward": case("f32[3]", "f32[3]", function=lambda x, dy: ops.activation_backward("gelu", x, dy)),
    "layer_norm_backward_input": case("f32[3,4]", "f32[4]", "f32[3,4]", args=(-1, 1e-3)),
    "layer_norm_backward_gamma": case(
        "f32[3,4]",
        "f32[3,4]",
        args=((4,), -1, 1e-3),
        function=lambda x, dy, _, axis, eps: ops.layer_norm_backward_gamma(x, dy, axis, eps),
    ),
    "rms_norm_backward_input": case(*NORM, "f32[3,4]", args=(-1, 1e-3)),
    "rms_norm_backward_gamma": case(*NORM, "f32[3,4]", args=(-1, 1e-3)),
    "rms_norm_backward_beta": case(*NORM, "f32[3,4]", args=(-1, 1e-3)),
    "group_norm_backward_input": case(*CHANNELS, "f32[2,4,3,3]", args=(2, 1e-3)),
    "group_norm_backward_gamma": case(
        "f32[2,4,3,3]",
        "f32[2,4,3,3]",
        args=((4,), 2, 1e-3),
        function=lambda x, dy, _, groups, eps: ops.group_norm_backward_gamma(x, dy, groups, eps),
    ),
    "group_norm_backward_beta": case(
        "f32[2,4,3,3]",
        "f32[2,4,3,3]",
        args=((4,), 2, 1e-3),
        function=lambda x, dy, _, groups, eps: ops.group_norm_backward_beta(x, dy, groups, eps),
    ),
    "rope_backward": case("f32[2,3,8]", "f32[3,2]", "f32[3,2]", args=(4, 2)),
    "cumsum_backward": case(
        "f32[2,3]", args=((2, 3), 1, True), function=lambda dy, _, axis, e: ops.cumsum_backward(dy, axis, e)
    ),
    "gather_backward": case("f32[2,3]", "i32[2]", args=((5, 3), 0)),
    "maxpool2d_backward": case("f32[2,4,6,6]", "f32[2,4,3,3]", args=((2, 2), (2, 2), (0, 0))),
    "conv2d_backward_input": case(
        "f32[2,6,6,6]",
        "f32[6,2,3,3]",
        args=(Shape((2, 4, 6, 6)), *CONV),
        function=lambda dy, w, *_: ops.conv2d_backward_input(dy, w, (2, 4, 6, 6), 1, 1, 1, 2),
    ),
    "conv2d_backward_weight": case(
        "f32[2,4,6,6]",
        "f32[2,6,6,6]",
        args=((6, 2, 3, 3), *CONV),
        function=lambda x, dy, *_: ops.conv2d_backward_weight(x, dy, (3, 3), 1, 1, 1, 2),
    ),
    "softmax_cross_entropy_backward": case("f32[3,5]", "i32[3]", "f32[3]"),
    "attention_backward": case(
        *QKV,
        "f32[2,3,8]",
        function=lambda q, k, v, dy: ops.attention_backward("key", q, k, v, dy, mask_kind="causal", **HEADS),
    ),
    "attention_backward_all": case(
        *QKV,
        "f32[2,3,8]",
        args=(2, 4, "causal"),
        function=lambda q, k, v, dy, *_: ops.attention_backward_all(q, k, v, dy, mask_kind="causal", **HEADS),
    ),
    "complex_norm_sq": case("c64[3]"),
    "complex_norm_sq_backward": case("c64[3]", "f32[3]"),
    "conjugate": case("c64[3]"),
    "log_mel": case("f32[2,16]", "f32[3,5]"),
    "log_mel_backward": case("f32[2,16]", "f32[3,5]", "f32[2,3]"),
    "welch_peaks": case("f32[4,16]", args=(2, 2)),
    "quantize": case("f32[3]", args=(0.5, 1)),
    "quantize_per_channel": case("f32[2,3]", args=(0, (0.5, 0.25), (1, 2))),
    "dequantize": case("i8[3]", args=(0.5, 1)),
    "dequantize_per_channel": case("i8[2,3]", args=(0, (0.5, 0.25), (1, 2))),
    "fake_quantize": case("f32[3]", args=(4,)),
    "fake_quantize_lsq": case("f32[3]", "f32[1]", args=(4,)),
    "dequant_moe_weights": case(
        "u8[204]",
        args=("gguf_q8_0", 2, 32, 3),
        function=lambda w, s, e, k, n: ops.dequant_moe_weights(w, scheme=s, experts=e, k=k, n=n),
    ),
    "q_matmul": case("i8[2,3]", "i8[3,4]", "i32[4]", args=(1, 2, 3, 0.5)),
    "q_conv2d": case(
        "i8[2,4,6,6]",
        "i8[6,2,3,3]",
        "i32[6]",
        args=(*CONV, 1, 2, 3, 0.5),
        function=lambda x, w, b, *_: ops.q_conv2d(x, w, b, (1, 1), (1, 1), (1, 1), 2, 1, 2, 3, 0.5),
    ),
    "dequant_matmul": case(
        "f32[2,4]",
        "i8[4,3]",
        "f32[2,3]",
        "f32[2,3]",
        args=("int8a/2",),
        function=lambda x, w, s, z, scheme: ops.dequant_matmul(x, w, s, z, scheme=scheme),
    ),
    "dequant_matmul_packed": case(
        "f32[2,32]", "u8[102]", args=("gguf_q8_0",), function=lambda x, w, s: ops.dequant_matmul(x, w, scheme=s)
    ),
    "dequant_matmul_nvfp4": case(
        "f32[2,16]",
        "u8[24]",
        "u8[1,3]",
        "f32[1]",
        function=lambda x, w, s, g: ops.dequant_matmul(x, w, s, g, scheme="nvfp4/16"),
    ),
    "dequant_grouped_matmul": case(
        "f32[2,32]",
        "u8[204]",
        "i32[2]",
        args=("gguf_q8_0", 3),
        function=lambda x, w, i, s, n: ops.dequant_grouped_matmul(x, w, i, scheme=s, n=n),
    ),
    "dequant_gather": case(
        "u8[102]",
        "i32[2]",
        args=("gguf_q8_0", 32),
        function=lambda w, i, s, k: ops.dequant_gather(w, i, scheme=s, k=k),
    ),
    "fft": case("f32[2,8]", args=(True,)),
    "fft_norm": case("f32[2,8]", args=(True, FftNorm.Forward)),
    "fft_axis": case("c64[4,3]", args=(0, False)),
    "fftn": case("c64[4,3]", args=((0, 1), False)),
    "ifftn": case("c64[4,3]", args=((0, 1),)),
    "pad_last_axis_to_pow2": case("f32[2,5]"),
    "split_spectrum": case("f32[2,8]"),
    "fft_real": case("f32[2,5]", args=("forward",)),
    "fft_batch_real": case("f32[2,5]", args=("forward",)),
    "rfft": case("f32[2,8]", args=("forward",)),
    "irfft": case("f32[2,5]", "f32[2,5]", args=(8, "forward")),
    "ifft_spectrum": case("f32[2,4]", "f32[2,4]", args=("forward",)),
    "stft": case("f32[2,16]", args=(8, 4, "backward")),
    "fft_conv1d": case("f32[5]", "f32[3]", args=(0, "forward")),
    "fftfreq_tensor": case(args=(5,)),
    "rfftfreq_tensor": case(args=(5,)),
    "psd_real": case("f32[2,8]", args=("backward",)),
    "psd": case("f32[2,8]", "f32[2,8]"),
    "fft_butterfly_stage": case("f32[2,8,2]", *("f32[4]",) * 4, args=(1, 8)),
    "scan": case("f32[2]", args=(step_body("f32[2]"), 3)),
    "scan_trajectory": case("f32[2]", args=(step_body("f32[2]"), 3)),
    "scan_checkpointed": case("f32[2]", args=(step_body("f32[2]"), 4, 2)),
    "if_": case("bool[]", args=(step_body("f32[2]"), step_body("f32[2]"), (np.ones(2, "f4"),))),
}


def up_times_gate(x, up, gate):
    rows, gated = ops.matmul(x, up), ops.matmul(x, gate)
    return rows * ops.silu(gated)


def masked(q, k, v, mask, **options):
    return ops.attention(q, k, v, mask, mask_kind="custom", **HEADS, **options)


# Methods whose operands come in several groups: operand types, the method call, the functional form.
GROUPED: dict[str, tuple[tuple[str, ...], Callable[..., Any], Callable[..., Any]]] = {
    "while_": (
        ("f32[2]",),
        lambda g, c: g.while_([c], all_below(9.0), step_body("f32[2]"), 4),
        lambda c: ops.while_([c], all_below(9.0), step_body("f32[2]"), 4),
    ),
    "while_multi": (
        ("f32[2]",),
        lambda g, c: g.while_multi([c], all_below(9.0), step_body("f32[2]"), 4),
        lambda c: ops.while_multi([c], all_below(9.0), step_body("f32[2]"), 4),
    ),
    "scan_with_xs": (
        ("f32[2]", "f32[3,2]"),
        lambda g, c, x: g.scan_with_xs(c, [x], step_body("f32[2]", "f32[2]"), 3),
        lambda c, x: ops.scan_with_xs(c, [x], step_body("f32[2]", "f32[2]"), 3),
    ),
    "scan_with_bcasts_and_xs": (
        ("f32[2]", "f32[2]", "f32[3,2]"),
        lambda g, c, b, x: g.scan_with_bcasts_and_xs(c, [b], [x], step_body("f32[2]", "f32[2]", "f32[2]"), 3),
        lambda c, b, x: ops.scan_with_bcasts_and_xs(c, [b], [x], step_body("f32[2]", "f32[2]", "f32[2]"), 3),
    ),
    "scan_backward": (
        ("f32[2]", "f32[3,2]", "f32[3,2]", "f32[3,2]"),
        lambda g, c, t, u, x: g.scan_backward(c, t, u, [x], vjp_body(3), 3, True, "f32[2]"),
        lambda c, t, u, x: ops.scan_backward(c, t, u, [x], vjp_body(3), 3, True),
    ),
    "scan_backward_with_checkpoints": (
        ("f32[2]", "f32[2,2]", "f32[2]"),
        lambda g, c, t, u: g.scan_backward_with_checkpoints(c, t, u, [], vjp_body(2), 4, False, 2, step_body("f32[2]")),
        lambda c, t, u: ops.scan_backward_with_checkpoints(c, t, u, [], vjp_body(2), 4, False, 2, step_body("f32[2]")),
    ),
    "scan_backward_xs": (
        ("f32[2]", "f32[3,2]", "f32[3,2]", "f32[3,2]"),
        lambda g, c, t, u, x: g.scan_backward_xs(c, t, u, [x], vjp_body(3), 3, True, 0, "f32[3,2]"),
        lambda c, t, u, x: ops.scan_backward_xs(c, t, u, [x], vjp_body(3), 3, True, 0),
    ),
    "scan_backward_xs_with_checkpoints": (
        ("f32[2]", "f32[2,2]", "f32[2]", "f32[4,2]"),
        lambda g, c, t, u, x: g.scan_backward_xs_with_checkpoints(
            c, t, u, [x], vjp_body(3), 4, False, 0, 2, step_body("f32[2]", "f32[2]")
        ),
        lambda c, t, u, x: ops.scan_backward_xs_with_checkpoints(
            c, t, u, [x], vjp_body(3), 4, False, 0, 2, step_body("f32[2]", "f32[2]")
        ),
    ),
    "custom_fn": (
        ("f32[2]", "f32[2]"),
        lambda g, a, b: g.custom_fn([a, b], step_body("f32[2]", "f32[2]")),
        lambda a, b: ops.custom_fn([a, b], step_body("f32[2]", "f32[2]")),
    ),
    "custom_fn_multi": (
        ("f32[2]", "f32[2]"),
        lambda g, a, b: g.custom_fn_multi([a, b], vjp_body(2)).output(g, 0),
        lambda a, b: ops.custom_fn_multi([a, b], vjp_body(2)).output(a.graph, 0),
    ),
    "custom_op": (
        ("f32[2]",),
        lambda g, x: g.custom_op("test.twice", b"", [x]),
        lambda x: ops.custom_op("test.twice", b"", [x]),
    ),
    "custom_op_packed": (
        ("f32[2]",),
        lambda g, x: g.custom_op_packed("test.twice", b"a", [x], Shape((4,))),
        lambda x: ops.custom_op_packed("test.twice", b"a", [x], Shape((4,))),
    ),
}


def all_below(limit: float) -> Graph:
    condition = Graph("below")
    below = condition.lt(condition.input("c", (2,)), limit)
    condition.set_outputs([condition.reduce(below, "all", [0])])
    return condition


class Twice(ops.OpExtension):
    def name(self):
        return "test.twice"

    def num_inputs(self):
        return 1

    def infer_shape(self, inputs, attrs):
        return inputs[0]


# Methods whose first argument is no operand.
LEADING = {
    "activation": "gelu",
    "activation_by_kind": "gelu",
    "binary": "max",
    "compare": "ge",
    "activation_backward": "gelu",
}


def record(build: Callable[[Graph, list[Tensor]], Any], shapes: tuple[str, ...]) -> Graph:
    graph = Graph("g")
    operands = [graph.input(f"x{i}", Shape.of(s)) for i, s in enumerate(shapes)]
    result = build(graph, operands)
    graph.set_outputs(result if isinstance(result, tuple) else [result])
    return graph


@pytest.mark.parametrize("name", CASES)
def test_builder_records_what_the_function_records(name):
    wanted = CASES[name]
    function = wanted.function or getattr(ops, name)

    def by_function(graph, xs):
        with building(graph):
            return function(xs, *wanted.arguments) if wanted.joined else function(*xs, *wanted.arguments)

    def by_method(graph, xs):
        ids = [NodeId(x.id) for x in xs]
        if name == "attention_backward":
            return graph.attention_backward("key", *ids, 2, 4, "causal")
        leading = (LEADING[name],) if name in LEADING else ()
        operands = (ids,) if wanted.joined else ids
        return getattr(graph, name)(*leading, *operands, *wanted.arguments)

    assert record(by_method, wanted.shapes) == record(by_function, wanted.shapes)


@pytest.fixture
def twice():
    ops.register_op(Twice())
    yield
    # Later registrations of the same name would warn, so the registry is left as it was found.
    ops.global_registry()._extensions.pop("test.twice")


@pytest.mark.parametrize("name", GROUPED)
def test_builder_with_grouped_operands(name, twice):
    shapes, method, function = GROUPED[name]

    def by_function(graph, xs):
        with building(graph):
            return function(*xs)

    by_method = record(lambda graph, xs: method(graph, *[NodeId(x.id) for x in xs]), shapes)
    assert by_method == record(by_function, shapes)


def test_every_builder_of_the_seed_documents_is_tested():
    untested = [n for n in SEED_METHODS if n not in CASES and n not in GROUPED and n not in SPLAT_METHODS]
    assert untested == []
    assert [n for n in SEED_METHODS if not callable(getattr(Graph, n, None))] == []


def test_every_builder_is_tested():
    methods = {n for n in dir(GraphBuilders) if not n.startswith("_")}
    assert methods - {*CASES, *GROUPED} == SPLAT_METHODS
    assert GraphExt is GraphBuilders


DECLARED = [
    ("matmul", ("f32[2,3]", "f32[3,4]"), (), "f32[2,4]"),
    ("reshape", ("f32[2,6]",), ((3, 4),), "f32[3,4]"),
    ("softmax", ("f32[2,3]",), (-1,), "f32[2,3]"),
    ("layer_norm", NORM, (-1, 1e-5), "f32[3,4]"),
    ("attention", (*QKV, "f32[2,3]"), (2, 4), "f32[2,3,8]"),
    ("gather", ("f32[5,3]", "i32[2]"), (0,), "f32[2,3]"),
    ("fused_swiglu_ffn", ("f32[2,3]", "f32[3,4]", "f32[3,4]", "f32[4,3]"), (), "f32[2,3]"),
]


@pytest.mark.parametrize(("name", "shapes", "arguments", "declared"), DECLARED)
def test_declared_shape_is_accepted_or_refused(name, shapes, arguments, declared):
    def build(shape):
        return record(lambda graph, xs: getattr(graph, name)(*xs, *arguments, shape=shape), shapes)

    right = Shape.of(declared)
    assert build(right) == build(declared) == build(right.dims) == build(None)
    wrong = right.with_dim(0, 7)
    with pytest.raises(ShapeError, match="declared output is") as caught:
        build(wrong)
    assert str(wrong) in str(caught.value) and str(right) in str(caught.value)
    with pytest.raises(ShapeError, match="declared output is"):
        build(right.with_dtype("f16"))


def test_declared_symbols_become_constraints():
    graph = Graph("g")
    x, w = graph.input("x", ("B", 3)), graph.input("w", (3, 4))
    graph.matmul(x, w, Shape(("N", 4)))
    assert [(str(c.left), str(c.right)) for c in graph.constraints] == [("B", "N")]


def test_several_results_have_no_declared_shape():
    graph = Graph("g")
    with pytest.raises(OpError, match="one result only"):
        graph._build(ops.top_k, graph.input("x", (4,)), 2, shape=(2,))


def test_operands_may_be_ids_arrays_and_numbers():
    graph = Graph("g")
    x = graph.input("x", (2, 2), "f16")
    y = graph.add(x.id, 1)
    assert y.dtype.value == "f16"
    z = graph.concat([y.id, np.ones((1, 2), "f2")], 0)
    graph.set_outputs([graph.matmul(z, np.eye(2, dtype="f2"))])
    [got] = interpret(graph, [np.zeros((2, 2), "f2")])
    np.testing.assert_array_equal(got, np.ones((3, 2)))


def test_values_of_another_graph_are_refused():
    one, other = Graph("one"), Graph("other")
    with pytest.raises(TraceError, match="used in another program, @other"):
        other.relu(one.input("x", (2,)))


def test_errors_point_at_the_line_of_the_user():
    graph = Graph("g")
    with pytest.raises(ShapeError, match=r"test_builders\.py"):
        graph.matmul(graph.input("x", (2, 3)), graph.input("w", (4, 2)))


def test_fake_quantize_keeps_a_state():
    g = Graph("ema")
    y, state = g.fake_quantize(g.input("x", (3,), "f32"), 4, None, "tanh", "ema", g.input("s", (1,), "f32"), decay=0.5)
    assert y.shape == (3,) and state.shape == (1,)
    assert ops.FakeQuantize(4, None, "tanh", "ema", 0.5) in [n.op for n in g.nodes]


def test_an_unseeded_sample_draws_anew():
    graph = Graph("g")
    x = graph.input("x", (2, 5))
    first, second = graph.sample(x), graph.sample(x)
    assert first.node.inputs != second.node.inputs
    assert graph.sample(x, seed=3).node.op == second.node.op
