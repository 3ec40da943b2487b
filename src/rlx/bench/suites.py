"""Which programs at which sizes make up a suite."""

from __future__ import annotations

from typing import NamedTuple

from rlx.bench.kernel_programs import CONVOLUTIONS, TRANSFORMS
from rlx.bench.programs import PROGRAMS, Expected, Sizes, exact
from rlx.bench.sparse_programs import SIZES as PATTERN_SIZES
from rlx.bench.sparse_programs import product_bytes

# Work in f64 that a check is worth; larger cases are checked on some of their rows or examples.
CHECKED_FLOPS = 3e9


class Case(NamedTuple):
    """One line of the table; cases of a group are averaged."""

    name: str
    group: str
    program: str
    sizes: Sizes

    def exact(self) -> Expected | None:
        """What is right, in f64; None for models from files, whose engines are compared with each other."""
        return exact(self.program, self.sizes, CHECKED_FLOPS) if self.program in PROGRAMS else None

    @property
    def work(self) -> tuple[float, float]:
        """Floating-point operations, and bytes that must be moved."""
        if self.program in PROGRAMS:
            return PROGRAMS[self.program].work(self.sizes)
        return (0.0, product_bytes(self.program, self.sizes["size"])) if ": " in self.program else (0.0, 0.0)


def _product(m: int, n: int, k: int, program: str = "matmul", group: str = "matmul") -> Case:
    return Case(f"{program} {m}x{n}x{k}", group, program, {"m": m, "n": n, "k": k})


def _rows(program: str, rows: int, width: int) -> Case:
    return Case(f"{program} {rows}x{width}", "fused", program, {"rows": rows, "width": width})


def _attention(name: str, **sizes: int) -> Case:
    program = "causal attention" if name.startswith("causal") else "attention"
    return Case(f"attention {name}", "attention", program, sizes)


OPS = (
    *(_product(m, n, k) for m in (1, 16, 128, 1024) for n, k in ((384, 384), (1536, 384), (768, 3072), (4096, 4096))),
    _product(128, 1536, 384, "matmul+bias+gelu", "fused"),
    _product(1024, 3072, 768, "matmul+bias+gelu", "fused"),
    _product(128, 1536, 576, "swiglu", "fused"),
    _product(512, 2048, 768, "swiglu", "fused"),
    _rows("residual+norm", 128, 384),
    _rows("residual+norm", 4096, 768),
    _rows("softmax", 1024, 1024),
    _rows("softmax", 12288, 128),
    _rows("layer_norm", 4096, 768),
    _rows("rms_norm", 4096, 768),
    _rows("cross_entropy", 512, 32000),
    _attention("1x12x128x64", batch=1, heads=12, seq=128, depth=64),
    _attention("8x12x128x64", batch=8, heads=12, seq=128, depth=64),
    _attention("causal 1x12x1024x64", batch=1, heads=12, seq=1024, depth=64),
    _attention("causal 1x8x1024x128", batch=1, heads=8, seq=1024, depth=128),
    _attention("decode 32/8 heads, 1024 keys x128", batch=1, heads=32, kv_heads=8, seq=1, keys=1024, depth=128),
)

MINILM = tuple(
    Case(f"encoder {batch}x{seq}", f"batch {batch}", "encoder", {"batch": batch, "seq": seq})
    for batch, seq in ((1, 16), (1, 128), (8, 128), (32, 128))
)

CONV = tuple(
    Case(f"{setting.name} {part}", "forward" if part == "forward" else "backward", f"{setting.name} {part}", {})
    for part in ("forward", "dx", "dw")
    for setting in CONVOLUTIONS
)

FFT = tuple(Case(transform.name, transform.group, transform.name, {}) for transform in TRANSFORMS)

CALLS = (Case("run() of 3 nodes", "calls", "three nodes", {"rows": 1, "width": 64}),)

LANGUAGE_MODEL = (
    Case("prefill 128 tokens", "prefill", "prefill", {"tokens": 128}),
    Case("prefill 512 tokens", "prefill", "prefill", {"tokens": 512}),
    Case("decode after 16 tokens", "decode", "decode", {"tokens": 16}),
    Case("decode after 512 tokens", "decode", "decode", {"tokens": 512}),
)

LANGUAGE_SHAPES = (
    Case("prefill 512 tokens", "prefill", "prefill", {"tokens": 512}),
    Case("decode", "decode", "decode", {"tokens": 16}),
    Case("decode 8 sequences", "decode 8", "decode many", {"tokens": 16, "sequences": 8}),
)

MILLION = 1_000_000
LOOPS = (
    Case("while_loop, 1,000,000 rounds", "loops", "while_loop", {"count": MILLION}),
    Case("scan, 1,000,000 steps", "loops", "scan", {"count": MILLION}),
    Case("160 functions with different constants", "constants", "constants", {"count": 160}),
)

