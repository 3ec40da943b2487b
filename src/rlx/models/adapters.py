"""Adapters of linear layers: what LoRA and DoRA add to a weight W [out, in] that stays as it is.

    LoRA   y = W·x + s·B·(A·x)                             A [r, in], B [out, r], s = alpha / r
    DoRA   y = m/‖W + s·B·A‖ · (W·x + s·B·(A·x))           m [out], norms of rows

An `Adapter` has a pair (A, B) for some of the linear layers, each known by its role and layer (see
`rlx.models.weight_names`) and with rows in the order of the base's own file. `rlx.models.adapter_files` reads and
writes them; `rlx.models.layers` adds them to programs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rlx.errors import FormatError, OpError
from rlx.models.config import DecoderConfig, EncoderConfig
from rlx.models.weights import LINEAR_ROLES, Weight, WeightFile
from rlx.quant.schemes import dequantize_blocks

F32 = npt.NDArray[np.float32]
# A linear layer of a model: its role and its number.
Site = tuple[str, int]

# Matrices of experts are products of their own, chosen row by row.
ADAPTED_ROLES = tuple(sorted(role for role in LINEAR_ROLES if not role.startswith("experts_")))
# The word of PEFT for all of them.
ALL_LINEAR = "all-linear"
# The parts of a pair, by the names that PEFT has for them.
PARTS = ("lora_A", "lora_B", "lora_magnitude_vector")
# Rows of a packed weight that are decoded at the same time.
_ROWS = 256


@dataclass(frozen=True)
class AdapterConfig:
    """How adapters are made: `targets` are endings of names of modules, such as q_proj, or "all-linear"."""

    rank: int = 8
    alpha: float | None = None
    dropout: float = 0.0
    targets: tuple[str, ...] = (ALL_LINEAR,)
    is_dora: bool = False

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise OpError(f"lora: the rank must be 1 or more, got {self.rank}")
        if not math.isfinite(self.scale) or self.scale <= 0:
            raise OpError(f"lora: alpha must be a number above 0, got {self.alpha}")
        if not 0 <= self.dropout < 1:
            raise OpError(f"lora: dropout must be at least 0 and below 1, got {self.dropout}")
        if not self.targets:
            raise OpError(f"lora: no targets are given; name modules such as q_proj, or use {ALL_LINEAR!r}")

    @property
    def scale(self) -> float:
        """alpha / rank; without an alpha twice the rank is taken for it, as is usual."""
        return 2.0 if self.alpha is None else self.alpha / self.rank


class LoraPair(NamedTuple):
    """A [r, in] and B [out, r] of one layer, what their product is multiplied by, and for DoRA the norms m [out]."""

    a: F32
    b: F32
    scale: float
    magnitude: F32 | None = None

    @property
    def rank(self) -> int:
        return len(self.a)

    def arrays(self) -> dict[str, F32]:
        """What is trained, by part."""
        parts = (self.a, self.b, self.magnitude)
        return {name: part for name, part in zip(PARTS, parts) if part is not None}

    def with_arrays(self, arrays: Mapping[str, Any]) -> LoraPair:
        """The same pair with other numbers."""
        a, b = (np.array(arrays[part], np.float32) for part in PARTS[:2])
        magnitude = None if self.magnitude is None else np.array(arrays[PARTS[2]], np.float32)
        return LoraPair(a, b, self.scale, magnitude)


@dataclass(frozen=True)
class Adapter:
    """Pairs by layer. `dropout` counts in training only; `name` is for messages."""

    name: str
    pairs: Mapping[Site, LoraPair]
    dropout: float = 0.0

    @property
    def is_dora(self) -> bool:
        return any(pair.magnitude is not None for pair in self.pairs.values())

    def params(self, file: WeightFile) -> dict[str, F32]:
        """All that is trained, by the names of the base and of the parts."""
        return {
            f"{file.name(*site)}.{part}": array
            for site, pair in self.pairs.items()
            for part, array in pair.arrays().items()
        }

    def with_params(self, params: Mapping[str, Any], file: WeightFile) -> Adapter:
        """The adapter with the numbers of such a tree."""
        pairs = {
            site: pair.with_arrays({part: params[f"{file.name(*site)}.{part}"] for part in pair.arrays()})
            for site, pair in self.pairs.items()
        }
        return Adapter(self.name, pairs, self.dropout)


def linear_sites(config: DecoderConfig | EncoderConfig, file: WeightFile) -> list[Site]:
    """The linear layers of a model that adapters can change."""
    # Files may call a fused matrix by the name that one of its parts has elsewhere.
    absent = {"q", "k", "v"} if config.fused_qkv else {"qkv"}
    absent |= {"gate", "up"} if config.fused_gate_up else {"gate_up"}
    roles = [role for role in ADAPTED_ROLES if role not in absent]
    return [(role, i) for i in range(config.layers) for role in roles if file.has(role, i)]


def chosen_sites(targets: Sequence[str], present: Sequence[Site], names: Mapping[str, str]) -> list[Site]:
    """Those of the linear layers that `targets` name. `names` maps roles to the module names that targets are endings
    of; a target that fits no module is refused."""
    found: list[Site] = []
    for target in targets:
        fitting = [site for site in present if target == ALL_LINEAR or _ends_with(names[site[0]], site[1], target)]
        if not fitting:
            known = ", ".join(sorted({names[role].rsplit(".", 1)[-1] for role, _ in present}))
            raise OpError(f"lora: no linear layer of this model is called {target!r}; known: {known}, {ALL_LINEAR}")
        found += [site for site in fitting if site not in found]
    return [site for site in present if site in found]


def _ends_with(name: str, layer: int, target: str) -> bool:
    full = name.replace("{i}", str(layer))
    return full == target or full.endswith(f".{target}")


def new_adapter(config: AdapterConfig, file: WeightFile, sites: Sequence[Site], seed: int = 0) -> Adapter:
    """An adapter of these layers that changes nothing yet: A is uniform within 1/sqrt(in), B is 0, m the norms of W."""
    rng = np.random.default_rng(seed)
    pairs: dict[Site, LoraPair] = {}
    for site in sites:
        weight = file.weight(*site)
        outputs, inputs = weight.dims
        if config.rank > min(weight.dims):
            raise OpError(f"lora: rank {config.rank} is more than {file.name(*site)} {list(weight.dims)} can have")
        bound = 1 / math.sqrt(inputs)
        a = rng.uniform(-bound, bound, (config.rank, inputs)).astype(np.float32)
        b = np.zeros((outputs, config.rank), np.float32)
        magnitude = np.sqrt(row_squares(weight)) if config.is_dora else None
        pairs[site] = LoraPair(a, b, config.scale, magnitude)
    return Adapter("adapter", pairs, config.dropout)


def require_fit(adapter: Adapter, file: WeightFile) -> None:
    """Refuse an adapter of another model, naming the first difference."""
    for (role, layer), pair in adapter.pairs.items():
        if not file.has(role, layer):
            raise FormatError(
                f"{adapter.name}: the adapter is of another model: it changes the {role} of layer {layer}, which "
                f"{file.what} does not have"
            )
        dims = file.weight(role, layer).dims
        got = (pair.b.shape[0], pair.a.shape[1])
        if got != dims:
            raise FormatError(
                f"{adapter.name}: the adapter is of another model: it changes {file.name(role, layer)} as "
                f"{list(got)}, in {file.what} that is {list(dims)}"
            )


def float_rows(weight: Weight) -> Iterator[tuple[int, F32]]:
    """The rows of a matrix as f32, a few at a time, with the number of the first."""
    stored = weight.read()
    for first in range(0, weight.dims[0], _ROWS):
        rows = stored[first : first + _ROWS]
        if weight.scheme is not None:
            yield first, dequantize_blocks(weight.scheme, np.ascontiguousarray(rows)).reshape(len(rows), -1)
        else:
            yield first, np.asarray(rows, np.float32)


def row_squares(weight: Weight) -> F32:
    """‖W‖² of every row."""
    squares = [np.square(rows, dtype=np.float64).sum(axis=1) for _, rows in float_rows(weight)]
    return np.concatenate(squares).astype(np.float32)


def merged(weight: Weight, pairs: Sequence[LoraPair]) -> F32:
    """The matrix that does what the weight and its adapters do together."""
    result = np.empty(weight.dims, np.float32)
    for first, rows in float_rows(weight):
        wide = rows.astype(np.float64)
        total = wide.copy()
        for pair in pairs:
            part = slice(first, first + len(rows))
            change = pair.scale * (pair.b[part].astype(np.float64) @ pair.a.astype(np.float64))
            if pair.magnitude is not None:
                factor = pair.magnitude[part] / np.linalg.norm(wide + change, axis=1)
                change = factor[:, None] * (wide + change) - wide
            total += change
        result[first : first + len(rows)] = total
    return result
