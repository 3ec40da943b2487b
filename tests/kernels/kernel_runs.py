"""Running one kernel in the interpreter and natively, on every machine description that runs here."""

from __future__ import annotations

import copy
from collections import deque

import numpy as np

from rlx.backends.native import kernels as native
from rlx.kernels.ir.interpret import interpret
from rlx.kernels.ir.loop_ir import Kernel
from rlx.kernels.ir.verify import verify
from rlx.kernels.legalize import legalize
from rlx.kernels.machines import MACHINES, Machine, runs_here

NATIVE_TARGETS = [t for t in MACHINES.values() if runs_here(t)]

Arguments = dict[str, "np.ndarray | int | float"]

# Code is dropped with the last who holds it: a kernel that is run with many arguments is compiled once.
_held: deque[native.NativeKernel] = deque(maxlen=16)


def interpreted(kernel: Kernel, args: Arguments) -> Arguments:
    """The arguments after the interpreter ran the kernel on a copy of them."""
    verify(kernel)
    after = copy.deepcopy(args)
    interpret(kernel, after)
    return after


def ran_natively(kernel: Kernel, args: Arguments, target: Machine) -> Arguments:
    after = copy.deepcopy(args)
    loaded = native.load(kernel, target)
    _held.append(loaded)
    loaded(*(after[p.name] for p in kernel.params))
    return after


def check_everywhere(kernel: Kernel, args: Arguments, rtol: float = 0.0) -> Arguments:
    """Interpreter, legalised kernel in the interpreter, and native code agree; gives the interpreter's answer.

    With `rtol` 0 every value must be the same.
    """
    expected = interpreted(kernel, args)
    runs = [(f"native {t.name}", ran_natively(kernel, args, t)) for t in NATIVE_TARGETS]
    # Machines that lack the same instructions get the same kernel, of which the interpreter says the same.
    forms = {form.text: (t, form) for t in NATIVE_TARGETS for form in [legalize(kernel, t)]}
    forms.pop(kernel.text, None)
    runs += [(f"legalised {t.name}", interpreted(form, args)) for t, form in forms.values()]
    for what, found in runs:
        for name, array in expected.items():
            if not isinstance(array, np.ndarray):
                continue
            # ml_dtypes arrays hold NaNs that NumPy's comparison does not know; f64 holds every value compared here.
            wide = array.dtype if array.dtype.kind in "iub" else np.float64
            pair = (found[name].astype(wide), array.astype(wide))
            np.testing.assert_allclose(*pair, rtol=rtol, atol=rtol, err_msg=f"{what}: {name}")
    return expected
