"""Functions of neural networks: activations, layers, attention, losses, and initialisers in `rlx.nn.initializers`.

All of them work on traced values and on arrays, and have no state: weights and random keys are arguments. Layers that
also make their weights are pairs of functions; see `rlx.nn.layer_pairs`.
"""

# Each module lists its public names in __all__.
# ruff: noqa: F403

from rlx.nn import initializers as initializers
from rlx.nn.activations import *
from rlx.nn.attention import *
from rlx.nn.layer_pairs import *
from rlx.nn.layers import *
from rlx.nn.losses import *
from rlx.nn.sequence_layers import *
from rlx.nn.sequence_losses import *
