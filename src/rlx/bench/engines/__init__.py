"""The engines that are compared, each in a file of its own, loaded only in its own process."""

from __future__ import annotations

import importlib
from collections.abc import Callable
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
    """`module` of this folder has the class `factory`; `needs` is what must be importable."""

    module: str
    factory: str
    needs: tuple[str, ...]


OURS = "rlx"
ENGINES: dict[str, EngineEntry] = {
    OURS: EngineEntry("rlx_engine", "RlxEngine", ("llvmlite",)),
    "torch": EngineEntry("torch_engine", "TorchEngine", ("torch",)),
    "torch.compile": EngineEntry("torch_engine", "CompiledTorchEngine", ("torch",)),
    "jax": EngineEntry("jax_engine", "JaxEngine", ("jax",)),
    "onnxruntime": EngineEntry("onnx_engine", "OnnxEngine", ("onnx", "onnxruntime")),
    "openvino": EngineEntry("openvino_engine", "OpenVinoEngine", ("openvino",)),
    "tinygrad": EngineEntry("tinygrad_engine", "TinygradEngine", ("tinygrad",)),
}
# Engines that run a model file; their programs are `prefill` and `decode`.
LANGUAGE_MODELS: dict[str, EngineEntry] = {
    OURS: EngineEntry("language_models", "RlxModel", ("llvmlite",)),
    "llama.cpp": EngineEntry("language_models", "LlamaCppModel", ("llama_cpp",)),
}
FAMILIES = {"programs": ENGINES, "language_models": LANGUAGE_MODELS}
# Where engines of language models find the file.
MODEL_VARIABLE = "RLX_BENCH_MODEL"


def create_engine(family: str, name: str, threads: int) -> Engine:
    """The engine of this name, in this process; an ImportError says what is missing."""
    entry = FAMILIES[family][name]
    for package in entry.needs:
        importlib.import_module(package)
    module = importlib.import_module(f"rlx.bench.engines.{entry.module}")
    engine: Engine = getattr(module, entry.factory)(threads)
    return engine
