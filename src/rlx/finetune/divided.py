"""Fine-tuning over the devices of a mesh: which process puts which part of a model where.

    layout = rlx.distributed.layout_of(rlx.Mesh.of("data=2,tensor=2"))
    rlx.finetune.finetune("smollm2", "chats.jsonl", "run", layout=layout)

Frozen weights are divided by their role (`rlx.models.layouts`), and a process reads only the parts that its devices
hold. Weights that are trained, and what the optimiser keeps for them, lie the same way; adapters are on every device.
"""

from __future__ import annotations

from typing import Any

import rlx
from rlx import tree
from rlx.distributed.layouts import Layout
from rlx.finetune.trainable import Trainable
from rlx.models.layouts import weight_shardings
from rlx.models.weights import plain_weight
from rlx.sharding import NamedSharding

__all__ = ["place_frozen", "place_state"]


def place_frozen(layout: Layout, model: Trainable) -> dict[str, Any]:
    """The arrays that stay as they are, on the devices."""
    return {name: rlx.device_put(model.frozen[name], where) for name, where in _shardings(layout, model).items()}


def _shardings(layout: Layout, model: Trainable) -> dict[str, NamedSharding]:
    stored = dict(model.weights.items())
    weights = {name: stored.get(name) or plain_weight(array) for name, array in model.frozen.items()}
    return weight_shardings(layout, model.config, model.weights, weights)


def place_state(layout: Layout, model: Trainable, state: Any) -> Any:
    """A training state on the devices: what belongs to a weight lies as that weight does."""
    trained = {name: plain_weight(array) for name, array in model.params.items()}
    known = weight_shardings(layout, model.config, model.weights, trained)

    def where(path: tuple[Any, ...], x: Any) -> NamedSharding:
        name = str(path[-1]) if path else ""
        same = name in trained and tuple(x.shape) == trained[name].dims
        return known[name] if same else layout.sharding()

    return rlx.device_put(state, tree.map_with_path(where, state))
