"""Ops in other ops, for engines that have no kernel for them and would do badly with a decomposition, or have none.

A form is a function of an op and its operands that gives a builder, or None where the decomposition will do.
"""
