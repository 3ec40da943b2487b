"""Plans for training on many chips, on paper: `rlx plan` and `rlx.planning.plan`.

    print(rlx.planning.plan("llama-3-8b", 64, "h100"))

Memory, exchanges and the time of a step for every layout of `rlx.distributed`, from the programs that would run: their
graphs are analysed, nothing is compiled, and no chip and no weights are needed. See docs/distributed.md.
"""

# Each module lists its public names in __all__.
# ruff: noqa: F403

from rlx.planning.chips import *
from rlx.planning.local_program import *
from rlx.planning.planner import *
from rlx.planning.shapes import *
