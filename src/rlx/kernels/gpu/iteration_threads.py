"""`iterations_as_threads`: a kernel written for a CPU, as a GPU runs it: one thread for each parallel iteration.

    parallel %i = 0 to %n { body }
    ->
    parallel %block = 0 to ceil(%n / 32) { threads %thread = 0 to 32 {
      %i = %block * 32 + %thread; if %i < %n { body } } }

Every op that has loops gets a GPU form by this, with the same arithmetic in the same order as on the CPU. It is the
form for what has no schedule of its own: threads walk their own rows, so accesses of neighbouring threads do not join.
"""

from __future__ import annotations

from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import For, Kernel, LoopKind, walk
from rlx.kernels.ir.rewrite import Copier

# One warp of most GPUs: few iterations spread over as many multiprocessors as there are, and no warp has idle lanes.
THREADS = 32


def iterations_as_threads(kernel: Kernel, threads: int = THREADS) -> Kernel:
    """The same kernel with threads; one that has threads already, or nothing to share, stays as it is."""
    if kernel.parallel_loop is None or any(is_thread_loop(s) for s in walk(kernel.body)):
        return kernel
    builder = KernelBuilder(kernel.name)
    spread = _Spread(builder, builder.adopt(kernel))
    spread.threads = threads
    spread.block(kernel.body)
    return builder.build()


def is_thread_loop(statement: object) -> bool:
    return isinstance(statement, For) and statement.kind is LoopKind.THREADS


class _Spread(Copier):
    threads: int

    def loop(self, loop: For) -> None:
        if loop.kind is not LoopKind.PARALLEL:
            super().loop(loop)
            return
        k, count = self.builder, self.new(loop.stop)
        with (
            k.parallel("block", k.ceildiv(count, self.threads)) as block,
            k.threads("thread", self.threads) as thread,
        ):
            index = block * self.threads + thread
            with k.when(index < count):
                self.values[loop.index] = index
                self.block(loop.body)
