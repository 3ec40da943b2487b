"""Loops whose rounds compute a few numbers: one kernel each, and the same numbers as Python's own loops."""

import numpy as np
import pytest
from op_kernel_checks import Program

import rlx
import rlx.numpy as rnp
from rlx.compile.compiler import CompilePipeline
from rlx.compile.lower import small_loops
from rlx.compile.lower.small_loops import MOST_ELEMENTS, ROUNDS
from rlx.ir.dims import as_dim
from rlx.ir.shape import Shape
from rlx.ops.control.bodies import build_body
from rlx.ops.control.branches import If, While
from rlx.ops.control.scans import Scan

F32, I64 = Shape((), "f32"), Shape((), "i64")


def kinds(function, *arrays):
    """The kinds of the kernels of a function, and of what is in its loops."""
    lir = CompilePipeline(target="cpu").compile(rlx.jit(function).trace(*arrays).graph).lir
    return [k.kind for k in lir.kernels if k.kind != "view"]


def test_a_scan_is_one_kernel():
    def decayed(xs):
        return rlx.scan(lambda c, x: (c * 0.9 + x, c), np.float32(0), xs)

    xs = np.linspace(-1, 1, 1001, dtype="f4")
    total, seen = rlx.jit(decayed)(xs)
    carry, wanted = np.float32(0), []
    for x in xs:
        wanted.append(carry)
        carry = carry * np.float32(0.9) + x
    np.testing.assert_array_equal(seen, wanted)
    assert total == carry and kinds(decayed, xs) == [ROUNDS]


def scan_of(body, *operands, **attributes):
    return Program(lambda *xs: Scan(body, **attributes)(*xs), *operands, kinds=[ROUNDS])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("trajectory", [False, True])
@pytest.mark.parametrize("length", [0, 1, 7])
def test_rows_and_carries(reverse, trajectory, length):
    """Carries that change places, a value that every step sees, rows of two elements; on every machine."""
    row = Shape((2,), "f32")
    body = build_body("step", lambda a, b, s, x: (b, a * s + x, x[::-1], rlx.numpy.sum(x)), a=row, b=row, s=F32, x=row)
    names = {"num_carry": 2, "num_bcast": 1, "num_xs": 1, "reverse": reverse, "save_trajectory": trajectory}
    program = scan_of(body, ((2,), "f32"), ((2,), "f32"), ((), "f32"), ((length, 2), "f32"), length=length, **names)
    rng = np.random.default_rng(length)
    a, b, xs = (rng.normal(size=s).astype("f4") for s in ((2,), (2,), (length, 2)))
    s = np.float32(0.3)
    found = program(a, b, s, xs)
    program.check_everywhere(a, b, s, xs)
    kept_a, kept_b, turned, sums = (np.zeros((length, 2), "f4") for _ in range(4))
    for t in reversed(range(length)) if reverse else range(length):
        a, b = b, a * s + xs[t]
        kept_a[t], kept_b[t], turned[t], sums[t] = a, b, xs[t][::-1], xs[t][0] + xs[t][1]
    wanted = [kept_a, kept_b] if trajectory else [a, b]
    for got, right in zip(found, [*wanted, turned, sums[:, 0]], strict=True):
        np.testing.assert_array_equal(got, right)


def test_one_kernel_for_every_length():
    program = scan_of(build_body("sum", lambda c, x: (c + x, c), c=I64, x=I64), ((), "i64"), (("N",), "i64"),
                      length=as_dim("N"), num_xs=1)  # fmt: skip
    for length in (0, 1, 50):
        total, before = program(np.int64(3), np.arange(length))
        assert total == 3 + length * (length - 1) // 2 and len(before) == length


