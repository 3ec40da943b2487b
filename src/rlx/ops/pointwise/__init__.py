"""Ops that compute every element on its own, with their derivatives."""
