"""Apple's Neural Engine, which runs what Core ML gives it and nothing else."""
