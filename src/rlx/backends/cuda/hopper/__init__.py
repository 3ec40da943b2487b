"""Products and attention on tensor cores, those of Hopper (sm_90a) and of all chips from sm_80 on, from LLVM text with
inline PTX.

| file | what |
|---|---|
| `writer` | LLVM text: values, variables, loops, inline PTX |
| `instructions` | barriers in shared memory, tensor copies, matrix descriptors, small products |
| `tensor_maps` | how the copy engine sees a tensor |
| `launching` | another way to compute what a loop kernel does, with the arguments of that kernel |
| `epilogue` | what is done to sums of a product, as a function made from loop IR |
| `product`, `form` | products by wgmma: the kernel; which have one, and its launch |
| `few_rows`, `few_form` | the same for few rows, by mma at the memory's speed |
| `mma_product`, `mma_form` | products of many rows by mma, for chips without wgmma |
| `stored_codes`, `code_rows`, `code_form` | products with GGUF panels by mma of bytes: fields; the kernel; its launch |
| `expanded_form` | products of many rows with GGUF panels: weights are written out for wgmma |
| `attention_shape`, `lanes`, `seen_keys` | what kernels of attention share |
| `attention`, `decode` | attention of many rows by wgmma, and of few by mma, whose blocks share the keys |
| `attention_form` | which attentions have them, and their launches |
"""
