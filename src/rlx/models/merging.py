"""Models with their adapters merged in, as GGUF files that need no adapter.

    write_merged("model.gguf", "merged.gguf", ["run"])

A merged matrix is W + s·B·A (with DoRA scaled row by row), computed in f64 from the decoded weight, and stored in the
type that the base has it in, or in the one asked for.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rlx.errors import FormatError
from rlx.formats.gguf import PackedTensor, TensorType, open_gguf, quantize, tensor_type, write_gguf
from rlx.formats.gguf.quantizer import can_write, with_progress
from rlx.formats.gguf.type_mix import fitting_type
from rlx.formats.mapped_file import U8
from rlx.ir.dtype import DType
from rlx.models.adapter_files import read_adapter
from rlx.models.adapters import Adapter, LoraPair, Site, merged
from rlx.models.convert import convert_files
from rlx.models.model_files import DecoderFiles, open_decoder
from rlx.models.weights import Weight, WeightFile

Progress = Callable[[str, int, int], None]


def merged_weights(file: WeightFile, adapters: Sequence[Adapter]) -> dict[str, Weight]:
    """The weights that adapters change, as floats that are computed when they are read."""
    pairs: dict[Site, list[LoraPair]] = {}
    for adapter in adapters:
        for site, pair in adapter.pairs.items():
            pairs.setdefault(site, []).append(pair)

    def weight(site: Site) -> Weight:
        base = file.weight(*site)
        return Weight(base.dims, DType.F32, None, partial(merged, base, pairs[site]))

    return {f"{file.name(*site)}.weight": weight(site) for site in pairs}


def write_merged(
    model: str | os.PathLike[str],
    target: str | os.PathLike[str],
    adapters: Sequence[str | os.PathLike[str]],
    type: str | None = None,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Write a model with its adapters merged in, and say how many tensors got which type.

    `type` is that of the merged matrices of a GGUF model; without it they keep theirs, and are rounded to it again. For
    a Hugging Face directory it is the type of all matrices, F16 unless given.
    """
    files = open_decoder(Path(model))
    read = [read_adapter(path, files.config, files.weights) for path in adapters]
    return write_changed(files, merged_weights(files.weights, read), target, type, progress)


def write_changed(
    files: DecoderFiles,
    changed: Mapping[str, Weight],
    target: str | os.PathLike[str],
    type: str | None = None,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Write a model with other weights in the place of those that `changed` names, as a GGUF file."""
    if not files.weights.is_gguf:
        replaced = files._replace(weights=files.weights.replaced(changed))
        return convert_files(replaced, target, type or "F16", progress)
    with open_gguf(files.path) as source:
        tensors: list[PackedTensor] = list(source.tensors.values())
        for place, tensor in enumerate(tensors):
            if (weight := changed.get(tensor.name)) is not None:
                kind = _type(tensor.name, tensor.type, tensor.shape, type)
                tensors[place] = _Changed(tensor.name, weight, kind)
        metadata: dict[str, Any] = {
            key: value for key, value in source.metadata.typed().items() if not key.startswith("split.")
        }
        write_gguf(target, metadata, with_progress(tensors, progress) if progress else tensors)
    return dict(Counter(tensor.type.name for tensor in tensors))


def _type(name: str, own: TensorType, shape: tuple[int, ...], wanted: str | None) -> TensorType:
    kind = own if wanted is None else fitting_type(tensor_type(wanted.upper()), shape[-1]) or own
    if not can_write(kind):
        raise FormatError(f"{name}: merged weights cannot be stored as {kind.name}; give a type such as Q8_0 or F16")
    return kind


class _Changed:
    """A tensor that is computed and packed when its turn to be written has come."""

    def __init__(self, name: str, weight: Weight, kind: TensorType) -> None:
        self.name, self.shape, self.type = name, weight.dims, kind
        self._weight = weight

    def data(self) -> U8:
        return quantize(np.asarray(self._weight.read(), np.float32), self.type)
