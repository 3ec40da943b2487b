// Dense layers and convolutions: LANES sums at a time over the taps of a frame, then one requantiser for all of them.
//
// With SYSTOLIC, codes go from lane to lane, a clock each, and weights lie so that each lane has its own when they come:
// sums stay where they are made, and no code is sent to all lanes at once.
//
// Sums are handed over to the requantiser whole, so that the next ones begin without a gap, or, with SUMS_IN_DSP, with
// one: multipliers of a chip add what they make to a sum of their own, which begins with nothing and not with a product,
// and takes what comes in every clock, which is 0 where there is no tap. Channels have one table:
// {shift, left shift, multiplier, bias} of each; shifts only where there is something to tell.
module rlx_product #(
    parameter IN_BITS = 8,
    parameter IN_ZERO_POINT = 0,
    parameter DIFFERENCE_BITS = 8,
    parameter OUT_BITS = 8,
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
    parameter LANES = 1,
    parameter LAST_LANES = 1,
    parameter LANE_BITS = 1,
    parameter SYSTOLIC = 0,
    parameter SUMS_IN_DSP = 0,
    parameter WEIGHT_BITS = 8,
    parameter WEIGHT_WORDS = 16,
    parameter WEIGHT_ADDRESS_BITS = 4,
    parameter WEIGHT_BLOCK = 1,
    parameter WEIGHT_FILE = "weights.hex",
    parameter DSP = 1,
    parameter ACC_BITS = 20,
    parameter CHANNELS = 2,
    parameter CHANNEL_BITS = 1,
    parameter CHANNEL_WORDS = 2,
    parameter CHANNEL_BLOCK = 1,
    parameter CHANNEL_FILE = "channels.hex",
    parameter BIAS_BITS = 16,
    parameter SUM_BITS = 20,
    parameter GROWN_BITS = 20,
    parameter LEFT_SHIFTED = 0,
    parameter LEFT_BITS = 1,
    parameter DIGIT_BITS = 8,
    parameter DIGITS = 3,
    parameter DIGIT_COUNT_BITS = 2,
    parameter PIPELINED = 0,
    parameter REQUANTIZE_DSP = 0,
    parameter FRACTION_BITS = 24,
    parameter SHIFT_MIN = 0,
    parameter SHIFTS_DIFFER = 0,
    parameter SHIFT_BITS = 1,
    parameter WIDE_BITS = 24,
    parameter ZERO_POINT = 0,
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
    localparam MULTIPLIER_BITS = DIGITS * DIGIT_BITS;
    localparam LEFT_AT = BIAS_BITS + MULTIPLIER_BITS;
    localparam SHIFT_AT = LEFT_AT + (LEFT_SHIFTED != 0 ? LEFT_BITS : 0);
    localparam TABLE_BITS = SHIFT_AT + (SHIFTS_DIFFER != 0 ? SHIFT_BITS : 0);
    localparam PRODUCT_BITS = DIFFERENCE_BITS + WEIGHT_BITS;
    localparam [31:0] ALL_LANES_32 = LANES;
    localparam [LANE_BITS-1:0] ALL_LANES = ALL_LANES_32[LANE_BITS-1:0];
    localparam [31:0] LANES_AT_LAST_32 = LAST_LANES;
    localparam [LANE_BITS-1:0] LANES_AT_LAST = LANES_AT_LAST_32[LANE_BITS-1:0];
    localparam [31:0] LAST_CHANNEL_32 = CHANNELS - 1;
    localparam [CHANNEL_BITS-1:0] LAST_CHANNEL = LAST_CHANNEL_32[CHANNEL_BITS-1:0];

    // Taps: no last one while the sums of the pass before are not handed on.
    wire tap_valid, tap_first, tap_last, tap_turn, in_frame;
    wire [IN_BITS-1:0] code;
    reg pending, turning;
    wire step = tap_valid && !(tap_last && pending) && !(SUMS_IN_DSP != 0 && turning);
    rlx_frame #(
        .BITS(IN_BITS), .WORDS(WORDS), .ADDRESS_BITS(ADDRESS_BITS), .ROWS(ROWS), .COLUMNS(COLUMNS), .GROUPS(GROUPS),
        .PASSES(PASSES), .KH(KH), .KW(KW), .KC(KC), .START(START),
        .TO_COLUMN_OF_WINDOW(TO_COLUMN_OF_WINDOW), .TO_ROW_OF_WINDOW(TO_ROW_OF_WINDOW), .TO_COLUMN(TO_COLUMN),
        .TO_ROW(TO_ROW), .PADDED(PADDED), .HEIGHT(HEIGHT), .WIDTH(WIDTH), .EDGE_BITS(EDGE_BITS), .TOP(TOP), .LEFT(LEFT),
        .DILATION_Y(DILATION_Y), .DILATION_X(DILATION_X), .STRIDE_Y(STRIDE_Y), .STRIDE_X(STRIDE_X), .SPRAM(SPRAM), .DOUBLED(DOUBLED)
    ) frame (
        .clk(clk), .rst(rst), .in_valid(in_valid), .in_ready(in_ready), .in_data(in_data), .tap_valid(tap_valid),
        .step(step), .tap_first(tap_first), .tap_last(tap_last), .tap_turn(tap_turn), .code(code), .in_frame(in_frame)
    );

    // Weights lie in the order in which they are needed, those of all lanes in one word.
    reg [WEIGHT_ADDRESS_BITS-1:0] weight_address;
    wire [LANES*WEIGHT_BITS-1:0] weights;
    rlx_rom #(
        .BITS(LANES * WEIGHT_BITS), .WORDS(WEIGHT_WORDS), .ADDRESS_BITS(WEIGHT_ADDRESS_BITS),
        .BLOCK(WEIGHT_BLOCK), .FILE(WEIGHT_FILE)
    ) weight_table (
        .clk(clk), .enable(step), .address(weight_address), .word(weights)
    );

    reg code_valid;
    wire counts = in_frame && (SUMS_IN_DSP == 0 || code_valid);
    wire signed [DIFFERENCE_BITS-1:0] difference;
    generate
        if (IN_ZERO_POINT == 0) begin : without_zero_point
            assign difference = counts ? code : {DIFFERENCE_BITS{1'b0}};
        end else begin : with_zero_point
            localparam [31:0] ZERO_32 = IN_ZERO_POINT;
            localparam [DIFFERENCE_BITS-1:0] ZERO = ZERO_32[DIFFERENCE_BITS-1:0];
            assign difference = counts ? {code[IN_BITS-1], code} - ZERO : {DIFFERENCE_BITS{1'b0}};
        end
    endgenerate

    reg first_code, last_code, first_product, last_product, last_sum;
    reg product_valid, begins;
    wire [LANES*ACC_BITS-1:0] sums;
    wire [LANES*DIFFERENCE_BITS-1:0] differences;
    genvar n;
    generate
        for (n = 0; n < LANES; n = n + 1) begin : code_of_lane
            if (SYSTOLIC == 0 || n == 0) begin : from_frame
                assign differences[n*DIFFERENCE_BITS+:DIFFERENCE_BITS] = difference;
            end else begin : from_neighbour
                reg [DIFFERENCE_BITS-1:0] passed;
                always @(posedge clk)
                    if (rst) passed <= 0;
                    else if (code_valid) passed <= differences[(n-1)*DIFFERENCE_BITS+:DIFFERENCE_BITS];
                assign differences[n*DIFFERENCE_BITS+:DIFFERENCE_BITS] = passed;
            end
        end
    endgenerate
    generate
        for (n = 0; n < LANES; n = n + 1) begin : lane
            wire signed [PRODUCT_BITS-1:0] product_now;
            reg signed [PRODUCT_BITS-1:0] product;
            reg signed [ACC_BITS-1:0] sum;
            wire signed [ACC_BITS-1:0] wide_product = {{(ACC_BITS - PRODUCT_BITS){product[PRODUCT_BITS-1]}}, product};
            rlx_multiply #(
                .A_BITS(DIFFERENCE_BITS), .B_BITS(WEIGHT_BITS), .DSP(DSP)
            ) multiply (
                .a(differences[n*DIFFERENCE_BITS+:DIFFERENCE_BITS]), .b(weights[n*WEIGHT_BITS+:WEIGHT_BITS]), .product(product_now)
            );
            always @(posedge clk) product <= product_now;
            if (SUMS_IN_DSP != 0) begin : in_dsp
                always @(posedge clk)
                    if (last_sum || begins) sum <= 0;
                    else sum <= sum + wide_product;
            end else begin : in_logic
                always @(posedge clk)
                    if (product_valid) sum <= first_product ? wide_product : sum + wide_product;
            end
            assign sums[n*ACC_BITS+:ACC_BITS] = sum;
        end
    endgenerate

    always @(posedge clk) begin
        first_code <= tap_first;
        last_code <= tap_last;
        first_product <= first_code;
        last_product <= last_code;
        // Until there is a first tap, weights are not known, and nothing times them is not 0 for simulators.
        begins <= rst || (begins && !code_valid);
        if (rst) begin
            weight_address <= 0;
            turning <= 1'b0;
            code_valid <= 1'b0;
            product_valid <= 1'b0;
            last_sum <= 1'b0;
        end else begin
            if (step) weight_address <= tap_turn ? 0 : weight_address + 1'b1;
            turning <= step && tap_last;
            code_valid <= step;
            product_valid <= code_valid;
            last_sum <= product_valid && last_product;
        end
    end

    // The sums of a pass, the lowest lane first to go.
    reg [LANES*ACC_BITS-1:0] held;
    reg [LANE_BITS-1:0] remaining;
    wire at_last_pass;
    reg [CHANNEL_BITS-1:0] channel;
    wire ready, unused_at_first_pass;
    rlx_counter #(.COUNT(PASSES)) count_passes (
        .clk(clk), .clear(rst), .step(last_sum), .at_first(unused_at_first_pass), .at_last(at_last_pass)
    );
    wire take = remaining != 0 && ready;
    wire [CHANNEL_BITS-1:0] next_channel = !take ? channel : (channel == LAST_CHANNEL) ? 0 : channel + 1'b1;
    wire [TABLE_BITS-1:0] entry;
    rlx_rom #(
        .BITS(TABLE_BITS), .WORDS(CHANNEL_WORDS), .ADDRESS_BITS(CHANNEL_BITS),
        .BLOCK(CHANNEL_BLOCK), .FILE(CHANNEL_FILE)
    ) channel_table (
        .clk(clk), .enable(1'b1), .address(next_channel), .word(entry)
    );

    always @(posedge clk) begin
        if (last_sum) held <= sums;
        else if (take) held <= held >> ACC_BITS;
        if (rst) begin
            pending <= 1'b0;
            remaining <= 0;
            channel <= 0;
        end else begin
            if (step && tap_last) pending <= 1'b1;
            else if (take && remaining == 1) pending <= 1'b0;
            if (last_sum) begin
                remaining <= at_last_pass ? LANES_AT_LAST : ALL_LANES;
            end else if (take) begin
                remaining <= remaining - 1'b1;
            end
            channel <= next_channel;
        end
    end

    wire signed [SUM_BITS-1:0] bias = {{(SUM_BITS - BIAS_BITS){entry[BIAS_BITS-1]}}, entry[BIAS_BITS-1:0]};
    wire signed [SUM_BITS-1:0] sum_of_lane = {{(SUM_BITS - ACC_BITS){held[ACC_BITS-1]}}, held[ACC_BITS-1:0]};
    wire [LEFT_BITS-1:0] left;
    wire [SHIFT_BITS-1:0] shift;
    generate
        if (LEFT_SHIFTED != 0) begin : some_left
            assign left = entry[LEFT_AT+:LEFT_BITS];
        end else begin : none_left
            assign left = 0;
        end
        if (SHIFTS_DIFFER != 0) begin : many_shifts
            assign shift = entry[SHIFT_AT+:SHIFT_BITS];
        end else begin : one_shift
            assign shift = 0;
        end
    endgenerate
    rlx_requantize #(
        .SUM_BITS(SUM_BITS), .GROWN_BITS(GROWN_BITS), .LEFT_SHIFTED(LEFT_SHIFTED), .LEFT_BITS(LEFT_BITS),
        .DIGIT_BITS(DIGIT_BITS), .DIGITS(DIGITS),
        .DIGIT_COUNT_BITS(DIGIT_COUNT_BITS), .PIPELINED(PIPELINED), .DSP(REQUANTIZE_DSP), .FRACTION_BITS(FRACTION_BITS), .SHIFT_MIN(SHIFT_MIN),
        .SHIFT_BITS(SHIFT_BITS), .WIDE_BITS(WIDE_BITS), .ZERO_POINT(ZERO_POINT), .LOW(LOW), .HIGH(HIGH),
        .OUT_BITS(OUT_BITS)
    ) requantize (
        .clk(clk), .rst(rst), .in_valid(remaining != 0), .in_ready(ready), .in_sum(sum_of_lane + bias),
        .in_multiplier(entry[BIAS_BITS+:MULTIPLIER_BITS]), .in_left(left),
        .in_shift(shift), .out_valid(out_valid), .out_ready(out_ready),
        .out_code(out_data)
    );
endmodule
