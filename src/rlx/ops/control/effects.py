"""Ops with effects: `DebugPrint`, `HostCallback`, `RuntimeAssert`. They run in program order and are never merged.

`effect = True` on the class keeps such a node alive even when nothing reads its result; passes ask `node.op.effect`.
Each of them also returns its first operand (a callback: its declared results), so that a program can make later
values wait for it:

    y = debug_print("y = {}", y)
    y = runtime_assert(y > 0, "y must be positive", y)

Derivatives pass through the operand that is handed on; an effect happens once, not again for tangents or gradients.
Under vmap, printing and callbacks happen once per example, in the order of the batch (`lanes` counts the mapped axes);
an assertion must hold for all examples.

Programs are data, so a callback is stored by name. `register_callback` names a Python function; a program that was
written to a file finds its callbacks again when they are registered under the same names.
"""

from __future__ import annotations

import string
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from rlx.errors import AssertionFailed, NoJvpRule, NoVjpRule, OpError
from rlx.ir.dtype import DType
from rlx.ir.op import Op, op
from rlx.ir.shape import Shape, Size
from rlx.ir.tensor import Tensor
from rlx.ops.define.operands import dims_of, dtype_of
from rlx.ops.define.rules import put_batch_first
from rlx.ops.define.samples import Sample, sample, spec

__all__ = [
    "DebugPrint",
    "HostCallback",
    "RuntimeAssert",
    "debug_print",
    "host_callback",
    "register_callback",
    "runtime_assert",
    "unregister_callback",
]

Array = np.ndarray[Any, np.dtype[Any]]
Callback = Callable[..., Any]


@op("debug_print")
class DebugPrint(Op):
    """Prints `format`, with one `{}` per operand, to standard output; returns the first operand.

    A field may carry NumPy's or Python's format after a colon where the operand is a scalar: `{:.3f}`. All operands
    share the first `lanes` axes; one line is printed for every index along them.
    """

    primitive = True
    effect = True
    precision_class = "data_movement"

    format: str
    lanes: int = 0

    def check(self) -> None:
        try:
            fields = self._fields_of_format()
        except ValueError as error:
            raise self.fail(f"the format {self.format!r} cannot be read: {error}") from None
        if any(fields):
            raise self.fail(f"fields have no names or numbers, only {{}}; got the format {self.format!r}")

    def _fields_of_format(self) -> list[str]:
        return [name for _, name, _, _ in string.Formatter().parse(self.format) if name is not None]

    def infer(self, x: Shape, *more: Shape) -> Shape:
        wanted, given = len(self._fields_of_format()), 1 + len(more)
        if wanted not in (0, given):
            raise self.fail(f"the format {self.format!r} has {wanted} fields for {given} operands")
        _require_lanes(self, self.lanes, (x, *more))
        return x

    def eval(self, x: Array, *more: Array) -> Array:
        for index in np.ndindex(x.shape[: self.lanes]):
            values = [np.asarray(v[index]) for v in (x, *more)]
            printed = [v.item() if v.ndim == 0 else v for v in values]
            sys.stdout.write(self.format.format(*printed) + "\n")
        return x

    def jvp(self, primals: Any, tangents: Any, y: Any) -> Any:
        return tangents[0]

    def vjp(self, ct: Any, y: Any, x: Any, *more: Any) -> Any:
        return ct, *(None for _ in more)

    def batch(self, size: Size, operands: Any, batched: Any) -> Any:
        return _with_one_more_lane(self, self.lanes, size, operands, batched)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls("x = {}"), spec(2, 3))
        yield sample(cls("loss {:.3f} after {} steps"), spec(), spec(dtype="i32"))
        yield sample(cls("reached"), spec(0, 3), dtypes=("f32", "i32", "bool", "c64"))
        yield sample(cls("{}"), spec("B", 2), B=3)
        yield sample(cls("{} and {}", 2), spec(2, 3), spec(2, 3, 2, dtype="i32"))


def _require_lanes(op: Op, lanes: int, operands: Sequence[Shape]) -> None:
    leading = {x.dims[:lanes] for x in operands}
    if lanes < 0 or len(leading) > 1 or any(x.rank < lanes for x in operands):
        given = ", ".join(map(str, operands))
        raise op.fail(f"lanes={lanes} needs that many leading axes, the same for all operands, got {given}")


