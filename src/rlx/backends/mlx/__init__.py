"""Apple silicon and others, through MLX."""
