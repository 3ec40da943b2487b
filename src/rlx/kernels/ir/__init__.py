"""The loop-level IR: its parts, builder, text, verifier, interpreter, rewriting and legalisation."""
