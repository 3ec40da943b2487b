"""The cost of programs, against counts made by hand. What XLA says of whole steps is in tests/many_devices."""

import rlx
import rlx.numpy as rnp
from rlx.backends.xla.lowering import lowered
from rlx.compile.cost import Cost, cost_of
from rlx.trace.tracing import Spec


def cost(fn, *args):
    return cost_of(lowered(rlx.jit(fn).lower(*args).graph))


def test_products_are_counted():
    found = cost(lambda a, b: a @ b, Spec((3, 4)), Spec((4, 5)))
    # The result is no value in between.
    assert found == Cost(2 * 3 * 4 * 5, (12 + 20) * 4, 15 * 4, 0)
    grads = rlx.grad(lambda a, b: rnp.sum(a @ b), (0, 1))
    assert cost(grads, Spec((2, 3, 4)), Spec((2, 4, 5))).flops == 2 * 2 * (2 * 3 * 4 * 5)


def test_maps_are_fused_and_products_stored():
    size = 32 * 32 * 4

    def chain(a, b):
        return rnp.sum(rnp.tanh(a @ b) * 2.0 + 1.0)

    assert cost(chain, Spec((32, 32)), Spec((32, 32))).peak_bytes == size
    # What two products read is in memory for both; the first operand is gone when the last is made.
    two = cost(lambda a: (rnp.exp(a) @ a) @ (a @ rnp.exp(a)), Spec((32, 32)))
    assert two.peak_bytes == 3 * size


def test_expensive_values_with_several_readers_are_stored_and_cheap_ones_made_again():
    def both(kind):
        return lambda a: (kind(a)[:16] @ a, kind(a)[16:] + a[:16])

    cheap, dear = (cost(both(kind), Spec((32, 32))) for kind in (lambda a: a + 1.0, rnp.exp))
    assert cheap.peak_bytes == 16 * 32 * 4 and dear.peak_bytes > cheap.peak_bytes


def test_equal_values_are_computed_once():
    once = cost(lambda a: a @ a, Spec((8, 8)))
    assert cost(lambda a: (a @ a) + (a @ a), Spec((8, 8))).flops == once.flops


def test_weights_may_be_read_in_any_order():
    found = cost(lambda a, w: a @ w.T, Spec((4, 8)), Spec((16, 8)))
    assert found.peak_bytes == 0 and found.read_bytes == (32 + 128) * 4
