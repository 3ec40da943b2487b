"""Tables of calls of rlx.numpy, each compared with the NumPy function of the same name (or another oracle).

A call runs on arrays at once, and recorded in a graph whose inputs are its arrays; f64 and f32 in turn.
"""

from __future__ import annotations

import numpy as np

import rlx
import rlx.numpy as rnp
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.tensor import building, lift
from rlx.ir.verify import verify_all

_RTOL = {"f8": 1e-11, "f4": 2e-5}
_SINGLE = {np.dtype("f8"): np.float32, np.dtype("c16"): np.complex64}


class Case:
    def __init__(self, name, args, kwargs, oracle=None, rtol=None, atol=None, known=()):
        self.name, self.args, self.kwargs = name, args, kwargs
        self.oracle = oracle or _numpy_function(name)
        self.rtol, self.atol = rtol or {}, atol or {}
        # Numbers of arguments that must be known while a program is built.
        self.known = known

    def __repr__(self):
        shown = [_shown(a) for a in self.args] + [f"{k}={_shown(v)}" for k, v in self.kwargs.items()]
        return f"{self.name}({', '.join(shown)})"


def _numpy_function(name):
    home = np
    for part in name.split("."):
        home = getattr(home, part)
    return home


def _shown(value):
    if isinstance(value, np.ndarray):
        return f"{value.dtype.str[1:]}{list(value.shape)}"
    if isinstance(value, list | tuple):
        return f"[{','.join(_shown(v) for v in value)}]"
    return getattr(value, "__name__", str(value))


def case(name, *args, oracle=None, rtol=None, atol=None, known=(), **kwargs):
    """A call of rnp.<name>; `oracle` replaces np.<name>, `rtol` and `atol` the tolerance of one precision."""
    return Case(name, args, kwargs, oracle, rtol, atol, known)


def _mapped(value, change):
    """Every array inside lists and tuples changed."""
    if isinstance(value, np.ndarray):
        return change(value)
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(_mapped(v, change) for v in value)
    return value


@np.errstate(over="ignore")
def _in_single(value):
    return _mapped(value, lambda a: a.astype(_SINGLE.get(a.dtype, a.dtype)))


def precisions(case):
    """The names of the precisions in which a case differs: calls without floats run once."""
    found = []
    _mapped([*case.args, *case.kwargs.values()], lambda a: found.append(a.dtype.kind))
    return ("f8", "f4") if set(found) & {"f", "c"} else ("f8",)


def flat(result):
    if isinstance(result, list | tuple):
        return [leaf for item in result for leaf in flat(item)]
    return [result]


def rlx_function(name):
    home = rnp
    for part in name.split("."):
        home = getattr(home, part)
    return home


def traced(function, args, kwargs, known=()):
    """The results of `function` recorded in a graph, computed by the interpreter."""
    graph = Graph("traced")
    values = []

    def as_input(array):
        values.append(array)
        return graph.input(f"x{len(values)}", array.shape, array.dtype)

    inputs = [a if i in known else _mapped(a, as_input) for i, a in enumerate(args)]
    named = {k: v if k in known else _mapped(v, as_input) for k, v in kwargs.items()}
    with building(graph):
        outputs = [lift(r, graph) for r in flat(function(*inputs, **named))]
    graph.set_outputs(outputs)
    assert verify_all(graph) == []
    return interpret(graph, values)


def check(case, precision):
    args = [_in_single(a) for a in case.args] if precision == "f4" else list(case.args)
    kwargs = {k: _in_single(v) for k, v in case.kwargs.items()} if precision == "f4" else case.kwargs
    with np.errstate(all="ignore"):
        expected = flat(case.oracle(*args, **kwargs))
    function = rlx_function(case.name)
    eager = flat(function(*args, **kwargs))
    assert all(type(result) is rlx.Array for result in eager)
    rtol = case.rtol.get(precision, _RTOL[precision])
    atol = case.atol.get(precision, rtol)
    for results in (eager, traced(function, args, kwargs, case.known)):
        assert len(results) == len(expected)
        for result, wanted in zip(results, expected):
            _assert_same(np.asarray(result), np.asarray(wanted), rtol, atol)


def _assert_same(result, wanted, rtol, atol):
    assert result.shape == wanted.shape
    kinds = {result.dtype.kind, wanted.dtype.kind}
    assert len(kinds) == 1 or kinds == {"i", "u"}, f"{result.dtype} instead of {wanted.dtype}"
    if wanted.dtype.kind in "fc":
        np.testing.assert_allclose(result, wanted, rtol=rtol, atol=atol)
    else:
        np.testing.assert_array_equal(result, wanted)
