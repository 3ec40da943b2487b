"""Scaled dot-product attention: its vocabulary, the op, and its gradients."""
