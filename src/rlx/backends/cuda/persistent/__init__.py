"""A decode step in one kernel: every multiprocessor has one block, which owns rows of all weights.

One warp of a block brings its rows, layer after layer, through a ring in shared memory that is never drained; eight
others multiply, and exchange vectors with other blocks as words that carry a tag. There is no barrier over the grid.

| file | what |
|---|---|
| `step` | a decode step in words of models: layers, norms, rows of weights |
| `matching` | a program as a decode step, or why it is none |
| `phases` | what a step is made of, and the vectors in between: plain data |
| `plan` | who owns what, versions of vectors, memory: plain data |
| `interpret` | the plan block by block in any order, on the host; finds what nobody waits for |
| `exchange`, `ring` | words with tags, and stages, as instructions |
| `panel_rows`, `panel_products` | weights that are GGUF panels: what of them fits, and their products as instructions |
| `norms`, `products`, `attend` | phases as instructions |
| `choosing`, `kernel` | the words that steps go on with, and the kernel |
| `runner` | memory of a step, and its launch |
"""
