"""Fourier transforms, audio features, radio-frequency formulas."""
