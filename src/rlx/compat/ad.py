"""Names of the stages a training program goes through."""

from __future__ import annotations

import enum


class AdPipelineStage(enum.StrEnum):
    """From the blocks a user writes to the graph that also computes gradients."""

    HirBuild = "hir_build"
    MirLowered = "mir_lowered"
    MirPrepared = "mir_prepared"
    MirBackward = "mir_backward"
