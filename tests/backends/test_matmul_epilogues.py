"""What is added to a product of many rows is addressed by row, also when the innermost leading axis has size 1."""

import numpy as np
import pytest

import rlx


@pytest.mark.parametrize("lead", [(3, 1), (1, 3), (3, 1, 1), (2, 3), (2, 1, 2, 1)])
@pytest.mark.parametrize("column", [1, 5])
@pytest.mark.parametrize("spread", [True, False], ids=["per row", "one row"])
def test_product_plus_operand(lead, column, spread):
    rng = np.random.default_rng(7)
    a, w = rng.standard_normal((*lead, 4)), rng.standard_normal((4, 5))
    other = rng.standard_normal((*(lead if spread else (1,) * len(lead)), column))
    result = rlx.jit(lambda a, w, other: a @ w + other)(a, w, other)
    np.testing.assert_allclose(result, a @ w + other, rtol=1e-13, atol=1e-13)
