"""Ops that only the compiler makes, on the way from MIR to kernels. They are registered, and not part of `rlx.ops`."""

from rlx.ops.lowered import attention_gradients as attention_gradients
from rlx.ops.lowered import attention_parts as attention_parts
from rlx.ops.lowered import bidiagonal_steps as bidiagonal_steps
from rlx.ops.lowered import byte_products as byte_products
from rlx.ops.lowered import expert_products as expert_products
from rlx.ops.lowered import factor_steps as factor_steps
from rlx.ops.lowered import fourier_lines as fourier_lines
from rlx.ops.lowered import int8_products as int8_products
from rlx.ops.lowered import int16_products as int16_products
from rlx.ops.lowered import lu_steps as lu_steps
from rlx.ops.lowered import pair_steps as pair_steps
from rlx.ops.lowered import quantized_panels as quantized_panels
from rlx.ops.lowered import radix_passes as radix_passes
from rlx.ops.lowered import running_from as running_from
from rlx.ops.lowered import sort_order as sort_order
from rlx.ops.lowered import top_of_parts as top_of_parts
from rlx.ops.lowered import tridiagonal_merge as tridiagonal_merge
from rlx.ops.lowered import tridiagonal_steps as tridiagonal_steps
from rlx.ops.lowered import window_gradients as window_gradients
from rlx.ops.lowered import window_products as window_products
