"""What ops with nested programs share.

A body is a frozen `Graph`; its Inputs, in declaration order, are its operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

import numpy as np

from rlx.ir.graph import Graph
from rlx.ir.leaves import Param
from rlx.ir.op import Op
from rlx.ir.shape import Shape
from rlx.ir.tensor import building, lift

Array = np.ndarray[Any, np.dtype[Any]]


class BodyOp(Op):
    """An op that holds programs. It has an effect when one of them has."""

    @property
    def effect(self) -> bool:  # type: ignore[override]
        return any(node.op.effect for body in self.bodies.values() for node in body.nodes)

    def check(self) -> None:
        for field, body in self.bodies.items():
            for node in body.nodes:
                if isinstance(node.op, Param):
                    raise self.fail(f"{field} @{body.name} has the param {node.op.key!r}; pass weights as operands")


class TransformableBodyOp(BodyOp):
    """A `BodyOp` with rules of its own, which are better than the usual ones in that they know more.

    `value_and_jvp(primals, tangents)` returns the results too, so that bodies run once for both. `vjp_wrt(wrt, ct, y,
    operands)` computes only the cotangents in `wrt`. `form_for(rule, active)` may give a function of the operands that
    replaces the op before `rule` is applied to it.
    """

    def value_and_jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        raise NotImplementedError

    def vjp_wrt(self, wrt: tuple[bool, ...], ct: Any, y: Any, operands: Sequence[Any]) -> Sequence[Any]:
        raise NotImplementedError

    def form_for(self, rule: str, active: tuple[bool, ...]) -> Callable[..., Any] | None:
        return None

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], y: Any) -> Any:
        return self.value_and_jvp(primals, tangents)[1]

    def vjp(self, ct: Any, y: Any, *operands: Any) -> Sequence[Any]:
        return self.vjp_wrt(tuple(x.dtype.is_inexact for x in operands), ct, y, operands)


def output_types(body: Graph) -> tuple[Shape, ...]:
    """The types of the outputs."""
    return tuple(body.shape(o) for o in body.outputs)


def input_types(body: Graph) -> tuple[Shape, ...]:
    """The types of the Inputs, in declaration order."""
    return tuple(n.shape for n in body.inputs)


def types_text(types: Sequence[Shape]) -> str:
    return f"({', '.join(str(t) for t in types)})"


RunBody: TypeAlias = Callable[[Graph, Sequence[Array]], list[Array]]

_runner: ContextVar[RunBody | None] = ContextVar("rlx_body_runner", default=None)


@contextmanager
def bodies_run_by(run: RunBody) -> Iterator[None]:
    """Inside, in this thread or task, bodies are run by `run`: as compiled programs, for instance."""
    token = _runner.set(run)
    try:
        yield
    finally:
        _runner.reset(token)


def run_body(body: Graph, operands: Sequence[Array]) -> list[Array]:
    """The outputs of `body`, by its definition unless `bodies_run_by` says how."""
    run = _runner.get()
    if run is not None:
        return run(body, operands)
    # Not on the road of a compiled program, which imports nothing: a fork in another thread would leave its lock held.
    from rlx.ir.interpret import interpret

    return interpret(body, operands, outside=False)


def one_or_tuple(results: Sequence[Any]) -> Any:
    """Ops give a bare value for one result and a tuple for any other number."""
    return results[0] if len(results) == 1 else tuple(results)


def build_body(name: str, build: Callable[..., Any], /, **inputs: Shape) -> Graph:
    """The body that `build` computes from Inputs of the given names and types.

    >>> from rlx.ops.pointwise.arithmetic import add
    >>> body = build_body("next", lambda c: add(c, c), carry=Shape((2,), "f32"))
    >>> print(str(body).strip())
    mir @next(%carry: f32[2]) {
      %0: f32[2] = add(%carry, %carry)
      return %0
    }
    """
    graph = Graph(name)
    with building(graph):
        results = build(*(graph.input(key, shape) for key, shape in inputs.items()))
        outputs = [lift(r, graph) for r in (results if isinstance(results, tuple) else (results,))]
    graph.set_outputs(outputs)
    return graph.freeze()
