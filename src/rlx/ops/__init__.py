"""What each op means, one class per op, in folders by subject.

`rlx.ir.op` says what a class gives; `rlx.ops.pointwise.unary` is an example. Families that few programs need when they
start are imported when one of their names is asked for.
"""

import importlib
import typing

from rlx.ir import op as _registry
from rlx.ir.leaves import Constant as Constant
from rlx.ir.leaves import Input as Input
from rlx.ir.leaves import Param as Param
from rlx.ir.leaves import Project as Project
from rlx.ir.op import NoRule as NoRule
from rlx.ir.op import Op as Op
from rlx.ir.op import kind_of as kind_of
from rlx.ops import builders, tensor_methods
from rlx.ops.control.branches import *
from rlx.ops.control.custom import *
from rlx.ops.control.scans import *
from rlx.ops.linalg.contraction import *
from rlx.ops.pointwise.arithmetic import *
from rlx.ops.pointwise.bits import *
from rlx.ops.pointwise.complex_numbers import *
from rlx.ops.pointwise.conversion import *
from rlx.ops.pointwise.unary import *
from rlx.ops.reduction.cumulative import *
from rlx.ops.reduction.reductions import *
from rlx.ops.reduction.sort import *
from rlx.ops.shape.axis_indexing import *
from rlx.ops.shape.creation import *
from rlx.ops.shape.dynamic_slices import *
from rlx.ops.shape.indexing import *
from rlx.ops.shape.movement import *
from rlx.ops.shape.rearrange import *
from rlx.ops.shape.segments import *
from rlx.ops.shape.selection import *
from rlx.ops.shape.subscript import *

if typing.TYPE_CHECKING:
    from rlx.ops.attn.attention import *
    from rlx.ops.attn.gradients import *
    from rlx.ops.attn.operands import *
    from rlx.ops.attn.sinks import *
    from rlx.ops.control.body_calls import *
    from rlx.ops.control.custom_derivatives import *
    from rlx.ops.control.custom_functions import *
    from rlx.ops.control.effects import *
    from rlx.ops.control.recomputation import *
    from rlx.ops.control.scan_gradients import *
    from rlx.ops.fused.blocks import *
    from rlx.ops.fused.layers import *
    from rlx.ops.fused.regions import *
    from rlx.ops.linalg.analytic_functions import *
    from rlx.ops.linalg.einsum_notation import *
    from rlx.ops.linalg.factorizations import *
    from rlx.ops.linalg.general_eigen import *
    from rlx.ops.linalg.matrix_functions import *
    from rlx.ops.linalg.schur import *
    from rlx.ops.linalg.solve import *
    from rlx.ops.nn.convolution import *
    from rlx.ops.nn.convolution_gradients import *
    from rlx.ops.nn.linear_attention import *
    from rlx.ops.nn.losses import *
    from rlx.ops.nn.norm_gradients import *
    from rlx.ops.nn.norms import *
    from rlx.ops.nn.pooling import *
    from rlx.ops.nn.rotary import *
    from rlx.ops.nn.ssm import *
    from rlx.ops.parallel.collectives import *
    from rlx.ops.parallel.shard_map import *
    from rlx.ops.parallel.sharding_constraint import *
    from rlx.ops.pointwise.activation_gradients import *
    from rlx.ops.quant.fake_quant import *
    from rlx.ops.quant.quantized import *
    from rlx.ops.quant.quantized_lookup import *
    from rlx.ops.quant.quantized_weights import *
    from rlx.ops.quant.requantization import *
    from rlx.ops.random.randomness import *
    from rlx.ops.random.sampling import *
    from rlx.ops.reduction.window_reductions import *
    from rlx.ops.signal.audio import *
    from rlx.ops.signal.fourier import *
    from rlx.ops.signal.real_fourier import *
    from rlx.ops.splat.render import *
    from rlx.ops.splat.steps import *

# The same modules as type checkers see them above, in the order in which a name is looked for: what models hold first.
_LATER = (
    "rlx.ops.nn.norms",
    "rlx.ops.attn.operands",
    "rlx.ops.attn.attention",
    "rlx.ops.attn.sinks",
    "rlx.ops.nn.rotary",
    "rlx.ops.quant.quantized_weights",
    "rlx.ops.quant.quantized_lookup",
    "rlx.ops.nn.convolution",
    "rlx.ops.linalg.einsum_notation",
    "rlx.ops.random.randomness",
    "rlx.ops.random.sampling",
    "rlx.ops.signal.fourier",
    "rlx.ops.reduction.window_reductions",
    "rlx.ops.parallel.collectives",
    "rlx.ops.control.body_calls",
    "rlx.ops.control.custom_functions",
    "rlx.ops.control.custom_derivatives",
    "rlx.ops.control.effects",
    "rlx.ops.control.recomputation",
    "rlx.ops.attn.gradients",
    "rlx.ops.control.scan_gradients",
    "rlx.ops.fused.blocks",
    "rlx.ops.fused.layers",
    "rlx.ops.fused.regions",
    "rlx.ops.linalg.analytic_functions",
    "rlx.ops.linalg.factorizations",
    "rlx.ops.linalg.general_eigen",
    "rlx.ops.linalg.matrix_functions",
    "rlx.ops.linalg.schur",
    "rlx.ops.linalg.solve",
    "rlx.ops.nn.convolution_gradients",
    "rlx.ops.nn.linear_attention",
    "rlx.ops.nn.losses",
    "rlx.ops.nn.norm_gradients",
    "rlx.ops.nn.pooling",
    "rlx.ops.nn.ssm",
    "rlx.ops.parallel.shard_map",
    "rlx.ops.parallel.sharding_constraint",
    "rlx.ops.pointwise.activation_gradients",
    "rlx.ops.quant.fake_quant",
    "rlx.ops.quant.quantized",
    "rlx.ops.quant.requantization",
    "rlx.ops.signal.audio",
    "rlx.ops.signal.real_fourier",
    "rlx.ops.splat.render",
    "rlx.ops.splat.steps",
)


def __getattr__(name: str) -> object:
    if not name.startswith("_"):
        for module in map(importlib.import_module, _LATER):
            if name in module.__all__:
                globals()[name] = getattr(module, name)
                return globals()[name]
        _registry.load_all_ops()
        if name in globals():
            # The folder of ops that only the compiler makes.
            return globals()[name]
    raise AttributeError(f"module 'rlx.ops' has no attribute {name!r}")


def __dir__() -> list[str]:
    _registry.load_all_ops()
    return sorted({*globals(), *(name for module in map(importlib.import_module, _LATER) for name in module.__all__)})


# Ops that only the compiler makes, and blocks, the ops of a level above.
_registry.register_later(*_LATER, "rlx.ops.lowered", "rlx.hir")
builders.install()
tensor_methods.install()
