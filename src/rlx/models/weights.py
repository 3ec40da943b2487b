"""The weights of a model file as the graph builders see them: name -> `Weight`, read only when a program needs it.

A `WeightFile` also remembers which tensors were asked for: what is left over at the end is a tensor that the program
does not know, and refused, because a model without it would silently be another model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rlx.errors import FormatError
from rlx.ir.dtype import DType
from rlx.models import weight_names
from rlx.quant.schemes import QuantScheme

if TYPE_CHECKING:
    from rlx.formats.gguf import GgufTensor
    from rlx.formats.safetensors import SafetensorsTensor
    from rlx.runtime.compiled_graph import CompiledGraph

Array = np.ndarray[Any, np.dtype[Any]]

_HF_FLOATS = ("F32", "F16", "BF16", "F64")
# Endings of tensors that hold MXFP4 weights; see `rlx.models.hf_layouts`.
_HF_CODES = ("_blocks", "_scales")
# Roles whose weights are matrices that rows of features are multiplied by.
LINEAR_ROLES = frozenset(
    {"q", "k", "v", "qkv", "o", "gate", "up", "gate_up", "down"}
    | {f"{kind}_{part}" for kind in ("experts", "shared") for part in ("gate", "up", "down")}
    | {f"source_{part}" for part in "qkvo"}
    | {"ssm_in", "ssm_out", "conv_in", "conv_out"}
)


class Weight(NamedTuple):
    """A stored tensor: its dims, how it is stored, and how to get it.

    With a `scheme`, `read` gives the packed rows u8[.., bytes of a row]; otherwise the array in its own dtype.
    """

    dims: tuple[int, ...]
    dtype: DType
    scheme: QuantScheme | None
    read: Callable[[], Array]

    @property
    def packed_dims(self) -> tuple[int, ...]:
        """The dims of what `read` gives."""
        if self.scheme is None:
            return self.dims
        return (*self.dims[:-1], self.scheme.packed_bytes(self.dims[-1], 1))


Order = npt.NDArray[np.intp]
# Of a number of rows the order in which they are wanted; and all weights of so many layers as other weights.
QkvOrder = Callable[[int], Order | None]
Rearrange = Callable[[dict[str, Weight], int], dict[str, Weight]]


def plain_weight(array: Array) -> Weight:
    """A weight that is an array already."""
    return Weight(array.shape, DType.of(array.dtype), None, lambda: array)


def read_weights(weights: Mapping[str, Weight], program: CompiledGraph, source: str = "") -> None:
    """Give a program its weights, one after the other, so that none is in memory twice for long, and prepare them.
    `source` says which weights these are; see `CompiledGraph.freeze_params`."""
    for name, weight in weights.items():
        program.set_param(name, weight.read())
    program.freeze_params(source)


class WeightFile:
    """Weights by role. `names` maps roles to names with `{i}` for the layer; a name stands for .weight and .bias."""

    def __init__(self, what: str, names: Mapping[str, str], weights: Mapping[str, Weight]) -> None:
        self.what, self._names, self._weights = what, names, dict(weights)
        self._used: set[str] = set()

    def name(self, role: str, layer: int | None = None) -> str:
        """The name of a role, without .weight."""
        return self._names[role].replace("{i}", str(layer))

    def has(self, role: str, layer: int | None = None, part: str = "weight") -> bool:
        return role in self._names and f"{self.name(role, layer)}.{part}" in self._weights

    @property
    def layer_prefix(self) -> str:
        """What the names of all layers begin with."""
        return next(name for name in self._names.values() if "{i}" in name).split("{i}")[0]

    @property
    def is_gguf(self) -> bool:
        """Whether names, and the order of rows, are those of GGUF files."""
        return self._names["embed"] == weight_names.GGUF["embed"]

    def weight(self, role: str, layer: int | None = None) -> Weight:
        """The weight of a role that the file has; asking counts as no use."""
        return self._weights[f"{self.name(role, layer)}.weight"]

    def items(self) -> Iterator[tuple[str, Weight]]:
        """All weights by name."""
        yield from self._weights.items()

    def replaced(self, weights: Mapping[str, Weight]) -> WeightFile:
        """The same file with other weights in the place of those of these names."""
        return WeightFile(self.what, self._names, {**self._weights, **weights})

    def with_names(self, more: Mapping[str, str]) -> WeightFile:
        """The same file with names for more roles."""
        return WeightFile(self.what, {**self._names, **more}, self._weights)

    def get(self, name: str, dims: tuple[int, ...]) -> Weight:
        """The tensor called `name`, which must have these dims."""
        found = self._weights.get(name)
        if found is None:
            raise FormatError(f"{self.what}: the tensor {name!r} {list(dims)} is missing")
        if found.dims != dims:
            raise FormatError(
                f"{self.what}: the tensor {name!r} must have the shape {list(dims)}, got {list(found.dims)}"
            )
        self._used.add(name)
        return found

    def quantize(self, type: str, layers: int) -> None:
        """Keep the matrices of linear layers as blocks of a GGUF type, where they are floats and their rows are whole
        blocks; embeddings, norms and routers stay as they are."""
        from rlx.formats.gguf import tensor_type

        scheme = QuantScheme.of_ggml(tensor_type(type).name)
        for name in _linear_names(self._names, layers):
            weight = self._weights.get(name)
            if weight is not None and weight.scheme is None and weight.dims[-1] % (scheme.gguf_block_size or 1) == 0:
                self._weights[name] = _quantized(weight, scheme, type)

    def by_role(self, layers: int) -> Iterator[tuple[str, int | None, str, Weight]]:
        """All weights that have a role: role, layer (None where there is one for all), `weight` or `bias`, weight."""
        for role, name in self._names.items():
            for layer in range(layers) if "{i}" in name else (None,):
                for part in ("weight", "bias"):
                    if self.has(role, layer, part):
                        yield role, layer, part, self._weights[f"{self.name(role, layer)}.{part}"]

    def roles(self, layers: int) -> dict[str, tuple[str, str]]:
        """Role and part (`weight` or `bias`) of each tensor that has a role, by its name."""
        found: dict[str, tuple[str, str]] = {}
        for role, name in self._names.items():
            for layer in range(layers) if "{i}" in name else (None,):
                for part in ("weight", "bias"):
                    if self.has(role, layer, part):
                        # Of roles that share a name the first is the one that is not fused.
                        found.setdefault(f"{self.name(role, layer)}.{part}", (role, part))
        return found

    def refuse_unused(self, ignored: Callable[[str], bool]) -> None:
        """Refuse a file with tensors that nobody asked for, except those whose names are `ignored`."""
        unknown = [n for n in self._weights if n not in self._used and not ignored(n)]
        if unknown:
            more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
            raise FormatError(
                f"{self.what}: this architecture has no use for the tensor {', '.join(map(repr, unknown[:3]))}{more}; "
                "the file is of a variant that is not supported"
            )


def gguf_weights(
    tensors: Mapping[str, GgufTensor], what: str, names: Mapping[str, str] = weight_names.GGUF
) -> WeightFile:
    """The weights of an open GGUF file; `names` are those of its architecture."""
    found = {name: _gguf_weight(t) for name, t in tensors.items()}
    for name, weight in list(found.items()):
        if name.endswith(".ffn_gate_inp_shexp.weight") and len(weight.dims) == 1:
            # A router with one output, whose axis of size 1 the format drops.
            found[name] = _as_matrix(weight)
        if name.endswith((".ssm_a", ".ssm_d")):
            # Of heads they are a matrix with one column.
            found[f"{name}.weight"] = _as_vector(found.pop(name)) if weight.dims[-1] == 1 else found.pop(name)
        if name.endswith(".ssm_norm.weight"):
            found[name] = _as_vector(weight)
    return WeightFile(what, names, found)


def _as_vector(weight: Weight) -> Weight:
    return weight._replace(dims=(math.prod(weight.dims),), read=lambda: weight.read().reshape(-1))


def _as_matrix(row: Weight) -> Weight:
    return row._replace(dims=(1, *row.dims), read=lambda: row.read()[None])


def _gguf_weight(tensor: GgufTensor) -> Weight:
    kind = tensor.type
    if kind.dtype is not None:
        return Weight(tensor.shape, DType.of(kind.dtype), None, tensor.array)
    scheme = QuantScheme.of_ggml(kind.name)
    row = scheme.packed_bytes(tensor.shape[-1], 1)
    return Weight(tensor.shape, DType.U8, scheme, lambda: tensor.data().reshape(*tensor.shape[:-1], row))


def hf_weights(
    tensors: Mapping[str, SafetensorsTensor],
    names: Mapping[str, str],
    what: str,
    *,
    layers: int,
    prefix: str = "",
    experts: int = 0,
    in_out: bool = False,
    norms_plus_one: bool = False,
    qkv_order: QkvOrder | None = None,
    rearrange: Rearrange | None = None,
) -> WeightFile:
    """The weights of open safetensors files; `prefix` is put back where the file left it out.

    The matrices of `experts` become one stack each, called by their name without the expert's number. With
    `norms_plus_one` norms are stored as w for a factor of 1 + w, and given as that factor; with `in_out` matrices are
    stored as [in, out], and given as [out, in]. With a `qkv_order` the rows of fused q, k and v are given in that
    order, all of q, then k, then v. Files that divide weights otherwise are read with one of `rlx.models.hf_layouts`.
    """
    found = dict(_usually_named(name, _hf_weight(tensor)) for name, tensor in tensors.items())
    if prefix and not any(name.startswith(prefix) for name in found):
        head = names.get("head", "") + ".weight"
        found = {name if name == head else prefix + name: w for name, w in found.items()}
    if rearrange is not None:
        found = rearrange(found, layers)
    renamed = dict(names)
    for role, template in names.items():
        if "{e}" in template and experts:
            renamed[role] = template.replace(".{e}", "")
            _stack_experts(found, template, renamed[role], layers, experts)
    if norms_plus_one:
        norms = {
            template.format(i=i) for role, template in names.items() if role.endswith("norm") for i in range(layers)
        }
        found = {name: _plus_one(w) if name.removesuffix(".weight") in norms else w for name, w in found.items()}
    if in_out:
        linear = _linear_names(names, layers)
        found = {name: _transposed(w) if name in linear else w for name, w in found.items()}
    if qkv_order is not None:
        fused = {f"{names['qkv'].format(i=i)}.{part}" for i in range(layers) for part in ("weight", "bias")}
        found = {name: _q_then_k_then_v(name, w, qkv_order) if name in fused else w for name, w in found.items()}
    return WeightFile(what, renamed, found)


# Endings in the place of which others are usual; files that were made of TensorFlow's have those of norms.
_OTHER_ENDINGS = {".gamma": ".weight", ".beta": ".bias", "_correction_bias": "_correction.bias"}


def _usually_named(name: str, weight: Weight) -> tuple[str, Weight]:
    for ending, usual in _OTHER_ENDINGS.items():
        if name.endswith(ending):
            # A bias of scores may be stored as one row.
            return name.removesuffix(ending) + usual, _as_vector(weight)
    return name, weight


def order_by_heads(rows: int, heads: int, kv_heads: int) -> Order | None:
    """Which row stands at each place of q, then k, then v, where they are stored by heads of keys: all q that read a
    head, the head, its values. None where the heads do not divide the rows."""
    if rows % (heads + 2 * kv_heads):
        return None
    readers = heads // kv_heads
    places = np.arange(rows).reshape(kv_heads, readers + 2, -1)
    return np.concatenate([part.reshape(-1) for part in np.split(places, [readers, readers + 1], axis=1)])


def order_by_quarters(rows: int) -> Order | None:
    """The same where they are stored in four parts, each with its q, then v, then k."""
    if rows % 12:
        return None
    places = np.arange(rows).reshape(4, 3, -1)
    return np.concatenate([places[:, part].reshape(-1) for part in (0, 2, 1)])


def _q_then_k_then_v(name: str, weight: Weight, qkv_order: QkvOrder) -> Weight:
    order = qkv_order(weight.dims[0])
    if order is None:
        raise FormatError(f"{name}: q, k and v of the heads of this model cannot have {weight.dims[0]} rows")
    return weight._replace(read=lambda: weight.read()[order])


def _linear_names(names: Mapping[str, str], layers: int) -> set[str]:
    """The weights of linear layers."""
    patterns = [name for role, name in names.items() if role in LINEAR_ROLES]
    return {f"{pattern.replace('{i}', str(i))}.weight" for pattern in patterns for i in range(layers)}


def _hf_weight(tensor: SafetensorsTensor) -> Weight:
    dtype = tensor.type.dtype
    is_code = tensor.name.endswith(_HF_CODES) and tensor.type.name == "U8"
    if dtype is not None and (tensor.type.name in _HF_FLOATS or is_code):
        return Weight(tensor.shape, DType.of(dtype), None, tensor.array)

    def refuse() -> Array:
        kinds = ", ".join(_HF_FLOATS)
        raise FormatError(f"{tensor.path}: weights are {kinds}; the tensor {tensor.name!r} is {tensor.type}")

    return Weight(tensor.shape, DType.U8, None, refuse)


def _stack_experts(found: dict[str, Weight], template: str, stacked: str, layers: int, experts: int) -> None:
    """Put one stack in the place of the matrices of each layer that has experts."""
    for layer in range(layers):
        members = [f"{template.format(i=layer, e=e)}.weight" for e in range(experts)]
        present = [found.pop(m) for m in members if m in found]
        if not present:
            continue
        if len(present) != experts or len({(w.dims, w.dtype) for w in present}) != 1:
            raise FormatError(f"{members[0]!r} and its like must be {experts} matrices of one shape and type")
        found[f"{stacked.format(i=layer)}.weight"] = _stack(present)


def _stack(parts: list[Weight]) -> Weight:
    return Weight((len(parts), *parts[0].dims), parts[0].dtype, None, lambda: np.stack([part.read() for part in parts]))


def _transposed(weight: Weight) -> Weight:
    return weight._replace(dims=weight.dims[::-1], read=lambda: weight.read().T)


def _quantized(weight: Weight, scheme: QuantScheme, type: str) -> Weight:
    from rlx.formats.gguf import quantize

    packed = Weight(weight.dims, DType.U8, scheme, weight.read)
    return packed._replace(read=lambda: quantize(weight.read(), type).reshape(packed.packed_dims))


def _plus_one(weight: Weight) -> Weight:
    return Weight(weight.dims, DType.F32, None, lambda: weight.read().astype(np.float32) + np.float32(1))
