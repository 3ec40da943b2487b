"""`Choice`: the next token of every sequence, chosen where the logits are, so that several steps follow each other
without the host.

    choose = Choice(SamplingOptions(temperature=0.8, top_p=0.9), vocab=128256, device="cuda")
    tokens, positions, lengths = choose(logits, uniforms, positions, lengths, moves)

The steps are those of `rlx.models.sampling`, in the same order and in f64: with the uniform number that a `Sampler`
would draw next, the token is the one that it would choose. Penalties look at all tokens of an answer, and stay there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ir.tensor import building
from rlx.models.sampling import SamplingOptions
from rlx.ops.pointwise.arithmetic import ge, le, lt, where
from rlx.ops.pointwise.conversion import cast
from rlx.ops.pointwise.unary import exp
from rlx.ops.reduction.cumulative import cumsum
from rlx.ops.reduction.reductions import argmax, reduce_max, reduce_sum
from rlx.ops.reduction.sort import argsort, top_k
from rlx.ops.shape.movement import expand_dims, narrow, reshape
from rlx.ops.shape.selection import take_along_axis
from rlx.runtime.session import Session


class Choice:
    """A program of its own for some options; shares and temperatures are inputs of it."""

    def __init__(self, options: SamplingOptions, vocab: int, device: str) -> None:
        self.options = options
        self._program = Session(device).compile(choice_graph(options, vocab))
        names: list[str] = [name for name in ("temperature", "top_p", "min_p") if name in self._program.input_types]
        self._numbers = {name: np.array(getattr(options, name), np.float64) for name in names}

    @staticmethod
    def serves(options: SamplingOptions) -> bool:
        """Whether tokens depend on nothing but logits and chance."""
        penalties = (options.repetition_penalty, options.presence_penalty, options.frequency_penalty)
        return penalties == (1.0, 0.0, 0.0) and not options.logit_bias

    def __call__(
        self, logits: Any, uniforms: npt.NDArray[np.float64], positions: Any, lengths: Any, moves: Any
    ) -> tuple[Any, Any, Any]:
        """Tokens i32[B, 1] and where they stand, from logits f32[B, 1, V] and one number of [0, 1) for each row; rows
        move on by `moves`, 1 or 0."""
        given: dict[str, Any] = {
            "logits": logits,
            "positions": positions,
            "kv_len": lengths,
            "moves": moves,
            **self._numbers,
        }
        if self.options.temperature:
            given["uniforms"] = uniforms
        tokens, positions, lengths = self._program.run(given)
        return tokens, positions, lengths


def choice_graph(options: SamplingOptions, vocab: int) -> Graph:
    graph = Graph("choice")
    logits = graph.input("logits", ("B", 1, vocab), DType.F32)
    positions, lengths = graph.input("positions", ("B", 1), DType.I32), graph.input("kv_len", ("B",), DType.I32)
    moves = graph.input("moves", ("B",), DType.I32)
    with building(graph):
        rows = reshape(logits, (logits.shape[0], vocab))
        if options.temperature == 0:
            tokens = argmax(rows, -1)
        else:
            tokens = _drawn(graph, rows, options, vocab)
        moved = positions + expand_dims(moves, -1)
        graph.set_outputs([expand_dims(cast(tokens, DType.I32), -1), moved, lengths + moves])
    return graph


def _drawn(graph: Graph, logits: Any, options: SamplingOptions, vocab: int) -> Any:
    """`sampling.probabilities`, and the place of a uniform number in their running sum."""
    temperature = graph.input("temperature", (), DType.F64)
    scaled = cast(logits, DType.F64) / temperature
    weights = exp(scaled - reduce_max(scaled, -1, keepdims=True))
    if options.top_k is not None and options.top_k < vocab:
        # Conversion and division keep the order of the logits.
        least = narrow(top_k(logits, options.top_k)[0], -1, options.top_k - 1, 1)
        weights = where(ge(scaled, cast(least, DType.F64) / temperature), weights, 0.0)
    if options.top_p is not None and options.top_p < 1:
        share = graph.input("top_p", (), DType.F64)
        order = argsort(weights, descending=True)
        ranked = take_along_axis(weights, order, -1)
        before, total = cumsum(ranked, -1, exclusive=True), reduce_sum(ranked, -1, keepdims=True)
        # Back to where they stand: by the rank of each.
        kept = take_along_axis(lt(before, total * share), argsort(order), -1)
        weights = where(kept, weights, 0.0)
    if options.min_p is not None:
        least = reduce_max(weights, -1, keepdims=True) * graph.input("min_p", (), DType.F64)
        weights = where(ge(weights, least), weights, 0.0)
    running = cumsum(weights, -1)
    uniforms = expand_dims(graph.input("uniforms", ("B",), DType.F64), -1)
    reached = le(running, uniforms * narrow(running, -1, vocab - 1, 1))
    return reduce_sum(cast(reached, DType.I32), -1)
