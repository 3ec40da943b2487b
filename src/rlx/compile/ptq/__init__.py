"""Quantisation after training: observe, insert, propagate, collapse."""
