"""`map_kernel`: a pointwise DAG over an index space, each operand with its own strides, any number of outputs.

Views cost nothing here: a transposed, narrowed or broadcast operand is a stride and an offset. Work is cut into
chunks by the shape alone, so results do not depend on how many workers take part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlx.errors import OpError
from rlx.ir.dtype import DType
from rlx.kernels.builder import KernelBuilder
from rlx.kernels.expr import Expr, compute_dtype, lower_expr, topological
from rlx.kernels.extents import Extent, Extents
from rlx.kernels.loop_ir import Kernel, Value
from rlx.kernels.targets import Target

# Elements per parallel iteration: some tens of microseconds of memory traffic, so that dealing them out costs nothing.
CHUNK = 8192
GPU_THREADS = 256
GPU_ELEMENTS_PER_THREAD = 4


@dataclass(frozen=True)
class Access:
    """How one operand or output is laid out over the index space: `offset + sum(index[d] * strides[d])`, in elements.

    A stride of 0 reads one element for a whole axis.
    """

    name: str
    dtype: DType
    strides: tuple[Extent, ...]
    offset: Extent = 0


def map_kernel(
    name: str,
    target: Target,
    shape: Sequence[Extent],
    inputs: Sequence[Access],
    outputs: Sequence[Access],
    exprs: Sequence[Expr],
) -> Kernel:
    """`outputs[j][i] = exprs[j](inputs[0][i], inputs[1][i], ..)` for every index `i` of `shape`.

    Parameters: the inputs' pointers, the outputs' pointers, then every named extent once, in the order of the shape and
    of each access's strides and offset. An output may be the same memory as an input with the same layout.
    """
    if len(exprs) != len(outputs) or not outputs:
        raise OpError(f"map {name}: {len(outputs)} outputs for {len(exprs)} expressions")
    for access in (*inputs, *outputs):
        if len(access.strides) != len(shape):
            raise OpError(f"map {name}: {access.name} has {len(access.strides)} strides for {len(shape)} axes")
    return _MapMaker(name, target, shape, inputs, outputs, exprs).build()


class _MapMaker:
    def __init__(
        self,
        name: str,
        target: Target,
        shape: Sequence[Extent],
        inputs: Sequence[Access],
        outputs: Sequence[Access],
        exprs: Sequence[Expr],
    ) -> None:
        k = self.k = KernelBuilder(name)
        self.target = target
        self.exprs = exprs
        accesses = [*inputs, *outputs]
        # In place is allowed, so nothing is promised about aliasing.
        self.sources = [k.pointer(a.name, a.dtype, noalias=False) for a in inputs]
        self.results = [k.pointer(a.name, a.dtype, write=True, noalias=False) for a in outputs]
        self.has_indices = any(node.op == "index" for node in topological(exprs))
        axes = merge_axes(shape, [a.strides for a in accesses], keep=self.has_indices) or [(1, (0,) * len(accesses))]
        extents = Extents(k)
        # All named extents are parameters, in an order that does not depend on which axes merge.
        for extent in (*shape, *(e for a in accesses for e in (*a.strides, a.offset))):
            extents(extent)
        self.sizes = [extents(size) for size, _ in axes]
        self.strides = [[extents(s) for s in strides] for _, strides in axes]
        self.inner_strides = axes[-1][1]
        self.inner_size = axes[-1][0]
        self.offsets = [extents(a.offset) for a in accesses]
        widest = max(compute_dtype(n.dtype).size_bytes for n in topological(exprs))
        self.lanes = max(1, target.vector_bytes // widest)
        self.has_masks = all(target.has_masked_access(b.dtype) for b in (*self.sources, *self.results))

    def build(self) -> Kernel:
        if self.target.is_gpu:
            self.gpu()
        else:
            self.cpu()
        return self.k.build()

    def cpu(self) -> None:
        """A row is the innermost axis. One chunk is several short rows, or a part of a long one."""
        k = self.k
        inner = self.sizes[-1]
        parts = k.ceildiv(inner, CHUNK)
        if len(self.sizes) == 1:
            with k.parallel("chunk", parts) as chunk:
                self.part_of_row([], chunk)
            return
        rows = self.product(self.sizes[:-1])
        rows_per_chunk = k.max(1, k.as_index(CHUNK) // k.max(inner, 1))
        groups = (rows + (rows_per_chunk - 1)) // rows_per_chunk
        with k.parallel("chunk", groups * parts) as chunk:
            first = (chunk // parts) * rows_per_chunk
            with k.loop("row", first, k.min(first + rows_per_chunk, rows)) as row:
                self.part_of_row(self.unflatten(row, self.sizes[:-1]), chunk % parts)

    def part_of_row(self, outer: Sequence[Value], part: Value) -> None:
        """Elements part*CHUNK .. of the row at the outer indices: whole vectors, then a masked one or single ones."""
        k = self.k
        bases = self.bases(outer)
        start = part * CHUNK
        stop = k.min(start + CHUNK, self.sizes[-1])
        uniform = self.uniform_operands(bases)
        if self.lanes == 1:
            with k.loop("i", start, stop) as i:
                self.element(outer, bases, uniform, i, 1)
            return
        whole = start + (stop - start) // self.lanes * self.lanes
        with k.loop("i", start, whole, self.lanes) as i:
            self.element(outer, bases, uniform, i, self.lanes)
        if isinstance(self.inner_size, int) and self.inner_size % self.lanes == 0:
            return
        if self.has_masks:
            with k.when(whole < stop):
                self.element(outer, bases, uniform, whole, self.lanes, k.lane_mask(stop - whole, self.lanes))
        else:
            with k.loop("i", whole, stop) as i:
                self.element(outer, bases, uniform, i, 1)

    def uniform_operands(self, bases: Sequence[Value]) -> dict[int, Value]:
        """Operands that are the same for a whole row, loaded once before it."""
        numbers = [n for n in range(len(self.sources)) if self.inner_strides[n] == 0]
        return {n: self.k.load(self.sources[n], bases[n]) for n in numbers}

    def element(
        self,
        outer: Sequence[Value],
        bases: Sequence[Value],
        uniform: dict[int, Value],
        i: Value,
        lanes: int,
        mask: Value | None = None,
    ) -> None:
        """Load, compute and store `lanes` elements from inner index `i`."""
        k = self.k
        places = [(base + i * stride, stride) for base, stride in zip(bases, self.strides[-1])]
        operands = []
        for number, (buffer, (place, stride)) in enumerate(zip(self.sources, places)):
            loaded = uniform.get(number)
            operands.append(k.load(buffer, place, lanes=lanes, stride=stride, mask=mask) if loaded is None else loaded)
        indices = [*outer, k.iota(DType.I64, lanes) + i] if self.has_indices else []
        values = lower_expr(k, self.exprs, operands, lanes, indices)
        for buffer, (place, stride), value in zip(self.results, places[len(self.sources) :], values):
            k.store(buffer, place, k.cast(value, buffer.dtype), stride=stride, mask=mask)

    def gpu(self) -> None:
        """A block covers consecutive elements, neighbouring threads neighbouring ones, so that accesses coalesce."""
        k = self.k
        total = self.product(self.sizes)
        per_block = GPU_THREADS * GPU_ELEMENTS_PER_THREAD
        with k.parallel("block", k.ceildiv(total, per_block)) as block, k.threads("thread", GPU_THREADS) as thread:
            for step in range(GPU_ELEMENTS_PER_THREAD):
                flat = block * per_block + (thread + step * GPU_THREADS)
                with k.when(flat < total):
                    *outer, inner = self.unflatten(flat, self.sizes)
                    self.element(outer, self.bases(outer), {}, inner, 1)

    def product(self, sizes: Sequence[Value]) -> Value:
        result: Value = self.k.as_index(1)
        for size in sizes:
            result = result * size
        return result

    def unflatten(self, flat: Value, sizes: Sequence[Value]) -> list[Value]:
        """The index along each axis of a row-major position."""
        indices: list[Value] = []
        for size in reversed(sizes[1:]):
            indices.append(flat % size)
            flat = flat // size
        return [flat, *reversed(indices)]

    def bases(self, indices: Sequence[Value]) -> list[Value]:
        """Where each operand's row starts, given the indices of the outer axes."""
        bases = list(self.offsets)
        for index, strides in zip(indices, self.strides):
            bases = [base + index * stride for base, stride in zip(bases, strides)]
        return bases


def merge_axes(
    shape: Sequence[Extent], strides: Sequence[tuple[Extent, ...]], keep: bool = False
) -> list[tuple[Extent, tuple[Extent, ...]]]:
    """The same index space with fewer axes, as (size, stride per operand): axes of size 1 go, and two axes join where
    for every operand a step of the outer one is a whole run of the inner one. `keep` leaves the axes as they are.

    >>> merge_axes((2, 3, 4), [(12, 4, 1), (0, 4, 1)])
    [(2, (12, 0)), (12, (1, 1))]
    """
    axes: list[tuple[Extent, tuple[Extent, ...]]] = []
    for axis, size in enumerate(shape):
        steps = tuple(s[axis] for s in strides)
        if size == 1 and not keep:
            continue
        if not keep and axes and isinstance(size, int) and isinstance(axes[-1][0], int):
            outer_size, outer_steps = axes[-1]
            if all(isinstance(i, int) and o == i * size for o, i in zip(outer_steps, steps)):
                axes[-1] = (int(outer_size) * size, steps)
                continue
        axes.append((size, steps))
    return axes
