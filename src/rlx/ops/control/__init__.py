"""Ops with programs inside: branches, loops, checkpoints, functions with rules of their own, effects."""
