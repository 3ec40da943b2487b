"""The table of programs that run on JAX and on rlx: how one is declared, its arguments, and what is computed of it."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from libraries import JAX, RLX, RLX_BY_IMPORT, TOLERANCE, assert_agree, jax

import rlx

# What is computed of a program: its value; reverse and forward derivatives; a Hessian times a vector (forward over
# reverse); and derivatives of several examples at once (in reverse, or forward where JAX has no reverse).
MODES = ("value", "vjp", "jvp", "hvp", "vmap")
LANES = 2

Maker = Callable[[np.random.Generator], np.ndarray]


class Program(NamedTuple):
    """`function(m, **arguments(seed))` returns a tree of arrays; float and complex arguments have derivatives."""

    function: Callable
    arguments: Callable[[int], dict[str, np.ndarray]]
    modes: tuple[str, ...]


PROGRAMS: dict[str, Program] = {}


def program(without: tuple[str, ...] = (), **makers: Maker):
    """Enter a function into the table. `without` names modes that JAX cannot compute of it, or not usefully."""

    def arguments(seed):
        rng = np.random.default_rng(seed)
        return {name: make(rng) for name, make in makers.items()}

    def enter(function):
        assert function.__name__ not in PROGRAMS
        PROGRAMS[function.__name__] = Program(function, arguments, tuple(m for m in MODES if m not in without))
        return function

    return enter


def normal(*dims, scale=1.0) -> Maker:
    return lambda rng: np.asarray(rng.standard_normal(dims) * scale)


def weight(fan_in, *rest) -> Maker:
    """A matrix that keeps the size of what it multiplies."""
    return normal(fan_in, *rest, scale=fan_in**-0.5)


def near_one(*dims) -> Maker:
    return lambda rng: np.asarray(1 + 0.2 * rng.standard_normal(dims))


def uniform(low, high, *dims) -> Maker:
    return lambda rng: np.asarray(rng.uniform(low, high, dims))


def integers(high, *dims) -> Maker:
    return lambda rng: np.asarray(rng.integers(0, high, dims, dtype=np.int32))


def complex_normal(*dims) -> Maker:
    return lambda rng: np.asarray(rng.standard_normal(dims) + 1j * rng.standard_normal(dims))


def positive_definite(n) -> Maker:
    def make(rng):
        a = rng.standard_normal((n, n)) * n**-0.5
        return a @ a.T + np.eye(n)

    return make


class Question(NamedTuple):
    """Everything that both libraries are given: arguments, directions, cotangents, and several examples."""

    moving: dict[str, np.ndarray]
    fixed: dict[str, np.ndarray]
    directions: dict[str, np.ndarray]
    cotangents: list[np.ndarray]
    lanes: tuple[dict[str, np.ndarray], dict[str, np.ndarray]]


def question(program, dtype):
    """The question to ask about a program; JAX knows the shapes of the results."""
    examples = [_parts(program.arguments(seed), dtype) for seed in range(LANES + 1)]
    (moving, fixed), lanes = examples[0], [jax.tree.map(lambda *xs: np.stack(xs), *p) for p in zip(*examples[1:])]
    rng = np.random.default_rng(99)
    results = jax.eval_shape(lambda moving: _inexact(JAX, program.function(JAX, **moving, **fixed)), moving)
    directions, cotangents = (jax.tree.map(lambda x: _noise(rng, x), tree) for tree in (moving, results))
    return Question(moving, fixed, directions, cotangents, tuple(lanes))


def _parts(arguments, dtype):
    """The arguments that have derivatives, in the precision of `dtype`, and the others."""
    precise = {"f": {"f32": np.float32, "f64": np.float64}, "c": {"f32": np.complex64, "f64": np.complex128}}
    moving = {k: v.astype(precise[v.dtype.kind][dtype]) for k, v in arguments.items() if v.dtype.kind in "fc"}
    return moving, {k: v for k, v in arguments.items() if k not in moving}


def _noise(rng, like):
    noise = rng.standard_normal(like.shape)
    return np.asarray(noise + 1j * rng.standard_normal(like.shape) if like.dtype.kind == "c" else noise, like.dtype)


def _inexact(m, results):
    """The results that have derivatives."""
    return [y for y in jax.tree.leaves(results) if m.np.issubdtype(y.dtype, m.np.inexact)]


def _to_wirtinger(m, gradients):
    return jax.tree.map(m.to_wirtinger, gradients)


def answer(m, program, asked, mode):
    """One mode of a program in library `m`, as a tree of arrays."""

    def function(moving, fixed=asked.fixed):
        return program.function(m, **moving, **fixed)

    def results(moving, fixed=asked.fixed):
        return _inexact(m, function(moving, fixed))

    def loss(moving):
        return sum(m.np.sum(m.np.real(m.np.conj(c) * y)) for c, y in zip(asked.cotangents, results(moving)))

    def reverse(moving, fixed=asked.fixed):
        cotangents = [m.from_wirtinger(c) for c in asked.cotangents]
        return _to_wirtinger(m, m.vjp(lambda moving: results(moving, fixed), moving)[1](cotangents)[0])

    def forward(moving, fixed=asked.fixed):
        return m.jvp(lambda moving: results(moving, fixed), (moving,), (asked.directions,))[1]

    def hessian_product(moving):
        gradient = m.grad(loss)
        return m.jvp(lambda moving: _to_wirtinger(m, gradient(moving)), (moving,), (asked.directions,))[1]

    modes = {
        "value": lambda: m.jit(function)(asked.moving),
        "vjp": lambda: m.jit(reverse)(asked.moving),
        "jvp": lambda: m.jit(forward)(asked.moving),
        "hvp": lambda: m.jit(hessian_product)(asked.moving),
        "vmap": lambda: m.jit(m.vmap(reverse if "vjp" in program.modes else forward))(*asked.lanes),
    }
    return modes[mode]()


def backends():
    """Where programs are compared: by the definition of the ops and as compiled, or where `RLX_BACKEND` sends them."""
    return [rlx.knobs.backend] if rlx.knobs.backend else [b for b in ("reference", "cpu") if rlx.is_available(b)]


def check(program, dtype):
    """Every mode of a program agrees between JAX and rlx."""
    asked = question(program, dtype)
    for mode in program.modes:
        expected = answer(JAX, program, asked, mode)
        for backend in backends():
            with rlx.knobs(backend=backend):
                got = answer(RLX, program, asked, mode)
            assert_agree({f"{mode} on {backend}": got}, {f"{mode} on {backend}": expected}, TOLERANCE[dtype])


def check_by_import(program):
    """Value and reverse derivative of a program agree when rlx's modules stand in for JAX's, all else equal."""
    asked = question(program, "f64")
    for mode in [mode for mode in ("value", "vjp") if mode in program.modes]:
        got, expected = (answer(m, program, asked, mode) for m in (RLX_BY_IMPORT, JAX))
        assert_agree({mode: got}, {mode: expected}, TOLERANCE["f64"])


def agree(function, *arrays, modes=("value", "vjp", "jvp", "vmap"), dtype="f64"):
    """`function(m, *arrays)` has the same values and derivatives in both libraries; examples differ by a factor."""

    names = [f"x{i}" for i in range(len(arrays))]

    def arguments(seed):
        known = zip(names, map(np.asarray, arrays))
        return {name: x * 0.9**seed if x.dtype.kind in "fc" else x for name, x in known}

    check(Program(lambda m, **named: function(m, *(named[name] for name in names)), arguments, modes), dtype)
