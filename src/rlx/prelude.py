"""`from rlx.prelude import *`: the names that most programs need.

Beside these, `rlx.prelude` has `flag`, `set`, `unset` and `var` of `rlx.env`; a star does not import them, since `set`
would take the place of Python's own. Errors are exceptions: `Error` is the base of all.
"""

from rlx import env as env
from rlx.autodiff import hvp as hvp
from rlx.autodiff import jvp as jvp
from rlx.autodiff import vmap as vmap
from rlx.compat.measure import Tick as Tick
from rlx.compile.precision.policy import Precision as Precision
from rlx.compile.precision.policy import PrecisionPolicy as PrecisionPolicy
from rlx.compile.ptq.insert import CalibrationRecord as CalibrationRecord
from rlx.env import RlxEnv as RlxEnv
from rlx.env import RuntimeOverrides as RuntimeOverrides
from rlx.env import flag as flag
from rlx.env import set as set
from rlx.env import unset as unset
from rlx.env import var as var
from rlx.errors import RlxError as Error
from rlx.ir.dtype import DType as DType
from rlx.ir.dtype import Element as Element
from rlx.ir.graph import Graph as Graph
from rlx.ir.graph import Node as Node
from rlx.ir.graph import NodeId as NodeId
from rlx.ir.module import GraphModule as GraphModule
from rlx.ir.module import GraphStage as GraphStage
from rlx.ir.op import Op as Op
from rlx.ir.op import OpKind as OpKind
from rlx.ir.rewrite.passes import Pass as Pass
from rlx.ir.shape import Shape as Shape
from rlx.macros import pipeline_schedule as pipeline_schedule
from rlx.macros import rlx_model as rlx_model
from rlx.ops import Activation as Activation
from rlx.ops import BinaryOp as BinaryOp
from rlx.ops import CmpOp as CmpOp
from rlx.ops import MaskKind as MaskKind
from rlx.quant.schemes import QuantScheme as QuantScheme
from rlx.runtime.compiled_graph import CompiledGraph as CompiledGraph
from rlx.runtime.device import Device as Device
from rlx.runtime.session import Session as Session

__all__ = [
    "Activation",
    "BinaryOp",
    "CalibrationRecord",
    "CmpOp",
    "CompiledGraph",
    "DType",
    "Device",
    "Element",
    "Error",
    "Graph",
    "GraphModule",
    "GraphStage",
    "MaskKind",
    "Node",
    "NodeId",
    "Op",
    "OpKind",
    "Pass",
    "Precision",
    "PrecisionPolicy",
    "QuantScheme",
    "RlxEnv",
    "RuntimeOverrides",
    "Session",
    "Shape",
    "Tick",
    "env",
    "hvp",
    "jvp",
    "pipeline_schedule",
    "rlx_model",
    "vmap",
]
