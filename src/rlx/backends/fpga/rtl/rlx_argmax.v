// The place of the largest of COUNT codes, the first of equals.
module rlx_argmax #(
    parameter IN_BITS = 8,
    parameter COUNT = 10,
    parameter OUT_BITS = 4
) (
    input wire clk,
    input wire rst,
    input wire in_valid,
    output wire in_ready,
    input wire signed [IN_BITS-1:0] in_data,
    output reg out_valid,
    input wire out_ready,
    output reg [OUT_BITS-1:0] out_data
);
    localparam [31:0] LAST_32 = COUNT - 1;
    localparam [OUT_BITS-1:0] LAST = LAST_32[OUT_BITS-1:0];
    reg [OUT_BITS-1:0] place;
    reg signed [IN_BITS-1:0] best;

    assign in_ready = !out_valid;

    always @(posedge clk) begin
        if (in_valid && in_ready && (place == 0 || in_data > best)) begin
            best <= in_data;
            out_data <= place;
        end
        if (rst) begin
            place <= 0;
            out_valid <= 1'b0;
        end else begin
            if (in_valid && in_ready) place <= (place == LAST) ? 0 : place + 1'b1;
            if (in_valid && in_ready) out_valid <= place == LAST;
            else if (out_ready) out_valid <= 1'b0;
        end
    end
endmodule
