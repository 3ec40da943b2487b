"""C that trains the last layer of an exported network on the device: steps of SGD on the codes before it.

The features are what the network computes, in integers, up to its last dense layer; the head that learns is f32, begins
as the network's own layer, and lies in memory that the caller owns. exp and log are written out: there is no library.
"""

from __future__ import annotations

from string import Template

import numpy as np

from rlx.backends.cortex_m.c_steps import rows
from rlx.errors import RlxError
from rlx.quantized import Argmax, Dense, Program, Softmax
from rlx.quantized.values import Value

_HEADER = Template("""\
/* Training of the last layer of $name on the device. Generated; do not edit. */
#ifndef ${upper}_LEARN_H
#define ${upper}_LEARN_H

#include "$name.h"

#define ${upper}_FEATURES ${inputs}u
#define ${upper}_CLASSES ${outputs}u

/* The layer that learns, one row of weights per class. */
struct ${name}_head {
    float weights[${outputs}u * ${inputs}u];
    float bias[${outputs}u];
};

/* Begin with the layer that the network has. */
void ${name}_head_start(struct ${name}_head *head);

/* The class that the head gives to features, which `${name}_features` (in $name.h) computes from an input. */
uint32_t ${name}_classify(const struct ${name}_head *head, const ${name}_feature_t *features);

/* One step of gradient descent on one example; the loss, -log of the share of the label, before it. */
float ${name}_learn(struct ${name}_head *head, const ${name}_feature_t *features, uint32_t label, float rate);

#endif
""")

_SOURCE = Template("""\
/* Training of the last layer of $name on the device. Generated; do not edit. */
#include "${name}_learn.h"

static const int8_t first_weights[${upper}_CLASSES * ${upper}_FEATURES] = {
$weights
};
static const float first_scales[${upper}_CLASSES] = {
$scales
};
static const float first_bias[${upper}_CLASSES] = {
$bias
};

/* A float as its bits: sign, 8 of the exponent, 23 of the fraction. */
union bits {
    float value;
    uint32_t word;
};

/* e^x for x <= 0: a power of two, times a polynomial of what is left. */
static float power(float x)
{
    float t = x * 1.44269504f, f;
    int32_t whole = t < -126.0f ? -126 : (int32_t)t;
    union bits scale;

    if (t < -126.0f) {
        return 0.0f;
    }
    f = (t - (float)whole) * 0.693147181f;
    scale.word = (uint32_t)(whole + 127) << 23;
    return scale.value * (1.0f + f * (1.0f + f * (0.5f + f * (0.166666667f + f * (0.0416666667f + f * (0.00833333333f
        + f * 0.00138888889f))))));
}

/* log x for x >= 1: that of a power of two, and a series for what is left in [1, 2). */
static float logarithm(float x)
{
    union bits parts;
    float s, square;
    int32_t exponent;

    parts.value = x;
    exponent = (int32_t)(parts.word >> 23) - 127;
    parts.word = (parts.word & 0x7fffffu) | 0x3f800000u;
    s = (parts.value - 1.0f) / (parts.value + 1.0f);
    square = s * s;
    return (float)exponent * 0.693147181f + 2.0f * s * (1.0f + square * (0.333333333f + square * (0.2f + square
        * (0.142857143f + square * 0.111111111f))));
}

static float feature(${name}_feature_t code)
{
    return (float)(code - ($zero)) * $scale;
}

void ${name}_head_start(struct ${name}_head *head)
{
    uint32_t c, i;

    for (c = 0u; c < ${upper}_CLASSES; c++) {
        head->bias[c] = first_bias[c];
        for (i = 0u; i < ${upper}_FEATURES; i++) {
            uint32_t at = c * ${upper}_FEATURES + i;
            head->weights[at] = (float)first_weights[at] * first_scales[c];
        }
    }
}

static uint32_t scores(const struct ${name}_head *head, const ${name}_feature_t *features, float *result)
{
    uint32_t c, i, best = 0u;

    for (c = 0u; c < ${upper}_CLASSES; c++) {
        float sum = head->bias[c];
        for (i = 0u; i < ${upper}_FEATURES; i++) {
            sum += head->weights[c * ${upper}_FEATURES + i] * feature(features[i]);
        }
        result[c] = sum;
        best = sum > result[best] ? c : best;
    }
    return best;
}

uint32_t ${name}_classify(const struct ${name}_head *head, const ${name}_feature_t *features)
{
    float found[${upper}_CLASSES];

    return scores(head, features, found);
}

float ${name}_learn(struct ${name}_head *head, const ${name}_feature_t *features, uint32_t label, float rate)
{
    float found[${upper}_CLASSES], largest, total = 0.0f, loss;
    uint32_t c, i;

    largest = found[scores(head, features, found)];
    loss = largest - found[label];
    for (c = 0u; c < ${upper}_CLASSES; c++) {
        found[c] = power(found[c] - largest);
        total += found[c];
    }
    for (c = 0u; c < ${upper}_CLASSES; c++) {
        float step = rate * (found[c] / total - (c == label ? 1.0f : 0.0f));
        for (i = 0u; i < ${upper}_FEATURES; i++) {
            head->weights[c * ${upper}_FEATURES + i] -= step * feature(features[i]);
        }
        head->bias[c] -= step;
    }
    return loss + logarithm(total);
}
""")

