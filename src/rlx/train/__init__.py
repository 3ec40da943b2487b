"""Training: compiled steps, the loop around them, data, checkpoints, curves. Optimisers are in `rlx.optim`.

optimizer = rlx.optim.adamw(1e-3)
step = rlx.train.make_step(loss, optimizer)
state = rlx.train.init_state(params, optimizer)
batches = rlx.train.array_batches({"x": x, "y": y}, batch=32)
result = rlx.train.fit(step, state, batches, steps=1000, out="run", save_every=100)
"""

# Each module lists its public names in __all__.
# ruff: noqa: F403

from rlx.train.char_gpt import *
from rlx.train.checkpoints import *
from rlx.train.curves import *
from rlx.train.data import *
from rlx.train.idx import *
from rlx.train.journal import *
from rlx.train.loop import *
from rlx.train.loss_scale import *
from rlx.train.progress import *
from rlx.train.recompute import *
from rlx.train.steps import *
