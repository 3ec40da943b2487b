"""`Tensor`, the handle of a value in a graph, and `emit`, the one way in which ops enter graphs.

A tensor is what builders return, what Python functions see while they are traced, and what rules and decompositions
compute with. Its operators and methods are installed by `rlx.ops.tensor_methods`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from rlx.errors import TraceError
from rlx.ir.dims import Dim
from rlx.ir.dtype import DType, DTypeLike
from rlx.ir.foreign_arrays import host_array
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.index_checks import check_ids
from rlx.ir.leaves import Input, Project
from rlx.ir.op import Op
from rlx.ir.shape import Dims, Shape
from rlx.ir.tensor_data import TensorData

if TYPE_CHECKING:
    from rlx.ops.tensor_methods import TensorMethods
else:

    class TensorMethods:
        """Filled by rlx.ops.tensor_methods."""

        __slots__ = ()


class Tensor(TensorMethods):
    """A value in a graph. `shape` and `dtype` read as in NumPy; `type` is both."""

    __slots__ = ("graph", "id", "weak")

    # NumPy arrays must hand `array + tensor` to us instead of looping over elements.
    __array_priority__ = 1000

    graph: Graph
    id: NodeId
    # True for values that came from a Python scalar: they take the dtype of what they meet (NEP 50).
    weak: bool

    def __init__(self, graph: Graph, node_id: NodeId, weak: bool = False) -> None:
        self.graph, self.id, self.weak = graph, node_id, weak

    @property
    def node(self) -> Node:
        return self.graph.nodes[self.id]

    @property
    def type(self) -> Shape:
        return self.graph.nodes[self.id].shape

    @property
    def shape(self) -> Dims:
        return self.type.dims

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def ndim(self) -> int:
        return len(self.type.dims)

    @property
    def size(self) -> int | Dim:
        return self.type.element_count

    def project(self, index: int) -> Tensor:
        """Result `index` of a node with several results."""
        return emit_into(self.graph, Project(index), (self,))

    def named(self, name: str) -> Tensor:
        """The same tensor with a name for reports and dumps."""
        self.node.name = name
        return self

    # `==` is elementwise, so tensors are keys by identity.
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        types = ", ".join(str(s) for s in self.node.shapes)
        return f"Tensor({self.id} in @{self.graph.name}: {types})"

    def __index__(self) -> int:
        raise no_size(self)

    def __bool__(self) -> bool:
        raise self._no_value("used in a Python condition (if, while, and, or, not, assert)")

    def __float__(self) -> float:
        raise self._no_value("converted to a Python float")

    def __int__(self) -> int:
        raise self._no_value("converted to a Python int")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise self._no_value("converted to a NumPy array")

    def __array_ufunc__(self, ufunc: Any, method: str, *operands: Any, **options: Any) -> Any:
        """`array + tensor`, which NumPy hands over by its ufunc, is our operator; other ufuncs need values."""
        words = _OPERATORS.get(ufunc.__name__)
        if words is None or method != "__call__" or options or len(operands) != 2:
            raise self._no_value(f"given to np.{ufunc.__name__}")
        a, b = operands
        return getattr(a, words[0])(b) if isinstance(a, Tensor) else getattr(b, words[1])(a)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """NumPy's functions need values; those that ask for the type alone are answered."""
        if function in (np.shape, np.ndim, np.size):
            return getattr(args[0], function.__name__)
        raise self._no_value(f"given to np.{function.__name__}")

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """torch asks before it refuses what is not its own; behind its operators this error makes Python ask ours."""
        name = getattr(function, "__name__", function)
        raise TraceError(
            f"torch.{name} cannot take a value of a program that is being built. Write it with rlx.numpy and rlx.nn; "
            "a model of torch goes through torch.onnx.export and rlx.onnx.load"
        )

    def item(self, *index: int) -> NoReturn:
        raise self._no_value("converted to a Python number")

    def tolist(self) -> NoReturn:
        raise self._no_value("converted to a list")

    def _no_value(self, what: str, advice: str = "") -> TraceError:
        if self.graph.is_frozen:
            return leaked(self)
        advice = advice or (
            "Use rnp.where or rlx.cond for conditions, rlx.scan or rlx.while_loop for loops, rlx.numpy instead of "
            "numpy, and rlx.debug.print to look at values"
        )
        return TraceError(f"{self!r} has no value while the program is being built, so it cannot be {what}. {advice}")


