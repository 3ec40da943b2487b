"""A testbench with golden vectors: one frame alone, frames in a row, frames with gaps, and a reset inside a frame.

It prints `PASS` with the clocks of one frame and those between frames, or `FAIL` with the first code that is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from string import Template
from typing import Any

import numpy as np

from rlx.backends.fpga.circuit import Circuit
from rlx.backends.fpga.layers import Table

Array = np.ndarray[Any, np.dtype[Any]]


class _Text(Template):
    """Words of Verilog begin with $."""

    delimiter = "%"


_BENCH = _Text("""\
// Runs %name on %frames frames and compares every code with NumPy's.
`timescale 1ns / 1ps
module %{name}_tb;
    localparam FRAMES = %frames;
    localparam IN_SIZE = %in_size;
    localparam OUT_SIZE = %out_size;
    localparam FRAMES_WITH_GAPS = %gap_frames;

    reg clk = 1'b0;
    reg rst = 1'b1;
    reg in_valid = 1'b0;
    wire in_ready;
    wire [%in_high:0] in_data;
    wire out_valid;
    reg out_ready = 1'b0;
    wire [%out_high:0] out_data;
    %{name}_core circuit (
        .clk(clk), .rst(rst), .in_valid(in_valid), .in_ready(in_ready), .in_data(in_data), .out_valid(out_valid),
        .out_ready(out_ready), .out_data(out_data)
    );

    reg [%in_high:0] inputs [0:FRAMES*IN_SIZE-1];
    reg [%out_high:0] wanted [0:FRAMES*OUT_SIZE-1];
    initial begin
        $readmemh("tb_inputs.hex", inputs);
        $readmemh("tb_wanted.hex", wanted);
    end

    always #5 clk = !clk;

    integer sent = 0;
    integer to_send = 0;
    integer got = 0;
    integer clocks = 0;
    integer first_in = 0;
    integer last_out = 0;
    integer first_frame_out = 0;
    integer wrong = 0;
    reg gaps = 1'b0;
    reg taken = 1'b0;
    reg [31:0] noise = 32'h1234_5678;
    assign in_data = inputs[sent < FRAMES * IN_SIZE ? sent : 0];

    // What is offered stays until it is taken; gaps come from a shift register.
    always @(posedge clk) begin
        clocks <= clocks + 1;
        taken <= in_valid && in_ready;
        noise <= {noise[30:0], noise[31] ^ noise[21] ^ noise[1] ^ noise[0]};
        if (!rst) begin
            if (in_valid && in_ready) begin
                if (sent == 0) first_in <= clocks;
                sent <= sent + 1;
            end
            if (out_valid && out_ready) begin
                if (got < FRAMES * OUT_SIZE && out_data !== wanted[got]) begin
                    if (wrong < 5)
                        $display("FAIL frame %%0d code %%0d: %%0h instead of %%0h",
                                 got / OUT_SIZE, got %% OUT_SIZE, out_data, wanted[got]);
                    wrong <= wrong + 1;
                end
                got <= got + 1;
                last_out <= clocks;
                if (got == OUT_SIZE - 1) first_frame_out <= clocks;
            end
        end
    end
    always @(negedge clk) begin
        if (rst || !in_valid || taken) in_valid <= !rst && sent < to_send && (!gaps || noise[3:2] == 2'b00);
        out_ready <= !rst && (!gaps || noise[5]);
    end

    task restart;
        begin
            @(negedge clk);
            rst = 1'b1;
            to_send = 0;
            @(negedge clk);
            @(negedge clk);
            sent = 0;
            got = 0;
            @(negedge clk);
            rst = 1'b0;
        end
    endtask

    task run;
        input integer frames;
        integer waited;
        begin
            to_send = frames * IN_SIZE;
            waited = 0;
            while (got < frames * OUT_SIZE && waited < %patience * (frames + 1)) begin
                @(negedge clk);
                waited = waited + 1;
            end
            if (got < frames * OUT_SIZE) begin
                $display("FAIL %%0d of %%0d codes came, then none", got, frames * OUT_SIZE);
                wrong = wrong + 1;
            end
            // What comes too much comes now.
            repeat (20) @(negedge clk);
            if (got > frames * OUT_SIZE) begin
                $display("FAIL %%0d codes came instead of %%0d", got, frames * OUT_SIZE);
                wrong = wrong + 1;
            end
        end
    endtask

    integer alone, between, n;
    initial begin
        restart;
        run(1);
        alone = last_out - first_in + 1;
        restart;
        run(FRAMES);
        between = (FRAMES > 1) ? (last_out - first_frame_out + FRAMES - 2) / (FRAMES - 1) : alone;
        gaps = 1'b1;
        restart;
        run(FRAMES_WITH_GAPS);
        gaps = 1'b0;
        // A reset while codes come in, and one while they are worked on: the next frame knows nothing of it.
        for (n = 0; n < 2; n = n + 1) begin
            restart;
            to_send = (n == 0) ? (IN_SIZE + 1) / 2 : IN_SIZE;
            repeat ((n == 0) ? (IN_SIZE + 1) / 2 + 3 : (IN_SIZE + alone) / 2) @(negedge clk);
            restart;
            run(1);
        end
        if (wrong == 0) $display("PASS %%0d frames, %%0d clocks for one, %%0d between frames", FRAMES, alone, between);
        else $display("FAIL %%0d codes are wrong", wrong);
        $finish;
    end
endmodule
""")


@dataclass(frozen=True)
class Streams:
    """What a testbench knows of a circuit: the module NAME_core, the frames in and out, and the clocks of one."""

    name: str
    in_size: int
    in_bits: int
    out_size: int
    out_bits: int
    clocks: int

    @staticmethod
    def of(circuit: Circuit) -> Streams:
        sizes = circuit.program.input.size, circuit.in_bits, circuit.program.result.size, circuit.out_bits
        return Streams(circuit.name, *sizes, circuit.clocks)


def bench_module(streams: Streams, frames: int) -> str:
    """The text of the testbench; `golden_vectors` makes the files that it reads."""
    return _BENCH.substitute(
        name=streams.name,
        frames=frames,
        in_size=streams.in_size,
        out_size=streams.out_size,
        gap_frames=min(frames, 2),
        in_high=streams.in_bits - 1,
        out_high=streams.out_bits - 1,
        # Gaps let one clock of four through, and a queue may wait for all before it.
        patience=8 * streams.clocks + 1000,
    )


def golden_vectors(streams: Streams, inputs: Array, results: Array) -> dict[str, Table]:
    """File -> its words: frames of numbers, and what NumPy makes of them."""
    return {"tb_inputs.hex": _words(inputs, streams.in_bits), "tb_wanted.hex": _words(results, streams.out_bits)}


def _words(numbers: Array, bits: int) -> Table:
    return Table(bits, tuple((numbers.astype(np.int64).reshape(-1) % 2**bits).tolist()))
