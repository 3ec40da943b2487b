"""What an adapter has beyond WGSL's core, of which kernels make use: f16, subgroups, dot products of bytes.

A feature is used where the adapter has it and the knob `wgpu_features` names it, or, where that is not set, if it pays;
without it kernels are plain WGSL. WebGPU does not promise how f16 is rounded, nor that its smallest numbers are kept,
and rlx does: whether a device converts and computes as it should is tried once, and where it does not, f16 is not used.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.ir.dtype import DType
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Kernel
from rlx.kernels.machines import WGSL_FEATURES, wgsl_with

if TYPE_CHECKING:
    from rlx.backends.wgpu.device import Gpu

# What adapters and languages call them.
_ADAPTER_NAMES = {"f16": "shader-f16", "subgroups": "subgroup"}


def adapter_features(handle: Any) -> list[str]:
    """Those of an adapter, by our names. Dot products of bytes are part of the language that wgpu compiles."""
    return [name for name in WGSL_FEATURES if name == "dot4" or _ADAPTER_NAMES[name] in handle.features]


def paying_features(kind: str) -> list[str]:
    """Those that make kernels faster on a kind of adapter. A processor that stands in for a GPU has no instructions for
    f16 and for dot products of bytes: on lavapipe maps of f16 take twice as long with them."""
    return ["subgroups"] if kind == "CPU" else [*WGSL_FEATURES]


def requested(features: Collection[str]) -> list[str]:
    """What a device is asked for."""
    return [_ADAPTER_NAMES[name] for name in features if name in _ADAPTER_NAMES]


def has_exact_f16(gpu: Gpu) -> bool:
    """Whether a device has the numbers that f16 stands for, rounds to the nearest, and computes in it as we say."""
    from rlx.backends.wgpu.code import loader

    halves = np.arange(2**16, dtype=np.uint16)
    # Each number with another one, so that sums and products are of all sizes, rounded up and down, and tiny.
    others = np.random.default_rng(0).permutation(halves)
    a, b = (bits.view(np.float16).astype(np.float32) for bits in (halves, others))
    with np.errstate(all="ignore"):
        wanted = np.stack([(a + b).astype(np.float16), (a * b).astype(np.float16)])
    code = loader(wgsl_with(["f16"])).load(_probe(len(halves))).code
    given = gpu.allocate(halves.nbytes * 2, "a trial of f16")
    made = gpu.allocate(wanted.nbytes, "a trial of f16")
    gpu.write(given.address, np.concatenate([halves, others]))
    with gpu.lock:
        gpu.commands.call(code, [given.address, made.address], -(-len(halves) // 2 // 32), "a trial of f16")
        gpu.commands.flush()
    found = gpu.read(made.address, wanted.shape, wanted.dtype)
    return bool(np.array_equal(found, wanted, equal_nan=True))


def _probe(count: int) -> Kernel:
    """Sums, then products, of pairs of f16; a thread has two pairs, which fill words."""
    k = KernelBuilder("trial_of_f16")
    x, y = k.pointer("x", DType.F16, align=4), k.pointer("y", DType.F16, write=True, align=4)
    with k.parallel("pair", count // 2) as pair:
        a, b = (k.cast(k.load(x, pair * 2 + start, lanes=2, align=4), DType.F32) for start in (0, count))
        k.store(y, pair * 2, k.cast(a + b, DType.F16), align=4)
        k.store(y, pair * 2 + count, k.cast(a * b, DType.F16), align=4)
    return k.build()