# The ufuncs behind operators, by name: ours for a tensor on the left, and for one on the right.
_OPERATORS = {
    "less": ("__lt__", "__gt__"),
    "less_equal": ("__le__", "__ge__"),
    "greater": ("__gt__", "__lt__"),
    "greater_equal": ("__ge__", "__le__"),
    "equal": ("__eq__", "__eq__"),
    "not_equal": ("__ne__", "__ne__"),
    **{
        ufunc: (f"__{word}__", f"__r{word}__")
        for ufunc, word in {
            "add": "add",
            "subtract": "sub",
            "multiply": "mul",
            "divide": "truediv",
            "floor_divide": "floordiv",
            "remainder": "mod",
            "divmod": "divmod",
            "power": "pow",
            "matmul": "matmul",
            "bitwise_and": "and",
            "bitwise_or": "or",
            "bitwise_xor": "xor",
            "left_shift": "lshift",
            "right_shift": "rshift",
        }.items()
    },
}


def leaked(value: Tensor) -> TraceError:
    """The error for a value that outlives the function in which it was traced."""
    source = value.node.origin.source if value.node.origin else None
    made = f" made at {source.file}:{source.line}" if source else ""
    return TraceError(
        f"{value!r}{made} belongs to a program that is finished. A value that is traced inside jit, grad, scan or cond "
        "exists only there: return it from the function instead of storing it in a global, an attribute or a list"
    )


def no_size(value: Tensor) -> TraceError:
    """The error for a tensor where a Python integer is needed, most often as a size or an axis."""
    return value._no_value(
        "used as a size, an axis or another Python integer",
        "Take sizes from x.shape, mark an argument that holds one with static_argnums, or use a fixed size and "
        "rnp.where; rlx.fori_loop counts to a computed number, and rlx.dynamic_slice begins at one",
    )


class Scope:
    """One program being built by calling Python code; values of outer programs are captured as extra inputs."""

    def __init__(self, graph: Graph, can_capture: bool) -> None:
        self.graph = graph
        self.can_capture = can_capture
        self.captured: dict[tuple[int, int], Tensor] = {}
        self.captures: list[Tensor] = []
        self._arrays: dict[int, tuple[Any, NodeId]] = {}

    def capture(self, outer: Tensor) -> Tensor:
        key = (id(outer.graph), int(outer.id))
        if key not in self.captured:
            name = f"capture_{len(self.captures)}"
            node = self.graph.append(Input(name, outer.type))
            self.captured[key] = Tensor(self.graph, node.id, outer.weak)
            self.captures.append(outer)
        return self.captured[key]

    def array(self, value: Any) -> Tensor:
        """A constant per array object: a weight that a function closes over is stored once, not once per use."""
        found = self._arrays.get(id(value))
        if found is None:
            found = (value, self.graph.constant(value).id)
            self._arrays[id(value)] = found
        return Tensor(self.graph, found[1])


_scopes: ContextVar[tuple[Scope, ...]] = ContextVar("scopes", default=())


@contextmanager
def building(graph: Graph, can_capture: bool = False) -> Iterator[Scope]:
    """Inside, ops called on anything are added to `graph`; with `can_capture`, outer values become inputs of it."""
    scope = Scope(graph, can_capture)
    token = _scopes.set((*_scopes.get(), scope))
    try:
        yield scope
    finally:
        _scopes.reset(token)


def current_scope() -> Scope | None:
    scopes = _scopes.get()
    return scopes[-1] if scopes else None


def is_python_scalar(value: Any) -> bool:
    """A Python number, not a NumPy one: its dtype is weak."""
    return type(value) in (bool, int, float, complex)


def constant_data(value: Any, dtype: DTypeLike | None = None) -> TensorData:
    """The data of a value that becomes a constant. Python floats are f32, ints i32 (i64 when they do not fit)."""
    if dtype is None and is_python_scalar(value):
        wide = type(value) is int and not -(2**31) <= value < 2**31
        dtype = DType.I64 if wide else DType.of(type(value))
    array = host_array(value)
    if array.dtype == object:
        raise TraceError(f"a value of type {type(value).__name__} cannot become part of a program: {value!r}")
    if dtype is not None:
        array = _exact_cast(array, DType.of(dtype), value)
    return TensorData(array)


def _exact_cast(array: Any, dtype: DType, value: Any) -> Any:
    if dtype.is_int and array.dtype.kind == "i" and array.size == 1 and array != array.astype(dtype.numpy):
        raise TraceError(f"the Python integer {value} does not fit into {dtype}")
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(dtype.numpy)


