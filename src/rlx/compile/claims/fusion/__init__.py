"""MIR to fewer, larger ops: one pass per file, rules with the reason of every near-miss, and a report.

    fused, report = run_fusion_passes(graph, fusion_passes(FusionTarget.Cuda))
    print(report)

Targets that claim fused ops get them from here; targets with our own generator take them apart again and group ops
into kernels (see `rlx.compile`).
"""

from __future__ import annotations

import importlib
from typing import Any

from rlx.ir.graph import Graph
from rlx.ir.rewrite.elementwise_fuser import set_elementwise_fuser


def __getattr__(name: str) -> Any:
    """Passes are loaded when one is asked for: targets with our own generator need none of them."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.names"), name)


def _fuse_elementwise(graph: Graph) -> Graph:
    from rlx.compile.claims.fusion.mark_elementwise_regions import MarkElementwiseRegions

    return MarkElementwiseRegions().run(graph)


# Between the layers of a higher derivative, chains of element-wise ops may be joined.
set_elementwise_fuser(_fuse_elementwise)
