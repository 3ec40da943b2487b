// Pooling: the largest code of each window, or the mean code with ties away from zero.
//
// A mean is (|sum| + ROUNDING) * RECIPROCAL >> RECIPROCAL_SHIFT with the sign of the sum, which is exact for all sums that
// there can be.
module rlx_pool #(
    parameter BITS = 8,
    parameter WORDS = 16,
    parameter ADDRESS_BITS = 4,
    parameter ROWS = 1,
    parameter COLUMNS = 1,
    parameter GROUPS = 1,
    parameter PASSES = 1,
    parameter KH = 1,
    parameter KW = 1,
    parameter KC = 16,
    parameter START = 0,
    parameter TO_COLUMN_OF_WINDOW = 1,
    parameter TO_ROW_OF_WINDOW = 1,
    parameter TO_COLUMN = 1,
    parameter TO_ROW = 1,
    parameter PADDED = 0,
    parameter HEIGHT = 1,
    parameter WIDTH = 1,
    parameter EDGE_BITS = 2,
    parameter TOP = 0,
    parameter LEFT = 0,
    parameter DILATION_Y = 1,
    parameter DILATION_X = 1,
    parameter STRIDE_Y = 1,
    parameter STRIDE_X = 1,
    parameter SPRAM = 0,
    parameter DOUBLED = 0,
    parameter MEAN = 0,
    parameter SUM_BITS = 8,
    parameter ROUNDING = 0,
    parameter RECIPROCAL = 1,
    parameter RECIPROCAL_BITS = 2,
    parameter RECIPROCAL_SHIFT = 1
) (
    input wire clk,
    input wire rst,
    input wire in_valid,
    output wire in_ready,
    input wire [BITS-1:0] in_data,
    output reg out_valid,
    input wire out_ready,
    output reg [BITS-1:0] out_data
);
    wire tap_valid, tap_first, tap_last, unused_turn, in_frame;
    wire signed [BITS-1:0] code;
    reg pending;
    wire step = tap_valid && !(tap_last && pending);
    rlx_frame #(
        .BITS(BITS), .WORDS(WORDS), .ADDRESS_BITS(ADDRESS_BITS), .ROWS(ROWS), .COLUMNS(COLUMNS), .GROUPS(GROUPS),
        .PASSES(PASSES), .KH(KH), .KW(KW), .KC(KC), .START(START),
        .TO_COLUMN_OF_WINDOW(TO_COLUMN_OF_WINDOW), .TO_ROW_OF_WINDOW(TO_ROW_OF_WINDOW), .TO_COLUMN(TO_COLUMN),
        .TO_ROW(TO_ROW), .PADDED(PADDED), .HEIGHT(HEIGHT), .WIDTH(WIDTH), .EDGE_BITS(EDGE_BITS), .TOP(TOP), .LEFT(LEFT),
        .DILATION_Y(DILATION_Y), .DILATION_X(DILATION_X), .STRIDE_Y(STRIDE_Y), .STRIDE_X(STRIDE_X), .SPRAM(SPRAM), .DOUBLED(DOUBLED)
    ) frame (
        .clk(clk), .rst(rst), .in_valid(in_valid), .in_ready(in_ready), .in_data(in_data), .tap_valid(tap_valid),
        .step(step), .tap_first(tap_first), .tap_last(tap_last), .tap_turn(unused_turn), .code(code), .in_frame(in_frame)
    );

    reg first_code, last_code, code_valid, result_valid, full;
    wire go = !out_valid || out_ready;
    wire take = full && go;
    always @(posedge clk) begin
        first_code <= tap_first;
        last_code <= tap_last;
        if (rst) begin
            code_valid <= 1'b0;
            result_valid <= 1'b0;
            pending <= 1'b0;
            full <= 1'b0;
        end else begin
            code_valid <= step;
            result_valid <= code_valid && last_code;
            if (step && tap_last) pending <= 1'b1;
            else if (take) pending <= 1'b0;
            if (result_valid) full <= 1'b1;
            else if (take) full <= 1'b0;
        end
    end

    generate
        if (MEAN == 0) begin : largest
            reg signed [BITS-1:0] best, held;
            always @(posedge clk) begin
                if (code_valid && (first_code || (in_frame && code > best)))
                    best <= in_frame ? code : {1'b1, {(BITS - 1){1'b0}}};
                if (result_valid) held <= best;
                if (take) out_data <= held;
                if (rst) out_valid <= 1'b0;
                else if (go) out_valid <= take;
            end
        end else begin : mean
            localparam [31:0] ROUNDING_32 = ROUNDING;
            localparam [31:0] RECIPROCAL_32 = RECIPROCAL;
            localparam [SUM_BITS:0] HALF = ROUNDING_32[SUM_BITS:0];
            localparam [RECIPROCAL_BITS-1:0] FACTOR = RECIPROCAL_32[RECIPROCAL_BITS-1:0];
            localparam QUOTIENT_BITS = SUM_BITS + 1 + RECIPROCAL_BITS;
            reg signed [SUM_BITS-1:0] sum, held;
            wire signed [SUM_BITS-1:0] wide = {{(SUM_BITS - BITS){code[BITS-1]}}, code};
            wire [SUM_BITS:0] magnitude = {1'b0, held[SUM_BITS-1] ? -held : held} + HALF;
            wire signed [QUOTIENT_BITS-1:0] product_now;
            rlx_multiply #(
                .A_BITS(SUM_BITS + 1), .B_BITS(RECIPROCAL_BITS), .DSP(0)
            ) multiply (
                .a(magnitude), .b(FACTOR), .product(product_now)
            );
            reg [QUOTIENT_BITS-1:0] product;
            wire [QUOTIENT_BITS-1:0] quotient = product >> RECIPROCAL_SHIFT;
            wire unused = &{1'b0, in_frame, quotient};
            reg negative, product_valid;
            always @(posedge clk) begin
                if (code_valid) sum <= first_code ? wide : sum + wide;
                if (result_valid) held <= sum;
                if (take) begin
                    product <= product_now;
                    negative <= held[SUM_BITS-1];
                end
                if (go) out_data <= negative ? -quotient[BITS-1:0] : quotient[BITS-1:0];
                if (rst) begin
                    product_valid <= 1'b0;
                    out_valid <= 1'b0;
                end else if (go) begin
                    product_valid <= take;
                    out_valid <= product_valid;
                end
            end
        end
    endgenerate
endmodule
