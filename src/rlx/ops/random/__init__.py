"""Random bits, distributions, and the choice of a token."""
