// The discrete Fourier transform of POINTS complex numbers, divided by POINTS: radix 2, in place, one butterfly at a time.
//
// Numbers are {imaginary, real}. Each of the STAGES halves its results, so that nothing overflows: inside and at the end,
// parts have one bit more than at the start. Products are rounded at FRACTION_BITS, halves upwards.
module rlx_fft #(
    parameter POINTS = 64,
    parameter STAGES = 6,
    parameter STAGE_BITS = 3,
    parameter IN_BITS = 16,
    parameter FRACTION_BITS = 16,
    parameter FILE = "twiddles.hex"
) (
    input wire clk,
    input wire rst,
    input wire in_valid,
    output wire in_ready,
    input wire [2*IN_BITS-1:0] in_data,
    output wire out_valid,
    input wire out_ready,
    output wire [2*IN_BITS+1:0] out_data
);
    localparam BITS = IN_BITS + 1;
    localparam FACTOR_BITS = FRACTION_BITS + 2;
    localparam PRODUCT_BITS = BITS + FACTOR_BITS;
    localparam [31:0] LAST_POINT_32 = POINTS - 1;
    localparam [31:0] LAST_PAIR_32 = POINTS / 2 - 1;
    localparam [31:0] LAST_STAGE_32 = STAGES - 1;
    localparam [STAGES-1:0] LAST_POINT = LAST_POINT_32[STAGES-1:0];
    localparam [STAGES-1:0] LAST_PAIR = LAST_PAIR_32[STAGES-1:0];
    localparam [STAGE_BITS-1:0] LAST_STAGE = LAST_STAGE_32[STAGE_BITS-1:0];
    localparam [63:0] ONE = 64'd1;
    localparam [63:0] HALF_64 = ONE << (FRACTION_BITS - 1);
    localparam [PRODUCT_BITS:0] HALF = HALF_64[PRODUCT_BITS:0];

    localparam [2:0] LOAD = 3'd0, READ_A = 3'd1, READ_B = 3'd2, MULTIPLY = 3'd3, TURN = 3'd4, WRITE_A = 3'd5,
                     WRITE_B = 3'd6, SEND = 3'd7;
    reg [2:0] state;
    reg sending;
    reg [STAGES-1:0] index, distance;
    reg [STAGE_BITS-1:0] stage;

    // Pairs of a stage are `distance` apart; the place inside its run is also the angle of a pair.
    wire [STAGES-1:0] run = distance - 1'b1;
    wire [STAGES-1:0] inside_run = index & run;
    wire [STAGES-1:0] place_a = ((index & ~run) << 1) | inside_run;
    wire [STAGES-1:0] place_b = place_a | distance;
    wire [STAGES-1:0] angle = inside_run << (LAST_STAGE - stage);
    wire [STAGES-1:0] reversed;
    genvar n;
    generate
        for (n = 0; n < STAGES; n = n + 1) begin : each_bit
            assign reversed[n] = index[STAGES-1-n];
        end
    endgenerate

    wire [2*BITS-1:0] word;
    wire signed [BITS-1:0] word_re = word[BITS-1:0];
    wire signed [BITS-1:0] word_im = word[2*BITS-1:BITS];
    wire [2*FACTOR_BITS-1:0] factor;
    wire signed [FACTOR_BITS-1:0] factor_re = factor[FACTOR_BITS-1:0];
    wire signed [FACTOR_BITS-1:0] factor_im = factor[2*FACTOR_BITS-1:FACTOR_BITS];
    reg signed [BITS-1:0] a_re, a_im, b_re, b_im;
    wire signed [PRODUCT_BITS-1:0] re_re, im_im, re_im, im_re;
    rlx_multiply #(.A_BITS(BITS), .B_BITS(FACTOR_BITS), .DSP(1)) multiply_re_re (.a(b_re), .b(factor_re), .product(re_re));
    rlx_multiply #(.A_BITS(BITS), .B_BITS(FACTOR_BITS), .DSP(1)) multiply_im_im (.a(b_im), .b(factor_im), .product(im_im));
    rlx_multiply #(.A_BITS(BITS), .B_BITS(FACTOR_BITS), .DSP(1)) multiply_re_im (.a(b_re), .b(factor_im), .product(re_im));
    rlx_multiply #(.A_BITS(BITS), .B_BITS(FACTOR_BITS), .DSP(1)) multiply_im_re (.a(b_im), .b(factor_re), .product(im_re));
    wire signed [PRODUCT_BITS:0] sum_re = {re_re[PRODUCT_BITS-1], re_re} - {im_im[PRODUCT_BITS-1], im_im} + HALF;
    wire signed [PRODUCT_BITS:0] sum_im = {re_im[PRODUCT_BITS-1], re_im} + {im_re[PRODUCT_BITS-1], im_re} + HALF;
    reg signed [BITS:0] turned_re, turned_im;

    // (a + t + 1) / 2 and (a - t + 1) / 2, rounded down.
    localparam [BITS+1:0] LAST_BIT = 1;
    wire signed [BITS+1:0] wide_a_re = {{2{a_re[BITS-1]}}, a_re};
    wire signed [BITS+1:0] wide_a_im = {{2{a_im[BITS-1]}}, a_im};
    wire signed [BITS+1:0] wide_t_re = {turned_re[BITS], turned_re};
    wire signed [BITS+1:0] wide_t_im = {turned_im[BITS], turned_im};
    wire second = state == WRITE_B;
    wire [BITS+1:0] next_re = (second ? wide_a_re - wide_t_re : wide_a_re + wide_t_re) + LAST_BIT;
    wire [BITS+1:0] next_im = (second ? wide_a_im - wide_t_im : wide_a_im + wide_t_im) + LAST_BIT;
    wire unused = &{1'b0, sum_re, sum_im, next_re, next_im, angle};

    wire loading = state == LOAD;
    assign in_ready = loading;
    assign out_valid = sending;
    assign out_data = word;
    wire write = loading ? in_valid : state == WRITE_A || state == WRITE_B;
    wire read = state == READ_A || state == READ_B || (state == SEND && !sending);
    wire [STAGES-1:0] place = loading ? reversed
                            : state == SEND ? index
                            : (state == READ_B || state == WRITE_B) ? place_b : place_a;
    wire [IN_BITS-1:0] in_re = in_data[IN_BITS-1:0];
    wire [IN_BITS-1:0] in_im = in_data[2*IN_BITS-1:IN_BITS];
    rlx_ram #(
        .BITS(2 * BITS), .WORDS(POINTS), .ADDRESS_BITS(STAGES)
    ) memory (
        .clk(clk), .enable(write || read), .write(write), .address(place),
        .data(loading ? {in_im[IN_BITS-1], in_im, in_re[IN_BITS-1], in_re} : {next_im[BITS:1], next_re[BITS:1]}),
        .word(word)
    );
    rlx_rom #(
        .BITS(2 * FACTOR_BITS), .WORDS(POINTS / 2), .ADDRESS_BITS(STAGES - 1), .FILE(FILE)
    ) factors (
        .clk(clk), .enable(state == READ_B), .address(angle[STAGES-2:0]), .word(factor)
    );

    always @(posedge clk) begin
        if (state == READ_B) begin
            a_re <= word_re;
            a_im <= word_im;
        end
        if (state == MULTIPLY) begin
            b_re <= word_re;
            b_im <= word_im;
        end
        if (state == TURN) begin
            turned_re <= sum_re[FRACTION_BITS+BITS:FRACTION_BITS];
            turned_im <= sum_im[FRACTION_BITS+BITS:FRACTION_BITS];
        end
        if (rst) begin
            state <= LOAD;
            index <= 0;
            sending <= 1'b0;
        end else begin
            case (state)
                LOAD:
                    if (in_valid) begin
                        index <= (index == LAST_POINT) ? 0 : index + 1'b1;
                        if (index == LAST_POINT) state <= READ_A;
                        stage <= 0;
                        distance <= 1;
                    end
                READ_A: state <= READ_B;
                READ_B: state <= MULTIPLY;
                MULTIPLY: state <= TURN;
                TURN: state <= WRITE_A;
                WRITE_A: state <= WRITE_B;
                WRITE_B: begin
                    index <= (index == LAST_PAIR) ? 0 : index + 1'b1;
                    state <= READ_A;
                    if (index == LAST_PAIR) begin
                        stage <= stage + 1'b1;
                        distance <= distance << 1;
                        if (stage == LAST_STAGE) state <= SEND;
                    end
                end
                default:
                    if (!sending) begin
                        sending <= 1'b1;
                    end else if (out_ready) begin
                        sending <= 1'b0;
                        index <= (index == LAST_POINT) ? 0 : index + 1'b1;
                        if (index == LAST_POINT) state <= LOAD;
                    end
            endcase
        end
    end
endmodule
