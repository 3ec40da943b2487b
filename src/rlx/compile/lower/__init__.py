"""Ops in the forms that kernels have: attention, loops, convolution, factorisations, sorting."""
