"""Writing safetensors files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rlx.errors import FormatError
from rlx.formats.mapped_file import replace_file
from rlx.formats.safetensors.element_types import ORDER, encode, type_of_dtype

_ALIGNMENT = 8


def write_safetensors(
    path: str | os.PathLike[str],
    tensors: Mapping[str, npt.NDArray[np.generic]],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write the arrays into a file that appears whole or not at all.

    Wide elements come first, then names in order, so that every tensor is aligned; the same arrays always give the same
    bytes.
    """
    if "__metadata__" in tensors:
        raise FormatError("write_safetensors: '__metadata__' cannot be the name of a tensor")
    arrays = {name: np.asarray(values) for name, values in tensors.items()}
    kinds = {name: type_of_dtype(values.dtype) for name, values in arrays.items()}
    names = sorted(arrays, key=lambda name: (-ORDER[kinds[name].name], name))
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name in names:
        size = arrays[name].size * kinds[name].bits // 8
        header[name] = {"dtype": kinds[name].name, "shape": list(arrays[name].shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % _ALIGNMENT)
    with replace_file(Path(path)) as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in names:
            file.write(encode(kinds[name], arrays[name]).data)
