"""Optimisers: what turns gradients into changes of the parameters, compiled into the training step.

An optimiser is a pair of pure functions over trees of arrays, as optax users know it:

    optimizer = rlx.optim.adamw(rlx.optim.warmup_cosine(3e-4, warmup_steps=100, decay_steps=1000))
    state = optimizer.init(params)

    @rlx.jit
    def step(params, state, batch):
        gradients = rlx.grad(loss)(params, batch)
        updates, state = optimizer.update(gradients, state, params)
        return rlx.optim.apply_updates(params, updates), state

Parts are joined by `chain`. A learning rate is a number or a schedule, which is a function of the number of updates
made so far. States are trees, so they can be donated, saved and looked at.
"""

# Each module lists its public names in __all__.
# ruff: noqa: F403

import typing as _typing

from rlx.foreign_names import no_attribute as _no_attribute
from rlx.optim.combinators import *
from rlx.optim.factored import *
from rlx.optim.magnitudes import *
from rlx.optim.moments import *
from rlx.optim.optimizers import *
from rlx.optim.orthogonal import *
from rlx.optim.schedules import *
from rlx.optim.transformation import *

# Type checkers must go on to find names that do not exist.
if not _typing.TYPE_CHECKING:

    def __getattr__(name):
        _no_attribute("rlx.optim", name)
