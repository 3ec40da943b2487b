// A signed sum times a multiplier, digit by digit: one unit that takes DIGITS clocks for each product, the lowest digit
// first, so that its adder is no wider than the sum and a digit, or, PIPELINED, a unit per digit, the highest first, and a
// product each clock. It comes DIGITS + 1 clocks after its sum; all stands still without `go`.
module rlx_scale #(
    parameter SUM_BITS = 20,
    parameter DIGIT_BITS = 4,
    parameter DIGITS = 6,
    parameter DIGIT_COUNT_BITS = 3,
    parameter PIPELINED = 0,
    parameter DSP = 0,
    parameter SHIFT_BITS = 1
) (
    input wire clk,
    input wire rst,
    input wire go,
    input wire in_valid,
    output wire in_ready,
    input wire signed [SUM_BITS-1:0] in_sum,
    input wire [DIGITS*DIGIT_BITS-1:0] in_multiplier,
    input wire [SHIFT_BITS-1:0] in_shift,
    output wire out_valid,
    output wire signed [SUM_BITS+DIGITS*DIGIT_BITS:0] out_product,
    output wire [SHIFT_BITS-1:0] out_shift
);
    localparam MULTIPLIER_BITS = DIGITS * DIGIT_BITS;
    localparam PRODUCT_BITS = SUM_BITS + MULTIPLIER_BITS + 1;
    localparam PART_BITS = SUM_BITS + DIGIT_BITS + 1;

    genvar n;
    generate
        if (PIPELINED != 0) begin : in_space
            wire [DIGITS:0] valids;
            wire [(DIGITS+1)*SHIFT_BITS-1:0] shifts;
            wire [(DIGITS+1)*SUM_BITS-1:0] sums;
            wire [(DIGITS+1)*MULTIPLIER_BITS-1:0] multipliers;
            wire [(DIGITS+1)*PRODUCT_BITS-1:0] products;
            wire unused = &{1'b0, sums, multipliers};
            assign in_ready = go;
            assign out_valid = valids[DIGITS];
            assign out_product = products[DIGITS*PRODUCT_BITS+:PRODUCT_BITS];
            assign out_shift = shifts[DIGITS*SHIFT_BITS+:SHIFT_BITS];
            for (n = 0; n <= DIGITS; n = n + 1) begin : stage
                reg valid;
                reg [SHIFT_BITS-1:0] shift;
                reg signed [SUM_BITS-1:0] sum;
                reg [MULTIPLIER_BITS-1:0] multiplier;
                assign valids[n] = valid;
                assign shifts[n*SHIFT_BITS+:SHIFT_BITS] = shift;
                assign sums[n*SUM_BITS+:SUM_BITS] = sum;
                assign multipliers[n*MULTIPLIER_BITS+:MULTIPLIER_BITS] = multiplier;
                if (n == 0) begin : start
                    assign products[0+:PRODUCT_BITS] = {PRODUCT_BITS{1'b0}};
                    always @(posedge clk) begin
                        if (rst) valid <= 1'b0;
                        else if (go) valid <= in_valid;
                        if (go) begin
                            shift <= in_shift;
                            sum <= in_sum;
                            multiplier <= in_multiplier;
                        end
                    end
                end else begin : digit
                    wire signed [PART_BITS-1:0] part;
                    reg signed [PRODUCT_BITS-1:0] product;
                    assign products[n*PRODUCT_BITS+:PRODUCT_BITS] = product;
                    rlx_multiply #(
                        .A_BITS(SUM_BITS), .B_BITS(DIGIT_BITS + 1), .DSP(DSP)
                    ) multiply (
                        .a(sums[(n-1)*SUM_BITS+:SUM_BITS]),
                        .b({1'b0, multipliers[n*MULTIPLIER_BITS-1-:DIGIT_BITS]}), .product(part)
                    );
                    wire [PRODUCT_BITS+PART_BITS-1:0] wide_part = {{PRODUCT_BITS{part[PART_BITS-1]}}, part};
                    wire unused_part = &{1'b0, wide_part};
                    always @(posedge clk) begin
                        if (rst) valid <= 1'b0;
                        else if (go) valid <= valids[n-1];
                        if (go) begin
                            shift <= shifts[(n-1)*SHIFT_BITS+:SHIFT_BITS];
                            sum <= sums[(n-1)*SUM_BITS+:SUM_BITS];
                            multiplier <= multipliers[(n-1)*MULTIPLIER_BITS+:MULTIPLIER_BITS] << DIGIT_BITS;
                            product <= (products[(n-1)*PRODUCT_BITS+:PRODUCT_BITS] << DIGIT_BITS)
                                     + wide_part[PRODUCT_BITS-1:0];
                        end
                    end
                end
            end
        end else begin : in_time
            localparam [31:0] BEFORE_LAST_32 = (DIGITS == 1) ? 0 : DIGITS - 2;
            localparam [DIGIT_COUNT_BITS-1:0] BEFORE_LAST = BEFORE_LAST_32[DIGIT_COUNT_BITS-1:0];
            reg busy, valid;
            reg [DIGIT_COUNT_BITS-1:0] digit;
            reg [SHIFT_BITS-1:0] shift, shift_of_product;
            reg signed [SUM_BITS-1:0] sum;
            reg [MULTIPLIER_BITS-1:0] multiplier;
            // What the digits so far make: above the place of the next one, and below it.
            reg signed [SUM_BITS-1:0] upper;
            reg [MULTIPLIER_BITS-1:0] lower;
            reg signed [PRODUCT_BITS-1:0] product;
            reg at_last_digit;
            wire signed [PART_BITS-1:0] part;
            rlx_multiply #(
                .A_BITS(SUM_BITS), .B_BITS(DIGIT_BITS + 1), .DSP(DSP)
            ) multiply (
                .a(sum), .b({1'b0, multiplier[DIGIT_BITS-1:0]}), .product(part)
            );
            wire signed [PART_BITS-1:0] wide_upper = {{(DIGIT_BITS + 1){upper[SUM_BITS-1]}}, upper};
            wire signed [PART_BITS-1:0] total = wide_upper + part;
            wire [PART_BITS+MULTIPLIER_BITS-1:0] joined = {total, lower};
            wire unused_joined = &{1'b0, joined};
            assign in_ready = go && (!busy || at_last_digit);
            assign out_valid = valid;
            assign out_product = product;
            assign out_shift = shift_of_product;
            always @(posedge clk) begin
                if (go) begin
                    if (in_valid && in_ready) begin
                        sum <= in_sum;
                        multiplier <= in_multiplier;
                        shift <= in_shift;
                    end else begin
                        multiplier <= multiplier >> DIGIT_BITS;
                    end
                    if (busy) begin
                        lower <= joined[DIGIT_BITS+:MULTIPLIER_BITS];
                        if (at_last_digit) begin
                            product <= joined[PART_BITS+MULTIPLIER_BITS-1:DIGIT_BITS];
                            shift_of_product <= shift;
                        end
                    end
                end
                if (rst) begin
                    busy <= 1'b0;
                    valid <= 1'b0;
                    digit <= 0;
                    at_last_digit <= (DIGITS == 1);
                    upper <= 0;
                end else if (go) begin
                    busy <= (in_valid && in_ready) || (busy && !at_last_digit);
                    digit <= (busy && !at_last_digit) ? digit + 1'b1 : 0;
                    at_last_digit <= (DIGITS == 1) || (busy && digit == BEFORE_LAST);
                    valid <= busy && at_last_digit;
                    if (busy) upper <= at_last_digit ? {SUM_BITS{1'b0}} : total[PART_BITS-2:DIGIT_BITS];
                end
            end
        end
    endgenerate
endmodule
