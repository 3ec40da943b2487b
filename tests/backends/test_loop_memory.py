"""What a program needs between its kernels counts its loops: the plan says so before a run, also of checkpoints."""

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx import train
from rlx.backends.program.loop_plan import working_bytes as of_program
from rlx.backends.program.plan import Plan
from rlx.backends.program.program import build_programs
from rlx.compile.memory.loops import working_bytes

ROWS, WIDTH = 16, 32
CARRY = ROWS * WIDTH * 4


def scan_gradient(length, checkpoints, reverse=False):
    """The gradient to the weights of c = c + tanh(c @ w), as a graph."""

    def loss(w, start):
        def step(carry, _):
            return carry + 0.01 * rnp.tanh(carry @ w), None

        last, _ = rlx.scan(step, start, None, length=length, reverse=reverse, num_checkpoints=checkpoints)
        return rnp.mean(rnp.square(last))

    return rlx.jit(rlx.value_and_grad(loss)).lower(rlx.Spec((WIDTH, WIDTH)), rlx.Spec((ROWS, WIDTH))).graph


def planned(graph):
    pipeline = rlx.CompilePipeline.new("cpu")
    return working_bytes(pipeline.compile(graph).lir, pipeline.generator)


@pytest.mark.parametrize("length", [1024, 1000, 1023])
def test_checkpoints_need_states_and_a_segment(length):
    """K + ceil(length / K) carries, and an amount that depends on neither."""
    rest = set()
    for checkpoints in (32, 45, 64, 100, 128, 256):
        needed = planned(scan_gradient(length, checkpoints))
        rest.add(needed - CARRY * (checkpoints - (-length // checkpoints)))
    # The weights' gradient is as large as two carries; it is summed inside of a segment and over all of them.
    assert max(rest) <= 12 * CARRY
    assert planned(scan_gradient(length, 0)) >= CARRY * length


@pytest.mark.parametrize(("length", "checkpoints"), [(9, 0), (9, 3), (10, 4), (16, 2)])
def test_plans_are_what_runs_take(length, checkpoints):
    graph = scan_gradient(length, checkpoints)
    result = rlx.CompilePipeline.new("cpu").compile(graph)
    program = build_programs(result).main
    taken = Plan(program, {}).arena_bytes
    assert planned(graph) == of_program(program) == taken > result.lir.arena_size
    compiled = rlx.Session("cpu").compile(graph)
    assert compiled.memory_info().arena == taken
    assert f"arena with what loops need inside: {taken} bytes" in str(compiled.report)


def loops(x):
    """A while and a branch, whose bodies need memory of their own."""
    twice = rnp.concatenate([x, x])
    grown = rlx.while_loop(lambda c: rnp.sum(c) < 100.0, lambda c: c * 2.0 + rnp.flip(c, 0), twice)
    chosen = rlx.cond(
        rnp.sum(grown) > 0.0, lambda c: rnp.sum(rnp.exp(c @ c.T), 0), lambda c: rnp.sum(c @ c.T, 0), grown
    )
    return rnp.sum(chosen)


def test_symbolic_sizes():
    lowered = rlx.jit(loops).lower(rlx.Spec(("B", 16)))
    program = build_programs(rlx.CompilePipeline.new("cpu").compile(lowered.graph)).main
    needed = of_program(program)
    assert str(planned(lowered.graph)) == str(needed)
    for size in (1, 3, 64):
        assert needed.bind({"B": size}) == Plan(program, {"B": size}).arena_bytes


def test_step_plans_count_loops():
    """A step that scans over layers keeps their values inside of the loop, and a limit is held to all of it."""

    def loss(params, batch):
        last, _ = rlx.scan(lambda x, w: (rnp.tanh(x @ w), None), batch, params)
        return rnp.mean(rnp.square(last))

    optimizer = rlx.optim.sgd(0.1)
    step = train.make_step(loss, optimizer)
    state = train.init_state(np.zeros((6, WIDTH, WIDTH), "f4"), optimizer)
    batch = np.ones((ROWS, WIDTH), "f4")
    lowered = step.lower(state, batch)
    compiled = rlx.Session("cpu").compile(lowered.graph)
    arena = step.plan(state, batch).arena_bytes
    assert arena == compiled.memory_info().arena
    assert arena > rlx.CompilePipeline.new("cpu").compile(lowered.graph).lir.arena_size
