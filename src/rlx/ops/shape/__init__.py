"""Ops that make, move, pick and place elements without computing on them."""
