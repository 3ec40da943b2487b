"""MIR to LIR: legalise, simplify, cut into kernels, plan memory. `pipeline.py` reads as a table of contents."""
