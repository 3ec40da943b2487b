"""Products of matrices and tensors, linear systems, factorisations."""
