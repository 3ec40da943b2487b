"""Apple GPUs: Metal shaders."""
