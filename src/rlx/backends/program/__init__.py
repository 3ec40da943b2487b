"""A compiled program as data that does not depend on the device: steps, sizes, params, its form on disk, and its plan
for given sizes, which is tables of commands."""
