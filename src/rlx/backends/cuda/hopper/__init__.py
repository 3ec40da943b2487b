"""Products on the tensor cores of Hopper (sm_90a): wgmma fed by the copy engine, from LLVM text with inline PTX.

| file | what |
|---|---|
| `writer` | LLVM text: values, variables, loops, inline PTX |
| `instructions` | barriers in shared memory, tensor copies, matrix descriptors |
| `product` | the kernel of a product with its epilogue |
| `tensor_maps` | how the copy engine sees a matrix |
| `form` | which products have one, and its launch |
"""
