"""Instructions of one DS-CNN inference on a Cortex-M4 in QEMU: our C, our plain C, and CMSIS-NN's s8 kernels.

    python benchmarks/cmsis_nn.py CMSIS_NN_FOLDER

The folder is a checkout of CMSIS-NN (`Include` and `Source`), which is no part of rlx; the C library is newlib
(Debian's libnewlib-arm-none-eabi). Its kernels get the same weights, biases, multipliers and input; their codes are
compared with ours layer by layer before anything is counted. Counts are those of
`rlx.backends.cortex_m.checking.measure`: SysTick under `-icount shift=0`, without the loop around a run.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import rlx
from rlx.backends.cortex_m.checking import measure
from rlx.backends.cortex_m.project import CORES
from rlx.cortexm import export
from rlx.quantized import Conv2d, Dense, MeanPool, Program, quantize

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from integer_programs.float_networks import DS_CNN_DIMS, ds_cnn, images

CORE = CORES["cortex-m4"]
TICK = 40
SOURCES = ("ConvolutionFunctions", "FullyConnectedFunctions", "NNSupportFunctions", "PoolingFunctions")

HARNESS = """\
#include "arm_nnfunctions.h"
#include "host_files.h"
{tables}
static int8_t a[65536], b[65536];
static int32_t scratch[16384];
static volatile uint32_t *const timer = (volatile uint32_t *)0xE000E010u;
static uint32_t used, failed;

static cmsis_nn_context context(int32_t size)
{{
    cmsis_nn_context c = {{scratch, size}};
    if (size > (int32_t)sizeof scratch) failed = 1u;
    return c;
}}

static void run(host_file outputs)
{{
    cmsis_nn_context ctx;
    uint32_t before;
    (void)outputs;
{calls}
}}

int main(void)
{{
    host_file inputs = host_open("inputs.bin", 0), outputs = host_open("outputs.bin", 1);
    timer[1] = 0xffffffu;
    timer[2] = 0u;
    timer[0] = 5u;
    if (!host_transfer(inputs, a, {in_size}u, 0)) return 2;
    run(outputs);
    return failed ? 3 : 0;
}}
"""


def table(name: str, numbers: Any, kind: str) -> str:
    flat = np.asarray(numbers).reshape(-1).tolist()
    return f"static const {kind} {name}[] = {{{', '.join(map(str, flat))}}};"


def dims(n: int, h: int, w: int, c: int) -> str:
    return f"&(const cmsis_nn_dims){{{n}, {h}, {w}, {c}}}"


def harness(program: Program) -> str:
    """The program with CMSIS-NN's calls; after each layer its codes are written, outside of what is counted."""
    tables, calls, buffers = [], [], ["a", "b"]
    for n, step in enumerate(program.steps[:-1]):
        [x] = program.operands(step)
        src, dst = buffers
        if isinstance(step, Conv2d | Dense):
            tables += [
                table(f"b{n}", step.bias, "int32_t"),
                table(f"m{n}", step.multipliers.m0, "int32_t"),
                table(f"s{n}", -step.multipliers.shift, "int32_t"),
            ]
        clamp = f"{{{getattr(step, 'low', -128)}, {getattr(step, 'high', 127)}}}"
        if isinstance(step, Conv2d):
            w = np.moveaxis(step.weights.codes, 0, 2) if step.is_depthwise else step.weights.codes
            tables.append(table(f"w{n}", w, "int8_t"))
            kh, kw = step.kernel
            kind = "dw_conv" if step.is_depthwise else "conv"
            call = "arm_depthwise_conv_wrapper_s8" if step.is_depthwise else "arm_convolve_wrapper_s8"
            multiplier = "1, " if step.is_depthwise else ""
            filters = dims(1, kh, kw, step.channels) if step.is_depthwise else dims(step.channels, kh, kw, x.dims[2])
            calls.append(
                f"{{ const cmsis_nn_{kind}_params p = {{{-x.zero_point}, {step.out.zero_point}, {multiplier}"
                f"{{{step.stride[1]}, {step.stride[0]}}}, {{{step.padding[1][0]}, {step.padding[0][0]}}}, {{1, 1}},"
                f" {clamp}}};"
                f" const cmsis_nn_per_channel_quant_params q = {{(int32_t *)m{n}, (int32_t *)s{n}}};"
                f" ctx = context({call}_get_buffer_size(&p, {dims(1, *x.dims)}, {filters}, {dims(1, *step.out.dims)}));"
                f" before = timer[2]; if ({call}(&ctx, &p, &q, {dims(1, *x.dims)}, {src}, {filters}, w{n},"
                f" {dims(1, 1, 1, step.channels)}, b{n}, {dims(1, *step.out.dims)}, {dst}) != 0) failed = 1u;"
            )
        elif isinstance(step, Dense):
            tables.append(table(f"w{n}", step.weights.codes, "int8_t"))
            calls.append(
                f"{{ const cmsis_nn_fc_params p = {{{-x.zero_point}, 0, {step.out.zero_point}, {clamp}}};"
                f" const cmsis_nn_quant_params q = {{(int32_t *)m{n}, (int32_t *)s{n}, 1}};"
                f" ctx = context(0); before = timer[2]; if (arm_fully_connected_wrapper_s8(&ctx, &p, &q,"
                f" {dims(1, 1, 1, x.size)}, {src}, {dims(x.size, 1, 1, step.channels)}, w{n},"
                f" {dims(1, 1, 1, step.channels)}, b{n}, {dims(1, 1, 1, step.channels)}, {dst}) != 0) failed = 1u;"
            )
        elif isinstance(step, MeanPool):
            calls.append(
                f"{{ const cmsis_nn_pool_params p = {{{{{step.stride[1]}, {step.stride[0]}}}, {{0, 0}},"
                f" {{-128, 127}}}}; ctx = context(arm_avgpool_s8_get_buffer_size({step.out.dims[1]}, {x.dims[2]}));"
                " before = timer[2];"
                f" if (arm_avgpool_s8(&ctx, &p, {dims(1, *x.dims)}, {src}, {dims(1, *step.kernel, 1)},"
                f" {dims(1, *step.out.dims)}, {dst}) != 0) failed = 1u;"
            )
        else:
            raise TypeError(type(step))
        calls.append(
            f"used = (before - timer[2]) & 0xffffffu; (void)host_transfer(outputs, {dst}, {step.out.size}u, 1);"
            " (void)host_transfer(outputs, &used, 4u, 1); }"
        )
        buffers.reverse()
    return HARNESS.format(
        tables="\n".join(tables), calls="\n".join("    " + c for c in calls), in_size=program.input.size
    )


