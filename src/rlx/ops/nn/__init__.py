"""Layers of networks as ops: norms, convolution, pooling, losses, rotary embedding, recurrences."""
