"""Which types values are computed and kept in."""
