"""Ops that join elements along axes: sums, running sums, windows, sorting."""
