"""Functions of neural networks: activations, layers, attention, losses, and initialisers in `rlx.nn.initializers`.

All of them work on traced values and on arrays, and have no state: weights and random keys are arguments. Layers that
also make their weights are pairs of functions; see `rlx.nn.layer_pairs`.
"""

# Each module lists its public names in __all__.
# ruff: noqa: F401, F403

import typing as _typing

from rlx.foreign_names import no_attribute as _no_attribute
from rlx.nn import initializers as initializers
from rlx.nn.activations import *
from rlx.nn.attention_functions import *
from rlx.nn.layer_pairs import *
from rlx.nn.layers import *
from rlx.nn.losses import *
from rlx.nn.sequence_layers import *
from rlx.nn.sequence_layers import self_attention as attention
from rlx.nn.sequence_losses import *

# Type checkers must go on to find names that do not exist.
if not _typing.TYPE_CHECKING:

    def __getattr__(name):
        _no_attribute("rlx.nn", name)
