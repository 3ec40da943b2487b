"""`rlx.jit`: run a Python function as a compiled program, traced once per kind of argument.

Compiling needs a runtime, which comes later in the order of imports; it registers itself by `set_compiler`. Without
one, programs run in the reference interpreter.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

import numpy as np

from rlx.errors import BindingError, DTypeError
from rlx.ir.binding import infer_binding
from rlx.ir.dtype import DType
from rlx.ir.foreign_arrays import host_array, is_foreign
from rlx.ir.graph import Graph
from rlx.ir.rewrite.inline import inline_graph
from rlx.ir.tensor import NOT_TRACING, Tensor, is_python_scalar, target_graph
from rlx.locks import fork_safe_lock
from rlx.ops.parallel.named_axes import bound_axes
from rlx.trace.arguments import FlatCall, Signature
from rlx.trace.nan_checks import LOOKS_FOR_NONE, looks_for_nans, refuse_nans
from rlx.trace.pytree import tree_difference, tree_flatten, tree_leaves
from rlx.trace.shardings import constrained, is_entry, shardings_of
from rlx.trace.tracing import Spec, Traced, TracedFunction, category, entered, spec_of, trace_flat

Run = Callable[[Sequence[Any]], Sequence[Any]]
ShortCall = Callable[..., Sequence[Any] | None]


class Compiler(Protocol):
    """What a runtime provides: a graph compiled into a function from input arrays, in order, to output arrays.

    `donated` names the inputs whose buffers the program may overwrite; `graph.aliases` says by which outputs.
    """

    def __call__(self, graph: Graph, device: str | None, donated: Sequence[str]) -> Run: ...


def _interpreted(graph: Graph, device: str | None, donated: Sequence[str]) -> Run:
    from rlx.ir.interpret import interpret

    # Copies, because a result may be a view of an argument.
    return lambda arrays: [np.array(result) for result in interpret(graph, arrays)]


_compiler: Compiler = _interpreted


def _nowhere(leaves: Sequence[Any], what: str) -> str | None:
    return None


_device_of_arguments: Callable[[Sequence[Any], str], str | None] = _nowhere


def set_compiler(compiler: Compiler) -> None:
    """Let `compiler` turn traced functions into executables; called by the runtime when it is imported."""
    global _compiler
    _compiler = compiler


def device_of_arguments(leaves: Sequence[Any], what: str, wanted: str | None = None) -> str | None:
    """The device that a call runs on: the one that is wanted, else the one its arguments live on; None: the host's."""
    return wanted if wanted is not None else _device_of_arguments(leaves, what)


def _no_compiled_graph(graph: Graph, device: str | None) -> Any:
    raise BindingError("reports and files are made by a runtime, and none is loaded; import rlx.runtime")


_compiled_graph: Callable[[Graph, str | None], Any] = _no_compiled_graph


def set_compiled_graph(make: Callable[[Graph, str | None], Any]) -> None:
    """Let `make` give the `CompiledGraph` of a traced function; called by the runtime when it is imported."""
    global _compiled_graph
    _compiled_graph = make


def set_device_finder(find: Callable[[Sequence[Any], str], str | None]) -> None:
    """Let `find` say on which device the arguments of a call live; called by the runtime when it is imported."""
    global _device_of_arguments
    _device_of_arguments = find


def compile_graph(graph: Graph, device: str | None = None, donated: Sequence[str] = ()) -> Run:
    """`graph` as a function from input arrays, in order, to output arrays."""
    return _checked(_compiler(graph, device, donated), graph, donated)


def _checked(run: Run, graph: Graph, donated: Sequence[str]) -> Run:
    def checked(arrays: Sequence[Any]) -> Sequence[Any]:
        # Donated arrays are gone after a run.
        kept = [np.array(x) if donated else x for x in arrays] if looks_for_nans() else None
        results = run(arrays)
        if kept is not None:
            refuse_nans(graph, kept, results)
        return results

    return checked


