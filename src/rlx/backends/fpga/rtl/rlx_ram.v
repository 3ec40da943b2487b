// Memory with one port: a word is written, or read with one clock of delay. SPRAM asks for the large memories of iCE40.
module rlx_ram #(
    parameter BITS = 8,
    parameter WORDS = 16,
    parameter ADDRESS_BITS = 4,
    parameter SPRAM = 0
) (
    input wire clk,
    input wire enable,
    input wire write,
    input wire [ADDRESS_BITS-1:0] address,
    input wire [BITS-1:0] data,
    output wire [BITS-1:0] word
);
    reg [BITS-1:0] read;
    assign word = read;

    generate
        if (SPRAM != 0) begin : in_spram
            (* ram_style = "huge" *) reg [BITS-1:0] words [0:WORDS-1];
            always @(posedge clk)
                if (enable) begin
                    if (write) words[address] <= data;
                    else read <= words[address];
                end
        end else begin : in_block_ram
            (* ram_style = "block" *) reg [BITS-1:0] words [0:WORDS-1];
            always @(posedge clk)
                if (enable) begin
                    if (write) words[address] <= data;
                    else read <= words[address];
                end
        end
    endgenerate
endmodule
