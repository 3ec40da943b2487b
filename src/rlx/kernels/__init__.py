"""LIR -> loops -> code: kernels in one loop-level IR, its interpreter, and its emitters.

| folder or file | in -> out |
|---|---|
| `ir/` | the IR: how it is written, printed, checked and rewritten; `interpret` is its meaning, every access checked |
| `ir/groups` | roles, asynchronous operations, phases, fragments and exchange: what groups of threads on GPUs add |
| `math/`, `legalize` | math ops -> polynomials; what a target lacks -> what it has |
| `specs/` | LIR kernels -> expressions and accesses: what is computed, apart from how |
| `cpu/` | makers: specs -> loops for CPUs (maps, rows, products), and kernels of single ops in `cpu/ops/` |
| `gpu/` | makers for GPUs: products; maps and rows have GPU forms beside their CPU ones |
| `from_lir`, `reuse` | LIR kernels -> loop kernels, each form once |
| `machines` | machine descriptions: vector width, features, triple |
| `emit/` | loop kernels -> LLVM IR -> object code or assembly; loop kernels -> C99 |

LLVM is loaded by the first compilation (`llvm_pages` gives most of it back), not by importing this package, nor by
processes that find their code on disk.
"""
