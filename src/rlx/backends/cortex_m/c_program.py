"""Integer program → C99: one header and one source with weights, tables and the steps in order.

The caller owns the memory: an arena of a size that the header states, in which the input lies when a run begins and the
result when it ends. Weights and tables are const, so that they stay in flash.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.cortex_m.arena import Arena, plan_arena
from rlx.backends.cortex_m.c_arithmetic import C_TYPES, helpers_for
from rlx.backends.cortex_m.c_steps import Body, program_name
from rlx.quantized import Program
from rlx.quantized.products import Product
from rlx.quantized.values import Value

_FAST_INCLUDES = """\
#if defined(__ARM_FEATURE_SIMD32) && defined(__OPTIMIZE__) && !defined(RLX_PLAIN)
#include <arm_acle.h>
#define RLX_FAST
#if defined(__ARM_FEATURE_MVE)
#include <arm_mve.h>
#define RLX_HELIUM
#endif
#endif
"""


@dataclass(frozen=True)
class CProgram:
    """The texts, and what they take: bytes of the arena, of weights, and of tables (biases and multipliers)."""

    name: str
    header: str
    source: str
    arena: Arena
    weight_bytes: int
    table_bytes: int
    # Of every step: bytes of its weights, and of tables that no step before it has.
    step_bytes: tuple[tuple[int, int], ...]


def c_program(program: Program, features_of: int | None = None) -> CProgram:
    """C of a program; its file names and functions begin with the program's name.

    With `features_of`, the number of a step, there is also a function that computes what this step reads, and no more.
    """
    name = program_name(program)
    arena = plan_arena(program)
    body = Body(program, arena)
    step_bytes = []
    for step in program.steps:
        before = (body.weight_bytes, body.table_bytes)
        body.add(step)
        step_bytes.append((body.weight_bytes - before[0], body.table_bytes - before[1]))
    return CProgram(
        name,
        _header(name, program, arena, features_of),
        _source(name, body, features_of),
        arena,
        body.weight_bytes,
        body.table_bytes,
        tuple(step_bytes),
    )


def _header(name: str, program: Program, arena: Arena, features_of: int | None) -> str:
    upper, x, y = name.upper(), program.input, program.result
    features = ""
    if features_of is not None:
        step = program.steps[features_of]
        features = f"""
/* What {step.name} reads, without running it or what comes after it. */
typedef {_c_type(program.operands(step)[0])} {name}_feature_t;
const {name}_feature_t *{name}_features(void *arena);
"""
    return f"""\
/* {name}: an integer network. Generated; do not edit. */
#ifndef {upper}_H
#define {upper}_H

#include <stdint.h>

/* The memory of a run, aligned to 4 bytes; nothing in it is kept from run to run. */
#define {upper}_ARENA_BYTES {arena.size}u

/* Codes [{", ".join(map(str, x.dims))}]; each stands for (code - zero point) * scale. The run overwrites them. */
#define {upper}_INPUT_SIZE {x.size}u
#define {upper}_INPUT_SCALE {_c_float(x.scale)}
#define {upper}_INPUT_ZERO_POINT {x.zero_point}
typedef {_c_type(x)} {name}_input_t;

/* {"A label" if not y.dims else f"Codes [{', '.join(map(str, y.dims))}]"}. */
#define {upper}_OUTPUT_SIZE {y.size}u
#define {upper}_OUTPUT_SCALE {_c_float(y.scale)}
#define {upper}_OUTPUT_ZERO_POINT {y.zero_point}
typedef {_c_type(y)} {name}_output_t;

/* Where to put the input before a run, and where the output lies after it. */
{name}_input_t *{name}_input(void *arena);
const {name}_output_t *{name}_output(const void *arena);
void {name}_run(void *arena);
{features}
#endif
"""


def _c_type(value: Value) -> str:
    return C_TYPES[str(value.dtype)]


def _c_float(value: float) -> str:
    return f"{value!r}f" if "." in repr(value) or "e" in repr(value) else f"{value!r}.0f"


def _features(name: str, body: Body, features_of: int) -> str:
    offset = body.arena.offsets[body.program.steps[features_of].inputs[0]]
    return f"""
const {name}_feature_t *{name}_features(void *arena)
{{
    uint8_t *bytes = (uint8_t *)arena;

{"".join(body.calls[: body.calls_before[features_of]])}    return (const {name}_feature_t *)(bytes + {offset});
}}
"""


def _has_small_sums(program: Program) -> bool:
    """Whether every product has sums below 2^30 and multipliers below 1/2, for which there is a shorter way."""
    products = [s for s in program.steps if isinstance(s, Product)]
    return all(s.largest_sum(program.operands(s)[0]) < 2**30 and s.multipliers.shift.min() >= 1 for s in products)


def _source(name: str, body: Body, features_of: int | None) -> str:
    arena, values = body.arena, body.program.values
    features = "" if features_of is None else _features(name, body, features_of)
    # Structures first: functions take them.
    texts = sorted(body.kernels, key=lambda text: not text.startswith("struct"))
    kernels_text = "\n".join(texts)
    common = helpers_for(kernels_text)
    fast = "RLX_FAST" in kernels_text
    includes = _FAST_INCLUDES if fast else ""
    if fast and _has_small_sums(body.program):
        includes += "#define RLX_SMALL_SUMS\n"
    return f"""\
/* {name}: an integer network. Generated; do not edit. */
#include "{name}.h"

{includes}
{common}
{kernels_text}
{chr(10).join(body.constants)}
{name}_input_t *{name}_input(void *arena)
{{
    return ({name}_input_t *)arena + {arena.offsets[0] // values[0].dtype.size_bytes};
}}

const {name}_output_t *{name}_output(const void *arena)
{{
    return (const {name}_output_t *)arena + {arena.offsets[-1] // values[-1].dtype.size_bytes};
}}

void {name}_run(void *arena)
{{
    uint8_t *bytes = (uint8_t *)arena;

{"".join(body.calls)}}}
{features}"""
