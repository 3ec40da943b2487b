"""Schedules for CPUs: maps, rows, products, and kernels that compute one op as a whole."""
