"""Random GGUF weights as the panels that kernels read, without encoding anything: every field gets ordinary numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.quant.panels import PANEL_ROWS, RECORD, PanelFormat


def random_panels(layout: PanelFormat, n: int, k: int, seed: int) -> Any:
    """u8[panels, bytes] of a weight of n rows of k elements, whose numbers are about as large as those of a model."""
    rng = np.random.default_rng(seed)
    panels, records = -(-n // PANEL_ROWS), k // RECORD
    runs = records // layout.records
    whole = rng.integers(0, 256, (panels, runs, layout.run_bytes), np.uint8)

    def halves(*shape: int) -> Any:
        drawn = (rng.random(shape, np.float32) - 0.3) * 0.002
        return drawn.astype("<f2").view(np.uint8)

    if layout.has_header:
        whole[..., : layout.header_bytes] = halves(panels, runs, layout.header_bytes // 2)
    body = whole[..., layout.header_bytes :].reshape(panels, runs, layout.records, layout.record_bytes)
    scales = body[..., layout.code_bytes :]
    if layout.is_short:
        # Powers of two, and with them numbers of e4m3, which have four bits.
        count, most = scales.shape[-1] // layout.step_bytes, 16 if layout.step_bytes == 2 else 9
        bits = rng.integers(8, most, (*scales.shape[:-1], count))
        drawn = np.ldexp(bits / 8.0, rng.integers(-8, -5, bits.shape))
        scales[...] = drawn.astype(f"<f{layout.step_bytes}").view(np.uint8)
    elif layout.step_bytes == 2:
        scales[...] = halves(*scales.shape[:-1], scales.shape[-1] // 2)
    elif layout.step_bytes == 4:
        drawn = (rng.random((*scales.shape[:-1], scales.shape[-1] // 4), np.float32) - 0.3) * 0.002
        scales[...] = drawn.astype("<f4").view(np.uint8)
    if layout.has_header and not layout.signed_steps:
        # Six bits at most.
        scales &= np.uint8(63)
    return whole.reshape(panels, -1)
