// The same numbers with another scale, zero point or width.
module rlx_rescale #(
    parameter IN_BITS = 8,
    parameter IN_ZERO_POINT = 0,
    parameter OUT_BITS = 8,
    parameter SUM_BITS = 9,
    parameter GROWN_BITS = 9,
    parameter LEFT_SHIFTED = 0,
    parameter LEFT_BITS = 1,
    parameter LEFT = 0,
    parameter MULTIPLIER = 1,
    parameter DIGIT_BITS = 4,
    parameter DIGITS = 6,
    parameter DIGIT_COUNT_BITS = 3,
    parameter DSP = 0,
    parameter FRACTION_BITS = 24,
    parameter SHIFT_MIN = 0,
    parameter WIDE_BITS = 24,
    parameter ZERO_POINT = 0,
    parameter CLAMPED = 1,
    parameter LOW = -128,
    parameter HIGH = 127
) (
    input wire clk,
    input wire rst,
    input wire in_valid,
    output wire in_ready,
    input wire [IN_BITS-1:0] in_data,
    output wire out_valid,
    input wire out_ready,
    output wire [OUT_BITS-1:0] out_data
);
    localparam [31:0] IN_ZERO_32 = IN_ZERO_POINT;
    localparam signed [SUM_BITS-1:0] IN_ZERO = IN_ZERO_32[SUM_BITS-1:0];
    localparam MULTIPLIER_BITS = DIGITS * DIGIT_BITS;
    localparam [31:0] FACTOR_32 = MULTIPLIER;
    localparam [MULTIPLIER_BITS-1:0] FACTOR = FACTOR_32[MULTIPLIER_BITS-1:0];
    localparam [31:0] LEFTWARDS_32 = LEFT;
    localparam [LEFT_BITS-1:0] LEFTWARDS = LEFTWARDS_32[LEFT_BITS-1:0];
    wire signed [SUM_BITS-1:0] wide = {{(SUM_BITS - IN_BITS){in_data[IN_BITS-1]}}, in_data};

    rlx_requantize #(
        .SUM_BITS(SUM_BITS), .GROWN_BITS(GROWN_BITS), .LEFT_SHIFTED(LEFT_SHIFTED), .LEFT_BITS(LEFT_BITS),
        .DIGIT_BITS(DIGIT_BITS), .DIGITS(DIGITS), .DIGIT_COUNT_BITS(DIGIT_COUNT_BITS), .PIPELINED(1), .DSP(DSP), .FRACTION_BITS(FRACTION_BITS),
        .SHIFT_MIN(SHIFT_MIN), .SHIFT_BITS(1), .WIDE_BITS(WIDE_BITS), .ZERO_POINT(ZERO_POINT), .CLAMPED(CLAMPED), .LOW(LOW), .HIGH(HIGH),
        .OUT_BITS(OUT_BITS)
    ) requantize (
        .clk(clk), .rst(rst), .in_valid(in_valid), .in_ready(in_ready), .in_sum(wide - IN_ZERO), .in_multiplier(FACTOR),
        .in_left(LEFTWARDS), .in_shift(1'b0), .out_valid(out_valid), .out_ready(out_ready), .out_code(out_data)
    );
endmodule