def cmsis_nn(program: Program, folder: Path, sources: Path, codes: Any, level: str) -> int:
    """Instructions of its kernels; an error if any code differs from the program's."""
    (folder / "harness.c").write_text(harness(program))
    # Copies by the library's own functions, which are faster than those of our start-up code.
    start = (folder / "startup.c").read_text()
    (folder / "start.c").write_text(start.replace("memcpy", "unused_copy").replace("memset", "unused_set"))
    codes.tofile(folder / "inputs.bin")
    used = [str(f) for part in SOURCES for f in sorted((sources / "Source" / part).glob("*.c")) if is_s8(f.name)]
    flags = [*CORE.flags.split(), level, "-ffunction-sections", "-nostdlib", "-DRLX_SEMIHOSTING"]
    command = ["arm-none-eabi-gcc", *flags, f"-I{sources / 'Include'}", "-T", "link.ld", "-Wl,--gc-sections"]
    command += ["harness.c", "start.c", *used, "-lc", "-lgcc", "-o", "cmsis.elf"]
    subprocess.run(command, cwd=folder, check=True)
    quiet = ["-nographic", "-monitor", "none", "-serial", "none"]
    machine = ["qemu-system-arm", "-M", CORE.machine, *quiet, "-icount", "shift=0", "-kernel", "cmsis.elf"]
    subprocess.run([*machine, "-semihosting-config", "enable=on,target=native"], cwd=folder, check=True, timeout=120)
    data = (folder / "outputs.bin").read_bytes()
    wanted = program.run_all(codes)[1:-1]
    total = 0
    for step, expected in zip(program.steps, wanted):
        codes_of, ticks, data = (
            data[: expected.size],
            data[expected.size : expected.size + 4],
            data[expected.size + 4 :],
        )
        wrong = int(np.count_nonzero(np.frombuffer(codes_of, np.int8) != expected.reshape(-1)))
        if wrong:
            raise SystemExit(f"{step.name}: CMSIS-NN gives {wrong} other codes of {expected.size}")
        count = int.from_bytes(ticks, "little") * TICK
        each = f", {count / step.macs:.2f} per product" if step.macs else ""
        print(f"  {step.name:10} {expected.size:5} equal codes, {count:8} instructions{each}")
        total += count
    return total


def is_s8(name: str) -> bool:
    return not any(word in name for word in ("_f16", "_f32", "flt", "_s4", "lstm", "svdf", "transpose", "batch_matmul"))


def main() -> None:
    sources = Path(sys.argv[1]).resolve()
    graph = rlx.jit(ds_cnn).trace(rlx.Spec(("N", *DS_CNN_DIMS))).graph
    program = quantize(graph, {}, [{"x": images(40, DS_CNN_DIMS)}], name="ds_cnn")
    codes = program.encode(images(1, DS_CNN_DIMS, seed=8))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "out"
        export(program, folder, cpu=CORE.name)
        ours = measure(program, folder, "ds_cnn", CORE, codes).instructions
        plain = measure(program, folder, "ds_cnn", CORE, codes, plain=True).instructions
        print(f"ours {ours}, plain C {plain} ({ours / plain:.3f})")
        for level in ("-O3", "-O2"):
            theirs = cmsis_nn(program, folder, sources, codes, level)
            print(f"CMSIS-NN {level}: {theirs}; ours is {ours / theirs:.3f} of it")


if __name__ == "__main__":
    main()
