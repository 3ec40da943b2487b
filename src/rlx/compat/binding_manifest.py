"""Which inputs, params and outputs a planned program has, how large they are and where they live."""

from __future__ import annotations

from typing import NamedTuple

from rlx.errors import BindingError
from rlx.ir.dtype import DType
from rlx.ir.graph import NodeId
from rlx.ir.lir import LirModule
from rlx.ir.shape import Shape, Size


class IoBindingEntry(NamedTuple):
    """One tensor at the boundary. Its place is None when it does not live in the arena."""

    name: str
    node: NodeId
    dtype: DType
    shape: Shape
    elem_count: Size
    byte_size: Size
    arena_offset: Size | None
    arena_size: Size | None
    is_view: bool


class WeightBlock(NamedTuple):
    """Params whose names start alike, such as those of one layer."""

    prefix: str
    params: tuple[str, ...]
    byte_size: Size


class BindingManifest(NamedTuple):
    """The boundary of one planned program."""

    graph_name: str
    arena_size: Size
    alignment: int
    inputs: tuple[IoBindingEntry, ...]
    params: tuple[IoBindingEntry, ...]
    outputs: tuple[IoBindingEntry, ...]

    @staticmethod
    def from_lir(lir: LirModule) -> BindingManifest:
        io = lir.buffers.io
        return BindingManifest(
            lir.name,
            lir.arena_size,
            lir.buffers.alignment,
            tuple(_entry(lir, name, node) for name, node in io.inputs),
            tuple(_entry(lir, name, node) for name, node in io.params),
            tuple(_entry(lir, f"output{i}", node) for i, node in enumerate(io.outputs)),
        )

    def input_names(self) -> list[str]:
        return [entry.name for entry in self.inputs]

    def param_names(self) -> list[str]:
        return [entry.name for entry in self.params]

    def param_byte_size(self, name: str) -> Size:
        for entry in self.params:
            if entry.name == name:
                return entry.byte_size
        known = ", ".join(self.param_names()) or "none"
        raise BindingError(f"@{self.graph_name} has no param {name!r}; it has: {known}")

    def total_param_bytes(self) -> Size:
        return _total(self.params)

    def weight_blocks(self, depth: int = 1) -> list[WeightBlock]:
        """Params grouped by the first `depth` parts of their dotted names, sorted.

        With names such as `model.layers.0.q`, a depth of 3 gives one block per layer.
        """
        groups: dict[str, list[IoBindingEntry]] = {}
        for entry in self.params:
            parts = entry.name.split(".")
            # The last part names the param itself, so it is only a prefix when there is no other.
            prefix = ".".join(parts[: max(1, min(depth, len(parts) - 1))])
            groups.setdefault(prefix, []).append(entry)
        return [
            WeightBlock(prefix, tuple(sorted(e.name for e in entries)), _total(entries))
            for prefix, entries in sorted(groups.items())
        ]


def _total(entries: tuple[IoBindingEntry, ...] | list[IoBindingEntry]) -> Size:
    total: Size = 0
    for entry in entries:
        total = total + entry.byte_size
    return total


def _entry(lir: LirModule, name: str, node: NodeId) -> IoBindingEntry:
    shape, plan = lir.as_graph().shape(node), lir.buffers
    address, slot, is_view = plan.address(node), plan.slot(node), plan.is_view(node)
    held = shape.byte_size if is_view else None if slot is None else slot.size
    return IoBindingEntry(
        name,
        node,
        shape.dtype,
        shape,
        shape.element_count,
        shape.byte_size,
        address,
        None if address is None else held,
        is_view,
    )