def _with_one_more_lane(op: Op, lanes: int, size: Size, operands: Sequence[Tensor], batched: Sequence[bool]) -> Any:
    return op.replace(lanes=lanes + 1)(*(put_batch_first(x, b, size) for x, b in zip(operands, batched)))


@op("runtime_assert")
class RuntimeAssert(Op):
    """Stops the program with `message` unless every element of `condition` holds; returns x."""

    primitive = True
    effect = True
    precision_class = "data_movement"

    message: str

    def infer(self, x: Shape, condition: Shape) -> Shape:
        if condition.dtype is not DType.BOOL:
            raise self.fail(f"needs a bool condition, got {condition}; compare with something")
        return x

    def eval(self, x: Array, condition: Array) -> Array:
        if not condition.all():
            where = np.argwhere(~condition)[0].tolist() if condition.ndim else ""
            place = f" (first at index {where} of {list(condition.shape)})" if condition.ndim else ""
            raise AssertionFailed(f"{self.mnemonic}: {self.message}{place}")
        return x

    def jvp(self, primals: Any, tangents: Any, y: Any) -> Any:
        return tangents[0]

    def vjp(self, ct: Any, y: Any, x: Any, condition: Any) -> Any:
        return ct, None

    def batch(self, size: Size, operands: Any, batched: Any) -> Any:
        x, condition = operands
        return self(put_batch_first(x, batched[0], size), condition)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls("all true"), spec(2, 3), spec(3, dtype="bool", values=True), dtypes=("f32", "i32", "bool"))
        yield sample(cls("a scalar"), spec(), spec(dtype="bool", values=True))
        yield sample(cls("nothing to check"), spec("B"), spec("B", 0, dtype="bool"), B=2)


_callbacks: dict[str, Callback] = {}


def register_callback(name: str, function: Callback) -> str:
    """Let programs call `function` as `name`; registering the same function twice is harmless."""
    if not callable(function):
        raise OpError(f"register_callback: {name!r} needs a function, got {type(function).__name__}")
    if _callbacks.get(name, function) is not function:
        raise OpError(
            f"register_callback: another function is called {name!r}; choose another name or unregister it first"
        )
    _callbacks[name] = function
    return name


def unregister_callback(name: str) -> None:
    """Forget a callback; programs that call it fail from now on."""
    if _callbacks.pop(name, None) is None:
        raise OpError(f"unregister_callback: no callback is called {name!r}; there are: {_known()}")


def _known() -> str:
    return ", ".join(map(repr, sorted(_callbacks))) or "none"