EMBED = tuple(
    Case(f"{count} {what}", "embed", "embed", {"texts": count})
    for count, what in ((256, "sentences of mixed length"), (1, "sentence"))
)


LINALG = (
    *(
        Case(f"{program} {size}", f"{size}x{size}", program, {"size": size})
        for program in ("cholesky", "solve", "lu", "qr", "eigh", "svd")
        for size in (100, 300, 1000)
    ),
    *(
        Case(f"{count} {program} of 3x3", "3x3", program, {"size": 3, "count": count})
        for program in ("cholesky", "solve", "qr", "eigh", "svd")
        for count in (1, 10000)
    ),
)

SPARSE = (
    *(
        Case(f"{what} {kind}", what, f"{what}: {kind}", {"size": size})
        for what in ("spmv", "spmm")
        for kind, size in PATTERN_SIZES.items()
    ),
    Case("cg with ic0, grid", "cg", "cg: grid", {"size": PATTERN_SIZES["grid"]}),
    Case("cg with ic0, grid, and gradient", "cg", "cg gradient: grid", {"size": PATTERN_SIZES["grid"]}),
)

SCANS = (
    *(
        Case(f"{program} {rows}x50000", program, program, {"rows": rows, "width": 50_000})
        for program in ("top-k", "sampling")
        for rows in (1, 8)
    ),
    *(
        Case(f"{program} {rows}x{width}", program, program, {"rows": rows, "width": width})
        for program in ("sort", "cumsum")
        for rows, width in ((1, 1_000_000), (1000, 1000), (10_000, 64))
    ),
    Case(
        "selective scan 2x1024x768x16",
        "selective scan",
        "selective scan",
        {"batch": 2, "steps": 1024, "channels": 768, "states": 16},
    ),
)


class Suite(NamedTuple):
    """Cases for engines of one family; `model` is the one that is meant where no other is named, "" for none."""

    family: str
    cases: tuple[Case, ...]
    model: str = ""
    notes: tuple[str, ...] = ()


SUITES: dict[str, Suite] = {
    "ops": Suite("programs", OPS),
    "minilm": Suite("programs", MINILM),
    "calls": Suite("programs", CALLS),
    "conv": Suite("kernels", CONV),
    "fft": Suite("kernels", FFT),
    "linalg": Suite(
        "matrices",
        LINALG,
        "",
        (
            "f64; scipy is LAPACK, one matrix at a time; numpy has a loop of its own for batches",
            "engines were compared by what does not depend on signs: diagonals of factors, eigen- and singular values",
        ),
    ),
    "sparse": Suite(
        "sparse",
        SPARSE,
        "",
        (
            "f64, indices of 32 bits; spmm has 32 right sides; scipy has one thread",
            "cg counts from the entries of the matrix on: IC(0) and spilu(drop_tol=0, fill_factor=1) are part of it",
        ),
    ),
    "scans": Suite(
        "scans",
        SCANS,
        "",
        ("f32; torch has two forms of the selective scan: rates of 64 steps at once, and step by step",),
    ),
    "llm": Suite(
        "language_models",
        LANGUAGE_MODEL,
        "smollm2",
        (
            "rlx: weights are those of the file, activations of 16 bits where weights are blocks, caches f32, so that "
            "the answers are those of the model; rlx f32 rounds nothing more, llama.cpp and rlx int8 round activations "
            "to 8 bits; benchmarks/parity.py measures what that does to answers",
            "Q4_0, Q8_0: the same model with all matrices in that type, converted from the file's weights by "
            "`rlx quantize`; every row shows how many times as long each peer takes",
            "limit of prefill: f32 multiply-adds, which codes of 8 and 16 bits may pass; of decode: all weights of the "
            "file and the cache read once",
            "results were compared with those of rlx on the same weights",
        ),
    ),
    "llm-shapes": Suite(
        "language_shapes",
        LANGUAGE_SHAPES,
        "",
        (
            "a model with the widths of a real one and random weights: fewer layers and a smaller vocabulary",
            "rlx: activations of 16 bits where weights are blocks; rlx f32 rounds nothing more, llama.cpp and rlx int8 "
            "round activations to 8 bits",
            "limit of prefill: f32 multiply-adds, which codes of 8 and 16 bits may pass; of decode: all weights of the "
            "file and the caches read once",
        ),
    ),
    "loops": Suite(
        "loops",
        LOOPS,
        "",
        (
            "a millisecond of a million rounds is a nanosecond a round",
            "constants: traced, compiled and called once; no engine has seen the numbers before",
        ),
    ),
    "embed": Suite(
        "encoders",
        EMBED,
        "minilm",
        (
            "texts to vectors, with tokenisation: the same tokenizer for all, batches of 32 texts of similar length",
            "rlx int8: 8 bits on both sides of products; rlx int8 weights: weights of 8 bits, activations f32",
            "the vectors were compared with those of rlx in f32, which tests hold to f64",
        ),
    ),
}
