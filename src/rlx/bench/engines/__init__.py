"""The engines that are compared, each loaded only in its own process.

A family of engines runs the same kind of work: `programs` and `kernels` those of `rlx.bench.programs`,
`language_models` and `language_shapes` a model file (`prefill` and `decode`), `encoders` a sentence encoder (`embed`),
`matrices` dense linear algebra, `sparse` products and solves with sparse matrices, `scans` sorts, samples and
recurrences, `loops` small bodies many times, `training` steps of optimisers. Engines of ours are called "rlx", or "rlx"
and what is special about them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from rlx.bench.programs import Array, Sizes


class Engine(Protocol):
    """One way to run programs. `prepare` may take its time; what it returns is what is measured."""

    @property
    def version(self) -> str: ...

    def prepare(self, program: str, sizes: Sizes) -> Callable[[], Any]:
        """A call that computes the program on its operands."""
        ...

    def as_numpy(self, result: Any) -> Array: ...


class EngineEntry(NamedTuple):
    """`module` of this folder has the class `factory`; `needs` is what must be importable.

    An engine whose result is off by more than `largest_error`, as its family measures it, is not timed. A language
    model is converted to the GGUF type `model_type` for it, "" for the file as it is.
    """

    module: str
    factory: str
    needs: tuple[str, ...]
    largest_error: float
    model_type: str = ""


OURS = "rlx"


def is_ours(name: str) -> bool:
    return name.split(" ")[0] == OURS


# The largest difference from f64, relative to the largest element.
_F32 = 1e-4
ENGINES: dict[str, EngineEntry] = {
    OURS: EngineEntry("rlx_engine", "RlxEngine", ("llvmlite",), _F32),
    "torch": EngineEntry("torch_engine", "TorchEngine", ("torch",), _F32),
    "torch.compile": EngineEntry("torch_engine", "CompiledTorchEngine", ("torch",), _F32),
    "jax": EngineEntry("jax_engine", "JaxEngine", ("jax",), _F32),
    "onnxruntime": EngineEntry("onnx_engine", "OnnxEngine", ("onnx", "onnxruntime"), _F32),
    "openvino": EngineEntry("openvino_engine", "OpenVinoEngine", ("openvino",), _F32),
    "tinygrad": EngineEntry("tinygrad_engine", "TinygradEngine", ("tinygrad",), _F32),
}

# The largest difference from the exact logits of the same weights, relative to the largest: activations are rounded
# to 8 bits.
_ROUNDED = 0.1
_OTHER_TYPES = ("Q4_0", "Q8_0")
LANGUAGE_MODELS: dict[str, EngineEntry] = {
    OURS: EngineEntry("language_models", "RlxModel", ("llvmlite",), _ROUNDED),
    **{
        f"{OURS} {kind}": EngineEntry("language_models", "RlxModel", ("llvmlite",), _ROUNDED, kind)
        for kind in _OTHER_TYPES
    },
    f"{OURS} f32": EngineEntry("language_models", "ExactRlxModel", ("llvmlite",), _ROUNDED),
    f"{OURS} int8": EngineEntry("language_models", "Int8RlxModel", ("llvmlite",), _ROUNDED),
    "llama.cpp": EngineEntry("language_models", "LlamaCppModel", ("llama_cpp",), _ROUNDED),
    **{
        f"llama.cpp {kind}": EngineEntry("language_models", "LlamaCppModel", ("llama_cpp",), _ROUNDED, kind)
        for kind in _OTHER_TYPES
    },
}

# The same for files of one type.
LANGUAGE_SHAPES: dict[str, EngineEntry] = {name: e for name, e in LANGUAGE_MODELS.items() if not e.model_type}

# 1 less the mean cosine between its vectors and the exact ones.
_SAME, _CLOSE, _NEAR = 1e-5, 1e-3, 4e-3
ENCODERS: dict[str, EngineEntry] = {
    OURS: EngineEntry("sentence_encoders", "RlxEncoder", ("llvmlite", "tokenizers"), _SAME),
    f"{OURS} int8": EngineEntry("sentence_encoders", "Int8RlxEncoder", ("llvmlite", "tokenizers"), _NEAR),
    f"{OURS} int8 weights": EngineEntry("sentence_encoders", "Int8WeightsEncoder", ("llvmlite", "tokenizers"), _CLOSE),
    "sentence-transformers": EngineEntry(
        "sentence_encoders", "SentenceTransformersEncoder", ("sentence_transformers",), _SAME
    ),
    "onnxruntime": EngineEntry("onnx_encoders", "OnnxEncoder", ("onnx", "tokenizers", "onnxruntime"), _SAME),
    "openvino": EngineEntry("onnx_encoders", "OpenVinoEncoder", ("onnx", "tokenizers", "openvino"), _SAME),
}

# The largest difference of sizes from ours, relative to the largest: all are in double precision.
_F64 = 1e-9
MATRICES: dict[str, EngineEntry] = {
    OURS: EngineEntry("linear_algebra", "RlxMatrices", ("llvmlite",), _F64),
    "scipy": EngineEntry("linear_algebra", "SciPyMatrices", ("scipy",), _F64),
    "numpy": EngineEntry("linear_algebra", "NumPyMatrices", ("numpy",), _F64),
}

SPARSE: dict[str, EngineEntry] = {
    OURS: EngineEntry("sparse_matrices", "RlxSparse", ("llvmlite",), _F64),
    "scipy": EngineEntry("sparse_matrices", "SciPySparse", ("scipy",), _F64),
}

SCANS: dict[str, EngineEntry] = {
    OURS: EngineEntry("array_scans", "RlxScans", ("llvmlite",), _F32),
    "torch": EngineEntry("array_scans", "TorchScans", ("torch",), _F32),
    "torch by steps": EngineEntry("array_scans", "TorchStepScans", ("torch",), _F32),
}

KERNELS: dict[str, EngineEntry] = {
    **{name: ENGINES[name] for name in (OURS, "torch", "jax")},
    "scipy": EngineEntry("scipy_engine", "ScipyEngine", ("scipy",), _F32),
}

# The loss of the fifth step, relative to ours: so soon roundings have not grown.
_SAME_LOSS = 1e-3
TRAINERS: dict[str, EngineEntry] = {
    OURS: EngineEntry("training_rlx", "RlxTraining", ("llvmlite",), _SAME_LOSS),
    "torch": EngineEntry("training_torch", "TorchTraining", ("torch",), _SAME_LOSS),
    "torch foreach": EngineEntry("training_torch", "ForeachTorchTraining", ("torch",), _SAME_LOSS),
    "torch.compile": EngineEntry("training_torch", "CompiledTorchTraining", ("torch",), _SAME_LOSS),
    "torch+peft": EngineEntry("training_torch", "TorchTraining", ("torch", "transformers", "peft"), _SAME_LOSS),
    "jax": EngineEntry("training_jax", "JaxTraining", ("jax", "optax"), _SAME_LOSS),
}

LOOPS: dict[str, EngineEntry] = {
    OURS: EngineEntry("loops", "RlxLoops", ("llvmlite",), _F32),
    "jax": EngineEntry("loops", "JaxLoops", ("jax",), _F32),
}

FAMILIES: Mapping[str, dict[str, EngineEntry]] = {
    "programs": ENGINES,
    "kernels": KERNELS,
    "language_models": LANGUAGE_MODELS,
    "language_shapes": LANGUAGE_SHAPES,
    "encoders": ENCODERS,
    "matrices": MATRICES,
    "training": TRAINERS,
    "sparse": SPARSE,
    "scans": SCANS,
    "loops": LOOPS,
}
# Where engines that run a model find it.
MODEL_VARIABLE = "RLX_BENCH_MODEL"
# And those that train an adapter the one to begin with.
ADAPTER_VARIABLE = "RLX_BENCH_ADAPTER"
# The device of engines that train; without it, the host.
DEVICE_VARIABLE = "RLX_BENCH_DEVICE"


def create_engine(family: str, name: str, threads: int) -> Engine:
    """The engine of this name, in this process; an ImportError says what is missing."""
    entry = FAMILIES[family][name]
    for package in entry.needs:
        importlib.import_module(package)
    module = importlib.import_module(f"rlx.bench.engines.{entry.module}")
    engine: Engine = getattr(module, entry.factory)(threads)
    return engine
