"""Targets for which rlx writes the kernels itself, and what their generators have kernels for."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node


class OwnKernel(NamedTuple):
    """A kernel that computes one op as a whole: attention, a sort, a scatter.

    Operands numbered in `strided` are read by a stride per axis, so that views of them need no copy; all others lie in
    memory as their shapes say. The result may be stored over the operand `updates`, of which the op changes a part.
    """

    kind: str
    strided: frozenset[int] = frozenset()
    updates: int | None = None


class Generator(NamedTuple):
    """What a generator can do with a node: compute it inside a map, a row or an epilogue, or by a kernel of its own.

    `panel_width(dtype, n)` is how many columns of a weight with n of them its products read side by side, for sums of
    a type; None if they have no use for panels. `has_pairs(dtype)` says that products of a type read them in panels of
    pairs, as `rlx.compile.weights.pack_floats` has them. `cuts_attention` says whether attention of few rows to many
    keys is worth being cut into parts; not where its kernel does so itself. `line_bytes` is the scratch in which
    kernels keep lines of values from pass to pass, as Fourier transforms do; 0 if they have none. `has_byte_dots` says
    that the sum of four products of bytes is an instruction. With `reads_rows` products read weights [n, k] as they
    lie, and widen what they read of those that are narrower. `shares_logs` says of a gradient of attention that there
    are kernels for `attention_with_logs` and `attention_gradients` in its place. `cuts_columns` says that sums of long
    columns are to be formed in parts, `reads_turned` that products read matrices that lie across as fast as others.
    `costly_epilogue` is how many ops that take many instructions products still do to their results faster than another
    kernel would. With `repeats_values` gradients compute values of the forward pass again rather than have them
    stored, with `widens_late` values are stored as narrow as they are and widened by their readers. A cheap value that
    is read again when `cache_bytes` of others were stored is computed again; 0: never. With
    `has_byte_floats` kernels load and store f8, and with `multiplies_bytes` products have instructions for two of them.
    `multiplies_windows` says that there are kernels for convolutions of pictures whose channels lie side by side,
    `sorts_blocks` that rows of some thousand elements are sorted faster than longer ones are looked through.
    """

    is_pointwise: Callable[[Graph, Node], bool]
    own_kernel: Callable[[Graph, Node], OwnKernel | None]
    panel_width: Callable[[DType, int], int] | None = None
    has_pairs: Callable[[DType], bool] = lambda dtype: False
    cuts_attention: Callable[[Graph, Node], bool] = lambda graph, node: True
    line_bytes: int = 0
    has_byte_dots: bool = False
    reads_rows: bool = False
    shares_logs: Callable[[Graph, Node], bool] = lambda graph, node: False
    cuts_columns: bool = False
    reads_turned: bool = False
    costly_epilogue: int = 1 << 30
    repeats_values: bool = False
    widens_late: bool = False
    cache_bytes: int = 0
    has_byte_floats: bool = False
    multiplies_bytes: bool = False
    multiplies_windows: bool = False
    sorts_blocks: bool = False


def generator_for(target: str, machine: str | None = None) -> Generator | None:
    """The generator of a target, for a machine by its name or the one that the target takes by default; None if it has
    kernels for whole ops."""
    # Targets say what they claim in the words of `claims`, which stands on this.
    from rlx.compile.target import select

    found = select(str(target)).target
    if found.generator is None or found.machine is None:
        return None
    return found.generator(found.machine(machine))
