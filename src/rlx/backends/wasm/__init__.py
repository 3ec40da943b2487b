"""WebAssembly: programs for browsers."""
