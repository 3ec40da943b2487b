"""Tensors of torch and arrays of JAX as arguments of programs, and through DLPack in both directions."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx.errors import TraceError

torch = pytest.importorskip("torch")
jnp = pytest.importorskip("jax.numpy")

pytestmark = pytest.mark.peers

DTYPES = ["float32", "float16", "bfloat16", "float64", "int8", "int64", "bool"]
EXACT = [*DTYPES, "float8_e4m3fn", "float8_e5m2", "complex64"]


@pytest.mark.parametrize("name", DTYPES)
def test_tensors_are_arguments(name):
    x = torch.arange(6).reshape(2, 3).to(getattr(torch, name))
    found = rlx.jit(lambda p: p["w"].T)({"w": x})
    assert found.dtype == rlx.DType.of(name).numpy
    np.testing.assert_array_equal(found.astype("f4"), x.float().numpy().T)
    np.testing.assert_array_equal(rlx.jit(lambda v: v)(x.T).astype("f4"), x.T.float().numpy())


def test_tensors_in_transforms_and_operators():
    x = torch.arange(3.0)
    assert rlx.grad(lambda v: (v * v).sum())(x).tolist() == [0, 2, 4]
    assert rlx.vmap(lambda v: v + 1)(x).tolist() == [1, 2, 3]
    assert (rnp.ones(3) + x).tolist() == [1, 2, 3]
    assert rlx.jit(lambda v: v + x)(np.ones(3, "f4")).tolist() == [1, 2, 3]


def test_a_tensor_with_a_gradient_says_how_to_drop_it():
    with pytest.raises(rlx.RlxError, match=r"detach"):
        rlx.jit(lambda v: v)(torch.ones(3, requires_grad=True))


@pytest.mark.parametrize("name", EXACT)
def test_torch_through_dlpack(name):
    x = torch.arange(6).reshape(2, 3).to(getattr(torch, name))
    there = rnp.from_dlpack(x)
    assert there.dtype == rlx.DType.of(name).numpy
    again = torch.from_dlpack(there)
    assert again.dtype == x.dtype and torch.equal(again.to(torch.complex64), x.to(torch.complex64))


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int32"])
def test_jax_through_dlpack(name):
    x = jnp.arange(4).astype(name)
    there = rnp.from_dlpack(x)
    np.testing.assert_array_equal(np.asarray(there), np.asarray(x))
    np.testing.assert_array_equal(np.asarray(jnp.from_dlpack(there)), np.asarray(x))


@pytest.mark.parametrize("call", [torch.relu, torch.nn.functional.gelu, torch.nn.Linear(3, 2), torch.sum], ids=str)
def test_functions_of_torch_in_a_program_say_what_to_write(call):
    with pytest.raises(TraceError, match=r"torch\.\w+ cannot take a value of a program .* rlx\.onnx\.load"):
        rlx.jit(lambda x: call(x))(np.ones((2, 3), "f4"))


def test_tensors_beside_values_of_a_program():
    """torch is asked first, and its operators leave the answer to rlx."""
    w, x = torch.tensor([1.0, 2.0, 3.0]), np.float32([3, 2, 1])
    for f in (lambda a, b: a * b, lambda a, b: a - b, lambda a, b: a @ b, lambda a, b: a > b, lambda a, b: a**b):
        np.testing.assert_allclose(rlx.jit(lambda x, f=f: f(w, x))(x), f(w.numpy(), x))
        np.testing.assert_allclose(rlx.jit(lambda x, f=f: f(x, w))(x), f(x, w.numpy()))
