"""Circuits: integer programs as Verilog."""
