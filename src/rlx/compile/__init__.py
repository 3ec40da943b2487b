"""MIR to LIR: legalise, simplify, cut into kernels, plan memory. `pipeline.py` reads as a table of contents.

simplify/ precision/ ptq/    graph to graph          lower/    ops in the forms that kernels have
weights/  what depends on weights alone              fuse/     which ops share a kernel
memory/   where values lie                           report/   what became of a program
claims/   targets that bring kernels for whole ops, and the fused ops they claim
"""
