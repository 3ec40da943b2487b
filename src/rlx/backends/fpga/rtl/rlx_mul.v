// The product of two values.
module rlx_mul #(
    parameter A_BITS = 8,
    parameter B_BITS = 8,
    parameter A_ZERO_POINT = 0,
    parameter B_ZERO_POINT = 0,
    parameter OUT_BITS = 8,
    parameter SUM_BITS = 18,
    parameter GROWN_BITS = 18,
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
    localparam A_WIDE = A_BITS + 1;
    localparam B_WIDE = B_BITS + 1;
    localparam [31:0] A_ZERO_32 = A_ZERO_POINT;
    localparam [A_WIDE-1:0] A_ZERO = A_ZERO_32[A_WIDE-1:0];
    localparam [31:0] B_ZERO_32 = B_ZERO_POINT;
    localparam [B_WIDE-1:0] B_ZERO = B_ZERO_32[B_WIDE-1:0];
    localparam MULTIPLIER_BITS = DIGITS * DIGIT_BITS;
    localparam [31:0] FACTOR_32 = MULTIPLIER;
    localparam [MULTIPLIER_BITS-1:0] FACTOR = FACTOR_32[MULTIPLIER_BITS-1:0];
    localparam [31:0] LEFTWARDS_32 = LEFT;
    localparam [LEFT_BITS-1:0] LEFTWARDS = LEFTWARDS_32[LEFT_BITS-1:0];

    wire ready;
    assign a_ready = ready && b_valid;
    assign b_ready = ready && a_valid;
    wire signed [SUM_BITS-1:0] product;
    rlx_multiply #(
        .A_BITS(A_WIDE), .B_BITS(B_WIDE), .DSP(DSP)
    ) multiply (
        .a({a_data[A_BITS-1], a_data} - A_ZERO), .b({b_data[B_BITS-1], b_data} - B_ZERO), .product(product)
    );
    rlx_requantize #(
        .SUM_BITS(SUM_BITS), .GROWN_BITS(GROWN_BITS), .LEFT_SHIFTED(LEFT_SHIFTED), .LEFT_BITS(LEFT_BITS),
        .DIGIT_BITS(DIGIT_BITS), .DIGITS(DIGITS), .DIGIT_COUNT_BITS(DIGIT_COUNT_BITS), .PIPELINED(1), .DSP(DSP), .FRACTION_BITS(FRACTION_BITS),
        .SHIFT_MIN(SHIFT_MIN), .SHIFT_BITS(1), .WIDE_BITS(WIDE_BITS), .ZERO_POINT(ZERO_POINT), .LOW(LOW), .HIGH(HIGH),
        .OUT_BITS(OUT_BITS)
    ) requantize (
        .clk(clk), .rst(rst), .in_valid(a_valid && b_valid), .in_ready(ready), .in_sum(product), .in_multiplier(FACTOR),
        .in_left(LEFTWARDS), .in_shift(1'b0), .out_valid(out_valid), .out_ready(out_ready), .out_code(out_data)
    );
endmodule