@op("host_callback")
class HostCallback(Op):
    """Calls the Python function registered as `callback` with the operands as NumPy arrays.

    It returns one array for each of `results`, which declare their types. Without declared results its return value is
    ignored and the first operand is passed on. All operands share the first `lanes` axes; the function is called for
    every index along them, and its results are stacked.
    """

    primitive = True
    effect = True
    precision_class = "data_movement"

    callback: str
    results: tuple[Shape, ...] = ()
    lanes: int = 0

    def infer(self, *operands: Shape) -> Shape | tuple[Shape, ...]:
        if not operands and (not self.results or self.lanes):
            raise self.fail(f"callback {self.callback!r} has neither operands nor results; declare at least one result")
        _require_lanes(self, self.lanes, operands)
        if not self.results:
            return operands[0]
        leading = operands[0].dims[: self.lanes] if self.lanes else ()
        stacked = tuple(r.with_dims((*leading, *r.dims)) for r in self.results)
        return stacked if len(stacked) > 1 else stacked[0]

    def eval(self, *operands: Array) -> Any:
        function = _callbacks.get(self.callback)
        if function is None:
            raise self.fail(
                f"no function is registered as {self.callback!r}; call register_callback({self.callback!r}, function) "
                f"before the program runs (registered: {_known()})"
            )
        leading = operands[0].shape[: self.lanes] if operands else ()
        stacked = tuple(np.empty((*leading, *r.static_dims), r.dtype.numpy) for r in self.results)
        for index in np.ndindex(leading):
            returned = function(*(np.asarray(x[index]) for x in operands))
            for array, one in zip(stacked, self._results_of(returned)):
                array[index] = one
        if not self.results:
            return operands[0]
        return stacked if len(stacked) > 1 else stacked[0]

    def _results_of(self, returned: Any) -> tuple[Array, ...]:
        """The declared results in what one call returned."""
        if not self.results:
            return ()
        values = returned if isinstance(returned, tuple | list) else (returned,)
        if len(values) != len(self.results):
            raise self.fail(f"{self.callback!r} declares {len(self.results)} results, but returned {len(values)}")
        return tuple(self._checked(value, shape) for value, shape in zip(values, self.results))

    def _checked(self, value: Any, shape: Shape) -> Array:
        array = np.asarray(value)
        if array.shape != shape.dims or not np.can_cast(array.dtype, shape.dtype.numpy, "same_kind"):
            raise self.fail(
                f"{self.callback!r} declares a result {shape}, but returned {array.dtype} of shape {list(array.shape)}"
            )
        return array.astype(shape.dtype.numpy)

    def jvp(self, primals: Any, tangents: Any, y: Any) -> Any:
        if self.results:
            raise NoJvpRule(self.mnemonic, self._no_derivative)
        return tangents[0]

    def vjp(self, ct: Any, y: Any, *operands: Any) -> Any:
        if self.results:
            raise NoVjpRule(self.mnemonic, self._no_derivative)
        return ct, *(None for _ in operands[1:])

    @property
    def _no_derivative(self) -> str:
        return (
            f"what {self.callback!r} computes is known to Python only; wrap the call in a function with rlx.custom_vjp "
            "or rlx.custom_jvp, or put stop_gradient on its operands"
        )

    def batch(self, size: Size, operands: Any, batched: Any) -> Any:
        return _with_one_more_lane(self, self.lanes, size, operands, batched)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        double = register_callback("rlx.samples.double", _double)
        both = register_callback("rlx.samples.min_and_max", _min_and_max)
        yield sample(cls(double, ("f32[2,3]",)), spec(2, 3, dtype="f32"), dtypes=("f32",))
        yield sample(cls(double, ("f32[B,3]",)), spec("B", 3, dtype="f32"), dtypes=("f32",), B=2)
        yield sample(cls(both, ("f64[]", "f64[]")), spec(5), dtypes=("f64",))
        yield sample(cls(double), spec(4), spec(2, dtype="i32"))
        yield sample(cls(both, ("f64[]", "f64[]"), 1), spec(3, 5), dtypes=("f64",))


def _double(x: Array, *_: Array) -> Array:
    return x + x


def _min_and_max(x: Array) -> tuple[Any, Any]:
    return x.min(), x.max()


def debug_print(format: str, x: Any, *more: Any) -> Any:
    """Print values while the program runs, at their place in it; returns x.

    >>> y = debug_print("x is {}", np.arange(3))
    x is [0 1 2]
    """
    return DebugPrint(format)(x, *more)


def runtime_assert(condition: Any, message: str, x: Any = None) -> Any:
    """Stop with `message` unless all of `condition` holds; returns x, or the condition itself."""
    return RuntimeAssert(message)(condition if x is None else x, condition)


def host_callback(function: Callback | str, results: Any, *operands: Any) -> Any:
    """Call a Python function while the program runs; `results` are the types it returns: `"f32[4]"`, a Shape, or
    several.

    Values that have a shape and a dtype (arrays, tensors) stand for their types. A function that is not registered yet
    gets its module and name, and a number where these are taken; a string names a registered one.
    """
    name = function if isinstance(function, str) else _name_of(function)
    return HostCallback(name, _result_types(results))(*operands)


def _name_of(function: Callback) -> str:
    """The name under which a function is registered; the first one is the function's own."""
    own = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
    name, number = own, 1
    while _callbacks.get(name, function) is not function:
        number += 1
        name = f"{own}#{number}"
    return register_callback(name, function)


def _result_types(results: Any) -> tuple[Shape, ...]:
    if results is None:
        return ()
    if isinstance(results, Sequence) and not isinstance(results, str | Shape):
        return tuple(shape for one in results for shape in _result_types(one))
    if hasattr(results, "shape") and hasattr(results, "dtype"):
        return (Shape(dims_of(results), dtype_of(results)),)
    return (Shape.of(results),)
