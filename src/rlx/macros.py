"""`rlx.macros`: a function that is a model, and the order of the stages of a pipeline.

@rlx_model(device="cpu")
def mlp(x: "f32[B, 4]", w: "f32[4, 2]"):
    return rlx.relu(x @ w)

y = mlp(x, w)                  # named sizes and dtypes are checked
graph = mlp.build_graph()      # the program
compiled = mlp.compiled()      # compiled once for the process

plan = pipeline_schedule("training", stages={"load": [], "step": ["load"], "save": ["step"]})
plan.ORDER                     # ("load", "step", "save")
"""

from __future__ import annotations

import ast
import functools
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, overload

import numpy as np

from rlx.errors import BindingError, DTypeError, OpError, RlxError, TraceError
from rlx.ir.binding import infer_binding
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ir.shape import Shape
from rlx.ir.tensor import building, lift
from rlx.runtime.compiled_graph import CompiledGraph
from rlx.runtime.session import Session
from rlx.trace.pytree import TreeDef, tree_flatten
from rlx.trace.tracing import Spec


class Param:
    """The type of an argument that is a weight: `w: Param("f32[4, 2]")`. It is set by `f.compiled().set_param`."""

    def __init__(self, type: str | Shape | Spec) -> None:
        self.type = _shape(type)

    def __repr__(self) -> str:
        return f"Param({str(self.type)!r})"


def _shape(type: Any) -> Shape:
    return type.type if isinstance(type, Spec) else Shape.of(type)


class _Built(NamedTuple):
    graph: Graph
    tree: TreeDef


