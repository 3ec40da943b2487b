"""Ops on quantised values: codes, packed weights, and training that knows of them."""
