// Any function of one code, as a table: sigmoid, tanh, exp and others.
module rlx_lookup #(
    parameter IN_BITS = 8,
    parameter OUT_BITS = 8,
    parameter BLOCK = 1,
    parameter FILE = "table.hex"
) (
    input wire clk,
    input wire rst,
    input wire in_valid,
    output wire in_ready,
    input wire [IN_BITS-1:0] in_data,
    output reg out_valid,
    input wire out_ready,
    output wire [OUT_BITS-1:0] out_data
);
    assign in_ready = !out_valid || out_ready;

    rlx_rom #(
        .BITS(OUT_BITS), .WORDS(1 << IN_BITS), .ADDRESS_BITS(IN_BITS), .BLOCK(BLOCK), .FILE(FILE)
    ) lookup_table (
        .clk(clk), .enable(in_ready), .address(in_data), .word(out_data)
    );

    always @(posedge clk)
        if (rst) out_valid <= 1'b0;
        else if (in_ready) out_valid <= in_valid;
endmodule
