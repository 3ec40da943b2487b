// The sum of two values: both are brought to a common fine scale, added, and brought to that of the result.
module rlx_add #(
    parameter A_BITS = 8,
    parameter A_ZERO_POINT = 0,
    parameter A_SUM_BITS = 10,
    parameter A_MULTIPLIER = 1,
    parameter A_DIGIT_BITS = 4,
    parameter A_DIGITS = 6,
    parameter A_DIGIT_COUNT_BITS = 3,
    parameter A_FRACTION_BITS = 4,
    parameter A_SHIFT = 0,
    parameter A_WIDE_BITS = 34,
    parameter B_BITS = 8,
    parameter B_ZERO_POINT = 0,
    parameter B_SUM_BITS = 10,
    parameter B_MULTIPLIER = 1,
    parameter B_DIGIT_BITS = 4,
    parameter B_DIGITS = 6,
    parameter B_DIGIT_COUNT_BITS = 3,
    parameter B_FRACTION_BITS = 4,
    parameter B_SHIFT = 0,
    parameter B_WIDE_BITS = 34,
    parameter PART_BITS = 29,
    parameter OUT_BITS = 8,
    parameter SUM_BITS = 30,
    parameter GROWN_BITS = 30,
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
    parameter WIDE_BITS = 32,
    parameter ZERO_POINT = 0,
    parameter LOW = -128,
    parameter HIGH = 127
) (
    input wire clk,
    input wire rst,
    input wire a_valid,
    output wire a_ready,
    input wire [A_BITS-1:0] a_data,
    input wire b_valid,
    output wire b_ready,
    input wire [B_BITS-1:0] b_data,
    output wire out_valid,
    input wire out_ready,
    output wire [OUT_BITS-1:0] out_data
);
    localparam MULTIPLIER_BITS = DIGITS * DIGIT_BITS;
    localparam [31:0] FACTOR_32 = MULTIPLIER;
    localparam [MULTIPLIER_BITS-1:0] FACTOR = FACTOR_32[MULTIPLIER_BITS-1:0];
    localparam [31:0] LEFTWARDS_32 = LEFT;
    localparam [LEFT_BITS-1:0] LEFTWARDS = LEFTWARDS_32[LEFT_BITS-1:0];

    // Both lines go in step, so that their results come together.
    wire a_line_ready, b_line_ready, a_part_valid, b_part_valid, ready;
    wire signed [PART_BITS-1:0] a_part, b_part;
    assign a_ready = a_line_ready && b_valid;
    assign b_ready = b_line_ready && a_valid;
    rlx_rescale #(
        .IN_BITS(A_BITS), .IN_ZERO_POINT(A_ZERO_POINT), .OUT_BITS(PART_BITS), .SUM_BITS(A_SUM_BITS), .GROWN_BITS(A_SUM_BITS),
        .MULTIPLIER(A_MULTIPLIER), .DIGIT_BITS(A_DIGIT_BITS), .DIGITS(A_DIGITS), .DIGIT_COUNT_BITS(A_DIGIT_COUNT_BITS), .DSP(DSP), .FRACTION_BITS(A_FRACTION_BITS),
        .SHIFT_MIN(A_SHIFT), .WIDE_BITS(A_WIDE_BITS), .CLAMPED(0)
    ) a_line (
        .clk(clk), .rst(rst), .in_valid(a_valid && b_valid), .in_ready(a_line_ready), .in_data(a_data),
        .out_valid(a_part_valid), .out_ready(ready), .out_data(a_part)
    );
    rlx_rescale #(
        .IN_BITS(B_BITS), .IN_ZERO_POINT(B_ZERO_POINT), .OUT_BITS(PART_BITS), .SUM_BITS(B_SUM_BITS), .GROWN_BITS(B_SUM_BITS),
        .MULTIPLIER(B_MULTIPLIER), .DIGIT_BITS(B_DIGIT_BITS), .DIGITS(B_DIGITS), .DIGIT_COUNT_BITS(B_DIGIT_COUNT_BITS), .DSP(DSP), .FRACTION_BITS(B_FRACTION_BITS),
        .SHIFT_MIN(B_SHIFT), .WIDE_BITS(B_WIDE_BITS), .CLAMPED(0)
    ) b_line (
        .clk(clk), .rst(rst), .in_valid(a_valid && b_valid), .in_ready(b_line_ready), .in_data(b_data),
        .out_valid(b_part_valid), .out_ready(ready), .out_data(b_part)
    );
    wire signed [SUM_BITS-1:0] sum = {{(SUM_BITS - PART_BITS){a_part[PART_BITS-1]}}, a_part}
                                   + {{(SUM_BITS - PART_BITS){b_part[PART_BITS-1]}}, b_part};
    rlx_requantize #(
        .SUM_BITS(SUM_BITS), .GROWN_BITS(GROWN_BITS), .LEFT_SHIFTED(LEFT_SHIFTED), .LEFT_BITS(LEFT_BITS),
        .DIGIT_BITS(DIGIT_BITS), .DIGITS(DIGITS), .DIGIT_COUNT_BITS(DIGIT_COUNT_BITS), .PIPELINED(1), .DSP(DSP), .FRACTION_BITS(FRACTION_BITS),
        .SHIFT_MIN(SHIFT_MIN), .SHIFT_BITS(1), .WIDE_BITS(WIDE_BITS), .ZERO_POINT(ZERO_POINT), .LOW(LOW), .HIGH(HIGH),
        .OUT_BITS(OUT_BITS)
    ) requantize (
        .clk(clk), .rst(rst), .in_valid(a_part_valid && b_part_valid), .in_ready(ready), .in_sum(sum),
        .in_multiplier(FACTOR), .in_left(LEFTWARDS), .in_shift(1'b0), .out_valid(out_valid), .out_ready(out_ready),
        .out_code(out_data)
    );
endmodule
