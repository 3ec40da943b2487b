"""Models as shapes, without weights: published ones by name, and those of files.

    model_shape("llama-3-8b").config.hidden          # 4096
    model_shape("model.gguf")                        # of its header
    model_shape("llama-3-8b").parameters             # 8030261248

Figures are those of the `config.json` that the makers publish with each model.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from rlx.errors import RlxError, ShardingError
from rlx.ir.dtype import DType
from rlx.models import weight_names
from rlx.models.config import DecoderConfig, RopeConfig
from rlx.models.decoder import build_decoder
from rlx.models.weights import Weight, WeightFile

__all__ = ["PUBLISHED", "ModelShape", "ShapeFile", "model_shape"]


# The names of GGUF files, and of roles that these have none for, the roles themselves.
_NAMES = {
    role: f"blk.{{i}}.{role}" if "{i}" in name else role
    for names in weight_names.HF_DECODERS.values()
    for role, name in names.items()
} | weight_names.GGUF


class ModelShape(NamedTuple):
    """A model without weights. `biased` are the roles whose linear layers or norms have a bias; `stored` is the dtype
    of its weights in files."""

    name: str
    config: DecoderConfig
    biased: frozenset[str] = frozenset()
    stored: DType = DType.BF16

    def weights(self, config: DecoderConfig | None = None, dtype: DType | None = None) -> dict[str, Weight]:
        """Dims and dtypes of all weights, of this model or of one with a config of other sizes."""
        return dict(self.file(config, dtype).items())

    def file(self, config: DecoderConfig | None = None, dtype: DType | None = None) -> ShapeFile:
        """The same as a file."""
        file = ShapeFile(self.name, self.biased, dtype or self.stored)
        build_decoder(config or self.config, file, None)
        file.is_whole = True
        return file

    @property
    def parameters(self) -> int:
        # Layers are alike but where some have no experts, so all are counted.
        return sum(math.prod(weight.dims) for weight in self.weights().values())


class ShapeFile(WeightFile):
    """Weights of any dims that a builder asks for, zeros that take no memory; those of a model once it `is_whole`."""

    def __init__(self, what: str, biased: frozenset[str], dtype: DType) -> None:
        super().__init__(what, _NAMES, {})
        self._biased, self._dtype, self.is_whole = biased, dtype, False

    def has(self, role: str, layer: int | None = None, part: str = "weight") -> bool:
        if self.is_whole:
            return super().has(role, layer, part)
        return role in self._names and (part == "weight" or role in self._biased)

    def get(self, name: str, dims: tuple[int, ...]) -> Weight:
        if name not in self._weights:
            zero = np.zeros((), self._dtype.numpy)
            self._weights[name] = Weight(dims, self._dtype, None, lambda: np.broadcast_to(zero, dims))
        return super().get(name, dims)

    def replaced(self, weights: Mapping[str, Weight]) -> ShapeFile:
        return self


def _llama(
    name: str,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    ffn: int,
    vocab: int,
    context: int,
    *,
    base: float = 1e4,
    tied: bool = False,
    biased: tuple[str, ...] = (),
) -> ModelShape:
    width = hidden // heads
    config = DecoderConfig(
        "llama", layers, hidden, heads, kv_heads, width, ffn, vocab, context, rope=RopeConfig(base, width), tied=tied
    )
    return ModelShape(name, config, frozenset(biased))


PUBLISHED: dict[str, ModelShape] = {
    shape.name: shape
    for shape in (
        _llama("smollm2-135m", 30, 576, 9, 3, 1536, 49152, 8192, base=1e5, tied=True),
        _llama("smollm2-1.7b", 24, 2048, 32, 32, 8192, 49152, 8192, base=1.3e5, tied=True),
        _llama("llama-2-7b", 32, 4096, 32, 32, 11008, 32000, 4096),
        _llama("llama-2-70b", 80, 8192, 64, 8, 28672, 32000, 4096),
        _llama("llama-3.2-1b", 16, 2048, 32, 8, 8192, 128256, 131072, base=5e5, tied=True),
        _llama("llama-3-8b", 32, 4096, 32, 8, 14336, 128256, 8192, base=5e5),
        _llama("llama-3-70b", 80, 8192, 64, 8, 28672, 128256, 8192, base=5e5),
        _llama("llama-3.1-405b", 126, 16384, 128, 8, 53248, 128256, 131072, base=5e5),
        _llama("mistral-7b", 32, 4096, 32, 8, 14336, 32000, 32768),
        _llama("qwen2.5-7b", 28, 3584, 28, 4, 18944, 152064, 131072, base=1e6, biased=("q", "k", "v")),
        _llama("qwen2.5-72b", 80, 8192, 64, 8, 29568, 152064, 131072, base=1e6, biased=("q", "k", "v")),
    )
}


def model_shape(model: str | os.PathLike[str]) -> ModelShape:
    """The shape of a published model by its name, or of a file or name that `rlx.load` takes; only headers are read."""
    from rlx.models.model_files import open_decoder
    from rlx.models.pull import find_model

    if str(model) in PUBLISHED:
        return PUBLISHED[str(model)]
    try:
        files = open_decoder(find_model(model))
    except RlxError as error:
        raise ShardingError(
            f"plan: {str(model)!r} is neither a model that rlx.load takes ({error}) nor one of {', '.join(PUBLISHED)}"
        ) from None
    biased = frozenset(role for role, part in files.weights.roles(files.config.layers).values() if part == "bias")
    sizes: dict[DType, int] = {}
    for _, weight in files.weights.items():
        sizes[weight.dtype] = sizes.get(weight.dtype, 0) + math.prod(weight.dims)
    stored = max(sizes, key=lambda dtype: sizes[dtype])
    # Packed weights are planned as the floats that they stand for where they are trained.
    floats = stored if stored.is_float else DType.F32
    return ModelShape(files.path.name, files.config, biased, floats)
