"""Asynchronous kernels in random order: right ones give the right answer, and every planted fault is found."""

from __future__ import annotations

import numpy as np
import pytest
from group_kernels import (
    ATTENTION_FAULTS,
    PRODUCT_FAULTS,
    attention_arguments,
    attention_kernel,
    product_arguments,
    product_kernel,
)

from rlx.kernels.ir.interpret import KernelFault, interpret
from rlx.kernels.ir.verify import verify

KERNELS = {"product": (product_kernel, product_arguments), "attention": (attention_kernel, attention_arguments)}
FAULTS = [("product", fault, message) for fault, message in PRODUCT_FAULTS.items()]
FAULTS += [("attention", fault, message) for fault, message in ATTENTION_FAULTS.items()]


@pytest.mark.parametrize("name", KERNELS)
def test_right_kernels_are_right_in_any_order(name):
    make, arguments = KERNELS[name]
    kernel = make()
    verify(kernel)
    for seed in range(50):
        args, wanted = arguments()
        interpret(kernel, args, seed=seed)
        np.testing.assert_allclose(list(args.values())[-1], wanted, rtol=1e-5, atol=1e-6)


def test_there_are_twenty_faults_or_more():
    assert len(FAULTS) >= 20
    texts = {
        name: {make(fault).text for kernel, fault, _ in FAULTS if kernel == name} for name, (make, _) in KERNELS.items()
    }
    assert sum(map(len, texts.values())) == len(FAULTS), "each fault is another kernel"
    assert all(make().text not in texts[name] for name, (make, _) in KERNELS.items())


@pytest.mark.parametrize(("name", "fault", "message"), FAULTS, ids=[f"{n}: {f}" for n, f, _ in FAULTS])
def test_a_planted_fault_is_found(name, fault, message):
    """Under every seed: what is wrong does not depend on which order happens to come."""
    make, arguments = KERNELS[name]
    kernel = make(fault)
    verify(kernel)  # the rules of the IR do not see it
    for seed in range(10):
        with pytest.raises(KernelFault, match=message):
            interpret(kernel, arguments()[0], seed=seed)
