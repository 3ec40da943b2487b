"""The names under which the code of a kernel is found: what finds it on disk loads no kernel."""

from __future__ import annotations


def packed_symbol(kernel_name: str) -> str:
    """The symbol of the entry that reads its parameters from slots."""
    return f"{kernel_name}.packed"
