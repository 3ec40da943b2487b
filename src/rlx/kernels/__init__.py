"""LIR -> loops -> code: kernels in one loop-level IR, its interpreter, and its emitters.

| file | in -> out |
|---|---|
| `loop_ir`, `builder`, `kernel_text`, `verify`, `rewrite` | the IR, how it is written, printed, checked and rewritten |
| `interpret` | kernel + NumPy arrays -> results, every access checked: the meaning of the IR |
| `expr` | a DAG of MIR elementwise ops, and its lowering into a kernel |
| `elementwise`, `matmul` (`extents`) | makers: kernels of LIR kinds `map` and `matmul` |
| `vector_math`, `vector_trig`, `vector_pow`, `legalize` | math ops -> polynomials; what a target lacks -> what it has |
| `targets` | machine descriptions: vector width, features, triple |
| `llvm_emit` (`llvm_ops`, `llvm_text`), `llvm_codegen` | kernel -> LLVM IR -> object code or assembly |
| `object_cache`, `elf`, `native` | object code kept, checked, loaded and called |

llvmlite is loaded by the first compilation, not by importing this package.
"""
