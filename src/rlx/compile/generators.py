"""Targets for which rlx writes the kernels itself, and what their generators have kernels for."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node
from rlx.quant.panels import PanelFormat


class OwnKernel(NamedTuple):
    """A kernel that computes one op as a whole: attention, a sort, a scatter.

    Operands numbered in `strided` are read by a stride per axis, so that views of them need no copy; all others lie in
    memory as their shapes say. The result may be stored over the operand `updates`, of which the op changes a part.
    """

    kind: str
    strided: frozenset[int] = frozenset()
    updates: int | None = None


class Generator(NamedTuple):
    """What a generator can do with a node: compute it inside a map, a row or an epilogue, or by a kernel of its own;
    and what else the compiler has to know of its kernels."""

    is_pointwise: Callable[[Graph, Node], bool]
    own_kernel: Callable[[Graph, Node], OwnKernel | None]
    # How many columns of a weight with n of them products read side by side, for sums of a type; None: no panels.
    panel_width: Callable[[DType, int], int] | None = None
    # Products of a type read panels of pairs, as `rlx.compile.weights.pack_floats` has them.
    has_pairs: Callable[[DType], bool] = lambda dtype: False
    # Attention of few rows to many keys is worth being cut into parts; not where its kernel does so itself.
    cuts_attention: Callable[[Graph, Node], bool] = lambda graph, node: True
    # Scratch in which kernels keep lines of values from pass to pass, as Fourier transforms do; 0: none.
    line_bytes: int = 0
    shares_lines: bool = False  # that is what the threads of a block have together
    # Whether codes of activations are multiplied with those of such weights faster than floats.
    has_byte_dots: Callable[[PanelFormat], bool] = lambda layout: False
    reads_rows: bool = False  # products read weights [n, k] as they lie, and widen those that are narrower
    widens_experts: bool = False  # products with experts widen the matrices that they read
    # A gradient of attention may be `attention_gradients`, from what `attention_with_logs` has kept.
    shares_logs: Callable[[Graph, Node], bool] = lambda graph, node: False
    cuts_columns: bool = False  # sums of long columns are to be formed in parts
    reads_turned: bool = False  # products read matrices that lie across as fast as others
    # How many ops that take many instructions products do to their results faster than another kernel would.
    costly_epilogue: int = 1 << 30
    repeats_values: bool = False  # gradients compute values of the forward pass again rather than have them stored
    widens_late: bool = False  # values are stored as narrow as they are, and widened by their readers
    cache_bytes: int = 0  # a cheap value read again after so many bytes of others is computed again; 0: never
    has_byte_floats: bool = False  # kernels load and store f8
    multiplies_bytes: bool = False  # products have instructions for two f8
    multiplies_windows: bool = False  # there are kernels for convolutions of pictures whose channels lie side by side
    reads_pixels: bool = False  # convolutions of programs that have channels last are computed so
    sorts_blocks: bool = False  # rows of some thousand elements are sorted faster than longer ones are looked through
    shares_steps: bool = False  # large factorisations are cut into steps, whose columns threads with caches share
    # Memory in which threads that share it factorise a matrix together; 0: a thread has a whole one.
    factor_bytes: int = 0
    sorts_values: bool = False  # numbers of which nobody asks where they came from are sorted by themselves


def generator_for(target: str, machine: str | None = None) -> Generator | None:
    """The generator of a target, for a machine by its name or the one that the target takes by default; None if it has
    kernels for whole ops."""
    # Targets say what they claim in the words of `claims`, which stands on this.
    from rlx.compile.target import select

    found = select(str(target)).target
    if found.generator is None or found.machine is None:
        return None
    return found.generator(found.machine(machine))
