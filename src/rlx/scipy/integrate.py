"""Integrals under the names of `scipy.integrate`."""

from rlx.numpy.differences import trapezoid as trapezoid

__all__ = ["trapezoid"]
