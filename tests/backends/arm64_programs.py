"""Whole programs, run by whatever CPU this process is on; `test_arm64_programs` starts it under an emulator.

    python arm64_programs.py OUT.npz           the results of all programs, and what the CPU is
    python arm64_programs.py --prepare LEVEL   leave code for that level of AArch64 in the cache, and run nothing

The emulator takes minutes for what LLVM does in seconds, so most code is made by the machine it runs on. One program is
always compiled where it runs.
"""

from __future__ import annotations

import sys

import numpy as np

PROMPT = [3, 17, 45, 200, 31, 90]
COMPILED_THERE = "softmax"


def softmax():
    import rlx

    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((5, 40), np.float32), rng.standard_normal((40, 30), np.float32)
    return [rlx.jit(lambda x, w: rlx.nn.softmax(x @ w))(x, w)]


def gradient():
    import rlx
    import rlx.numpy as rnp

    rng = np.random.default_rng(1)
    w, x = rng.standard_normal((33, 17), np.float32), rng.standard_normal((9, 33), np.float32)
    value, grad = rlx.value_and_grad(lambda w, x: rnp.mean(rnp.tanh(x @ w) ** 2))(w, x)
    return [value, grad]


def loop():
    import rlx

    return list(rlx.scan(lambda c, x: (c * 0.5 + x, c), np.float32(0), np.arange(500, dtype="f4")))


def language_model():
    """Scores after a prompt and after two more tokens: products of 8-bit weights with rows of 8-bit activations."""
    import rlx

    session = rlx.load("tiny", activations="int8").session()
    return [session.prefill(PROMPT), session.step(5), session.step(11)]


PROGRAMS = {"gradient": gradient, "loop": loop, "language_model": language_model, COMPILED_THERE: softmax}


def run_all():
    from rlx.kernels.machines import host

    results = {name: [np.asarray(value) for value in program()] for name, program in PROGRAMS.items()}
    arrays = {f"{name}.{i}": value for name, values in results.items() for i, value in enumerate(values)}
    return {**arrays, "machine": np.array([host().name, host().features])}


def prepare(level):
    """Pretend to be that machine: code is compiled and kept, and every function is one that does nothing."""
    import ctypes

    from llvmlite import binding

    import rlx.backends.native.linker as linker
    from rlx.kernels import machines

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machines.detected = lambda: machines.LEVELS[level]
    nothing = ctypes.CFUNCTYPE(ctypes.c_int64)(lambda: 0)
    address = ctypes.cast(nothing, ctypes.c_void_p).value
    linker._place = lambda parts, imports: linker.Linked({s.name: address for s in parts.symbols}, nothing)
    for name, program in PROGRAMS.items():
        if name != COMPILED_THERE:
            program()


if __name__ == "__main__":
    if sys.argv[1] == "--prepare":
        prepare(sys.argv[2])
    else:
        np.savez(sys.argv[1], **run_all())
