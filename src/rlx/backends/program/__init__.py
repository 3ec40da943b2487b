"""A compiled program as data that does not depend on the device: steps, sizes, params, and its form on disk."""
