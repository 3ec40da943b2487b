"""Ready layouts for training: which mesh axis divides what, for the layers of `rlx.nn` and the models made of them.

    mesh = rlx.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"))
    layout = rlx.distributed.Layout(mesh, data="data", fsdp="fsdp", tensor="tensor")
    state, batch = layout.place_state(state), layout.place_batch(batch)
    state, metrics = step(state, batch)            # the step of rlx.train.make_step, as on one device

- **data**: each device has its part of the batch, and all have all weights; gradients are summed.
- **fsdp**: the batch is divided as well, and so are weights and optimiser state, each along its largest axis; weights
  are gathered where they are used.
- **tensor**: weights of attention and feed-forward layers are divided by heads and hidden features (`q k v up gate` by
  columns, `out down` by rows, embeddings by words), so that one sum joins each pair.
- **sequence**: tokens of one text lie on several devices; see `Layout.tokens`.
- **expert**: each device has some of the experts of `rlx.nn.moe`.

Weights are known by their names, and an axis that does not divide stays whole: the numbers are the same in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import rlx
from rlx import tree
from rlx.errors import ShardingError
from rlx.sharding import Mesh, NamedSharding, PartitionSpec
from rlx.sharding.partition_spec import Entry

__all__ = ["ROLES", "Layout", "layout_of"]

ROLES = ("data", "fsdp", "tensor", "sequence", "expert")

# Dense layers whose result features are divided, and those whose operand features are.
_BY_COLUMNS = frozenset({"q", "k", "v", "up", "gate", "fc1", "wi"})
_BY_ROWS = frozenset({"out", "down", "fc2", "wo"})
_BY_WORDS = frozenset({"table"})
# Params of `rlx.nn.moe`, whose first axis counts experts, lie beside one of this name.
_ROUTER = "router"


class Layout(NamedTuple):
    """A mesh, and the name of the mesh axis for each kind of division; None leaves that kind out."""

    mesh: Mesh
    data: str | None = None
    fsdp: str | None = None
    tensor: str | None = None
    sequence: str | None = None
    expert: str | None = None

    def checked(self) -> Layout:
        """The layout itself; an error for an axis that the mesh has not, or that has two roles."""
        used = [(role, name) for role in ROLES if (name := getattr(self, role)) is not None]
        for role, name in used:
            self.mesh.axis_size(name, f"Layout: {role}")
            if [n for _, n in used].count(name) > 1:
                raise ShardingError(f"Layout: the mesh axis {name!r} has two roles; give each its own")
        return self

    def sharding(self, *entries: Entry) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(*entries))

    @property
    def batch_axes(self) -> tuple[str, ...]:
        """The mesh axes that divide a batch."""
        return tuple(name for name in (self.data, self.fsdp) if name is not None)

    def params(self, params: Any) -> Any:
        """The sharding of each leaf of a tree of parameters, or of anything shaped like it, such as moments."""
        paths = [path for path, _ in tree.leaves_with_path(params)]
        beside_router = {path[:-1] for path in paths if path and str(path[-1]) == _ROUTER}
        return tree.map_with_path(lambda path, x: self._param(path, x, path[:-1] in beside_router), params)

    def _param(self, path: Sequence[Any], x: Any, is_expert: bool) -> NamedSharding:
        dims = tuple(x.shape)
        entries: list[Entry] = [None] * len(dims)
        words = [str(key) for key in path]
        if is_expert and self.expert is not None and len(dims) == 3:
            self._divide(entries, dims, 0, self.expert)
        if self.tensor is not None:
            axis = _tensor_axis(words, len(dims), is_expert)
            if axis is not None:
                self._divide(entries, dims, axis, self.tensor)
        if self.fsdp is not None and len(dims) > 1:
            for axis in sorted(range(len(dims)), key=lambda i: -dims[i]):
                if entries[axis] is None and self._divide(entries, dims, axis, self.fsdp):
                    break
        return self.sharding(*entries)

    def _divide(self, entries: list[Entry], dims: Sequence[int], axis: int, name: str) -> bool:
        if dims[axis] % self.mesh.shape[name]:
            return False
        entries[axis] = name
        return True

    def state(self, state: Any) -> Any:
        """The shardings of a training state: parameters and what the optimiser keeps for each of them."""
        return self.params(state)

    def batch(self, batch: Any) -> Any:
        """The sharding of each array of a batch: its first axis is divided."""

        def one(x: Any) -> NamedSharding:
            sharding = self.sharding(self.batch_axes or None) if getattr(x, "shape", ()) else self.sharding()
            sharding.require_divides(tuple(getattr(x, "shape", ())), "Layout.batch")
            return sharding

        return tree.map(one, batch)

    def place_state(self, state: Any) -> Any:
        """A training state on the devices of the mesh."""
        return rlx.device_put(state, self.checked().state(state))

    def place_batch(self, batch: Any) -> Any:
        """A batch on the devices of the mesh."""
        return rlx.device_put(batch, self.checked().batch(batch))

    def batches(self, batches: Callable[[int], Any]) -> PlacedBatches:
        """Batches by the number of their step, such as those of `rlx.train.token_batches`, on the devices."""
        return PlacedBatches(self.checked(), batches)

    def tokens(self, x: Any) -> Any:
        """Inside a program: ids or features [batch, sequence, ...], of which texts and tokens are divided. What is
        computed from them follows."""
        size = 1 if self.sequence is None else self.mesh.shape[self.sequence]
        fits = isinstance(x.shape[1], int) and x.shape[1] % size == 0
        spec: list[Entry] = [self.batch_axes or None, self.sequence if fits else None]
        return rlx.with_sharding_constraint(x, self.sharding(*spec))


class PlacedBatches:
    """What `Layout.batches` gives."""

    def __init__(self, layout: Layout, batches: Callable[[int], Any]) -> None:
        self._layout, self._batches = layout, batches
        self.tokens_per_batch = getattr(batches, "tokens_per_batch", None)

    def __call__(self, step: int) -> Any:
        return self._layout.place_batch(self._batches(step))


def _tensor_axis(words: Sequence[str], rank: int, is_expert: bool) -> int | None:
    """The axis of a weight that tensor parallelism divides; None if it divides none."""
    if is_expert:
        return {"up": 2, "down": 1}.get(words[-1]) if rank == 3 else None
    if words and words[-1] in _BY_WORDS:
        return 0
    if len(words) < 2 or words[-1] not in ("w", "b"):
        return None
    if words[-2] in _BY_COLUMNS:
        return rank - 1
    return 0 if words[-2] in _BY_ROWS and words[-1] == "w" else None


def layout_of(mesh: Mesh) -> Layout:
    """The layout in which each axis of a mesh has the role that it is named after: `data=4,tensor=2`."""
    unknown = [name for name in mesh.axis_names if name not in ROLES]
    if unknown:
        raise ShardingError(f"the mesh axis {unknown[0]!r} names no role; use {', '.join(ROLES)}")
    return Layout(mesh, **{name: name for name in mesh.axis_names})
