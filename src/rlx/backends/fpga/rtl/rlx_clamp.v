// Codes between two limits.
module rlx_clamp #(
    parameter BITS = 8,
    parameter LOW = -128,
    parameter HIGH = 127
) (
    input wire clk,
    input wire rst,
    input wire in_valid,
    output wire in_ready,
    input wire signed [BITS-1:0] in_data,
    output reg out_valid,
    input wire out_ready,
    output reg [BITS-1:0] out_data
);
    localparam [31:0] LOWEST_32 = LOW;
    localparam signed [BITS-1:0] LOWEST = LOWEST_32[BITS-1:0];
    localparam [31:0] HIGHEST_32 = HIGH;
    localparam signed [BITS-1:0] HIGHEST = HIGHEST_32[BITS-1:0];

    assign in_ready = !out_valid || out_ready;

    always @(posedge clk) begin
        if (in_ready) out_data <= (in_data < LOWEST) ? LOWEST : (in_data > HIGHEST) ? HIGHEST : in_data;
        if (rst) out_valid <= 1'b0;
        else if (in_ready) out_valid <= in_valid;
    end
endmodule