@pytest.mark.parametrize("limit", [0, 1, 5, 1000])
def test_a_while_with_a_bound_is_one_kernel(limit):
    """Collatz, whose rounds are a branch."""
    below = build_body("more", lambda n, i: n != 1, n=I64, i=I64)
    halve, grow = build_body("halve", lambda n: n // 2, n=I64), build_body("grow", lambda n: 3 * n + 1, n=I64)
    step = build_body("step", lambda n, i: (If(halve, grow)(n % 2 == 0, n), i + 1), n=I64, i=I64)
    program = Program(While(below, step, max_iterations=limit), ((), "i64"), ((), "i64"), kinds=[ROUNDS])
    program.check_everywhere(np.int64(27), np.int64(0))
    for start in (1, 2, 27):
        n, i = start, 0
        while n != 1 and i < limit:
            n, i = (n // 2 if n % 2 == 0 else 3 * n + 1), i + 1
        assert program(np.int64(start), np.int64(0)) == [n, i]


@pytest.mark.parametrize("rounds", [0, 1, 6, 7, 8, 23])
def test_a_while_without_a_bound_goes_on_from_part_to_part(rounds, monkeypatch):
    monkeypatch.setattr(small_loops, "MOST_ROUNDS", 7)
    below = build_body("below_parts", lambda i, x, n: i < n, i=I64, x=F32, n=I64)
    step = build_body("step_parts", lambda i, x, n: (i + 1, x * 1.5 + 0.1), i=I64, x=F32, n=I64)
    program = Program(While(below, step, num_bcast=1), ((), "i64"), ((), "f32"), ((), "i64"), kinds=["loop"])
    x = np.float32(1)
    for _ in range(rounds):
        x = x * np.float32(1.5) + np.float32(0.1)
    assert program(np.int64(0), np.float32(1), np.int64(rounds)) == [rounds, x]


def test_the_rounds_of_a_while_are_in_one_kernel():
    below = build_body("few", lambda i: i < 100, i=I64)
    step = build_body("one_more", lambda i: i + 1, i=I64)
    program = Program(While(below, step), ((), "i64"), kinds=["loop"])
    (loop,) = program.executable.programs.main.steps
    assert [s.label[0] for s in loop.bodies[1].steps] == [ROUNDS]
    assert program(np.int64(-3)) == [100]


def test_a_branch_is_one_kernel():
    both = build_body("both", lambda a, b: (a + b, a < b), a=F32, b=F32)
    swapped = build_body("swapped", lambda a, b: (b - a, b < a), a=F32, b=F32)
    program = Program(If(both, swapped), ((1,), "f32"), ((), "f32"), ((), "f32"), kinds=[ROUNDS])
    for pred, wanted in ((0.5, [5.0, True]), (0.0, [1.0, False])):
        assert program(np.float32([pred]), np.float32(2), np.float32(3)) == wanted
        program.check_everywhere(np.float32([pred]), np.float32(2), np.float32(3))


def test_small_vectors_and_views():
    """A rigid turn of a point about an axis, by parts, in f64: as NumPy does it, round by round."""

    def turned(v, w):
        cross = rnp.stack([w[1] * v[2] - w[2] * v[1], w[2] * v[0] - w[0] * v[2], w[0] * v[1] - w[1] * v[0]])
        return v + 0.01 * cross

    def loop(v, w):
        return rlx.while_loop(lambda c: c[0] < 50, lambda c: (c[0] + 1, turned(c[1], w)), (np.int64(0), v))[1]

    v, w = np.array([1.0, 2.0, -0.5]), np.array([0.3, -0.2, 0.9])
    wanted = v
    for _ in range(50):
        wanted = wanted + 0.01 * np.cross(w, wanted)
    np.testing.assert_allclose(rlx.jit(loop)(v, w), wanted, rtol=1e-13)


def test_what_is_not_small_has_kernels_in_its_rounds():
    def decayed(xs):
        return rlx.scan(lambda c, x: (c * 0.5 + x, c), xs[0], xs)[0]

    small, large = np.ones((5, MOST_ELEMENTS), "f4"), np.ones((5, MOST_ELEMENTS + 1), "f4")
    assert ROUNDS in kinds(decayed, small) and "loop" in kinds(decayed, large)
    # Products of larger matrices have kernels that are better at it, and so have functions of many elements.
    assert "loop" in kinds(lambda a: rlx.scan(lambda c, x: (c @ a, None), a, None, length=3)[0], np.eye(4, dtype="f4"))
    assert "loop" in kinds(lambda xs: rlx.scan(lambda c, x: (rnp.tanh(c + x), None), xs[0], xs)[0], small)
    assert "loop" in kinds(decayed, small.astype(np.float16))


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
def test_small_products(dtype):
    """Matrices times each other, times vectors and turned, with numbers in the order of the steps; a batch of them."""

    def filtered(f, p, zs):
        def step(carry, z):
            x, p = carry
            return (f @ x + z, f @ p @ f.T + p), (x, rnp.sum(p, 0))

        return rlx.scan(step, (zs[0], p), zs)

    rng = np.random.default_rng(3)
    f, p, zs = ((rng.normal(size=s) * 3).astype(dtype) for s in ((3, 3), (3, 3), (6, 3)))
    if dtype != "i4":
        f = f / 4
    assert kinds(filtered, f, p, zs)[-1] == ROUNDS and "loop" not in kinds(filtered, f, p, zs)
    (x, last), (seen, sums) = rlx.jit(filtered)(f, p, zs)
    wanted_x, wanted_p = zs[0], p
    for t, z in enumerate(zs):
        np.testing.assert_allclose(seen[t], wanted_x, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(sums[t], wanted_p.sum(0), rtol=1e-4, atol=1e-5)
        wanted_x, wanted_p = f @ wanted_x + z, f @ wanted_p @ f.T + wanted_p
    np.testing.assert_allclose(x, wanted_x, rtol=1e-4)
    np.testing.assert_allclose(last, wanted_p, rtol=1e-4)


def test_batches_of_small_products():
    def turned(m, xs):
        return rlx.scan(lambda c, x: (rnp.matmul(m, c) + x, c), xs[0], xs)[0]

    rng = np.random.default_rng(4)
    m, xs = rng.normal(size=(2, 2, 2)), rng.normal(size=(5, 2, 2, 2))
    wanted = xs[0]
    for x in xs:
        wanted = m @ wanted + x
    assert "loop" not in kinds(turned, m, xs)
    np.testing.assert_allclose(rlx.jit(turned)(m, xs), wanted, rtol=1e-12)
