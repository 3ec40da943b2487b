"""Why a pattern stayed unfused: a closed list, each reason with what the user can do about it."""

from __future__ import annotations

import enum


class MissReason(enum.StrEnum):
    """Why a fusion that was close did not happen. The detail of a miss holds the numbers and names."""

    MultiConsumer = "multi_consumer"
    IsOutput = "is_output"
    NonAddBiasConsumer = "non_add_bias_consumer"
    BiasRankTooHigh = "bias_rank_too_high"
    BiasShape = "bias_shape"
    UnsupportedEpilogueActivation = "unsupported_epilogue_activation"
    UnsupportedTypes = "unsupported_types"
    UnsupportedAttention = "unsupported_attention"
    ResidualShape = "residual_shape"
    NormAxis = "norm_axis"
    ReshapeNotFlat = "reshape_not_flat"
    SharedMatmulCount = "shared_matmul_count"
    WeightShapes = "weight_shapes"
    # Either order of the weights fuses here, so no rule gives this reason; reports of other engines do.
    SwigluGateBeforeUp = "swiglu_gate_before_up"
    SwigluNotSharedInput = "swiglu_not_shared_input"
    SwigluHalves = "swiglu_halves"
    NotQuantized = "not_quantized"
    PerChannel = "per_channel"
    CodeType = "code_type"
    NotProfitable = "not_profitable"
    NotFused = "not_fused"

    @property
    def is_choice(self) -> bool:
        """The fusion was possible and decided against: nothing is wrong with the program."""
        return self is MissReason.NotProfitable

    @property
    def hint(self) -> str:
        """What to change so that it fuses."""
        return _HINTS[self]


_HINTS: dict[MissReason, str] = {
    MissReason.MultiConsumer: "compute the value once for each reader, or build the layer with its fused HIR block",
    MissReason.IsOutput: "return the fused result instead of the value inside it",
    MissReason.NonAddBiasConsumer: "add the bias (negate it beforehand), or use linear with a bias",
    MissReason.BiasRankTooHigh: "give the bias as one vector of the output features, [N]",
    MissReason.BiasShape: "give the bias as one vector of the output features, [N]",
    MissReason.UnsupportedEpilogueActivation: "use one of gelu, gelu_approx, silu, relu, sigmoid, tanh",
    MissReason.UnsupportedTypes: "use operands of one float type and the default precision",
    MissReason.UnsupportedAttention: "use a custom mask, heads joined as [B, S, H*D], and the default scale",
    MissReason.ResidualShape: "add tensors of one shape; expand the smaller one beforehand",
    MissReason.NormAxis: "normalise over the last axis",
    MissReason.ReshapeNotFlat: "flatten exactly the leading axes, [.., H] to [rows, H]",
    MissReason.SharedMatmulCount: "run fuse_shared_input_matmul, or build the pair with shared_linear_pair",
    MissReason.WeightShapes: "use weight matrices [K, N] of one type",
    MissReason.SwigluGateBeforeUp: "put the up weight before the gate weight",
    MissReason.SwigluNotSharedInput: "let gate and up projection read the same tensor",
    MissReason.SwigluHalves: "cut the last axis into exactly two halves",
    MissReason.NotQuantized: "calibrate both operands and the result of the product",
    MissReason.PerChannel: "calibrate operands and result of the product with one scale each",
    MissReason.CodeType: "quantise to i8 or u8",
    MissReason.NotProfitable: "nothing to do: fusing would cost more than it saves",
    MissReason.NotFused: "the pass was not run; look at the pass list of the pipeline",
}
