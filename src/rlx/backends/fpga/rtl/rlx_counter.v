// Counts steps from 0 to COUNT - 1 and around.
module rlx_counter #(
    parameter COUNT = 2
) (
    input wire clk,
    input wire clear,
    input wire step,
    output wire at_first,
    output wire at_last
);
    generate
        if (COUNT == 1) begin : always_there
            wire unused = &{1'b0, clk, clear, step};
            assign at_first = 1'b1;
            assign at_last = 1'b1;
        end else begin : counting
            localparam BITS = $clog2(COUNT);
            localparam [31:0] LAST_32 = COUNT - 1;
            localparam [BITS-1:0] LAST = LAST_32[BITS-1:0];
            reg [BITS-1:0] count;
            assign at_first = count == 0;
            assign at_last = count == LAST;
            always @(posedge clk)
                if (clear) count <= 0;
                else if (step) count <= at_last ? 0 : count + 1'b1;
        end
    endgenerate
endmodule
