"""Schedules for GPUs: what has none here runs one parallel iteration of its CPU schedule per thread.

| file | what |
|---|---|
| `schedules` | the table: which maker writes which kernel |
| `iteration_threads` | a CPU schedule with a thread for each parallel iteration |
| `matmul` | products of many rows: tiles of C in registers, of A and B in shared memory |
| `matmul_waves` | the same by instructions for whole matrices, of f16 and bf16 |
| `matmul_fragments` | the same where matrices are loaded and stored as a whole |
| `matmul_few` | products of few rows, bound by the memory that B lies in |
"""
