"""Programs for TPUs, which XLA compiles."""
