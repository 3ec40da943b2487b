// Memory with two ports: one writes, the other reads with one clock of delay.
module rlx_ram_pair #(
    parameter BITS = 8,
    parameter WORDS = 16,
    parameter ADDRESS_BITS = 4
) (
    input wire clk,
    input wire write,
    input wire [ADDRESS_BITS-1:0] write_address,
    input wire [BITS-1:0] data,
    input wire read,
    input wire [ADDRESS_BITS-1:0] read_address,
    output wire [BITS-1:0] word
);
    // A word is never read while it is written: tools need not care for what would come.
    (* ram_style = "block", no_rw_check *) reg [BITS-1:0] words [0:WORDS-1];
    reg [BITS-1:0] last_read;
    assign word = last_read;

    always @(posedge clk) begin
        if (write) words[write_address] <= data;
        if (read) last_read <= words[read_address];
    end
endmodule
