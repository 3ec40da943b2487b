// Sums become codes: clamp(rdpot(srdhm(sum << left, multiplier), shift) + zero point), bit for bit as in NumPy.
//
// All stages stand still while the code at the end is not taken. Bits of the multiplier that are 0 in all channels are left
// out, and FRACTION_BITS is what remains of 31 (or 15). A code leaves DIGITS + 5 clocks after its sum came.
module rlx_requantize #(
    parameter SUM_BITS = 20,
    parameter GROWN_BITS = 20,
    parameter LEFT_SHIFTED = 0,
    parameter LEFT_BITS = 1,
    parameter DIGIT_BITS = 8,
    parameter DIGITS = 3,
    parameter DIGIT_COUNT_BITS = 2,
    parameter PIPELINED = 0,
    parameter DSP = 0,
    parameter FRACTION_BITS = 24,
    parameter SHIFT_MIN = 0,
    parameter SHIFT_BITS = 1,
    parameter WIDE_BITS = 24,
    parameter ZERO_POINT = 0,
    parameter CLAMPED = 1,
    parameter LOW = -128,
    parameter HIGH = 127,
    parameter OUT_BITS = 8
) (
    input wire clk,
    input wire rst,
    input wire in_valid,
    output wire in_ready,
    input wire signed [SUM_BITS-1:0] in_sum,
    input wire [DIGITS*DIGIT_BITS-1:0] in_multiplier,
    input wire [SHIFT_BITS-1:0] in_shift,
    input wire [LEFT_BITS-1:0] in_left,
    output reg out_valid,
    input wire out_ready,
    output reg [OUT_BITS-1:0] out_code
);
    localparam MULTIPLIER_BITS = DIGITS * DIGIT_BITS;
    localparam PRODUCT_BITS = GROWN_BITS + MULTIPLIER_BITS + 1;
    localparam ROUNDED_BITS = PRODUCT_BITS - FRACTION_BITS;
    // Constants are cut to their widths by part-selects, which no tool takes for a mistake.
    localparam [63:0] ONE = 64'd1;
    localparam [63:0] HALF_64 = ONE << (FRACTION_BITS - 1);
    localparam signed [PRODUCT_BITS-1:0] HALF = HALF_64[PRODUCT_BITS-1:0];
    // A quotient needs no more bits than this.
    localparam SHIFTED_BITS = (WIDE_BITS - SHIFT_MIN > OUT_BITS + 2) ? WIDE_BITS - SHIFT_MIN : OUT_BITS + 2;
    localparam CODE_BITS = (SHIFTED_BITS < WIDE_BITS) ? SHIFTED_BITS : WIDE_BITS;

    wire signed [31:0] zero_32 = ZERO_POINT;
    wire signed [31:0] low_32 = LOW;
    wire signed [31:0] high_32 = HIGH;
    wire [63:0] zero_64 = {{32{zero_32[31]}}, zero_32};
    wire [63:0] low_64 = {{32{low_32[31]}}, low_32};
    wire [63:0] high_64 = {{32{high_32[31]}}, high_32};
    wire signed [CODE_BITS-1:0] zero = zero_64[CODE_BITS-1:0];
    wire signed [CODE_BITS-1:0] lowest = low_64[CODE_BITS-1:0];
    wire signed [CODE_BITS-1:0] highest = high_64[CODE_BITS-1:0];

    wire go = !out_valid || out_ready;
    wire product_valid;
    reg rounded_valid, nudged_valid, moved_valid;

    // Multipliers of 1 and more shift the sum left first; it saturates where it would leave 32 bits.
    wire signed [GROWN_BITS-1:0] grown;
    generate
        if (LEFT_SHIFTED == 0) begin : as_it_is
            assign grown = in_sum;
            wire unused_left = &{1'b0, in_left};
        end else begin : shifted_left
            wire signed [SUM_BITS+31:0] far = {{32{in_sum[SUM_BITS-1]}}, in_sum} <<< in_left;
            wire fits = far[SUM_BITS+31:GROWN_BITS-1] == {(SUM_BITS + 33 - GROWN_BITS){in_sum[SUM_BITS-1]}};
            assign grown = fits ? far[GROWN_BITS-1:0] : {in_sum[SUM_BITS-1], {(GROWN_BITS - 1){!in_sum[SUM_BITS-1]}}};
        end
    endgenerate

    wire signed [PRODUCT_BITS-1:0] product;
    wire [SHIFT_BITS-1:0] shift_of_product;
    rlx_scale #(
        .SUM_BITS(GROWN_BITS), .DIGIT_BITS(DIGIT_BITS), .DIGITS(DIGITS), .DIGIT_COUNT_BITS(DIGIT_COUNT_BITS),
        .PIPELINED(PIPELINED), .DSP(DSP), .SHIFT_BITS(SHIFT_BITS)
    ) scale (
        .clk(clk), .rst(rst), .go(go), .in_valid(in_valid), .in_ready(in_ready), .in_sum(grown),
        .in_multiplier(in_multiplier), .in_shift(in_shift), .out_valid(product_valid), .out_product(product),
        .out_shift(shift_of_product)
    );

    reg [SHIFT_BITS-1:0] shift_of_rounded, shift_of_nudged;
    wire signed [PRODUCT_BITS-1:0] with_half = product + HALF;
    reg signed [ROUNDED_BITS-1:0] rounded;
    wire signed [WIDE_BITS-1:0] wide_rounded = {{(WIDE_BITS - ROUNDED_BITS){rounded[ROUNDED_BITS-1]}}, rounded};
    // Ties go away from zero: half of what the shift divides by is added, less one below zero. That is one bit, or all
    // bits below it; a shift by 0 adds nothing.
    wire [WIDE_BITS-1:0] nudge;
    genvar n;
    generate
        for (n = 0; n < WIDE_BITS; n = n + 1) begin : nudge_bit
            if (n + 1 < SHIFT_MIN) begin : below_all
                assign nudge[n] = rounded[ROUNDED_BITS-1];
            end else if (n + 1 - SHIFT_MIN == (1 << SHIFT_BITS) - 1) begin : highest_of_all
                assign nudge[n] = !rounded[ROUNDED_BITS-1] && &shift_of_rounded;
            end else if (n + 1 - SHIFT_MIN < (1 << SHIFT_BITS)) begin : near
                localparam [31:0] PLACE_32 = n + 1 - SHIFT_MIN;
                localparam [SHIFT_BITS-1:0] PLACE = PLACE_32[SHIFT_BITS-1:0];
                assign nudge[n] = rounded[ROUNDED_BITS-1] ? shift_of_rounded > PLACE : shift_of_rounded == PLACE;
            end else begin : above_all
                assign nudge[n] = 1'b0;
            end
        end
    endgenerate
    reg signed [WIDE_BITS-1:0] nudged;
    wire signed [WIDE_BITS-1:0] quotient = nudged >>> SHIFT_MIN >>> shift_of_nudged;
    reg signed [CODE_BITS-1:0] moved;
    wire signed [CODE_BITS-1:0] clamped = (CLAMPED == 0) ? moved : (moved < lowest) ? lowest : (moved > highest) ? highest : moved;

    wire unused = &{1'b0, with_half, quotient, clamped, zero_64, low_64, high_64};

    always @(posedge clk) begin
        if (go) begin
            rounded <= with_half[PRODUCT_BITS-1:FRACTION_BITS];
            shift_of_rounded <= shift_of_product;
            nudged <= wide_rounded + nudge;
            shift_of_nudged <= shift_of_rounded;
            moved <= quotient[CODE_BITS-1:0] + zero;
            out_code <= clamped[OUT_BITS-1:0];
        end
        if (rst) begin
            rounded_valid <= 1'b0;
            nudged_valid <= 1'b0;
            moved_valid <= 1'b0;
            out_valid <= 1'b0;
        end else if (go) begin
            rounded_valid <= product_valid;
            nudged_valid <= rounded_valid;
            moved_valid <= nudged_valid;
            out_valid <= moved_valid;
        end
    end
endmodule
