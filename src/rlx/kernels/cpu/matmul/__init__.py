"""Products for CPUs: blocks, register tiles, and a maker for each kind of weights."""
