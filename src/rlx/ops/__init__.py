"""What each op means. One class per op; `rlx.ir.op` says what a class gives, `rlx.ops.unary` is an example."""

from rlx.ir.leaves import Constant as Constant
from rlx.ir.leaves import Input as Input
from rlx.ir.leaves import Param as Param
from rlx.ir.leaves import Project as Project
from rlx.ir.op import NoRule as NoRule
from rlx.ir.op import Op as Op
from rlx.ir.op import kind_of as kind_of
from rlx.ops import builders, tensor_methods
from rlx.ops.activation_gradients import *
from rlx.ops.arithmetic import *
from rlx.ops.attend import *
from rlx.ops.attend_gradients import *
from rlx.ops.attend_operands import *
from rlx.ops.attend_parts import *
from rlx.ops.audio import *
from rlx.ops.bits import *
from rlx.ops.body_calls import *
from rlx.ops.collectives import *
from rlx.ops.complex_ops import *
from rlx.ops.contraction import *
from rlx.ops.control import *
from rlx.ops.conversion import *
from rlx.ops.convolution import *
from rlx.ops.convolution_gradients import *
from rlx.ops.creation import *
from rlx.ops.cumulative import *
from rlx.ops.custom import *
from rlx.ops.custom_derivatives import *
from rlx.ops.custom_functions import *
from rlx.ops.dynamic_slices import *
from rlx.ops.effects import *
from rlx.ops.einsum_notation import *
from rlx.ops.factor_steps import *
from rlx.ops.factorizations import *
from rlx.ops.fake_quant import *
from rlx.ops.fourier import *
from rlx.ops.fused import *
from rlx.ops.fused_blocks import *
from rlx.ops.indexing import *
from rlx.ops.int8_products import *
from rlx.ops.linalg import *
from rlx.ops.losses import *
from rlx.ops.matrix_functions import *
from rlx.ops.movement import *
from rlx.ops.norm_gradients import *
from rlx.ops.norms import *
from rlx.ops.order import *
from rlx.ops.pooling import *
from rlx.ops.quantized import *
from rlx.ops.quantized_experts import *
from rlx.ops.quantized_lookup import *
from rlx.ops.quantized_panels import *
from rlx.ops.quantized_weights import *
from rlx.ops.randomness import *
from rlx.ops.rearrange import *
from rlx.ops.recomputation import *
from rlx.ops.reductions import *
from rlx.ops.regions import *
from rlx.ops.rotary import *
from rlx.ops.sampling import *
from rlx.ops.scan_gradients import *
from rlx.ops.scans import *
from rlx.ops.selection import *
from rlx.ops.sort_order import *
from rlx.ops.splat import *
from rlx.ops.splat_steps import *
from rlx.ops.ssm import *
from rlx.ops.subscript import *
from rlx.ops.unary import *
from rlx.ops.window_reductions import *

builders.install()
tensor_methods.install()
