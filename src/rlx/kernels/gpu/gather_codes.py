"""Rows of GGUF tables on GPUs, as the embeddings of tokens are: a thread for eight neighbours of a row.

The loops of `kernels.cpu.ops.quant_gather` give an id to a thread, which then decodes a whole row by itself. Here the
threads of a row lie side by side, as what they store does.
"""

from __future__ import annotations

from rlx.kernels.cpu.ops import OpSite
from rlx.kernels.cpu.quant_codes import CHUNK, Codes
from rlx.kernels.gpu.expand_codes import decoded_chunk
from rlx.kernels.ir.extents import clipped_id, total
from rlx.kernels.ir.loop_ir import Kernel
from rlx.ops.lowered.quantized_panels import PanelGather
from rlx.quant.panels import PANEL_ROWS, RECORD

# A single token has a few blocks, too.
THREADS = 128


def gather_codes_kernel(site: OpSite) -> Kernel:
    """The kernel of `PanelGather`: ids count from the end if negative, and are clipped."""
    k, op, (panels, ids), (y,) = site.k, site.op, site.inputs, site.outputs
    assert isinstance(op, PanelGather)
    layout = op.layout(op.k)
    codes = Codes(k, site.machine, layout, panels.buffer, lanes=1)
    chunks = op.k // CHUNK
    count = total(k, ids.dims) * chunks
    with k.parallel("block", k.ceildiv(count, THREADS)) as block, k.threads("thread", THREADS) as thread:
        number = block * THREADS + thread
        with k.when(number < count):
            place, chunk = number // chunks, number % chunks
            row = clipped_id(k, k.load(ids.buffer, place), op.n)
            base, lane = row // PANEL_ROWS * layout.panel_bytes(op.k), row % PANEL_ROWS
            per_record = RECORD // CHUNK
            weights = decoded_chunk(codes, base, lane, chunk // per_record, chunk % per_record)
            for i, weight in enumerate(weights):
                k.store(y.buffer, number * CHUNK + i, weight)
    return k.build()
