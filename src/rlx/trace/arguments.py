"""The arguments of a function that is traced: which are static, how the others flatten, and what they are called."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from rlx.errors import TraceError
from rlx.trace.pytree import Path, TreeDef, are_leaves, path_text, tree_flatten, tree_structure

Function = Callable[..., Any]


class FlatCall(NamedTuple):
    """One call taken apart. `structure` is that of (args, kwargs) without the static ones; `statics` is a key."""

    leaves: list[Any]
    structure: TreeDef
    num_args: int
    static_args: dict[int, Any]
    static_kwargs: dict[str, Any]
    statics: Hashable

    @property
    def dynamic_positions(self) -> list[int]:
        """Where the arguments that are not static stood."""
        return [i for i in range(self.num_args) if i not in self.static_args]


@functools.cache
def _flat_structure(count: int) -> TreeDef:
    """Of a call with so many leaves as arguments, which is most calls: one object, so that it is found by identity."""
    return tree_structure(((0,) * count, {}))


class Signature:
    """How calls of one function are flattened; `static_argnums` and `static_argnames` complete each other."""

    def __init__(
        self, fn: Function, static_argnums: int | Iterable[int] = (), static_argnames: str | Iterable[str] = ()
    ) -> None:
        self.name = function_name(fn)
        self.positional, self.variadic, self._named = _parameters(fn)
        self.static_nums, self.static_names = self.chosen("static", static_argnums, static_argnames)

    def chosen(
        self, kind: str, argnums: int | Iterable[int], argnames: str | Iterable[str]
    ) -> tuple[set[int], set[str]]:
        """Arguments chosen by number and by name, as both: the same one may be passed by position or by name."""
        nums = {argnums} if isinstance(argnums, int) else set(argnums)
        names = {argnames} if isinstance(argnames, str) else set(argnames)
        count = len(self.positional)
        if any(n < 0 for n in nums) and self.variadic is not None:
            raise TraceError(f"jit({self.name}): negative {kind}_argnums need a fixed number of arguments")
        nums = {n + count if n < 0 else n for n in nums}
        for n in nums:
            if self.variadic is None and not 0 <= n < count:
                raise TraceError(f"jit({self.name}): {kind} argument {n} does not exist; there are {count}")
        unknown = [] if self._named is None else sorted(names - self._named)
        if unknown:
            known = ", ".join(sorted(self._named or ())) or "none"
            raise TraceError(f"jit({self.name}): {kind} argument {unknown[0]!r} does not exist; there are {known}")
        by_number = {self.positional[n] for n in nums if n < count}
        return nums | {i for i, p in enumerate(self.positional) if p in names}, names | by_number

    def flatten(self, args: Sequence[Any], kwargs: dict[str, Any]) -> FlatCall:
        """Static arguments set aside, the others flattened."""
        if not kwargs and not self.static_nums and are_leaves(args):
            return FlatCall(list(args), _flat_structure(len(args)), len(args), {}, {}, ())
        static_args = {i: args[i] for i in self.static_nums if i < len(args)}
        static_kwargs = {k: kwargs[k] for k in sorted(kwargs.keys() & self.static_names)}
        dynamic_args = tuple(a for i, a in enumerate(args) if i not in static_args) if static_args else tuple(args)
        dynamic_kwargs = {k: v for k, v in kwargs.items() if k not in static_kwargs} if static_kwargs else kwargs
        leaves, structure = tree_flatten((dynamic_args, dynamic_kwargs))
        statics = (*self._static_key(static_args), *self._static_key(static_kwargs))
        return FlatCall(leaves, structure, len(args), static_args, static_kwargs, statics)

    def _static_key(self, values: dict[Any, Any]) -> list[Hashable]:
        key: list[Hashable] = []
        for place, value in values.items():
            try:
                hash(value)
            except TypeError:
                raise TraceError(
                    f"jit({self.name}): the static argument {self._argument(place)} is a {type(value).__name__}, which "
                    "has no hash; static arguments are part of the cache key, so pass a tuple instead of a list"
                ) from None
            # 1, 1.0 and True are equal but trace differently.
            key.append((place, type(value), value))
        return key

    def _argument(self, place: int | str) -> str:
        if isinstance(place, str):
            return repr(place)
        return repr(self.positional[place]) if place < len(self.positional) else str(place)

    def unflatten(self, call: FlatCall, leaves: Iterable[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of `call` with other leaves."""
        args, kwargs = call.structure.unflatten(leaves)
        rest = iter(args)
        whole = tuple(call.static_args[i] if i in call.static_args else next(rest) for i in range(call.num_args))
        return whole, {**kwargs, **call.static_kwargs}

    def leaf_names(self, call: FlatCall) -> list[str]:
        """A unique name for every leaf: `x`, `p.w`, `layers.0.b`."""
        return unique_names([path_text(p) for p in self.leaf_paths(call)])

    def leaf_paths(self, call: FlatCall) -> list[Path]:
        """The path of every leaf, starting with the name of its parameter."""
        positions = call.dynamic_positions
        return [
            (*self._parameter(positions[path[1]]), *path[2:]) if path[0] == 0 else path[1:]
            for path in call.structure.paths()
        ]

    def positions(self, call: FlatCall) -> list[int | str]:
        """For every leaf the number of the argument it belongs to, or the keyword."""
        positions = call.dynamic_positions
        return [positions[path[1]] if path[0] == 0 else path[1] for path in call.structure.paths()]

    def _parameter(self, position: int) -> Path:
        if position < len(self.positional):
            return (self.positional[position],)
        return (self.variadic or "arg", position - len(self.positional))


def function_name(fn: Any) -> str:
    """The name of a function, also through functools.partial; a class of callables gives its own name."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "__name__", type(fn).__name__)
    return re.sub(r"\W", "_", name).strip("_") or "main"


def _parameters(fn: Function) -> tuple[list[str], str | None, set[str] | None]:
    """Names of positional parameters, the name of *args if there is one, and what may be passed by name; None: all."""
    import inspect

    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        # Some built-in callables do not tell.
        return [], "arg", None
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    variadic = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return positional, variadic, None
    return positional, variadic, {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def unique_names(names: Iterable[str]) -> list[str]:
    """The names with characters replaced that program text cannot show plainly, and numbers after repeated ones."""
    found: list[str] = []
    taken: set[str] = set()
    for raw in names:
        name = re.sub(r"[^\w.]", "_", raw) or "x"
        unique, number = name, 1
        while unique in taken:
            unique, number = f"{name}_{number}", number + 1
        taken.add(unique)
        found.append(unique)
    return found
