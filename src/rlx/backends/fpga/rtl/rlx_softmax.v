// Shares of 256 of exponentials, over rows of COUNT codes: (256 * e + total / 2) / total - 128, at most 127.
//
// A frame is taken whole. Each row is read three times: for its largest code, for the sum of the exponentials of what
// lies below it, and code by code for the quotients, nine bits of which take a clock each.
module rlx_softmax #(
    parameter COUNT = 10,
    parameter PLACE_BITS = 4,
    parameter WORDS = 10,
    parameter ADDRESS_BITS = 4,
    parameter TOTAL_BITS = 20,
    parameter FILE = "table.hex"
) (
    input wire clk,
    input wire rst,
    input wire in_valid,
    output wire in_ready,
    input wire [7:0] in_data,
    output wire out_valid,
    input wire out_ready,
    output wire [7:0] out_data
);
    localparam POWER_BITS = 17;
    localparam REST_BITS = TOTAL_BITS + 9;
    localparam [31:0] LAST_WORD_32 = WORDS - 1;
    localparam [ADDRESS_BITS-1:0] LAST_WORD = LAST_WORD_32[ADDRESS_BITS-1:0];
    localparam [31:0] LAST_PLACE_32 = COUNT - 1;
    localparam [PLACE_BITS-1:0] LAST_PLACE = LAST_PLACE_32[PLACE_BITS-1:0];
    localparam [1:0] LOAD = 2'd0, LARGEST = 2'd1, SUM = 2'd2, DIVIDE = 2'd3;
    localparam [3:0] READ = 4'd0, POWER = 4'd1, BEGIN = 4'd2, SEND = 4'd12;

    reg [1:0] state;
    reg [3:0] phase;
    reg [ADDRESS_BITS-1:0] address, origin;
    reg [PLACE_BITS-1:0] place;
    reg issuing, code_valid, power_valid, last_code, last_power;
    assign in_ready = state == LOAD;
    assign out_valid = state == DIVIDE && phase == SEND;
    wire at_last = place == LAST_PLACE;
    wire taken = out_valid && out_ready;
    wire scanning = (state == LARGEST || state == SUM) && issuing;
    wire read = scanning || (state == DIVIDE && phase == READ);

    wire [7:0] code;
    rlx_ram #(
        .BITS(8), .WORDS(WORDS < 2 ? 2 : WORDS), .ADDRESS_BITS(ADDRESS_BITS)
    ) memory (
        .clk(clk), .enable(read || (in_valid && in_ready)), .write(in_ready), .address(address), .data(in_data), .word(code)
    );

    reg signed [7:0] best;
    wire [POWER_BITS-1:0] power;
    rlx_rom #(
        .BITS(POWER_BITS), .WORDS(256), .ADDRESS_BITS(8), .BLOCK(1), .FILE(FILE)
    ) powers (
        .clk(clk), .enable(code_valid || phase == POWER), .address(best - code), .word(power)
    );

    reg [TOTAL_BITS-1:0] total;
    reg [REST_BITS-1:0] rest, divisor;
    reg [8:0] quotient;
    wire is_in = rest >= divisor;
    assign out_data = quotient[8] ? 8'h7f : {!quotient[7], quotient[6:0]};

    always @(posedge clk) begin
        if (code_valid && state == LARGEST && ($signed(code) > best)) best <= code;
        if (in_ready || (taken && at_last)) best <= 8'h80;
        if (state == LARGEST) total <= 0;
        else if (power_valid) total <= total + {{(TOTAL_BITS - POWER_BITS){1'b0}}, power};
        if (phase == BEGIN) begin
            rest <= {{(REST_BITS - POWER_BITS - 8){1'b0}}, power, 8'b0} + {10'b0, total[TOTAL_BITS-1:1]};
            divisor <= {1'b0, total, 8'b0};
        end else begin
            rest <= is_in ? rest - divisor : rest;
            divisor <= divisor >> 1;
            if (phase != SEND) quotient <= {quotient[7:0], is_in};
        end
        last_code <= at_last;
        last_power <= last_code;
        if (rst) begin
            state <= LOAD;
            phase <= READ;
            address <= 0;
            origin <= 0;
            place <= 0;
            issuing <= 1'b1;
            code_valid <= 1'b0;
            power_valid <= 1'b0;
        end else begin
            code_valid <= scanning;
            power_valid <= code_valid && state == SUM;
            if (state == LOAD) begin
                if (in_valid) begin
                    address <= (address == LAST_WORD) ? 0 : address + 1'b1;
                    if (address == LAST_WORD) state <= LARGEST;
                end
            end else if (scanning) begin
                address <= at_last ? origin : address + 1'b1;
                place <= at_last ? 0 : place + 1'b1;
                issuing <= !at_last;
            end
            if (state == LARGEST && code_valid && last_code) begin
                state <= SUM;
                issuing <= 1'b1;
            end
            if (state == SUM && power_valid && last_power) state <= DIVIDE;
            if (state == DIVIDE) begin
                if (phase != SEND) phase <= phase + 1'b1;
                if (taken) begin
                    phase <= READ;
                    address <= address + 1'b1;
                    place <= at_last ? 0 : place + 1'b1;
                    if (at_last) begin
                        state <= (address == LAST_WORD) ? LOAD : LARGEST;
                        address <= (address == LAST_WORD) ? 0 : address + 1'b1;
                        origin <= (address == LAST_WORD) ? 0 : address + 1'b1;
                        issuing <= 1'b1;
                    end
                end
            end
        end
    end
endmodule
