"""Rows of weights that are stored as GGUF panels (`rlx.quant.panels`): how many bytes they are, and which have a form.

A unit of them is a panel, which lies in memory in one piece: chunks of 256 elements along K, one for each warp.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.backends.cuda.hopper.digits import bits_below_highest
from rlx.backends.cuda.hopper.stored_codes import RECORDS, StoredFormat
from rlx.backends.cuda.persistent.step import Rows, Step, Unfit
from rlx.quant.panels import PANEL_ROWS, RECORD, PanelFormat
from rlx.quant.schemes import QuantScheme

Array = np.ndarray[Any, np.dtype[Any]]

# Elements along K that one warp multiplies at a time.
CHUNK = RECORDS * RECORD
# Elements that have a sum of their own, for minimums and biases: the smallest groups of stored blocks.
SUMMED = 16
# Digits of an element of the operand.
DIGITS = 2


def panel_format(scheme: QuantScheme) -> PanelFormat:
    found = scheme.panel_format
    if found is None:
        raise Unfit(f"weights stored as {scheme}")
    return found


def stored_format(scheme: QuantScheme) -> StoredFormat:
    """The form of the code for panels of a scheme."""
    found = StoredFormat.of(panel_format(scheme))
    if found is None:
        raise Unfit(f"{scheme}: values that are no bytes")
    return found


def row_bytes(rows: Rows) -> int:
    """Bytes of one row."""
    return 2 * rows.depth if rows.scheme is None else panel_format(rows.scheme).panel_bytes(rows.depth) // PANEL_ROWS


def in_digits(x: Array) -> Array:
    """Rows of an operand as the kernel multiplies them with codes: integers of 14 bits times a power of two for each
    chunk."""
    chunks = x.reshape(len(x), -1, CHUNK)
    largest = np.abs(chunks).max(-1, keepdims=True)
    highest = np.frexp(np.where(largest > 0, largest, 1))[1] - 1
    unit = np.ldexp(np.float32(1), highest - bits_below_highest(DIGITS)).astype(np.float32)
    found: Array = (np.rint(chunks / unit) * unit).reshape(x.shape)
    return found


def check_panels(step: Step) -> None:
    """Refuse weights that the kernel is not written for."""
    for layer in step.layers:
        every = [part for part in layer if isinstance(part, Rows)]
        if len({rows.scheme is None for rows in every}) > 1:
            raise Unfit("layers with stored blocks beside weights of numbers")
        for rows in (*every, step.head):
            if rows.scheme is None:
                continue
            stored_format(rows.scheme)
            if rows.depth % CHUNK:
                raise Unfit(f"stored blocks of rows of {rows.depth} elements; multiples of {CHUNK} are read")
            if rows.first % PANEL_ROWS or (rows is not step.head and rows.height % PANEL_ROWS):
                raise Unfit(f"{rows.height} rows from {rows.first} on of stored blocks; panels have {PANEL_ROWS} rows")
    if step.embed_scheme is not None:
        panel_format(step.embed_scheme)
