"""Functions of neural networks: activations, layers, attention, losses, and initialisers in `rlx.nn.initializers`.

All of them work on traced values and on arrays, and have no state: weights and random keys are arguments.
"""

# Each module lists its public names in __all__.
# ruff: noqa: F403

from rlx.nn import initializers as initializers
from rlx.nn.activations import *
from rlx.nn.attention import *
from rlx.nn.layers import *
from rlx.nn.losses import *
