"""RF builders against Python's complex numbers."""

import cmath
import math

import numpy as np
import pytest

from rlx.errors import BindingError
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.shape import Shape
from rlx.ops.signal import rf


def scalar(value):
    return np.asarray([value], np.float32)


def test_values_are_f32_of_one_element():
    assert rf.scalar_f32() == Shape((1,), "f32")
    g = Graph("g")
    g.set_outputs([rf.const_f32(g, 2.5), rf.const_f32(g, -1.0, Shape((2, 3)))])
    one, many = interpret(g, [])
    np.testing.assert_array_equal(one, scalar(2.5))
    np.testing.assert_array_equal(many, np.full((2, 3), -1.0, np.float32))


@pytest.mark.parametrize(("a", "b"), [(3 + 4j, 1 - 2j), (0.5j, -2 + 0j), (-1.5 - 0.25j, 0.125 + 8j)])
def test_complex_arithmetic(a, b):
    re, im = rf.complex_div(scalar(a.real), scalar(a.imag), scalar(b.real), scalar(b.imag))
    np.testing.assert_allclose(complex(re[0], im[0]), a / b, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(rf.mag2(scalar(a.real), scalar(a.imag))[0], abs(a) ** 2, rtol=1e-6)


def test_input_impedance_and_reflection():
    gm, cgs, lg, ls, f, z0 = 0.04, 150e-15, 12e-9, 0.6e-9, 2.4e9, 50.0
    omega = 2 * math.pi * f
    # The gate sees its own inductor, the capacitor, the source inductor and the resistance that feedback makes of it.
    z = 1j * omega * lg + 1 / (1j * omega * cgs) + 1j * omega * ls + gm * ls / cgs
    g = Graph("lna")
    leaves = [g.input(n, rf.scalar_f32()) for n in ("gm", "cgs", "lg", "ls", "f")]
    zr, zi = rf.cs_degen_z_in(*leaves)
    g.set_outputs([zr, zi, *rf.s11_from_z(zr, zi, z0)])
    zr, zi, sr, si = interpret(g, [scalar(v) for v in (gm, cgs, lg, ls, f)])
    # X is the difference of large numbers, so its error is relative to those.
    np.testing.assert_allclose(zr[0], z.real, rtol=1e-6)
    np.testing.assert_allclose(zi[0], z.imag, atol=1e-6 / (omega * cgs))
    computed = complex(zr[0], zi[0])
    assert cmath.isclose(complex(sr[0], si[0]), (computed - z0) / (computed + z0), rel_tol=1e-5)


def test_params_are_found_by_name():
    g = Graph("g")
    x = g.input("x", (1,))
    a, b = g.param("a", (1,)), g.param("b", (1,))
    assert rf.find_param_node(g, "b") == b.id
    assert rf.find_param_node(g, "x") is None and rf.find_param_node(g, "c") is None and x.id == 0
    assert rf.find_param_nodes(g, ["b", "a"]) == [b.id, a.id]
    with pytest.raises(BindingError, match="no param 'c'; it has: a, b"):
        rf.find_param_nodes(g, ["a", "c"])
