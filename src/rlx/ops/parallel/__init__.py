"""Ops whose value depends on the other participants along a named axis."""
