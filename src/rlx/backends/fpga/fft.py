"""A Fourier transform in fixed point as a circuit: 64 to 1024 points, radix 2, with its NumPy definition.

    made = FixedFft(256, bits=16)
    made.run(re, im)             # the integers that the circuit gives, bit for bit: the transform divided by 256
    made.error_bound             # how far they are from the exact ones at most, in units of the last bit

Every stage halves its results and rounds, products at the fraction of the factors, which have as many bits as the
input and one more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from rlx.backends.export import Exported, new_folder
from rlx.backends.fpga.checking import simulate
from rlx.backends.fpga.circuit import hex_file
from rlx.backends.fpga.layers import Table
from rlx.backends.fpga.ranges import index_bits
from rlx.backends.fpga.rtl_files import module_text, modules_for
from rlx.backends.fpga.testbench import Streams, bench_module, golden_vectors
from rlx.errors import RlxError

Array = np.ndarray[Any, np.dtype[Any]]

POINTS = (64, 128, 256, 512, 1024)
_BITS = range(8, 19)
# Clocks of one butterfly, which reads and writes two numbers through one port; and of a number that is sent.
_BUTTERFLY, _SENT = 6, 2

_CORE = Template("""\
// The Fourier transform of $points complex numbers {imaginary, real} of $bits bits each, divided by $points.
module ${name}_core (
    input wire clk,
    input wire rst,
    input wire in_valid,
    output wire in_ready,
    input wire [$in_high:0] in_data,
    output wire out_valid,
    input wire out_ready,
    output wire [$out_high:0] out_data
);
    rlx_fft #(
        .POINTS($points), .STAGES($stages), .STAGE_BITS($stage_bits), .IN_BITS($bits), .FRACTION_BITS($fraction),
        .FILE("twiddles.hex")
    ) transform (
        .clk(clk), .rst(rst), .in_valid(in_valid), .in_ready(in_ready), .in_data(in_data), .out_valid(out_valid),
        .out_ready(out_ready), .out_data(out_data)
    );
endmodule
""")


@dataclass(frozen=True)
class FixedFft:
    """Transforms of `points` complex numbers whose parts have `bits` bits; results have one more."""

    points: int
    bits: int = 16

    def __post_init__(self) -> None:
        if self.points not in POINTS:
            raise RlxError(f"fpga: transforms have {', '.join(map(str, POINTS))} points, got {self.points}")
        if self.bits not in _BITS:
            raise RlxError(f"fpga: numbers of a transform have {_BITS[0]} to {_BITS[-1]} bits, got {self.bits}")

    @property
    def stages(self) -> int:
        return self.points.bit_length() - 1

    @property
    def fraction(self) -> int:
        return self.bits + 1

    @property
    def clocks(self) -> int:
        """From the first number in to the last one out."""
        return self.points + self.stages * self.points // 2 * _BUTTERFLY + _SENT * self.points

    @property
    def error_bound(self) -> float:
        """Of |result - exact|: each stage rounds a product and a half, and factors are off by half a unit of theirs."""
        largest = math.sqrt(2) * 2.0 ** (self.bits - 1) + self.stages
        rounding = math.sqrt(2) * (0.5 / 2 + 0.5)
        return self.stages * (rounding + largest * math.sqrt(2) * 2.0 ** -(self.fraction + 2)) * 1.001

    @property
    def factors(self) -> tuple[Array, Array]:
        """exp(-2πik/points), real and imaginary parts as integers."""
        turns = np.exp(-2j * np.pi * np.arange(self.points // 2) / self.points) * 2.0**self.fraction
        return np.rint(turns.real).astype(np.int64), np.rint(turns.imag).astype(np.int64)

    def run(self, re: Any, im: Any) -> tuple[Array, Array]:
        """The results for [N, points] integers; NumPy."""
        parts = [np.asarray(p).astype(np.int64) for p in (re, im)]
        low, high = -(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1
        for part in parts:
            if part.ndim != 2 or part.shape[1] != self.points or np.any((part < low) | (part > high)):
                raise RlxError(f"fpga: a transform takes [N, {self.points}] integers from {low} to {high}")
        places = np.arange(self.points)
        reversed_places = sum(((places >> n) & 1) << (self.stages - 1 - n) for n in range(self.stages))
        x, y = (p[:, reversed_places] for p in parts)
        w_re, w_im = self.factors
        half = 1 << (self.fraction - 1)
        for stage in range(self.stages):
            distance = 1 << stage
            pairs = np.arange(self.points // 2)
            inside = pairs & (distance - 1)
            a = ((pairs - inside) << 1) + inside
            b, k = a + distance, inside << (self.stages - 1 - stage)
            t_re = (x[:, b] * w_re[k] - y[:, b] * w_im[k] + half) >> self.fraction
            t_im = (x[:, b] * w_im[k] + y[:, b] * w_re[k] + half) >> self.fraction
            a_re, a_im = x[:, a].copy(), y[:, a].copy()
            x[:, a], x[:, b] = (a_re + t_re + 1) >> 1, (a_re - t_re + 1) >> 1
            y[:, a], y[:, b] = (a_im + t_im + 1) >> 1, (a_im - t_im + 1) >> 1
        return x, y

    def files(self, frames: int = 2) -> tuple[list[str], dict[str, str]]:
        """Sources with the testbench last, and file name -> text."""
        name, width = f"fft{self.points}", self.fraction + 2
        core = _CORE.substitute(
            name=name,
            points=self.points,
            bits=self.bits,
            stages=self.stages,
            stage_bits=index_bits(self.stages + 1),
            fraction=self.fraction,
            in_high=2 * self.bits - 1,
            out_high=2 * self.bits + 1,
        )
        texts = {f"{m}.v": module_text(m) for m in modules_for(core)}
        streams = Streams(name, self.points, 2 * self.bits, self.points, 2 * self.bits + 2, self.clocks)
        texts |= {f"{name}_core.v": core, f"{name}_tb.v": bench_module(streams, frames)}
        rng, low, high = np.random.default_rng(0), -(2 ** (self.bits - 1)), 2 ** (self.bits - 1)
        re, im = (rng.integers(low, high, (frames, self.points)) for _ in range(2))
        vectors = golden_vectors(streams, _joined(re, im, self.bits), _joined(*self.run(re, im), self.bits + 1))
        tables = {"twiddles.hex": Table(2 * width, tuple(_joined(*self.factors, width).tolist())), **vectors}
        return list(texts), texts | {file: hex_file(table) for file, table in tables.items()}

    def export(self, out: Path, check: str | None = None) -> Exported:
        """Write the circuit into a new folder; `check` simulates it (icarus, verilator)."""
        sources, texts = self.files()
        figures: Mapping[str, str] = {
            "clocks": f"{self.clocks} per transform",
            "error": f"at most {self.error_bound:.1f} units of the last bit",
        }
        with new_folder(out) as folder:
            for name, text in texts.items():
                (folder / name).write_text(text, encoding="ascii")
            if check is not None:
                done = simulate(folder, f"fft{self.points}", sources, check)
                if done.clocks != self.clocks:
                    raise RlxError(f"fpga: a transform took {done.clocks} clocks, and {self.clocks} were foretold")
                figures = {**figures, "checked": f"{done.frames} frames agree in {check}"}
        return Exported(tuple(out / name for name in texts), figures)


def _joined(re: Array, im: Array, bits: int) -> Array:
    """{imaginary, real} as one non-negative number."""
    return (im % 2**bits) << bits | (re % 2**bits)
