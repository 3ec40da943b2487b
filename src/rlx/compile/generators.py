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
    # Width of the panels in which products read a weight with n columns, for sums of a type; None: no panels.
    panel_width: Callable[[DType, int], int] | None = None
    # Products of a type read panels of pairs along K, as `rlx.compile.weights.pack_floats` packs them.
    has_pairs: Callable[[DType], bool] = lambda dtype: False
    # Attention of few rows to many keys is worth being split over the keys; not where its kernel does so itself.
    cuts_attention: Callable[[Graph, Node], bool] = lambda graph, node: True
    # Bytes of scratch in which a kernel keeps a line from pass to pass, as Fourier transforms do; 0: none.
    line_bytes: int = 0
    shares_lines: bool = False  # `line_bytes` is shared memory of a block, not scratch of a thread
    # Whether integer dot products of quantised activations with such weights are faster than floats.
    has_byte_dots: Callable[[PanelFormat], bool] = lambda layout: False
    has_word_dots: bool = False  # products of codes of 16 bits are faster than those of floats
    reads_rows: bool = False  # products read weights [n, k] as they lie, and widen narrower types as they load
    widens_experts: bool = False  # products with experts widen the matrices that they read as they load
    # A gradient of attention may be `attention_gradients`, from what `attention_with_logs` has kept.
    shares_logs: Callable[[Graph, Node], bool] = lambda graph, node: False
    cuts_columns: bool = False  # sums of long columns are split into parts, so that there are blocks enough
    reads_turned: bool = False  # products read transposed operands as fast as others
    # How many ops that take many instructions are faster in the epilogue of a product than in another kernel.
    costly_epilogue: int = 1 << 30
    repeats_values: bool = False  # gradients recompute cheap values of the forward pass rather than have them stored
    widens_late: bool = False  # values are stored in their narrow types, and widened by their readers
    cache_bytes: int = 0  # a cheap value read again after so many bytes of others is recomputed; 0: never
    has_byte_floats: bool = False  # kernels load and store f8
    multiplies_bytes: bool = False  # products have instructions for two f8
    multiplies_windows: bool = False  # all convolutions of pictures become products over windows (implicit GEMM)
    reads_pixels: bool = False  # convolutions between transpositions to channels last are computed channels last
    sorts_blocks: bool = False  # rows of some thousand elements are sorted faster than longer ones are looked through
    shares_steps: bool = False  # large LU factorisations are cut into panels; threads share the trailing columns
    # Shared memory in which the threads of a block factorise a matrix together; 0: a thread has a whole one.
    factor_bytes: int = 0
    # Values that a map or a joined value reads at most, where kernels bind each by itself; 0: as many as anywhere.
    most_operands: int = 0
    has_f64: bool = True  # machines have f64; without it factorisations are left to the host
    sorts_values: bool = False  # sorts without an order as a result move the values alone


def generator_for(target: str, machine: str | None = None) -> Generator | None:
    """The generator of a target, for a machine by its name or the one that the target takes by default; None if it has
    kernels for whole ops."""
    # Targets say what they claim in the words of `claims`, which stands on this.
    from rlx.compile.target import select

    found = select(str(target)).target
    if found.generator is None or found.machine is None:
        return None
    return found.generator(found.machine(machine))
