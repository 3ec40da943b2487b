// A queue of WORDS codes in memory, with one more at its end; a code leaves two clocks after it came, or later.
module rlx_queue #(
    parameter BITS = 8,
    parameter WORDS = 16,
    parameter ADDRESS_BITS = 4,
    parameter COUNT_BITS = 5
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
    localparam [31:0] LAST_32 = WORDS - 1;
    localparam [ADDRESS_BITS-1:0] LAST = LAST_32[ADDRESS_BITS-1:0];
    localparam [31:0] FULL_32 = WORDS;
    localparam [COUNT_BITS-1:0] FULL = FULL_32[COUNT_BITS-1:0];
    (* ram_style = "block" *) reg [BITS-1:0] words [0:WORDS-1];
    reg [ADDRESS_BITS-1:0] write_at, read_at;
    reg [COUNT_BITS-1:0] count;
    assign in_ready = count != FULL;
    wire write = in_valid && in_ready;
    wire read = count != 0 && (!out_valid || out_ready);

    always @(posedge clk) begin
        if (write) words[write_at] <= in_data;
        if (read) out_data <= words[read_at];
        if (rst) begin
            write_at <= 0;
            read_at <= 0;
            count <= 0;
            out_valid <= 1'b0;
        end else begin
            if (write) write_at <= (write_at == LAST) ? 0 : write_at + 1'b1;
            if (read) read_at <= (read_at == LAST) ? 0 : read_at + 1'b1;
            if (write && !read) count <= count + 1'b1;
            if (read && !write) count <= count - 1'b1;
            if (read) out_valid <= 1'b1;
            else if (out_ready) out_valid <= 1'b0;
        end
    end
endmodule
