"""Code for Hopper printed from loop IR (`group_emit`): it is, letter for letter, that of the text which was measured on
a GPU, and what has no spelling is refused. What the kernels mean is shown by `test_group_products.py`."""

from dataclasses import replace

import pytest
from group_kernels import attention_kernel
from group_kernels import product_kernel as toy_product
from tile_products import SMALL, product_of

from rlx.backends.cuda.hopper.form import HopperForm
from rlx.backends.cuda.hopper.group_emit import group_text
from rlx.backends.cuda.hopper.product import product_text
from rlx.errors import BackendError
from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.matmul import Epilogue, Matrix, Product
from rlx.kernels.emit.llvm_codegen import compile_optimized_assembly
from rlx.kernels.gpu.matmul_groups import product_kernel
from rlx.kernels.machines import machine_named
from rlx.kernels.specs.expr import apply, operand

SM_90A = machine_named("sm_90a")
F32, BF16 = DType.F32, DType.BF16
BOTH = [operand(i, F32) for i in range(2)]
RESIDUAL = Epilogue((apply("add", *BOTH),), (Matrix("r", F32, 1024),))
BIAS = Epilogue((apply("add", *BOTH),), (Matrix("r", F32, 0),))

PLAIN = [
    (f"{dtype} {a_turned:d}{b_turned:d}", product_of("B", 1024, 512, dtype, a_turned, b_turned))
    for dtype, a_turned, b_turned in (
        (BF16, False, True),
        (BF16, False, False),
        (BF16, True, True),
        (BF16, True, False),
        (DType.F16, False, True),
        (DType.F8E4M3, False, True),
    )
]
FINISHED = [
    ("residual", product_of("B", 1024, 512, b_turned=True, epilogue=RESIDUAL)),
    ("bias, odd", product_of("B", 1023, 512, b_turned=True, epilogue=BIAS)),
    ("gated", product_of("B", 1024, 512, b_turned=True, epilogue=Epilogue((apply("mul", *BOTH),)), products=2)),
    ("symbolic", Product("B", "N", "K", Matrix("a", BF16, "K"), (Matrix("b0", BF16, "N"),), Matrix("c", F32, "N"))),
]


def form_of(product):
    operands = product.epilogue.operands if product.epilogue else ()
    matrices = (product.a, *product.bs, *product.cs, *operands)
    return HopperForm(product, [*(m.name for m in matrices), "B", "N", "K"], SM_90A, None)


def check_same_code(product, columns):
    form = form_of(product)
    assert form.has_loop_kernel(sharing=1)
    written = product_text("product", form._shape(columns), form.finish, SM_90A.triple)
    wanted = compile_optimized_assembly(written, SM_90A, "a product")
    assert form.ptx(columns) == wanted and "wgmma.mma_async" in wanted and "cp.async.bulk.tensor.2d" in wanted


@pytest.mark.parametrize(("name", "product"), PLAIN[:2] + FINISHED[2:], ids=lambda x: x if isinstance(x, str) else "")
def test_code_is_that_of_the_text(name, product):
    check_same_code(product, 64)


WIDER = [(f"{name}, {128 if len(p.bs) > 1 else 192}", p, 128 if len(p.bs) > 1 else 192) for name, p in PLAIN + FINISHED]
WIDER += [(f"{name}, {columns}", product, columns) for name, product in PLAIN[:2] for columns in (128, 256)]


@pytest.mark.targets
@pytest.mark.parametrize(("name", "product", "columns"), WIDER, ids=[name for name, _, _ in WIDER])
def test_code_of_wider_tiles_is_that_of_the_text(name, product, columns):
    check_same_code(product, columns)


def test_stages_of_two_types_and_shared_tiles_have_text_of_their_own():
    form = form_of(product_of(64, 64, 64))
    assert form.has_loop_kernel(1) and not form.has_loop_kernel(2)
    mixed = replace(product_of(64, 64, 64, DType.F8E4M3, b_turned=True), b=Matrix("b0", DType.F8E5M2, 1, 64))
    form = form_of(mixed)
    assert not form.has_loop_kernel(1) and "e4m3.e5m2" in form.ptx(64)


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        (product_kernel(product_of(8, 8, 4), SMALL), "rows of 128 bytes|128 bytes a row"),
        (toy_product(), "one call for pairs"),
        (attention_kernel(), "one call for pairs"),
    ],
    ids=["small tiles", "toy product", "toy attention"],
)
def test_what_has_no_spelling_is_refused(kernel, why):
    with pytest.raises(BackendError, match=f"kernel {kernel.name} has no code for warp groups: .*({why})"):
        group_text(kernel, SM_90A)
