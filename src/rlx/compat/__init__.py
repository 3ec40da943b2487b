"""What the Rust RLX offers and the engine does not need: kept for programs that are ported from it."""
