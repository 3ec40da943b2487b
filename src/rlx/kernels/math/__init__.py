"""Functions as polynomials with stated error bounds, written in the loop IR."""
