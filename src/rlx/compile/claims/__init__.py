"""Targets that claim ops: what is legal for them, fused ops, dispatch."""
