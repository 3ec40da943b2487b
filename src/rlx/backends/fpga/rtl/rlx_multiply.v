// A signed product: by a multiplier of the chip (DSP = 1), or by additions in logic (DSP = 0).
module rlx_multiply #(
    parameter A_BITS = 8,
    parameter B_BITS = 8,
    parameter DSP = 1
) (
    input wire signed [A_BITS-1:0] a,
    input wire signed [B_BITS-1:0] b,
    output wire signed [A_BITS+B_BITS-1:0] product
);
    wire signed [A_BITS+B_BITS-1:0] wide_a = {{B_BITS{a[A_BITS-1]}}, a};

    generate
        if (DSP != 0) begin : in_dsp
            wire signed [A_BITS+B_BITS-1:0] wide_b = {{A_BITS{b[B_BITS-1]}}, b};
            assign product = wide_a * wide_b;
        end else begin : in_logic
            // The highest bit of b counts negative.
            reg signed [A_BITS+B_BITS-1:0] total;
            integer i;
            always @* begin
                total = b[B_BITS-1] ? -(wide_a <<< (B_BITS - 1)) : {(A_BITS + B_BITS){1'b0}};
                for (i = 0; i < B_BITS - 1; i = i + 1)
                    if (b[i]) total = total + (wide_a <<< i);
            end
            assign product = total;
        end
    endgenerate
endmodule
