"""Python functions become graphs here: pytrees, `trace`, `jit`, and control flow over functions."""
