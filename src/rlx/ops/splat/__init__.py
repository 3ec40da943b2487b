"""Gaussian splatting: geometry, projection, raster, gradients."""
