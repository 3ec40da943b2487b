"""Programs handed to XLA: TPUs, and many devices at once."""
