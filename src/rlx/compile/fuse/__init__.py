"""MIR to kernels: which ops share a loop nest, and why others do not."""
