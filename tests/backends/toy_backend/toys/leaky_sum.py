"""A custom op with a kernel of its own: y[i] = x[i] + leak·y[i-1] along rows of a matrix, the leak in attrs."""

import numpy as np

import rlx
from rlx.kernels.cpu.ops import op_kernel


class LeakySum(rlx.OpExtension):
    def name(self):
        return "toys.leaky_sum"

    def num_inputs(self):
        return 1

    def infer_shape(self, inputs, attrs):
        return inputs[0]

    def eval(self, arrays, attrs):
        y, leak = arrays[0].copy(), np.frombuffer(attrs, "f4")[0]
        for i in range(1, y.shape[1]):
            y[:, i] += leak * y[:, i - 1]
        return y


@op_kernel(LeakySum, kind="leaky_sum", supports=lambda op, operands: operands[0].dtype is rlx.DType.F32)
def leaky_sum(site):
    k, (x,), (y,) = site.k, site.inputs, site.outputs
    zero, leak = (k.const(float(v), rlx.DType.F32) for v in (0, np.frombuffer(site.op.attrs, "f4")[0]))
    with k.parallel("row", x.dims[0]) as row, k.fold("i", 0, x.dims[1], init=[zero]) as f:
        here = k.load(x.buffer, x.at(row, f.index)) + leak * f.values[0]
        k.store(y.buffer, y.at(row, f.index), here)
        f.next(here)


rlx.register_op(LeakySum())