_MAIN = Template("""\
/* Learns from examples.bin, codes and an i32 label each, $epochs times; losses.bin gets the mean loss of each time. */
#include "${name}_learn.h"
#include "host_files.h"

static uint32_t arena[(${upper}_ARENA_BYTES + 3u) / 4u];
static struct ${name}_head head;

int main(void)
{
    host_file losses = host_open("losses.bin", 1);
    uint32_t taken = ${upper}_INPUT_SIZE * (uint32_t)sizeof(${name}_input_t), epoch;

    ${name}_head_start(&head);
    for (epoch = 0u; epoch < ${epochs}u; epoch++) {
        host_file examples = host_open("examples.bin", 0);
        float loss = 0.0f, mean;
        uint32_t count = 0u;
        int32_t label;

        if (!host_is_open(examples) || !host_is_open(losses)) {
            return 2;
        }
        while (host_transfer(examples, ${name}_input(arena), taken, 0) && host_transfer(examples, &label, 4u, 0)) {
            loss += ${name}_learn(&head, ${name}_features(arena), (uint32_t)label, ${rate}f);
            count++;
        }
        host_close(examples);
        mean = count > 0u ? loss / (float)count : 0.0f;
        if (!host_transfer(losses, &mean, 4u, 1)) {
            return 3;
        }
    }
    host_close(losses);
    return 0;
}
""")

EPOCHS, RATE = 5, 0.05


def last_layer(program: Program) -> tuple[int, Dense, Value]:
    """The number of the step that can learn, the step, and the value that it reads."""
    steps = list(enumerate(program.steps))
    while steps and isinstance(steps[-1][1], Argmax | Softmax):
        steps.pop()
    if not steps or not isinstance(steps[-1][1], Dense):
        raise RlxError(f"cortex-m: {program.name} must end with a dense layer, whose weights can learn")
    index, step = steps[-1]
    assert isinstance(step, Dense)
    return index, step, program.operands(step)[0]


def learning_files(name: str, program: Program) -> dict[str, str]:
    """The layer that learns, and a program that teaches it from a file."""
    _, step, x = last_layer(program)
    units = step.weights.scales.astype(np.float64) * x.scale
    words = {
        "name": name,
        "upper": name.upper(),
        "inputs": x.size,
        "outputs": step.channels,
        "weights": rows([str(int(w)) for w in step.weights.codes.reshape(-1)]),
        "scales": rows([f"{s:.9e}f" for s in step.weights.scales.tolist()]),
        "bias": rows([f"{b:.9e}f" for b in (step.bias * units).tolist()]),
        "zero": x.zero_point,
        "scale": f"{x.scale:.9e}f",
        "epochs": EPOCHS,
        "rate": repr(RATE),
    }
    return {
        f"{name}_learn.h": _HEADER.substitute(words),
        f"{name}_learn.c": _SOURCE.substitute(words),
        "learn_main.c": _MAIN.substitute(words),
    }
