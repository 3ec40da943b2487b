"""ONNX files, read without the onnx package: what `rlx.onnx` makes programs of.

file = open_onnx("model.onnx")
file.graph.nodes, file.graph.constants["fc.weight"].array()
"""

from __future__ import annotations

from rlx.formats.onnx.reader import open_onnx as open_onnx
from rlx.formats.onnx.reader import read_onnx as read_onnx
from rlx.formats.onnx.structure import OnnxFile as OnnxFile
from rlx.formats.onnx.structure import OnnxFunction as OnnxFunction
from rlx.formats.onnx.structure import OnnxGraph as OnnxGraph
from rlx.formats.onnx.structure import OnnxNode as OnnxNode
from rlx.formats.onnx.structure import OnnxTensor as OnnxTensor
from rlx.formats.onnx.structure import OnnxValue as OnnxValue
from rlx.formats.onnx.writer import FLOAT as FLOAT
from rlx.formats.onnx.writer import make_node as make_node
from rlx.formats.onnx.writer import make_tensor as make_tensor
from rlx.formats.onnx.writer import type_number as type_number
from rlx.formats.onnx.writer import write_onnx as write_onnx
