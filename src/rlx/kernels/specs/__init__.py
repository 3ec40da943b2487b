"""LIR kernels as expressions and accesses, from which makers write loops."""