_jit_is_off: ContextVar[bool] = ContextVar("jit_is_off", default=False)


@contextmanager
def disable_jit(disable: bool = True) -> Iterator[None]:
    """Inside, functions given to `jit` run as plain Python on arrays, op by op: prints and breakpoints see values."""
    token = _jit_is_off.set(disable)
    try:
        yield
    finally:
        _jit_is_off.reset(token)


# Tracing a function may trace others that it calls, in any order: one lock for all of them cannot deadlock.
_TRACING = fork_safe_lock()
_COUNTING = fork_safe_lock()


class CacheInfo(NamedTuple):
    """How often a compiled program was found, how often one had to be made, and how many there are."""

    hits: int
    misses: int
    entries: int


class Compiled:
    """A compiled function. It takes arguments of the types it was compiled for, symbolic sizes being free."""

    def __init__(self, lowered: Lowered) -> None:
        traced = lowered.traced
        self._signature, self._in_tree, self.out_tree = lowered.signature, traced.in_tree, traced.out_tree
        self._inputs = traced.graph.inputs
        self.dtypes = [node.shape.dtype.numpy for node in self._inputs]
        self._returns_one = self.out_tree.is_leaf
        self._graph, self._device = traced.graph, lowered.device
        run = _compiler(traced.graph, lowered.device, lowered.donated)
        self._run = _checked(run, traced.graph, lowered.donated)
        # Runtimes may have a faster way for arrays such as those of the last run; see `Executable.short_call`.
        self._short_call: Callable[[Any], Callable[..., Sequence[Any] | None] | None] | None = getattr(
            run, "short_call", None
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self._leaves(args, kwargs))

    @property
    def compiled_graph(self) -> Any:
        """The same program as `Session.compile` gives it: inputs are named as the arguments are."""
        return _compiled_graph(self._graph, self._device)

    @property
    def report(self) -> Any:
        """What became which kernel and where each runs; prints as text, `report.html(path)` is a page."""
        return self.compiled_graph.report

    def profile(self, *args: Any, runs: int = 5, **kwargs: Any) -> Any:
        """The times of the kernels for such arguments; see `CompiledGraph.profile`."""
        leaves = zip(self._inputs, self._leaves(args, kwargs), self.dtypes)
        return self.compiled_graph.profile({str(node.name): concrete(x, dtype) for node, x, dtype in leaves}, runs)

    def save(self, path: Any) -> None:
        """Write the program as a file that `rlx.load_compiled` reads; its inputs are named as the arguments are."""
        self.compiled_graph.save(path)

    def _leaves(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Sequence[Any]:
        """The arguments one by one, if the program was compiled for such."""
        call = self._signature.flatten(args, kwargs)
        difference = tree_difference(self._in_tree, call.structure)
        if difference is not None:
            raise BindingError(f"{self._signature.name}: it was compiled for other arguments; {difference}")
        specs = _specs(self._signature, call)
        for node, spec in zip(self._inputs, specs):
            fits = spec.weak and category(spec.dtype) <= category(node.shape.dtype)
            if spec.dtype is not node.shape.dtype and not fits:
                raise BindingError(f"{self._signature.name}: {node.name!r} is {node.shape}, got {spec.type}")
        infer_binding((str(n.name), n.shape, s.type.static_dims) for n, s in zip(self._inputs, specs))
        return call.leaves

    def run(self, leaves: Sequence[Any]) -> Any:
        """The results for arguments that are known to fit."""
        return self.run_arrays([concrete(x, dtype) for x, dtype in zip(leaves, self.dtypes)])

    def run_arrays(self, arrays: Sequence[Any]) -> Any:
        """The results for arrays of just the types that the program has."""
        return self.returned(self._run(arrays))

    def returned(self, results: Sequence[Any]) -> Any:
        """What the function returns, of results in order."""
        return results[0] if self._returns_one else self.out_tree.unflatten(results)

    def short_call(self) -> ShortCall | None:
        """A function of arrays such as those of the last run that gives the results sooner; None for other arrays, and
        where a function given to jit does more than run its program."""
        return None if self._short_call is None else self._short_call(_NOTHING_ELSE)


def concrete(value: Any, dtype: np.dtype[Any]) -> Any:
    """Device arrays pass as they are; numbers become arrays of the type they were traced with."""
    if hasattr(value, "shape") and value.dtype == dtype and (isinstance(value, np.ndarray) or not is_foreign(value)):
        return value
    return np.asarray(host_array(value), dtype)


class Lowered(NamedTuple):
    """A traced function that is ready to be compiled."""

    traced: TracedFunction
    signature: Signature
    device: str | None
    donated: tuple[str, ...]

    @property
    def graph(self) -> Graph:
        return self.traced.graph

    def as_text(self) -> str:
        return str(self.traced.graph)

    def compile(self) -> Compiled:
        return Compiled(self)


# Looked up once: attributes of enumerations are found slowly.
_dtype_of = DType.of

# The context variables that make a call do more than run a program, each with its value when it does not.
_NOTHING_ELSE = ((_jit_is_off, False), NOT_TRACING, LOOKS_FOR_NONE)


class _Short(NamedTuple):
    """The last program that was called with arrays alone, and how it is called with such again."""

    compiled: Compiled
    call: ShortCall
    float_type: Hashable  # of plain numbers, when it was traced


class JitFunction:
    """A function that is traced and compiled when it is first called with arguments of a new kind; see `jit`."""

    def __init__(
        self,
        fn: Callable[..., Any],
        static_argnums: int | Iterable[int] = (),
        static_argnames: str | Iterable[str] = (),
        donate_argnums: int | Iterable[int] = (),
        device: str | None = None,
        in_shardings: Any = None,
        out_shardings: Any = None,
        donate_argnames: str | Iterable[str] = (),
    ) -> None:
        if not callable(fn):
            raise BindingError(f"jit: a function is needed, got {fn!r}")
        functools.update_wrapper(self, fn)
        self._fn = fn
        self._signature = Signature(fn, static_argnums, static_argnames)
        donated_nums, donated_names = self._signature.chosen("donate", donate_argnums, donate_argnames)
        self._donated_positions: set[int | str] = {*donated_nums, *donated_names}
        is_divided = any(s is not None for s in tree_leaves((in_shardings, out_shardings), is_entry))
        self._in_shardings, self._out_shardings = in_shardings, out_shardings
        # Programs are divided over devices by XLA.
        self._device = "xla" if is_divided and device is None else device
        self._lock = fork_safe_lock()
        self._traces: dict[Hashable, Traced] = {}
        self._compiled: dict[Hashable, Compiled] = {}
        # By what `_kinds_of_arrays` says: calls with nothing but arrays are found without flattening them.
        self._for_arrays: dict[Hashable, Compiled] = {}
        self._short: _Short | None = None
        self._hits = self._misses = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        short = self._short
        if short is not None and not kwargs and short.float_type is _dtype_of(float):
            results = short.call(*args)
            if results is not None:
                with _COUNTING:
                    self._hits += 1
                return short.compiled.returned(results)
        if _jit_is_off.get():
            return self._fn(*args, **kwargs)
        kinds = None if kwargs else _kinds_of_arrays(args)
        if kinds is not None and target_graph(()) is None:
            compiled = self._for_arrays.get(kinds)
            if compiled is not None:
                with _COUNTING:
                    self._hits += 1
                result = compiled.run_arrays(args)
                made = compiled.short_call()
                self._short = None if made is None else _Short(compiled, made, kinds[0])
                return result
        call = self._signature.flatten(args, kwargs)
        graph = target_graph(call.leaves)
        if graph is not None:
            return self._inline(graph, call)
        key = self._key(call)
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compile(key, call)
        else:
            with _COUNTING:
                self._hits += 1
        if kinds is not None and not call.statics and all(x.dtype is d for x, d in zip(args, compiled.dtypes)):
            self._for_arrays[kinds] = compiled
        return compiled.run(call.leaves)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def trace(self, *args: Any, **kwargs: Any) -> TracedFunction:
        """The graph for arguments of these types; `Spec`s are accepted in the place of arrays."""
        return self.lower(*args, **kwargs).traced

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The program for arguments of these types, with symbolic sizes where `Spec`s have them, before compiling."""
        return self._lowered(self._signature.flatten(args, kwargs))

    def cache_info(self) -> CacheInfo:
        return CacheInfo(self._hits, self._misses, len(self._compiled))

    def clear_cache(self) -> None:
        """Forget all programs; the next call traces again."""
        with self._lock:
            self._traces.clear()
            self._compiled.clear()
            self._for_arrays.clear()
            self._short = None

    def __repr__(self) -> str:
        return f"jit({self._signature.name})"

    def _key(self, call: FlatCall) -> Hashable:
        """Calls with equal keys run the same program."""
        try:
            return (call.structure, tuple(_leaf_key(x) for x in call.leaves), call.statics, DType.of(float))
        except (AttributeError, DTypeError):
            _specs(self._signature, call)
            raise

    def _compile(self, key: Hashable, call: FlatCall) -> Compiled:
        with self._lock:
            compiled = self._compiled.get(key)
            if compiled is not None:
                # Another thread compiled it while this one waited.
                self._hits += 1
                return compiled
            self._misses += 1
            compiled = self._compiled[key] = self._lowered(call).compile()
        return compiled

    def _lowered(self, call: FlatCall) -> Lowered:
        specs = _specs(self._signature, call)
        traced = self._traced(call, specs)
        positions = self._signature.positions(call)
        inputs = traced.graph.inputs
        donated = tuple(str(n.name) for n, p in zip(inputs, positions) if p in self._donated_positions)
        graph = _with_aliases(traced.graph, donated) if donated else traced.graph
        function = TracedFunction(graph, call.structure, traced.out_tree, tuple(specs))
        device = device_of_arguments(call.leaves, f"jit({self._signature.name})", self._device)
        return Lowered(function, self._signature, device, donated)

    def _traced(self, call: FlatCall, specs: Sequence[Spec]) -> Traced:
        key = (self._key(call), bound_axes())
        with _TRACING:
            traced = self._traces.get(key)
            if traced is None:
                traced = self._trace_again(call, specs)
                # What is captured belongs to one enclosing program, so such a trace serves this call only.
                if not traced.captures:
                    self._traces[key] = traced
        return traced

    def _trace_again(self, call: FlatCall, specs: Sequence[Spec]) -> Traced:
        def run(tensors: list[Tensor]) -> Any:
            args, kwargs = self._signature.unflatten(call, self._constrained(call, tensors))
            results = self._fn(*args, **kwargs)
            if self._out_shardings is None:
                return results
            leaves, structure = tree_flatten(results)
            chosen = shardings_of(self._out_shardings, results, f"jit({self._signature.name}): out_shardings")
            return structure.unflatten([constrained(x, s) for x, s in zip(leaves, chosen)])

        return trace_flat(self._signature.name, run, specs, self._signature.leaf_names(call), can_capture=True)

    def _constrained(self, call: FlatCall, tensors: list[Tensor]) -> list[Tensor]:
        """The arguments as `in_shardings` wants them. A tuple is for arguments by position, in their order."""
        if self._in_shardings is None:
            return tensors
        args, kwargs = call.structure.unflatten(tensors)
        what = f"jit({self._signature.name}): in_shardings"
        named = self._in_shardings if is_entry(self._in_shardings) else None
        chosen = shardings_of(self._in_shardings, args, what) + shardings_of(named, kwargs, what)
        return [constrained(x, s) for x, s in zip(tensors, chosen, strict=True)]

    def _inline(self, graph: Graph, call: FlatCall) -> Any:
        """Inside another program, a jitted function becomes a part of it."""
        with entered(graph):
            traced = self._traced(call, _specs(self._signature, call))
            results = inline_graph(traced.graph, [*call.leaves, *traced.captures])
        return traced.out_tree.unflatten(Tensor(graph, r.id, w) for r, w in zip(results, traced.weak_outputs))


# Classes of arrays of which no subclass means anything else to a program, and whether such arrays live on devices.
_ARRAYS: dict[type, bool] = {np.ndarray: False}


def add_array(kind: type, has_device: bool = False) -> None:
    """Let calls with arrays of a class be found fast; called by the runtime for its own."""
    _ARRAYS[kind] = has_device


def _kinds_of_arrays(args: Sequence[Any]) -> tuple[Hashable, ...] | None:
    """The type of plain numbers and those of arguments that are all arrays; None if one of them is none. This runs at
    every call."""
    kinds: list[Hashable] = [_dtype_of(float)]
    for x in args:
        has_device = _ARRAYS.get(type(x))
        if has_device is None:
            return None
        kinds += (x.dtype, x.shape, x.device) if has_device else (x.dtype, x.shape)
    return tuple(kinds)


def _specs(signature: Signature, call: FlatCall) -> list[Spec]:
    return [
        spec_of(leaf, f"jit({signature.name}): {name!r}") for leaf, name in zip(call.leaves, signature.leaf_names(call))
    ]


def _leaf_key(value: Any) -> Hashable:
    """What distinguishes programs, found without making a Spec: this runs for every argument of every call."""
    if is_python_scalar(value):
        return spec_of(value) if type(value) is int else type(value).__name__
    kind = (tuple(value.shape), DType.of(value.dtype), getattr(value, "weak", False))
    return kind if isinstance(value, np.ndarray) else (*kind, getattr(value, "device", None))


def _with_aliases(graph: Graph, donated: Sequence[str]) -> Graph:
    """A copy in which outputs may overwrite donated inputs of the same type, each input once."""
    graph = graph.copy()
    free = list(donated)
    for number, output in enumerate(graph.outputs):
        node = graph.node(output)
        if node.is_leaf or graph.outputs.index(output) != number:
            continue
        source = next((key for key in free if graph.leaf(key).shape == node.shape), None)
        if source is not None:
            free.remove(source)
            graph.aliases[number] = source
    return graph.freeze()


def jit(
    fn: Callable[..., Any] | None = None,
    static_argnums: int | Iterable[int] = (),
    static_argnames: str | Iterable[str] = (),
    donate_argnums: int | Iterable[int] = (),
    device: str | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    donate_argnames: str | Iterable[str] = (),
    *,
    inline: bool = False,
    keep_unused: bool = False,
) -> Any:
    """`fn` as a compiled program over trees of arrays; also a decorator, with or without options.

    The function is traced once for every new combination of tree structure, types and static values, so it must be
    pure: what it does besides returning a value happens while tracing only. Static arguments are passed to `fn` as
    they are and need a hash. Buffers of donated arguments may be reused for results. Inside another traced function
    the program becomes a part of that one.

    With shardings the program is divided over the devices of their mesh by XLA: one for all arguments (or results), or
    a tree of them above the arguments (a tuple, one for each) or the results; None leaves the choice to XLA. Functions
    inside of others become parts of them, and arguments stay whether they are used or not: JAX's `inline` and
    `keep_unused` are accepted and change nothing.
    """
    options = (static_argnums, static_argnames, donate_argnums, device, in_shardings, out_shardings, donate_argnames)
    if fn is None:
        return lambda f: JitFunction(f, *options)
    return JitFunction(fn, *options)