def lift(value: Any, graph: Graph) -> Tensor:
    """`value` as a tensor of `graph`: its own tensors and ids pass, outer ones are captured, the rest is constant."""
    if isinstance(value, Tensor):
        return value if value.graph is graph else _foreign(value, graph)
    if isinstance(value, NodeId):
        return Tensor(graph, graph.node(value).id)
    scope = next((s for s in reversed(_scopes.get()) if s.graph is graph), None)
    if scope is not None and isinstance(value, np.ndarray) and value.size > 1:
        return scope.array(value)
    if isinstance(value, Dim):
        raise TraceError(f"the symbolic size {value} is used as a value; use rnp.dim_value({value}) to compute with it")
    return Tensor(graph, graph.constant(value).id, is_python_scalar(value) or getattr(value, "weak", False))


def _foreign(value: Tensor, graph: Graph) -> Tensor:
    scopes = _scopes.get()
    graphs = [s.graph for s in scopes]
    if graph in _identity(graphs) and value.graph in _identity(graphs):
        inner, outer = _identity(graphs).index(graph), _identity(graphs).index(value.graph)
        if outer < inner:
            # Each program in between captures it too.
            for scope in scopes[outer + 1 : inner + 1]:
                if not scope.can_capture:
                    raise TraceError(
                        f"{value!r} is read inside @{scope.graph.name}, which is traced on its own and cannot see it; "
                        "pass it as an argument"
                    )
                value = scope.capture(value)
            return value
    source = value.node.origin.source if value.node.origin else None
    made = f" made at {source.file}:{source.line}" if source else ""
    raise TraceError(
        f"{value!r}{made} is used in another program, @{graph.name}. A value that is traced inside jit, grad, scan or "
        "cond exists only there: return it from the function instead of storing it in a global, an attribute or a list"
    )


class _identity(list[Graph]):
    """A list searched by identity: graphs compare structurally, which is neither meant nor cheap here."""

    def __contains__(self, item: object) -> bool:
        return any(g is item for g in self)

    def index(self, item: Graph, *_: Any) -> int:
        return next(i for i, g in enumerate(self) if g is item)


def emit_into(graph: Graph, op: Op, operands: Sequence[Any], shape: Shape | None = None) -> Any:
    """Append `op` to `graph`; one Tensor, or a tuple of them when the op has several results."""
    tensors = [lift(x, graph) for x in operands]
    node = graph.append(op, [t.id for t in tensors], shape)
    if len(node.shapes) == 1:
        return Tensor(graph, node.id)
    return tuple(Tensor(graph, graph.append(Project(i), (node.id,)).id) for i in range(len(node.shapes)))


# For calls that must know without a call: the variable, and its value where no program is being traced.
NOT_TRACING: tuple[ContextVar[Any], object] = (_scopes, ())


def target_graph(operands: Sequence[Any]) -> Graph | None:
    """Where an op called on `operands` belongs: the program being traced, else the operands' own graph, else none."""
    scopes = _scopes.get()
    if scopes:
        return scopes[-1].graph
    for x in operands:
        if isinstance(x, Tensor):
            if x.graph.is_frozen:
                raise leaked(x)
            return x.graph
    return None


def emit(op: Op, operands: Sequence[Any]) -> Any:
    """Apply `op`: recorded when a program is being built, evaluated at once on plain arrays otherwise."""
    graph = target_graph(operands)
    if graph is not None:
        return emit_into(graph, op, operands)
    return _eager(op, operands)


def eager_eval(op: Op, operands: Sequence[Any]) -> Any:
    """Evaluate one op on arrays by its definition."""
    arrays = [constant_data(x).array for x in operands]
    shapes = [Shape(a.shape, DType.of(a.dtype)) for a in arrays]
    fewest, most = op.arity()
    if not (fewest <= len(arrays) and (most is None or len(arrays) <= most)):
        raise op.fail(f"needs {fewest} operands, got {len(arrays)}")
    op.infer(*shapes)
    for position, sizes in op.index_operands(*shapes).items():
        check_ids(op, arrays[position], sizes, f"operand {position}")
    return op.eval(*arrays)


# Replaced by the runtime, which returns rlx.Array values.
_eager: Callable[[Op, Sequence[Any]], Any] = eager_eval


def set_eager(run: Callable[[Op, Sequence[Any]], Any]) -> None:
    global _eager
    _eager = run


def node_index(value: Any) -> int:
    """The id behind a handle or an id."""
    return int(value.id) if isinstance(value, Tensor) else operator.index(value)
