"""Networks in integers: made of float graphs, saved as `*.rlxq`, the same codes everywhere, bit for bit.

program = quantize(graph, params, batches)      # calibrated, or with the scales of fake quantisation
save(program, "digits.rlxq")
labels = load("digits.rlxq").run(images)        # NumPy; device="cpu" compiles it
"""

from __future__ import annotations

from rlx.quantized.convert import quantize as quantize
from rlx.quantized.file import from_bytes as from_bytes
from rlx.quantized.file import load as load
from rlx.quantized.file import save as save
from rlx.quantized.file import to_bytes as to_bytes
from rlx.quantized.packing import pack as pack
from rlx.quantized.packing import unpack as unpack
from rlx.quantized.plain_steps import Add as Add
from rlx.quantized.plain_steps import AddConstant as AddConstant
from rlx.quantized.plain_steps import Argmax as Argmax
from rlx.quantized.plain_steps import Clamp as Clamp
from rlx.quantized.plain_steps import Concat as Concat
from rlx.quantized.plain_steps import MaxPool as MaxPool
from rlx.quantized.plain_steps import MeanPool as MeanPool
from rlx.quantized.plain_steps import Mul as Mul
from rlx.quantized.plain_steps import Rescale as Rescale
from rlx.quantized.plain_steps import Rows as Rows
from rlx.quantized.products import Conv2d as Conv2d
from rlx.quantized.products import Dense as Dense
from rlx.quantized.program import Program as Program
from rlx.quantized.recurrent_steps import Gru as Gru
from rlx.quantized.recurrent_steps import Lstm as Lstm
from rlx.quantized.report import Report as Report
from rlx.quantized.report import compare as compare
from rlx.quantized.sequence_steps import Attention as Attention
from rlx.quantized.sequence_steps import LayerNorm as LayerNorm
from rlx.quantized.table_steps import Interpolate as Interpolate
from rlx.quantized.table_steps import Lookup as Lookup
from rlx.quantized.table_steps import Softmax as Softmax
from rlx.quantized.tinyconv import read_rlxm as read_rlxm
from rlx.quantized.tinyconv import write_rlxm as write_rlxm
from rlx.quantized.values import Multipliers as Multipliers
from rlx.quantized.values import QuantizedError as QuantizedError
from rlx.quantized.values import Value as Value
from rlx.quantized.values import Weights as Weights
