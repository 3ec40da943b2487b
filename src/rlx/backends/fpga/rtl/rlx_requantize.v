// Sums become codes: clamp(rdpot(srdhm(sum << left, multiplier), shift) + zero point), bit for bit as in NumPy.
//
// The multiplier enters digit by digit, the highest first, one digit per clock; all stages stand still while the code at
// the end is not taken. Bits of the multiplier that are 0 in all channels are left out, and FRACTION_BITS is what
// remains of 31 (or 15). A code leaves DIGITS + 4 clocks after its sum came.
module rlx_requantize #(
    parameter SUM_BITS = 20,
    parameter GROWN_BITS = 20,
    parameter LEFT_SHIFTED = 0,
    parameter LEFT_BITS = 1,
    parameter DIGIT_BITS = 8,
    parameter DIGITS = 3,
    parameter DIGIT_COUNT_BITS = 2,
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
    localparam PART_BITS = GROWN_BITS + DIGIT_BITS + 1;
    localparam ROUNDED_BITS = PRODUCT_BITS - FRACTION_BITS;
    localparam [31:0] LAST_DIGIT_32 = DIGITS - 1;
    localparam [DIGIT_COUNT_BITS-1:0] LAST_DIGIT = LAST_DIGIT_32[DIGIT_COUNT_BITS-1:0];
    // Constants are cut to their widths by part-selects, which no tool takes for a mistake.
    localparam [63:0] ONE = 64'd1;
    localparam [63:0] HALF_64 = ONE << (FRACTION_BITS - 1);
    localparam [63:0] SMALLEST_HALF_64 = (SHIFT_MIN == 0) ? ONE : ONE << (SHIFT_MIN - 1);
    localparam signed [PRODUCT_BITS-1:0] HALF = HALF_64[PRODUCT_BITS-1:0];
    localparam [WIDE_BITS-1:0] SMALLEST_HALF = SMALLEST_HALF_64[WIDE_BITS-1:0];

    wire signed [31:0] zero_32 = ZERO_POINT;
    wire signed [31:0] low_32 = LOW;
    wire signed [31:0] high_32 = HIGH;
    wire [63:0] zero_64 = {{32{zero_32[31]}}, zero_32};
    wire [63:0] low_64 = {{32{low_32[31]}}, low_32};
    wire [63:0] high_64 = {{32{high_32[31]}}, high_32};
    wire signed [WIDE_BITS-1:0] zero = zero_64[WIDE_BITS-1:0];
    wire signed [WIDE_BITS-1:0] lowest = low_64[WIDE_BITS-1:0];
    wire signed [WIDE_BITS-1:0] highest = high_64[WIDE_BITS-1:0];

    wire go = !out_valid || out_ready;
    reg busy, product_valid, rounded_valid, scaled_valid;
    reg [DIGIT_COUNT_BITS-1:0] digit;
    wire at_last_digit = digit == LAST_DIGIT;
    assign in_ready = go && (!busy || at_last_digit);

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

    reg signed [GROWN_BITS-1:0] sum;
    reg [MULTIPLIER_BITS-1:0] multiplier;
    reg signed [PRODUCT_BITS-1:0] product;
    wire signed [PART_BITS-1:0] part;
    rlx_multiply #(
        .A_BITS(GROWN_BITS), .B_BITS(DIGIT_BITS + 1), .DSP(DSP)
    ) multiply (
        .a(sum), .b({1'b0, multiplier[MULTIPLIER_BITS-1-:DIGIT_BITS]}), .product(part)
    );
    wire signed [PRODUCT_BITS-1:0] wide_part;
    generate
        if (DIGITS == 1) begin : one_digit
            assign wide_part = part;
        end else begin : more_digits
            wire signed [PRODUCT_BITS-1:0] earlier = (digit == 0) ? {PRODUCT_BITS{1'b0}} : product <<< DIGIT_BITS;
            assign wide_part = earlier + {{(PRODUCT_BITS - PART_BITS){part[PART_BITS-1]}}, part};
        end
    endgenerate

    reg [SHIFT_BITS-1:0] shift_of_sum, shift_of_product, shift_of_rounded;
    wire signed [PRODUCT_BITS-1:0] nudged = product + HALF;
    reg signed [ROUNDED_BITS-1:0] rounded;
    wire signed [WIDE_BITS-1:0] wide_rounded = {{(WIDE_BITS - ROUNDED_BITS){rounded[ROUNDED_BITS-1]}}, rounded};
    // Ties go away from zero: half is added, less one below zero. A shift by 0 rounds nothing.
    wire no_shift = (SHIFT_MIN == 0) && shift_of_rounded == 0;
    wire [WIDE_BITS-1:0] minus_one = {WIDE_BITS{rounded[ROUNDED_BITS-1]}};
    wire [WIDE_BITS-1:0] half = (SHIFT_MIN == 0) ? (SMALLEST_HALF << shift_of_rounded) >> 1
                                                 : SMALLEST_HALF << shift_of_rounded;
    wire signed [WIDE_BITS-1:0] towards = wide_rounded + half + minus_one;
    wire signed [WIDE_BITS-1:0] quotient = (no_shift ? wide_rounded : towards) >>> SHIFT_MIN >>> shift_of_rounded;
    reg signed [WIDE_BITS-1:0] scaled;
    wire signed [WIDE_BITS-1:0] moved = scaled + zero;
    wire signed [WIDE_BITS-1:0] clamped = (CLAMPED == 0) ? moved : (moved < lowest) ? lowest : (moved > highest) ? highest : moved;

    wire unused = &{1'b0, nudged, clamped, zero_64, low_64, high_64};

    always @(posedge clk) begin
        if (go) begin
            if (in_valid && in_ready) begin
                sum <= grown;
                multiplier <= in_multiplier;
                shift_of_sum <= in_shift;
            end else begin
                multiplier <= multiplier << DIGIT_BITS;
            end
            if (busy) begin
                product <= wide_part;
                shift_of_product <= shift_of_sum;
            end
            rounded <= nudged[PRODUCT_BITS-1:FRACTION_BITS];
            shift_of_rounded <= shift_of_product;
            scaled <= quotient;
            out_code <= clamped[OUT_BITS-1:0];
        end
        if (rst) begin
            busy <= 1'b0;
            digit <= 0;
            product_valid <= 1'b0;
            rounded_valid <= 1'b0;
            scaled_valid <= 1'b0;
            out_valid <= 1'b0;
        end else if (go) begin
            busy <= (in_valid && in_ready) || (busy && !at_last_digit);
            digit <= (busy && !at_last_digit) ? digit + 1'b1 : 0;
            product_valid <= busy && at_last_digit;
            rounded_valid <= product_valid;
            scaled_valid <= rounded_valid;
            out_valid <= scaled_valid;
        end
    end
endmodule
