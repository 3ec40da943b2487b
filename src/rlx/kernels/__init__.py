"""LIR -> loops -> code: kernels in one loop-level IR, its interpreter, and its emitters.

| file | in -> out |
|---|---|
| `loop_ir`, `builder`, `kernel_text`, `verify`, `rewrite` | the IR, how it is written, printed, checked and rewritten |
| `interpret` | kernel + NumPy arrays -> results, every access checked: the meaning of the IR |
| `from_lir`, `from_points` | LIR kernels -> expressions and accesses -> loop kernels |
| `expr`, `scopes` | a DAG of MIR ops, and where in a loop nest each of them is computed |
| `elementwise`, `rows` (`row_visits`), `matmul` (`extents`) | makers: LIR kinds `map`, `row` and `reduce`, `matmul` |
| `vector_math`, `vector_trig`, `vector_pow`, `legalize` | math ops -> polynomials; what a target lacks -> what it has |
| `targets` | machine descriptions: vector width, features, triple |
| `llvm_emit` (`llvm_ops`, `llvm_text`), `llvm_codegen` | kernel -> LLVM IR -> object code or assembly |
| `object_cache`, `elf`, `linker`, `native` | object code kept, checked, linked and called |

LLVM is loaded by the first compilation (`llvm_pages` gives most of it back), not by importing this package, nor by
processes that find their code on disk.
"""