class Model:
    """A function with types, as a program; see `rlx_model`. Safe to use from several threads."""

    def __init__(self, function: Callable[..., Any], device: str, precision: str | None, check: bool) -> None:
        functools.update_wrapper(self, function)
        self.function, self.device, self.precision, self.check = function, device, precision, check
        self._name = function.__name__
        self._types = _argument_types(function)
        self._lock = threading.Lock()
        self._built: _Built | None = None
        self._compiled: CompiledGraph | None = None

    def build_graph(self) -> Graph:
        """The program, recorded anew."""
        return self._build().graph

    def compiled(self) -> CompiledGraph:
        """The compiled program, the same for all callers; it is traced and compiled when it is first asked for."""
        with self._lock:
            if self._compiled is None:
                self._built = self._build()
                self._compiled = Session(self.device, precision=self.precision).compile(self._built.graph)
            return self._compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it: inputs by position or by name, as the function takes them; weights are set on `compiled()`."""
        compiled = self.compiled()
        assert self._built is not None
        given = self._inputs(self._built.graph, args, kwargs)
        return self._built.tree.unflatten(compiled.run(given))

    def _build(self) -> _Built:
        graph = Graph(self._name)
        with building(graph):
            if self._types is None:
                result = self.function(graph)
            else:
                leaves = [
                    graph.param(name, t.type) if isinstance(t, Param) else graph.input(name, t)
                    for name, t in self._types.items()
                ]
                result = self.function(*leaves)
            outputs, tree = tree_flatten(result)
            if not outputs:
                raise TraceError(
                    f"rlx_model: {self._name} must return a tensor, or a tree of them, it returns {result!r}"
                )
            graph.set_outputs([lift(x, graph) for x in outputs])
        return _Built(graph, tree)

    def _inputs(self, graph: Graph, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        declared = {str(node.name): node.shape for node in graph.inputs}
        if len(args) > len(declared):
            raise BindingError(f"{self._name} takes {len(declared)} inputs ({', '.join(declared)}), got {len(args)}")
        given = dict(zip(declared, args))
        twice = [name for name in kwargs if name in given]
        unknown = [name for name in kwargs if name not in declared]
        missing = [name for name in declared if name not in given and name not in kwargs]
        for names, problem in ((twice, "is given twice"), (unknown, "is not an input"), (missing, "is missing")):
            if names:
                raise BindingError(f"{self._name}: {names[0]!r} {problem}; the inputs are {', '.join(declared)}")
        given |= kwargs
        return self._checked(declared, given) if self.check else given

    def _checked(self, declared: Mapping[str, Shape], given: Mapping[str, Any]) -> dict[str, Any]:
        arrays = {name: np.asarray(given[name]) for name in declared}
        for name, shape in declared.items():
            if DType.of(arrays[name].dtype) is not shape.dtype:
                got = DType.of(arrays[name].dtype)
                raise DTypeError(f"{self._name}: {name!r} is {shape}, got {got}; convert it (astype)")
        try:
            infer_binding((name, shape, arrays[name].shape) for name, shape in declared.items())
        except RlxError as error:
            raise BindingError(f"{self._name}: {error}") from None
        return arrays

    def __repr__(self) -> str:
        return f"rlx_model({self._name}, device={self.device!r})"


def _argument_types(function: Callable[..., Any]) -> dict[str, Shape | Param] | None:
    """Argument -> its type; None for a function of the graph itself, which has one argument without a type."""
    parameters = list(inspect.signature(function).parameters.values())
    empty = inspect.Parameter.empty
    if len(parameters) == 1 and parameters[0].annotation is empty:
        return None
    found: dict[str, Shape | Param] = {}
    for parameter in parameters:
        place = f"rlx_model: argument {parameter.name!r} of {function.__name__}"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or parameter.default is not empty:
            raise TraceError(f"{place} must be a plain one, without default; only tensors are arguments")
        if parameter.annotation is empty:
            raise TraceError(f'{place} needs a type, such as {parameter.name}: "f32[B, 4]"')
        try:
            found[parameter.name] = _type_of(parameter.annotation)
        except (RlxError, TypeError, ValueError) as error:
            raise TraceError(f'{place}: {parameter.annotation!r} is not a type such as "f32[B, 4]": {error}') from None
    return found


def _type_of(annotation: Any) -> Shape | Param:
    """A type as it is written behind an argument; in modules that postpone annotations it is source text."""
    if isinstance(annotation, Param):
        return annotation
    if not isinstance(annotation, str):
        return _shape(annotation)
    try:
        node = ast.parse(annotation, mode="eval").body
    except SyntaxError:
        return Shape.of(annotation)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return Shape.of(node.value)
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "Param" and len(node.args) == 1:
        text = node.args[0]
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            return Param(text.value)
    return Shape.of(annotation)


@overload
def rlx_model(function: Callable[..., Any]) -> Model: ...


@overload
def rlx_model(
    function: None = None, *, device: str = "cpu", precision: str | None = None, check: bool = True
) -> Callable[[Callable[..., Any]], Model]: ...


def rlx_model(
    function: Callable[..., Any] | None = None,
    *,
    device: str = "cpu",
    precision: str | None = None,
    check: bool = True,
) -> Any:
    """A decorator: the function as a program that is compiled once for the process.

    Its arguments have types as text (`x: "f32[B, 4]"`, names are sizes), and `Param("f32[4, 2]")` for weights. A
    function with one argument without type gets the graph instead, and declares its inputs itself. `check` refuses
    arguments of other types at the call, naming them.
    """
    if function is None:
        return functools.partial(Model, device=device, precision=precision, check=check)
    return Model(function, device, precision, check)


class Schedule(NamedTuple):
    """The stages of a pipeline in an order in which each comes after those that it depends on."""

    name: str
    ORDER: tuple[str, ...]
    DEPS: Mapping[str, tuple[str, ...]]


def pipeline_schedule(name: str, stages: Mapping[str, Sequence[str]]) -> Schedule:
    """The order of the stages `{stage: [those it depends on]}`: of those that could come next, the first one given.

    >>> pipeline_schedule("p", stages={"b": ["a"], "a": [], "c": ["a", "b"]}).ORDER
    ('a', 'b', 'c')
    """
    deps = {stage: tuple(needed) for stage, needed in stages.items()}
    for stage, needed in deps.items():
        if isinstance(stages[stage], str):
            raise OpError(
                f"pipeline_schedule {name!r}: what {stage!r} depends on must be a list, got {stages[stage]!r}"
            )
        for other in needed:
            if other not in deps:
                known = ", ".join(deps)
                raise OpError(
                    f"pipeline_schedule {name!r}: {stage!r} depends on {other!r}, which is not a stage; "
                    f"stages are {known}"
                )
    order: list[str] = []
    waiting = dict(deps)
    while waiting:
        ready = next((stage for stage, needed in waiting.items() if all(n in order for n in needed)), None)
        if ready is None:
            cycle = " -> ".join(_cycle(waiting))
            raise OpError(f"pipeline_schedule {name!r}: the stages depend on each other in a circle: {cycle}")
        order.append(ready)
        del waiting[ready]
    return Schedule(name, tuple(order), MappingProxyType(deps))


def _cycle(waiting: Mapping[str, Sequence[str]]) -> list[str]:
    """Stages that depend on each other, the first one again at the end; every waiting one leads to such a circle."""
    path = [next(iter(waiting))]
    while True:
        following = next(n for n in waiting[path[-1]] if n in waiting)
        if following in path:
            return [*path[path.index(following) :], following]
        path.append(following)
