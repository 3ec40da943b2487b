"""Plans: which layout trains a model fastest on so many chips, and what each would need.

    plan = rlx.planning.plan("llama-3-8b", 64, "h100", batch=256, length=4096)
    print(plan)                          # a table of layouts, the one that was picked, and why
    plan.html("plan.html")               # with a picture of the mesh

Every layout of the roles that are asked for is looked at: all ways to write the number of devices as a product. Those
whose axes do not divide batch, tokens or heads are left out. Of those that fit into the memory of the chip the one with
the shortest step is picked. A step takes as long as its arithmetic or its memory traffic, whichever is slower, and then
its exchanges: nothing is taken to overlap, so times are upper bounds of that model of a machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rlx.distributed.layouts import ROLES, Layout, layout_of
from rlx.errors import ShardingError
from rlx.ir.words import nearest
from rlx.models.layouts import divides_attention, divides_ffn
from rlx.planning.chips import Chip, chip
from rlx.planning.exchanges import Exchange, exchanges, seconds
from rlx.planning.local_program import LocalCost, Work, local_cost
from rlx.planning.shapes import ModelShape, model_shape
from rlx.sharding import Mesh

__all__ = ["LayoutPlan", "Plan", "plan"]

# From the outermost axis of a mesh to the one that joins neighbours, which has most to move.
_OUTER_TO_INNER = ("data", "fsdp", "expert", "sequence", "tensor")
# Of the memory of a chip, what a runtime and its buffers for exchanges leave.
_USABLE = 0.9
_SHOWN = 12


class LayoutPlan(NamedTuple):
    """What one layout needs on each device, and how long a step takes."""

    layout: Layout
    cost: LocalCost
    exchanges: tuple[Exchange, ...]
    compute_seconds: float
    memory_seconds: float
    exchange_seconds: float
    memory_limit: float

    @property
    def memory_bytes(self) -> float:
        """Arguments and all values in between, on one device."""
        return self.cost.argument_bytes + self.cost.peak_bytes + sum(e.kept_bytes for e in self.exchanges)

    @property
    def moved_bytes(self) -> float:
        return sum(e.moved_bytes(self.layout) for e in self.exchanges)

    @property
    def seconds(self) -> float:
        return max(self.compute_seconds, self.memory_seconds) + self.exchange_seconds

    @property
    def fits(self) -> bool:
        return self.memory_bytes <= self.memory_limit

    @property
    def bound(self) -> str:
        """What a step waits for most."""
        times = {"arithmetic": self.compute_seconds, "memory": self.memory_seconds, "exchanges": self.exchange_seconds}
        return max(times, key=lambda name: times[name])


class Plan(NamedTuple):
    """All layouts that were looked at, the fastest that fits first."""

    shape: ModelShape
    work: Work
    chip: Chip
    layouts: tuple[LayoutPlan, ...]

    @property
    def picked(self) -> LayoutPlan | None:
        """The fastest layout that fits; None if none does."""
        return next((each for each in self.layouts if each.fits), None)

    @property
    def why(self) -> str:
        """Why this layout, in a sentence."""
        best = self.picked
        limit = f"{_USABLE:.0%} of the {self.chip.memory_bytes / 1e9:.0f} GB of {self.chip.name}"
        if best is None:
            least = min(self.layouts, key=lambda each: each.memory_bytes)
            return (
                f"No layout fits into {limit}: {least.layout.mesh} needs least, {least.memory_bytes / 1e9:.1f} GB. "
                "Use more devices, a smaller batch or length, or an adapter (--lora)."
            )
        others = [each for each in self.layouts if each.fits and each is not best]
        small = sum(not each.fits for each in self.layouts)
        text = f"{best.layout.mesh} is the fastest of {len(others) + 1} that fit into {limit}"
        text += f" ({small} do not)." if small else "."
        if others:
            second = others[0]
            text += f" The next, {second.layout.mesh}, takes {second.seconds / best.seconds - 1:.0%} longer"
            more = second.exchange_seconds - best.exchange_seconds
            text += f", {more * 1e3:+.1f} ms of it in exchanges." if abs(more) > 1e-6 else "."
        return f"{text} Its step waits for {best.bound}."

    def __str__(self) -> str:
        from rlx.planning.pages import plan_text

        return plan_text(self, _SHOWN)

    def json(self) -> dict[str, Any]:
        """The same as plain data."""
        best = self.picked
        return {
            "model": self.shape.name,
            "parameters": self.shape.parameters,
            "work": self.work._asdict(),
            "chip": self.chip._asdict(),
            "picked": None if best is None else str(best.layout.mesh),
            "why": self.why,
            "layouts": [_layout_json(each) for each in self.layouts],
        }

    def html(self, path: str | os.PathLike[str]) -> None:
        """Write a page with the table, and a picture of the mesh: what each device holds, and what moves."""
        from rlx.planning.pages import write_page

        write_page(self, path)


def _layout_json(each: LayoutPlan) -> dict[str, Any]:
    return {
        "mesh": str(each.layout.mesh),
        "fits": each.fits,
        "memory_bytes": round(each.memory_bytes),
        "argument_bytes": round(each.cost.argument_bytes),
        "moved_bytes": round(each.moved_bytes),
        "flops": round(each.cost.flops),
        "compute_seconds": each.compute_seconds,
        "memory_seconds": each.memory_seconds,
        "exchange_seconds": each.exchange_seconds,
        "step_seconds": each.seconds,
        "exchanges": [
            {
                "what": e.what,
                "kind": e.kind,
                "axes": list(e.axes),
                "times": e.times,
                "result_bytes": round(e.result_bytes),
                "moved_bytes": round(e.moved_bytes(each.layout)),
            }
            for e in each.exchanges
        ],
    }


def plan(
    model: str | os.PathLike[str] | ModelShape,
    mesh: int | str | Mesh,
    device: str | Chip,
    *,
    batch: int | None = None,
    length: int | None = None,
    lora: int | None = None,
    roles: Sequence[str] | None = None,
) -> Plan:
    """Plan the training of a model: all its weights with AdamW, or with `lora` an adapter of that rank.

    `mesh` is a number of devices, for which layouts are compared, or a mesh such as "data=8,tensor=8", which is looked
    at alone. `batch` is all texts of a step (one for each device by default), `length` the tokens of each (2048, or
    what the model reads). `roles` are the kinds of division to combine; by default data, fsdp and tensor, expert where
    there are experts, and sequence where texts are fewer than devices.
    """
    shape = model if isinstance(model, ModelShape) else model_shape(model)
    chosen = device if isinstance(device, Chip) else chip(device)
    count = mesh if isinstance(mesh, int) else Mesh.of(mesh).size
    if count < 1:
        raise ShardingError(f"plan: a mesh has at least one device, got {count}")
    work = Work(batch or count, length or min(2048, shape.config.context), lora)
    if work.batch < 1 or work.length < 2 or work.length > shape.config.context:
        raise ShardingError(
            f"plan: a step has texts of 2 to {shape.config.context} tokens of this model, "
            f"got {work.batch} of {work.length}"
        )
    if isinstance(mesh, int):
        candidates = list(_layouts(shape, work, count, _chosen_roles(shape, work, count, roles)))
        if not candidates:
            raise ShardingError(
                f"plan: no layout of {count} devices divides {work.batch} texts of {work.length} tokens and "
                f"{shape.config.kv_heads} heads of keys; use a batch that is a multiple of {count}"
            )
    else:
        layout = layout_of(Mesh.of(mesh)).checked()
        reason = _misfit(shape, work, layout)
        if reason is not None:
            raise ShardingError(f"plan: {layout.mesh}: {reason}")
        candidates = [layout]
    made = [_planned(shape, work, chosen, layout) for layout in candidates]
    made.sort(key=lambda each: (not each.fits, each.seconds if each.fits else each.memory_bytes))
    return Plan(shape, work, chosen, tuple(made))


def _planned(shape: ModelShape, work: Work, on: Chip, layout: Layout) -> LayoutPlan:
    cost = local_cost(shape, layout, work)
    moved = tuple(exchanges(shape, layout, work, cost))
    return LayoutPlan(
        layout,
        cost,
        moved,
        cost.flops / (on.peak * on.share_of_peak),
        cost.moved_bytes / on.memory_speed,
        sum(seconds(e, layout, on) for e in moved),
        on.memory_bytes * _USABLE,
    )


def _chosen_roles(shape: ModelShape, work: Work, count: int, roles: Sequence[str] | None) -> list[str]:
    if roles is None:
        roles = ["data", "fsdp", "tensor"]
        roles += ["expert"] if shape.config.moe is not None else []
        roles += ["sequence"] if work.batch % count else []
    for role in roles:
        if role not in ROLES:
            raise ShardingError(f"plan: {role!r} is no role{nearest(role, ROLES)}; use {', '.join(ROLES)}")
    return [role for role in _OUTER_TO_INNER if role in roles]


def _layouts(shape: ModelShape, work: Work, count: int, roles: Sequence[str]) -> Iterator[Layout]:
    for sizes in _products(count, len(roles)):
        used = [(role, size) for role, size in zip(roles, sizes) if size > 1] or [(roles[0], 1)]
        layout = layout_of(Mesh(tuple(size for _, size in used), tuple(role for role, _ in used)))
        if _misfit(shape, work, layout) is None:
            yield layout


def _products(count: int, factors: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as a product of so many factors, in order.

    >>> list(_products(4, 2))
    [(1, 4), (2, 2), (4, 1)]
    """
    if factors <= 1:
        yield (count,) * factors
        return
    for first in range(1, count + 1):
        if count % first == 0:
            yield from ((first, *rest) for rest in _products(count // first, factors - 1))


def _misfit(shape: ModelShape, work: Work, layout: Layout) -> str | None:
    """Why a layout does not fit the work; None if it does."""
    c, sizes = shape.config, layout.mesh.shape
    texts = layout.mesh.axis_size(layout.batch_axes)
    if work.batch % texts:
        return f"{work.batch} texts do not divide over {texts} devices"
    if layout.sequence is not None and work.length % sizes[layout.sequence]:
        return f"{work.length} tokens do not divide over {sizes[layout.sequence]} devices"
    tensor = 1 if layout.tensor is None else sizes[layout.tensor]
    if tensor > 1 and not (divides_attention(layout, c) and (divides_ffn(layout, c) or c.moe is not None)):
        return f"{c.kv_heads} heads of keys and {c.ffn} features do not divide over {tensor} devices"
    if layout.expert is not None and sizes[layout.expert] > 1:
        if c.moe is None:
            return "this model has no experts"
        if c.moe.experts % sizes[layout.expert]:
            return f"{c.moe.experts} experts do not divide over {sizes[layout.expert]} devices"
    return None
