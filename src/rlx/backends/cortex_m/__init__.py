"""Arm Cortex-M microcontrollers: programs as C or as Thumb code."""
