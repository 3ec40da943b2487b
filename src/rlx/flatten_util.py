"""`rlx.flatten_util`: `ravel_pytree`, where JAX has it."""

from rlx.trace.ravel import ravel_pytree

__all__ = ["ravel_pytree"]
