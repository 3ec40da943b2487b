"""MIR to simpler MIR: algebra, constants, equal values, inlining, params."""
