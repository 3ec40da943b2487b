// A table: the word at `address` is there one clock after `enable`. Small ones are logic and take no block of memory.
module rlx_rom #(
    parameter BITS = 8,
    parameter WORDS = 2,
    parameter ADDRESS_BITS = 1,
    parameter BLOCK = 1,
    parameter FILE = "table.hex"
) (
    input wire clk,
    input wire enable,
    input wire [ADDRESS_BITS-1:0] address,
    output wire [BITS-1:0] word
);
    reg [BITS-1:0] read;
    assign word = read;

    generate
        if (BLOCK != 0) begin : in_block_ram
            (* rom_style = "block" *) reg [BITS-1:0] words [0:WORDS-1];
            initial $readmemh(FILE, words);
            always @(posedge clk)
                if (enable) read <= words[address];
        end else begin : in_logic
            (* rom_style = "logic" *) reg [BITS-1:0] words [0:WORDS-1];
            initial $readmemh(FILE, words);
            always @(posedge clk)
                if (enable) read <= words[address];
        end
    endgenerate
endmodule
