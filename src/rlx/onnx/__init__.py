"""Models of ONNX files, as programs of rlx. The onnx package is not needed.

    model = rlx.onnx.load("resnet.onnx")
    [logits] = model.run({"x": images})       # open sizes stay open: one compile serves every batch
    model.graph, model.params                 # the program and its weights

Each op has a rule that says it in ops of rlx; `rlx.onnx.rule` registers more. Shapes are worked out while the model is
read, with open sizes as expressions. `rlx.onnx.program` says what happens where a shape depends on values.
"""

from __future__ import annotations

import typing as _typing

from rlx.foreign_names import no_attribute as _no_attribute
from rlx.onnx.model import OnnxModel as OnnxModel
from rlx.onnx.model import load as load
from rlx.onnx.model import supported_ops as supported_ops
from rlx.onnx.values import Call as Call
from rlx.onnx.values import rule as rule

# Type checkers must go on to find names that do not exist.
if not _typing.TYPE_CHECKING:

    def __getattr__(name):
        _no_attribute("rlx.onnx", name)
